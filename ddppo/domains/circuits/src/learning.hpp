// A policy of a walk that learns while it walks: REINFORCE, with credit to the rewrites that others build on.
//
// A match of a rule that adds n gates has weight exp(-prior n + shipped[c] + limit tanh((w[c] + w[rule]) / limit)).
// Its class c says whether the rule adds or removes gates, and how long ago the newest gate of the match was inserted.
// `undo` is added to the logit if its gates are exactly those that one rewrite inserted: such a match puts back what was
// there, or does what one other rule does. `shipped` and `undo` were chosen on other circuits (experiments/circuits); w
// begins at 0 and is learned here.
#pragma once
#include "walk.hpp"

constexpr int kRecencies = 5, kClasses = 3 * kRecencies;

// Settings from Python, as LearningRule of walk.py has them.
struct LearnSettings {
  double rate, gamma, limit, num_samples, num_steps, decay, undo, turns, shipped[kClasses];
};

class Learning {
 public:
  struct Entry {
    int32_t rule, born;  // born: the step of the episode that inserted the newest of its gates
    bool undoes;         // its gates are all that one rewrite inserted
    double weight;
  };

  Learning(const Rules& rules, double prior, LearnSettings settings, int32_t room)
      : rules_(&rules), prior_(prior), settings_(settings), table_(kClasses + rules.size()), mean_(table_.size()),
        square_(table_.size()), gradient_(table_.size()), at_random_(rules.size()), born_(room, kOld), together_(room) {
    for (int32_t r = 0; r < rules.size(); r++) at_random_[r] = std::exp(-prior * rules.growth(r));
  }

  // Forget what was learned.
  void begin_anew() {
    known_.clear();
    for (auto* each : {&table_, &mean_, &square_}) std::fill(each->begin(), each->end(), 0.0);
    num_updates_ = 0;
    steps_.clear(), samples_.clear(), returns_.clear();
  }

  // w of each class, then of each rule.
  std::vector<double>* table() {
    known_.clear();
    return &table_;
  }

  void begin(const Live&) {
    if (settings_.turns) take_turns();
    std::fill(born_.begin(), born_.end(), kOld);
    first_ = now_ = int32_t(steps_.size());
    for (auto& each : slots_of_) each.clear();
  }

  void make(const Live&, int32_t slot, int32_t begin, int32_t end, const Found& found, std::vector<Entry>& entries) {
    const size_t size = rules_->source(begin).steps.size();
    int32_t born = kOld, oldest = born_[found.gates[0]];
    for (size_t k = 0; k < size; k++) {
      born = std::max(born, born_[found.gates[k]]), oldest = std::min(oldest, born_[found.gates[k]]);
    }
    const bool undoes = born != kOld && oldest == born && int(size) == together_[found.gates[0]];
    for (int32_t rule = begin; rule < end; rule++) {
      entries.push_back({rule, born, undoes, 0.0});
      weigh(entries.back());
    }
    // Its weight changes when it gets older.
    if (now_ - born >= kRing) return;
    auto& slots = slots_of_[born % kRing];
    if (slots.empty() || slots.back() != slot) slots.push_back(slot);
  }

  void chosen(const Entry& entry, const Found& found, const Matches<Entry>& matches, Random& random) {
    if (!learns()) return;
    Step step{features(entry), {}, 0, 0.0};
    for (size_t k = 0; k < rules_->source(entry.rule).steps.size(); k++) {
      const int32_t born = born_[found.gates[k]];
      const auto end = step.parents + step.num_parents;
      if (born >= first_ && std::find(step.parents, end, born) == end) step.parents[step.num_parents++] = born;
    }
    steps_.push_back(step);
    for (int k = 0; k < int(settings_.num_samples); k++) {
      double rest;
      const int32_t slot = matches.slot_at(random() * matches.total(), rest);
      samples_.push_back(features(matches.entry_at(slot, rest)));
    }
  }

  void happened(const Live::Change& change, double reward, bool is_end) {
    now_++;
    for (int k = 0; k < change.num_inserted; k++) {
      born_[change.inserted[k]] = now_ - 1, together_[change.inserted[k]] = change.num_inserted;
    }
    if (!learns()) return;
    steps_.back().reward = reward;
    if (is_end) finish();
  }

  // The episode ended without a choice.
  void finish() {
    credit();
    if (double(steps_.size()) >= settings_.num_steps) update();
  }

  // A rewrite led to a circuit better than all before in this attempt.
  void improved() { found_[is_at_random_]++; }

  // Weigh the matches again that got into another class with the last step.
  void weigh(Matches<Entry>& matches) {
    for (const int age : kAges) {
      const int32_t born = now_ - 1 - age;
      if (born < first_) break;
      for (const int32_t slot : slots_of_[born % kRing]) {
        for (Entry& each : matches.at(slot))
          if (each.born == born) weigh(each);
        matches.set(slot, matches.sum(slot));
      }
    }
    slots_of_[now_ % kRing].clear();
  }

 private:
  static constexpr int32_t kOld = -1000000;
  static constexpr int kAges[kRecencies - 1] = {1, 3, 12, 24}, kRing = 32;
  static constexpr double kTrial = 1000;  // steps that count as one improvement before there is one
  using Features = std::array<int32_t, 2>;  // places in the table
  bool learns() const { return settings_.rate && !is_at_random_; }
  struct Step {
    Features features;
    int32_t parents[kMostGates], num_parents;  // the steps of this episode that inserted gates of the source
    double reward;
  };

  Features features(const Entry& entry) const {
    const int32_t age = now_ - 1 - entry.born, growth = rules_->growth(entry.rule);
    int recency = 0;
    while (recency < kRecencies - 1 && age >= kAges[recency]) recency++;
    return {(growth < 0 ? 0 : growth == 0 ? 1 : 2) * kRecencies + recency, kClasses + entry.rule};
  }

  void weigh(Entry& entry) const {
    if (is_at_random_) {
      entry.weight = at_random_[entry.rule];
      return;
    }
    const auto [class_of, rule] = features(entry);
    if (known_.empty()) known_.assign(2 * kClasses * size_t(rules_->size()), -1.0);
    double& weight = known_[(size_t(entry.rule) * kClasses + size_t(class_of)) * 2 + entry.undoes];
    if (weight < 0) {
      const double sum = table_[class_of] + table_[rule], limit = settings_.limit;
      weight = std::exp(
          limit * std::tanh(sum / limit) + settings_.shipped[class_of] + (entry.undoes ? settings_.undo : 0.0) -
          prior_ * rules_->growth(entry.rule));
    }
    entry.weight = weight;
  }

  // Share the episodes between learned weights and random choices in proportion to the improvements a step that each led
  // to.
  void take_turns() {
    spent_[is_at_random_] += now_ - first_;
    double gains[2];
    for (int k = 0; k < 2; k++) gains[k] = (1 + found_[k]) / (kTrial + spent_[k]);
    due_ += gains[1] / (gains[0] + gains[1]);
    is_at_random_ = due_ >= 1;
    due_ -= is_at_random_;
  }

  // The return of each step of the episode: what it saved, and gamma times the largest return of a step that used gates
  // which it inserted, at least 0. Steps elsewhere in the circuit add nothing.
  void credit() {
    const int32_t n = int32_t(steps_.size());
    returns_.resize(n);
    later_.assign(n - first_, 0.0);
    for (int32_t t = n - 1; t >= first_; t--) {
      returns_[t] = steps_[t].reward + settings_.gamma * later_[t - first_];
      for (int k = 0; k < steps_[t].num_parents; k++) {
        double& of_parent = later_[steps_[t].parents[k] - first_];
        of_parent = std::max(of_parent, returns_[t]);
      }
    }
  }

  // Move w along the gradient of the mean of A log pi, by Adam. A: returns, of mean 0 and standard deviation 1. The
  // mean of features over all matches, which the gradient of log pi subtracts, is taken over a few draws.
  void update() {
    const size_t n = steps_.size(), samples = size_t(settings_.num_samples);
    double mean = 0, square = 0;
    for (const double each : returns_) mean += each / double(n);
    for (const double each : returns_) square += (each - mean) * (each - mean) / double(n);
    const double scale = 1 / (std::sqrt(square) + 1e-6) / double(n);
    std::fill(gradient_.begin(), gradient_.end(), 0.0);
    for (size_t t = 0; t < n; t++) {
      const double advantage = (returns_[t] - mean) * scale;
      for (const int32_t place : steps_[t].features) gradient_[place] += advantage;
      for (size_t k = 0; k < samples; k++)
        for (const int32_t place : samples_[t * samples + k]) gradient_[place] -= advantage / double(samples);
    }
    known_.clear();
    num_updates_++;
    const double of_mean = 1 / (1 - std::pow(0.9, num_updates_)), of_square = 1 / (1 - std::pow(0.99, num_updates_));
    for (size_t i = 0; i < table_.size(); i++) {
      if (!gradient_[i] && !mean_[i]) continue;
      mean_[i] = 0.9 * mean_[i] + 0.1 * gradient_[i];
      square_[i] = 0.99 * square_[i] + 0.01 * gradient_[i] * gradient_[i];
      table_[i] += settings_.rate * mean_[i] * of_mean / (std::sqrt(square_[i] * of_square) + 1e-4);
      table_[i] *= settings_.decay;
    }
    steps_.clear(), samples_.clear(), returns_.clear();
  }

  const Rules* rules_;
  double prior_;
  LearnSettings settings_;
  std::vector<double> table_, mean_, square_, gradient_;
  mutable std::vector<double> known_;  // weights by rule, class and `undoes`, -1 where not computed since the last update
  std::vector<double> at_random_;  // weights by rule of episodes at random
  int64_t num_updates_ = 0;
  bool is_at_random_ = false;  // this episode
  // Learned and at random: improvements, and steps; and the share of random episodes that is due.
  double found_[2] = {}, spent_[2] = {}, due_ = 0;
  int32_t first_ = 0, now_ = 0;  // the number of the episode's first step, and of the next one, since the last update
  std::vector<int32_t> born_;    // by slot: the step that inserted the gate
  std::vector<int32_t> together_;  // by slot: how many gates that step inserted
  std::array<std::vector<int32_t>, kRing> slots_of_;  // by step: slots with matches that were born there
  std::vector<Step> steps_;      // since the last update
  std::vector<Features> samples_;
  std::vector<double> returns_, later_;
};
