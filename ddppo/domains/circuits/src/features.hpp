// Features of the pairs (gate, rule) that match in a circuit: for each pair, kNumFeatures places in one table of weights.
// ddppo/domains/circuits/pairs.py adds the weights up to the pair's logit; tests/domains/circuits/feature_oracle.py
// derives the same places in Python.
//
// Terms. Fresh gates were inserted by the last rewrite, or stand just before its place. The age of a gate is the number
// of rewrites since it was inserted. A match touches what its source covers. The gates just outside, before and after
// it on each of its wires, meet the first and last gates of the rule's target: two that cancel or merge save a gate
// later.
#pragma once
#include <array>

#include "rewriting.hpp"

constexpr int kNumFeatures = 6, kSlots = 4096;  // kSlots: of each hashed feature
constexpr int kGrowths = 7, kMeets = 5, kDistances = 5, kAges = 7, kTouches = 3, kRoles = 3;
constexpr int32_t kOld = 1 << 20;  // age of the gates that an episode began with

// Return the number of weights. Its parts, one for each feature, follow one another in this order:
//   rule x touch | growth x meetings x distance | growth x age x touch | rule and gates outside (hashed)
//   | growth and gates up to two hops from the first gate (hashed) | growth x wires x role of the first gate's wire
inline int64_t num_weights(int64_t num_rules) {
  return (num_rules + 1) * kTouches + kGrowths * kMeets * kDistances + kGrowths * kAges * kTouches + 2 * kSlots +
         kGrowths * kMostWires * kRoles;
}

class PairFeatures {
 public:
  explicit PairFeatures(const Rules& rules) : rules_(rules), ends_(rules.size()) {
    int64_t at = 0;
    const int64_t sizes[] = {int64_t(rules.size() + 1) * kTouches, kGrowths * kMeets * kDistances,
                             kGrowths * kAges * kTouches, kSlots, kSlots, kGrowths * kMostWires * kRoles};
    for (int f = 0; f < kNumFeatures; f++) offsets_[f] = int32_t(at), at += sizes[f];
    // The first and last gate of each rule's target on each of its wires, -1 for none.
    for (int32_t r = 0; r < rules.size(); r++) {
      for (int w = 0; w < kMostWires; w++) ends_[r].first[w] = ends_[r].last[w] = -1;
      const auto& target = rules.target(r);
      for (int8_t i = 0; i < int8_t(target.size()); i++)
        for (int p = 0; p < target[i].num_ports(); p++) {
          const int w = target[i].wires[p];
          if (ends_[r].first[w] < 0) ends_[r].first[w] = i;
          ends_[r].last[w] = i;
        }
    }
  }

  // Begin a circuit. fresh [n]: 1 for fresh gates; ages [n].
  void begin(const Dag& dag, const int8_t* fresh, const int32_t* ages) {
    const int32_t n = dag.size();
    fresh_ = fresh, ages_ = ages;
    // The distance of each gate from a fresh one, along wires, by breadth-first search.
    distance_.assign(n, kDistances - 1);
    queue_.clear();
    for (int32_t i = 0; i < n; i++)
      if (fresh[i]) distance_[i] = 0, queue_.push_back(i);
    for (size_t k = 0; k < queue_.size(); k++) {
      const int32_t i = queue_[k], next = distance_[i] + 1;
      for (int p = 0; p < dag.gates[i].num_ports(); p++)
        for (const int32_t j : {dag.before(i, p), dag.next(i, p)})
          if (j >= 0 && next < distance_[j]) distance_[j] = next, queue_.push_back(j);
    }
    // How often each wire is a control and a target.
    controls_.assign(dag.num_qubits, 0), targets_.assign(dag.num_qubits, 0);
    for (const Gate& gate : dag.gates)
      if (gate.kind == CX) controls_[gate.wires[0]]++, targets_[gate.wires[1]]++;
    codes_.resize(2 * n);
    for (int32_t i = 0; i < n; i++)
      for (int p = 0; p < 2; p++) codes_[2 * i + p] = code(dag.gates[i], p);
  }

  // Look at a match of the source that rule `first` has. All rules of a run share it.
  void match(const Dag& dag, int32_t first, const Found& found) {
    const Source& source = rules_.source(first);
    found_ = &found, source_ = &source;
    int32_t age = kOld, near = kDistances - 1;
    touch_ = 0;
    for (size_t k = 0; k < source.steps.size(); k++) {
      const int32_t i = found.gates[k];
      age = std::min(age, ages_[i]), near = std::min(near, distance_[i]);
      touch_ = std::max(touch_, ages_[i] == 0 ? 2 : fresh_[i] ? 1 : 0);
    }
    near_ = near;
    age_ = age < 3 ? age : age < 6 ? 3 : age < 12 ? 4 : age < 24 ? 5 : 6;
    // The gates just outside, on each wire.
    uint32_t hash = 2166136261u;
    for (int u = 0; u < source.num_wires; u++) {
      const int16_t wire = found.wires[u];
      const int32_t begin = found.gates[source.first[u]], end = found.gates[source.last[u]];
      before_[u] = dag.before(begin, dag.port(begin, wire)), after_[u] = dag.next(end, dag.port(end, wire));
      hash = mixed(hash, code_at(dag, before_[u], wire) * 8 + code_at(dag, after_[u], wire));
    }
    outside_ = hash;
    // The first gate, its neighbours and theirs.
    const int32_t gate = found.gates[0];
    hash = mixed(2166136261u, codes_[2 * gate]);
    for (int p = 0; p < dag.gates[gate].num_ports(); p++) {
      const int16_t wire = dag.gates[gate].wires[p];
      for (int way = 0; way < 2; way++) {
        int32_t at = gate;
        for (int hop = 0; hop < 2; hop++) {
          if (at >= 0) at = way ? dag.next(at, dag.port(at, wire)) : dag.before(at, dag.port(at, wire));
          hash = mixed(hash, code_at(dag, at, wire));
        }
      }
    }
    around_ = hash;
    const int16_t wire = dag.gates[gate].wires[0];
    role_ = controls_[wire] > targets_[wire] ? 0 : controls_[wire] == targets_[wire] ? 1 : 2;
  }

  // Write the features of `rule` at the match.
  void write(const Dag& dag, int32_t rule, int32_t* places) const {
    const int growth = std::clamp(rules_.growth(rule), -3, 3) + 3;
    const int meets = meetings(dag, rule);
    places[0] = rule * kTouches + touch_;
    places[1] = offsets_[1] + (growth * kMeets + meets) * kDistances + near_;
    places[2] = offsets_[2] + (growth * kAges + age_) * kTouches + touch_;
    places[3] = offsets_[3] + int32_t(mixed(outside_, uint32_t(rule)) % kSlots);
    places[4] = offsets_[4] + int32_t(mixed(around_, uint32_t(growth)) % kSlots);
    places[5] = offsets_[5] + (growth * kMostWires + source_->num_wires - 1) * kRoles + role_;
  }

  // Write the features of the choice that changes nothing, and of a wrong one.
  void write_nop(int32_t* places) const {
    places[0] = rules_.size() * kTouches;
    for (int f = 1; f < kNumFeatures; f++) places[f] = offsets_[f];
  }

 private:
  struct Ends {
    int8_t first[kMostWires], last[kMostWires];
  };

  static uint32_t mixed(uint32_t hash, uint32_t value) {
    hash = (hash ^ value) * 16777619u;
    return hash ^ (hash >> 15);
  }

  // 1 h, 2 x, 3 cx at its control, 4 cx at its target, 5 rz by an odd multiple of pi/4, 6 of pi/2, 7 by another angle.
  static uint8_t code(const Gate& gate, int port) {
    if (gate.kind == H || gate.kind == X) return uint8_t(1 + gate.kind);
    if (gate.kind == CX) return uint8_t(3 + port);
    if (gate.angle % (kTurn / 8)) return 7;
    return gate.angle / (kTurn / 8) % 2 ? 5 : 6;
  }

  uint32_t code_at(const Dag& dag, int32_t gate, int16_t wire) const {
    return gate < 0 ? 0 : codes_[2 * gate + dag.port(gate, wire)];
  }

  // Return how many ends of the target meet a gate outside that cancels or merges with them, at most kMeets - 1.
  int meetings(const Dag& dag, int32_t rule) const {
    int count = 0;
    const auto& target = rules_.target(rule);
    for (int u = 0; u < source_->num_wires; u++) {
      const int w = source_->rule_wire[u];
      const int first = ends_[rule].first[w], last = ends_[rule].last[w];
      if (first < 0) {
        // The target has no gate on this wire: the gates before and after become neighbours.
        if (before_[u] >= 0 && after_[u] >= 0 && cancels(dag.gates[before_[u]], dag.gates[after_[u]])) count++;
        continue;
      }
      if (before_[u] >= 0 && cancels(dag.gates[before_[u]], on_circuit(target[first]))) count++;
      if (after_[u] >= 0 && cancels(dag.gates[after_[u]], on_circuit(target[last]))) count++;
    }
    return std::min(count, kMeets - 1);
  }

  // Return a gate of the target on the circuit's wires; its angle does not matter.
  Gate on_circuit(const SymbolicGate& gate) const {
    Gate result{gate.kind, {-1, -1}, 0};
    for (int p = 0; p < gate.num_ports(); p++)
      for (int u = 0; u < source_->num_wires; u++)
        if (source_->rule_wire[u] == gate.wires[p]) result.wires[p] = found_->wires[u];
    return result;
  }

  static bool cancels(const Gate& a, const Gate& b) {
    return a.kind == b.kind && a.wires[0] == b.wires[0] && (a.kind != CX || a.wires[1] == b.wires[1]);
  }

  const Rules& rules_;
  std::vector<Ends> ends_;
  int32_t offsets_[kNumFeatures];
  // Of the circuit.
  const int8_t* fresh_ = nullptr;
  const int32_t* ages_ = nullptr;
  std::vector<int32_t> distance_, queue_, controls_, targets_;
  std::vector<uint8_t> codes_;
  // Of the match.
  const Found* found_ = nullptr;
  const Source* source_ = nullptr;
  int32_t before_[kMostWires] = {}, after_[kMostWires] = {};
  int touch_ = 0, near_ = 0, age_ = 0, role_ = 0;
  uint32_t outside_ = 0, around_ = 0;
};
