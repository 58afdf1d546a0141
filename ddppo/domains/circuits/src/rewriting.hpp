// Rewrite rules (source -> target) on circuits: where they match, and the circuit that results.
//
// A source matches gates of the circuit that follow each other on wires exactly as in the source, if no path through
// other gates leads from one of them to another. The circuit can then be written as: gates before, source, gates after.
//
// All sources are matched at once by a tree of their steps, so that common beginnings are checked once.
#pragma once
#include <map>
#include <type_traits>

#include "pattern.hpp"

struct Found {
  int32_t gates[kMostGates];
  int16_t wires[kMostWires];
  int64_t parameters[kMostParameters];
};

class Rules {
 public:
  struct Rule {
    std::vector<SymbolicGate> source, target;
  };
  explicit Rules(std::vector<Rule> rules);

  int32_t size() const { return int32_t(rules_.size()); }
  // Return the largest number of gates that a rule adds. It adds fewer where a rotation of its target is by 0.
  int32_t growth(int32_t rule) const {
    return int32_t(rules_[rule].target.size()) - int32_t(rules_[rule].source.size());
  }

  const std::vector<SymbolicGate>& target(int32_t rule) const { return rules_[rule].target; }
  const Source& source(int32_t rule) const { return sources_[rule]; }

  // Call report(first rule, last rule + 1) for each run of rules whose source matches with its first gate at `gate`, or
  // report(first rule, last rule + 1, found) with the gates and wires of the match.
  template <class Graph, class Report>
  void matches(Graph& dag, int32_t gate, Report&& report) const {
    Found found;
    descend(dag, 0, 0, gate, found, report);
  }

  // Find the gates of the source of `rule`, with its first gate at `gate`. Return false if it does not match.
  template <class Graph>
  bool find(Graph& dag, int32_t gate, int32_t rule, Found& found) const {
    const Source& source = sources_[rule];
    for (int k = 0; k < int(source.steps.size()); k++) {
      if (k) gate = candidate(dag, source.steps[k], found);
      if (gate < 0 || !take(dag, source.steps[k], gate, k, found)) return false;
    }
    return is_convex(dag, source, found);
  }

  // Return gate number k of the target in place of a match; `wires` are those of the circuit by wire of the rule. A
  // rotation by 0 is left out by callers.
  Gate target_gate(int32_t rule, int k, const Found& found, const int16_t* wires) const {
    const SymbolicGate& each = rules_[rule].target[k];
    int64_t angle = each.angle.constant;
    for (int i = 0; i < kMostParameters; i++)
      if (each.angle.coefficients[i]) angle += each.angle.coefficients[i] * found.parameters[i];
    const int16_t second = each.kind == CX ? wires[each.wires[1]] : int16_t(-1);
    return {each.kind, {wires[each.wires[0]], second}, angle & (kTurn - 1)};
  }

  // Apply `rule` at `gate`. `result` is the new circuit in canonical order; `marks` are 1 at the gates inserted and at
  // those just before them; `origins`, if given, are the gates' numbers before, -1 for the gates inserted. Return false
  // if the rule does not match.
  bool apply(
      Dag& dag, int32_t gate, int32_t rule, Gates& result, std::vector<uint8_t>& marks,
      std::vector<int32_t>* origins = nullptr) const;

 private:
  // A place to look for the next gate, and the branches to follow by the kind of gate there.
  struct Probe {
    int8_t from, from_port, is_after;
    std::vector<int32_t> branches[4];
  };
  struct Branch {
    Step step;
    std::vector<Probe> probes;
    std::vector<std::pair<int32_t, int32_t>> runs;  // rules with exactly these steps: [first, last + 1)
  };

  template <class Graph, class Report>
  void descend(Graph& dag, int32_t at, int depth, int32_t gate, Found& found, Report& report) const {
    for (const Probe& probe : branches_[at].probes) {
      if (depth) gate = candidate(dag, probe, found);
      if (gate < 0) continue;
      for (const int32_t i : probe.branches[dag.gates[gate].kind]) {
        const Branch& branch = branches_[i];
        if (!take(dag, branch.step, gate, depth, found)) continue;
        if (!branch.runs.empty() && is_convex(dag, sources_[branch.runs[0].first], found))
          for (const auto& [begin, end] : branch.runs) {
            if constexpr (std::is_invocable_v<Report&, int32_t, int32_t>) report(begin, end);
            else report(begin, end, found);
          }
        if (!branch.probes.empty()) descend(dag, i, depth + 1, gate, found, report);
      }
    }
  }

  template <class Graph, class Where>
  static int32_t candidate(const Graph& dag, const Where& where, const Found& found) {
    const int32_t from = found.gates[where.from];
    return where.is_after ? dag.next(from, where.from_port) : dag.before(from, where.from_port);
  }
  static Probe& probe_of(Branch& branch, const Step& step);
  template <class Graph>
  static bool take(const Graph& dag, const Step& step, int32_t gate, int depth, Found& found);
  template <class Graph>
  static bool is_convex(Graph& dag, const Source& source, const Found& found);

  std::vector<Rule> rules_;
  std::vector<Source> sources_;      // by rule
  std::vector<Branch> branches_;     // the tree of the steps of all sources; the first is the root
};

// -- building -------------------------------------------------------------------------------------------------------

inline Rules::Probe& Rules::probe_of(Branch& branch, const Step& step) {
  for (Probe& probe : branch.probes)
    if (probe.from == step.from && probe.from_port == step.from_port && probe.is_after == step.is_after) return probe;
  branch.probes.push_back({step.from, step.from_port, step.is_after, {}});
  return branch.probes.back();
}

inline Rules::Rules(std::vector<Rule> rules) : rules_(std::move(rules)), branches_(1) {
  std::map<std::pair<int32_t, Step>, int32_t> known;
  for (int32_t r = 0; r < size(); r++) {
    // Follow the steps of the source down the tree, with new branches where there is none.
    sources_.push_back(Planner(rules_[r].source).plan());
    int32_t at = 0;
    for (const Step& step : sources_[r].steps) {
      const auto [place, is_new] = known.try_emplace({at, step}, int32_t(branches_.size()));
      if (is_new) {
        probe_of(branches_[at], step).branches[step.kind].push_back(place->second);
        branches_.emplace_back();
        branches_.back().step = step;
      }
      at = place->second;
    }
    // The rule ends here, next to others with the same source.
    auto& runs = branches_[at].runs;
    if (!runs.empty() && runs.back().second == r) runs.back().second++;
    else runs.emplace_back(r, r + 1);
  }
}

// -- matching -------------------------------------------------------------------------------------------------------

// Return whether a gate fits a step of the plan; if so, note its wires and its angle in `found`.
template <class Graph>
bool Rules::take(const Graph& dag, const Step& step, int32_t gate, int depth, Found& found) {
  const Gate& here = dag.gates[gate];
  if (here.kind != step.kind) return false;
  // Its wires: new ones differ from all before, and gates found already are its neighbours as in the source.
  for (int p = 0; p < here.num_ports(); p++) {
    const int16_t wire = here.wires[p];
    if (step.is_new[p]) {
      for (int w = 0; w < step.wires[p]; w++)
        if (found.wires[w] == wire) return false;
      found.wires[step.wires[p]] = wire;
    } else if (found.wires[step.wires[p]] != wire) {
      return false;
    }
    if (step.before[p] >= 0 && dag.before(gate, p) != found.gates[step.before[p]]) return false;
    if (step.after[p] >= 0 && dag.next(gate, p) != found.gates[step.after[p]]) return false;
  }
  // Its angle: a constant, a parameter that is bound already, or one that it binds.
  if (step.kind == RZ) {
    if (step.parameter < 0) {
      if (here.angle != step.constant) return false;
    } else if (step.is_bound) {
      if (found.parameters[step.parameter] != here.angle) return false;
    } else {
      found.parameters[step.parameter] = here.angle;
    }
  }
  found.gates[depth] = gate;
  return true;
}

// Return whether no path through other gates leads from one of the found gates to another.
template <class Graph>
bool Rules::is_convex(Graph& dag, const Source& source, const Found& found) {
  for (const auto& [u, v] : source.ways_round) {
    const int32_t last = found.gates[source.last[u]];
    const int32_t behind = dag.next(last, dag.port(last, found.wires[u]));
    if (behind >= 0 && dag.leads_to(behind, found.gates[source.first[v]], found.wires[v])) return false;
  }
  return true;
}

inline bool Rules::apply(
    Dag& dag, int32_t gate, int32_t rule, Gates& result, std::vector<uint8_t>& marks,
    std::vector<int32_t>* origins) const {
  // 1. Find the gates of the source.
  const Source& source = sources_[rule];
  Found found;
  if (!find(dag, gate, rule, found)) return false;
  // 2. Gates that depend on the source come after the target, all others before it.
  enum : uint8_t { kBefore, kTaken, kAfter };
  std::vector<uint8_t> side(dag.size(), kBefore);
  for (size_t k = 0; k < source.steps.size(); k++) side[found.gates[k]] = kTaken;
  Gates gates;
  std::vector<uint8_t> marked;
  std::vector<int32_t> from;
  gates.reserve(dag.size() + kMostGates), marked.reserve(dag.size() + kMostGates);
  from.reserve(dag.size() + kMostGates);
  std::vector<int32_t> place(dag.size(), -1);
  for (int32_t i = 0; i < dag.size(); i++) {
    for (int p = 0; p < dag.gates[i].num_ports(); p++)
      if (const int32_t b = dag.before(i, p); side[i] != kTaken && b >= 0 && side[b] != kBefore) side[i] = kAfter;
    if (side[i] != kBefore) continue;
    place[i] = int32_t(gates.size());
    gates.push_back(dag.gates[i]), marked.push_back(0), from.push_back(i);
  }
  // 3. Mark the gates just before the source, on each of its wires.
  int16_t wires[kMostWires];
  for (int u = 0; u < source.num_wires; u++) {
    wires[source.rule_wire[u]] = found.wires[u];
    const int32_t first = found.gates[source.first[u]], b = dag.before(first, dag.port(first, found.wires[u]));
    if (b >= 0) marked[place[b]] = 1;
  }
  // 4. Insert the target, without rotations by 0.
  for (int k = 0; k < int(rules_[rule].target.size()); k++) {
    const Gate made = target_gate(rule, k, found, wires);
    if (made.kind == RZ && made.angle == 0) continue;
    gates.push_back(made);
    marked.push_back(1), from.push_back(-1);
  }
  // 5. Put the result in canonical order.
  for (int32_t i = 0; i < dag.size(); i++)
    if (side[i] == kAfter) gates.push_back(dag.gates[i]), marked.push_back(0), from.push_back(i);
  result.clear(), marks.clear();
  if (origins) origins->clear();
  for (const int32_t i : canonical_order(gates, dag.num_qubits)) {
    result.push_back(gates[i]), marks.push_back(marked[i]);
    if (origins) origins->push_back(from[i]);
  }
  return true;
}
