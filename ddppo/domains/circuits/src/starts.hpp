// The circuits that episodes of a walk start from, and the history of each, as in ddppo/domains/circuits/task/buffer.py
// and lineage.py.
#pragma once
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>

#include "live.hpp"

// Random numbers: SplitMix64 (Steele, Lea, Flood 2014), which a test repeats in three lines of Python.
struct Random {
  uint64_t state;
  // Return a number from 0 to 1, 1 excluded.
  double operator()() { return double(scrambled(state += 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53; }
  size_t below(size_t n) { return std::min(n - 1, size_t((*this)() * double(n))); }
};

// A tree of rewrites from the original circuit. A step is kept as long as a circuit or a later step refers to it.
class Lineage {
 public:
  static constexpr int32_t kOriginal = -1;

  int32_t add(int32_t parent, const Rewrite& rewrite) {
    if (free_.empty()) free_.push_back(int32_t(steps_.size())), steps_.emplace_back();
    const int32_t step = free_.back();
    free_.pop_back();
    steps_[step] = {rewrite, parent, 1, length(parent) + 1};
    hold(parent);
    return step;
  }
  void hold(int32_t step) {
    if (step >= 0) steps_[step].uses++;
  }
  void release(int32_t step) {
    while (step >= 0 && --steps_[step].uses == 0) free_.push_back(step), step = steps_[step].parent;
  }
  int32_t length(int32_t step) const { return step < 0 ? 0 : steps_[step].length; }
  size_t nbytes() const { return (steps_.size() - free_.size()) * sizeof(Step); }

  std::vector<Rewrite> path(int32_t step) const {
    std::vector<Rewrite> result(length(step));
    for (size_t k = result.size(); step >= 0; step = steps_[step].parent) result[--k] = steps_[step].rewrite;
    return result;
  }

 private:
  struct Step {
    Rewrite rewrite;
    int32_t parent, uses, length;
  };
  std::vector<Step> steps_;
  std::vector<int32_t> free_;
};

struct KeyHash {
  size_t operator()(const Key& key) const { return size_t(key.a); }
};

// Circuits in levels of equal cost, each circuit once, the oldest first. The original, which is first in its level, is
// never dropped.
class Starts {
 public:
  struct Kept {
    Key key;
    Gates gates;
    int32_t step;
    double cost;
  };
  enum Draw : int32_t { kPower, kGreedy, kOriginal };

  Starts(Lineage& lineage, Kept original, Draw draw, size_t level_size, double most_bytes)
      : lineage_(lineage), draw_(draw), level_size_(level_size), most_bytes_(most_bytes), most_cost_(original.cost) {
    insert(std::move(original));
  }

  // Keep a circuit if it is new, costs at most as much as the original and there is room. Return the step that its
  // episode continues from, which the caller holds: that of whichever history is shorter.
  int32_t add(const Key& key, const Live& live, double cost, int32_t step) {
    if (draw_ == kOriginal || cost > most_cost_) return step;
    if (const auto at = known_.find(key); at != known_.end()) {
      const int32_t other = at->second->step;
      if (lineage_.length(other) >= lineage_.length(step)) return step;
      lineage_.hold(other), lineage_.release(step);
      return other;
    }
    keep(key, live.all(), cost, step);
    return step;
  }

  // Keep a circuit from elsewhere unless it is known.
  void receive(const Key& key, Gates gates, double cost, int32_t step) {
    if (draw_ == kOriginal || cost > most_cost_ || known_.count(key)) return;
    keep(key, std::move(gates), cost, step);
  }

  // Drop all but the original.
  void clear() {
    Kept original = std::move(*levels_[most_cost_].front());
    for (const auto& [key, kept] : known_) lineage_.release(kept->step);
    levels_.clear(), known_.clear(), nbytes_ = 0;
    insert(std::move(original));
  }

  // Return a circuit: draw a level, then one of its circuits uniformly.
  const Kept& draw(Random& random) const {
    if (draw_ == kOriginal) return *levels_.rbegin()->second.front();
    const double least = levels_.begin()->first;
    const auto weight = [&](double cost) {
      if (draw_ == kGreedy) return 1 / (cost - least + 0.2);
      const double share = std::max(least, 1.0) / std::max(cost, 1.0);
      return share * share * share * share;
    };
    double total = 0;
    for (const auto& [cost, level] : levels_) total += weight(cost);
    double at = random() * total;
    auto chosen = levels_.begin();
    for (auto next = chosen; next != levels_.end(); ++next) {
      chosen = next;
      if ((at -= weight(next->first)) < 0) break;
    }
    return *chosen->second[random.below(chosen->second.size())];
  }

  size_t num_circuits() const { return known_.size(); }
  size_t num_levels() const { return levels_.size(); }
  double nbytes() const { return double(nbytes_ + lineage_.nbytes()); }

 private:
  using Level = std::deque<std::unique_ptr<Kept>>;
  static size_t bytes_of(const Kept& kept) { return kept.gates.size() * sizeof(Gate) + 200; }

  void keep(const Key& key, Gates gates, double cost, int32_t step) {
    Level& level = levels_[cost];
    if (level.size() >= level_size_ && !drop_oldest(cost)) return;
    insert({key, std::move(gates), step, cost});
    while (nbytes() > most_bytes_ && drop_costliest()) {}
  }
  void insert(Kept kept) {
    lineage_.hold(kept.step);
    nbytes_ += bytes_of(kept);
    auto& level = levels_[kept.cost];
    level.push_back(std::make_unique<Kept>(std::move(kept)));
    known_[level.back()->key] = level.back().get();
  }
  bool drop_costliest() {
    for (auto at = levels_.rbegin(); at != levels_.rend(); ++at)
      if (drop_oldest(at->first)) return true;
    return false;
  }
  // Drop the oldest circuit of a level, and the level if it is empty. Return false if only the original is there.
  bool drop_oldest(double cost) {
    Level& level = levels_[cost];
    auto place = level.begin();
    if ((*place)->step == Lineage::kOriginal && ++place == level.end()) return false;
    known_.erase((*place)->key);
    nbytes_ -= bytes_of(**place);
    lineage_.release((*place)->step);
    level.erase(place);
    if (level.empty()) levels_.erase(cost);
    return true;
  }

  Lineage& lineage_;
  const Draw draw_;
  const size_t level_size_;
  const double most_bytes_, most_cost_;
  size_t nbytes_ = 0;
  std::map<double, Level> levels_;
  std::unordered_map<Key, Kept*, KeyHash> known_;
};

// The cap on the steps of an episode, as LengthCap of task/board.py has it.
class LengthCap {
 public:
  LengthCap(int least, int most) : least_(least), most_(most), cap_(least) {}
  int cap() const { return cap_; }
  void note(int num_steps) {
    longest_ = std::max(longest_, num_steps);
    if (++num_episodes_ < 8) return;
    const double factor = cap_ < 40 ? 1.5 : 1.2;
    const int shorter = int(std::ceil(cap_ / factor));
    if (longest_ >= cap_) cap_ = std::min(most_, int(std::ceil(cap_ * factor)));
    else if (longest_ <= shorter) cap_ = std::max(least_, shorter);
    num_episodes_ = longest_ = 0;
  }

 private:
  const int least_, most_;
  int cap_, num_episodes_ = 0, longest_ = 0;
};
