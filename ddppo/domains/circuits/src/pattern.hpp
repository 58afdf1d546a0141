// The gates of a rule, and the plan to find its source in a circuit.
#pragma once
#include <tuple>

#include "circuits.hpp"

constexpr int kMostGates = 8, kMostWires = 4, kMostParameters = 4;

// constant + sum of coefficient x parameter, in units of an angle.
struct Expression {
  int8_t coefficients[kMostParameters];
  int64_t constant;
  // Return the number of the parameter that the expression consists of, or -1 if it is a constant.
  int parameter() const {
    for (int k = 0; k < kMostParameters; k++)
      if (coefficients[k]) return k;
    return -1;
  }
};

struct SymbolicGate {
  uint8_t kind;
  int16_t wires[2];
  Expression angle;
  int num_ports() const { return kind == CX ? 2 : 1; }
};

// How the next gate of a source is found and checked. Gates are numbered in the order in which they are found, wires in
// the order in which they are met.
struct Step {
  uint8_t kind = 0;
  int8_t from = -1, from_port = 0, is_after = 0;      // next to gate `from` on the wire of that port
  int8_t wires[2] = {-1, -1}, is_new[2] = {0, 0};     // by port
  int8_t before[2] = {-1, -1}, after[2] = {-1, -1};   // neighbours found before it
  int8_t parameter = -1, is_bound = 0;                // the angle's; is_bound: an earlier step has bound it
  int64_t constant = 0;
  auto key() const {
    return std::make_tuple(kind, from, from_port, is_after, wires[0], wires[1], is_new[0], is_new[1], before[0],
                           before[1], after[0], after[1], parameter, is_bound, constant);
  }
  bool operator<(const Step& other) const { return key() < other.key(); }
};

struct Source {
  std::vector<Step> steps;
  int8_t num_wires = 0, rule_wire[kMostWires] = {};            // wire in the plan -> wire of the rule
  int8_t first[kMostWires] = {}, last[kMostWires] = {};        // the first and last gate on each wire of the plan
  // Wires (u, v) such that no path may lead from behind the last gate of u to the first of v.
  std::vector<std::pair<int8_t, int8_t>> ways_round;
};

// Plans the search for a source: an order of its gates in which each is next to one before it.
class Planner {
 public:
  explicit Planner(const std::vector<SymbolicGate>& gates) : gates_(gates) { link(); }

  Source plan() {
    // The steps.
    for (int gate = 0; gate >= 0; gate = beside_found()) {
      source_.steps.push_back(step(gate));
      number_[gate] = int8_t(found_.size());
      found_.push_back(gate);
    }
    // The ends of wires, and the paths between them that would lead through other gates.
    for (int8_t u = 0; u < source_.num_wires; u++) {
      const int w = source_.rule_wire[u];
      source_.first[u] = number_[first_[w]];
      source_.last[u] = number_[last_[w]];
      for (int8_t v = 0; v < source_.num_wires; v++)
        if (!leads_[first_[source_.rule_wire[v]]][last_[w]]) source_.ways_round.emplace_back(u, v);
    }
    return source_;
  }

 private:
  // Link each gate to those before and after it on its wires, and note which gates lead to which.
  void link() {
    for (int i = 0; i < kMostGates; i++) number_[i] = before_[i][0] = before_[i][1] = after_[i][0] = after_[i][1] = -1;
    for (int w = 0; w < kMostWires; w++) first_[w] = last_[w] = met_[w] = -1;
    for (int i = 0; i < int(gates_.size()); i++) {
      leads_[i][i] = true;
      for (int p = 0; p < gates_[i].num_ports(); p++) {
        const int w = gates_[i].wires[p];
        if (first_[w] < 0) first_[w] = int8_t(i);
        if (const int j = last_[w]; j >= 0) {
          before_[i][p] = int8_t(j);
          after_[j][port(j, w)] = int8_t(i);
          for (int k = 0; k < i; k++) leads_[k][i] |= leads_[k][j];
        }
        last_[w] = int8_t(i);
      }
    }
  }

  int port(int gate, int wire) const { return gates_[gate].wires[0] == wire ? 0 : 1; }
  int8_t number(int gate) const { return gate < 0 ? int8_t(-1) : number_[gate]; }

  Step step(int gate) {
    Step step;
    const SymbolicGate& here = gates_[gate];
    step.kind = here.kind;
    step.constant = here.angle.constant;
    step.parameter = int8_t(here.angle.parameter());
    if (step.parameter >= 0) step.is_bound = bound_[step.parameter], bound_[step.parameter] = true;
    for (int p = 0; p < here.num_ports(); p++) {
      int8_t& wire = met_[here.wires[p]];
      if (wire < 0) {
        step.is_new[p] = 1;
        source_.rule_wire[source_.num_wires] = int8_t(here.wires[p]);
        wire = source_.num_wires++;
      }
      step.wires[p] = wire;
      step.before[p] = number(before_[gate][p]);
      step.after[p] = number(after_[gate][p]);
      for (int is_after = 0; is_after < 2 && step.from < 0; is_after++)
        if ((step.from = is_after ? step.before[p] : step.after[p]) >= 0) {
          step.is_after = int8_t(is_after);
          step.from_port = int8_t(port(found_[step.from], here.wires[p]));
        }
    }
    return step;
  }

  // Return the first gate that is not found yet but next to one that is, or -1.
  int beside_found() const {
    for (int i = 0; i < int(gates_.size()); i++)
      for (int p = 0; p < gates_[i].num_ports(); p++)
        if (number_[i] < 0 && (number(before_[i][p]) >= 0 || number(after_[i][p]) >= 0)) return i;
    return -1;
  }

  const std::vector<SymbolicGate>& gates_;
  Source source_;
  std::vector<int> found_;
  int8_t number_[kMostGates], before_[kMostGates][2], after_[kMostGates][2];     // -1 where there is none
  int8_t first_[kMostWires], last_[kMostWires], met_[kMostWires];
  bool leads_[kMostGates][kMostGates] = {}, bound_[kMostParameters] = {};
};
