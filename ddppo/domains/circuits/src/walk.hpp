// A walk: rewrites drawn one after another, in episodes that start from circuits found before. ddppo/domains/circuits/
// walk.py calls it; task/env.py has the same episodes, step by step for a trainer.
#pragma once
#include <ctime>
#include <limits>

#include "starts.hpp"

// Settings from Python, as walk.py has them.
struct WalkSettings {
  double costs[5];  // of each kind of gate, and what an rz costs more that is no multiple of pi/2
  double slack, most_bytes, prior;    // prior: a rule that adds n gates has weight e^(-prior n)
  double patience;                    // see Walk::is_stuck; 0: never begin anew
  int64_t least_steps, most_steps, level_size, draw, room, seed;
};

// The gates of a circuit by what they cost, so that its cost depends on nothing else, rounding included.
struct Counts {
  int32_t of[5] = {};
  void add(const Gate& gate, int32_t sign) {
    of[gate.kind] += sign;
    if (gate.kind == RZ && gate.angle % (kTurn / 4)) of[4] += sign;
  }
  double cost(const WalkSettings& settings) const {
    double sum = 0;
    for (int k = 0; k < 5; k++) sum += of[k] * settings.costs[k];
    return sum;
  }
};

// What a walk found, for Python.
struct WalkFacts {
  int64_t num_steps, num_rewrites, num_episodes, num_circuits, num_levels, num_rejected,
      num_restarts, best_gates, best_length;
  double best_cost, nbytes;
};

class AnyWalk {
 public:
  virtual ~AnyWalk() = default;
  virtual int64_t go(int64_t num_steps, double until) = 0;
  virtual WalkFacts facts() const = 0;
  virtual const Gates& best() const = 0;
  virtual std::vector<Rewrite> path() const = 0;
  virtual bool receive(Gates gates, double cost, const std::vector<Rewrite>& path) = 0;
  // For tests: all matches by slot, and their weights, negative where a match is not possible now.
  virtual void matches(std::vector<Rewrite>& rows, std::vector<double>& weights) = 0;
  virtual const Gates& now() = 0;
  virtual std::vector<double>* table() = 0;  // null at random
};

inline double seconds_now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

// Policy has a type Entry, a match with its weight, and
//   begin(live): an episode starts;    make(live, slot, first rule, last rule + 1, found, entries): append entries;
//   chosen(entry, found, matches, random): a draw;    happened(change, saved, is_end): the rewrite is done;
//   improved(): the cost is the least of the attempt;    weigh(matches): weights change with time;
//   finish(): an episode ends before a draw;    begin_anew(): the walk does
template <class Policy>
class Walk : public AnyWalk {
 public:
  Walk(const Rules& rules, const Gates& start, int32_t num_qubits, const WalkSettings& settings, Policy policy)
      : rules_(rules), settings_(settings), policy_(std::move(policy)), random_{uint64_t(settings.seed)},
        live_(rules, num_qubits, int32_t(settings.room) + kMostGates),
        matches_(rules, int32_t(settings.room) + kMostGates),
        cap_(int(settings.least_steps), int(settings.most_steps)), best_(start) {
    live_.load(start);
    Counts counts;
    for (const Gate& gate : start) counts.add(gate, 1);
    best_cost_ = counts.cost(settings);
    starts_ = std::make_unique<Starts>(
        lineage_, Starts::Kept{live_.key(), start, Lineage::kOriginal, best_cost_}, Starts::Draw(settings.draw),
        size_t(settings.level_size), settings.most_bytes);
    begin();
  }

  int64_t go(int64_t num_steps, double until) override {
    int64_t done = 0;
    for (; done < num_steps; done++) {
      if (done % 32 == 0 && seconds_now() >= until) break;
      step();
    }
    return done;
  }

  WalkFacts facts() const override {
    return {num_steps_, num_rewrites_, num_episodes_, int64_t(starts_->num_circuits()), int64_t(starts_->num_levels()),
            num_rejected_, num_restarts_, int64_t(best_.size()), lineage_.length(best_step_), best_cost_,
            starts_->nbytes()};
  }
  const Gates& best() const override { return best_; }
  std::vector<Rewrite> path() const override { return lineage_.path(best_step_); }
  const Gates& now() override { return now_ = live_.all(); }
  std::vector<double>* table() override { return policy_.table(); }

  bool receive(Gates gates, double cost, const std::vector<Rewrite>& path) override {
    if (cost >= best_cost_) return false;
    int32_t step = Lineage::kOriginal;
    for (const Rewrite& each : path) {
      const int32_t next = lineage_.add(step, each);
      lineage_.release(step), step = next;
    }
    Live other(rules_, live_.num_qubits, int32_t(settings_.room) + kMostGates);
    other.load(gates);
    set_best(gates, cost, step);
    found_ = cost, found_at_ = num_steps_;
    starts_->receive(other.key(), std::move(gates), cost, step);
    lineage_.release(step);
    return true;
  }

  void matches(std::vector<Rewrite>& rows, std::vector<double>& weights) override {
    for (int32_t slot = 0; slot < int32_t(live_.gates.size()); slot++)
      for (const auto& each : matches_.at(slot)) {
        Found found;
        rows.push_back({live_.gates[slot].wires[0], live_.place(slot), each.rule});
        weights.push_back(is_possible(slot, each.rule, found) ? each.weight : -each.weight);
      }
  }

 private:
  using Entry = typename Policy::Entry;
  static constexpr int kTries = 100;
  static constexpr double kLeastPatience = 5000, kNone = std::numeric_limits<double>::infinity();

  // Start an episode from a circuit found before.
  void begin() {
    if (is_stuck()) begin_anew();
    const Starts::Kept& start = starts_->draw(random_);
    lineage_.hold(start.step), lineage_.release(step_), step_ = start.step;
    cost_ = least_ = start.cost;
    num_steps_here_ = 0, num_episodes_++;
    counts_ = {};
    for (const Gate& gate : start.gates) counts_.add(gate, 1);
    live_.load(start.gates);
    policy_.begin(live_);
    matches_.fill(live_, maker());
  }

  // Return whether nothing better was found for `patience` times the steps that led to the last improvement of this
  // attempt, and for 5,000 steps in the first attempt, twice as many in the second, and so on.
  bool is_stuck() const {
    const double led = double(found_at_ - began_at_), since = double(num_steps_ - found_at_);
    const double least = std::ldexp(kLeastPatience, int(std::min<int64_t>(num_restarts_, 40)));
    return settings_.patience > 0 && since > std::max(least, settings_.patience * led);
  }

  // Drop all starts but the original. The best circuit stays.
  void begin_anew() {
    starts_->clear();
    policy_.begin_anew();
    began_at_ = found_at_ = num_steps_, found_ = kNone;
    num_restarts_++;
  }

  auto maker() {
    return [this](int32_t slot, int32_t begin, int32_t end, const Found& found, std::vector<Entry>& entries) {
      policy_.make(live_, slot, begin, end, found, entries);
    };
  }

  bool is_possible(int32_t slot, int32_t rule, Found& found) {
    return live_.size() + rules_.growth(rule) <= settings_.room && rules_.find(live_, slot, rule, found);
  }

  // Draw a match. Return its slot, or -1 if no rewrite is possible.
  int32_t draw(const Entry*& entry, Found& found) {
    for (int k = 0; k < kTries && matches_.total() > 0; k++) {
      double rest;
      const int32_t slot = matches_.slot_at(random_() * matches_.total(), rest);
      entry = &matches_.entry_at(slot, rest);
      if (is_possible(slot, entry->rule, found)) return slot;
      num_rejected_++;
    }
    // None in so many: list those that are possible.
    double total = 0;
    std::vector<std::pair<int32_t, const Entry*>> possible;
    for (const int32_t slot : live_.order())
      for (const Entry& each : matches_.at(slot))
        if (is_possible(slot, each.rule, found)) possible.emplace_back(slot, &each), total += each.weight;
    if (possible.empty()) return -1;
    double at = random_() * total;
    size_t k = 0;
    while (k + 1 < possible.size() && (at -= possible[k].second->weight) >= 0) k++;
    entry = possible[k].second;
    is_possible(possible[k].first, entry->rule, found);
    return possible[k].first;
  }

  void step() {
    num_steps_++, num_steps_here_++;
    // 1. Draw.
    const Entry* entry;
    Found found;
    const int32_t slot = draw(entry, found);
    if (slot < 0) {
      policy_.finish();
      return finish();
    }
    const int32_t rule = entry->rule;
    policy_.chosen(*entry, found, matches_, random_);
    const Rewrite rewrite{live_.gates[slot].wires[0], live_.place(slot), rule};
    // 2. Rewrite, and match again what is near.
    const double before = cost_;
    live_.rewrite(rule, found, change_, [&](const Live::Change& change) {
      for (int k = 0; k < change.num_removed; k++) counts_.add(live_.gates[change.removed[k]], -1);
      matches_.note_before(live_, change);
    });
    for (int k = 0; k < change_.num_inserted; k++) counts_.add(live_.gates[change_.inserted[k]], 1);
    cost_ = counts_.cost(settings_);
    const int32_t step = lineage_.add(step_, rewrite);
    lineage_.release(step_), step_ = step;
    num_rewrites_++;
    // 3. What came of it.
    least_ = std::min(least_, cost_);
    const bool is_end = cost_ > least_ + settings_.slack || num_steps_here_ >= cap_.cap();
    if (cost_ < found_) {
      found_ = cost_, found_at_ = num_steps_;
      policy_.improved();
    }
    if (cost_ < best_cost_) set_best(live_.all(), cost_, step_);
    policy_.happened(change_, before - cost_, is_end);
    if (is_end) return finish();
    step_ = starts_->add(live_.key(), live_, cost_, step_);
    matches_.update(live_, change_, maker());
    policy_.weigh(matches_);
  }

  void finish() {
    cap_.note(num_steps_here_);
    begin();
  }

  void set_best(const Gates& gates, double cost, int32_t step) {
    lineage_.hold(step), lineage_.release(best_step_);
    best_ = gates, best_cost_ = cost, best_step_ = step;
  }

  const Rules& rules_;
  const WalkSettings settings_;
  Policy policy_;
  Random random_;
  Live live_;
  Matches<Entry> matches_;
  Lineage lineage_;
  std::unique_ptr<Starts> starts_;
  LengthCap cap_;
  // The episode.
  Counts counts_;
  double cost_ = 0, least_ = 0;
  int num_steps_here_ = 0;
  int32_t step_ = Lineage::kOriginal;
  Live::Change change_;
  // Since the walk began anew: the least cost, and the steps when it began and when that was found.
  double found_ = kNone;
  int64_t began_at_ = 0, found_at_ = 0, num_restarts_ = 0;
  // The best circuit.
  Gates best_, now_;
  double best_cost_ = 0;
  int32_t best_step_ = Lineage::kOriginal;
  int64_t num_steps_ = 0, num_rewrites_ = 0, num_episodes_ = 0, num_rejected_ = 0;
};

// Rewrites at random.
class AtRandom {
 public:
  struct Entry {
    int32_t rule;
    double weight;
  };

  AtRandom(const Rules& rules, double prior) : weights_(rules.size()) {
    for (int32_t r = 0; r < rules.size(); r++) weights_[r] = std::exp(-prior * rules.growth(r));
  }
  void begin(const Live&) {}
  void make(const Live&, int32_t, int32_t begin, int32_t end, const Found&, std::vector<Entry>& entries) {
    for (int32_t rule = begin; rule < end; rule++) entries.push_back({rule, weights_[rule]});
  }
  void chosen(const Entry&, const Found&, const Matches<Entry>&, Random&) {}
  void happened(const Live::Change&, double, bool) {}
  void finish() {}
  void begin_anew() {}
  void improved() {}
  void weigh(Matches<Entry>&) {}
  std::vector<double>* table() { return nullptr; }

 private:
  std::vector<double> weights_;
};
