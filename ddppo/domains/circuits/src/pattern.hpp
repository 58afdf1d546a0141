// A rule's gates, and the plan by which its source is found in a circuit.
#pragma once
#include <tuple>

#include "circuits.hpp"

constexpr int kMostGates = 8, kMostWires = 4, kMostParameters = 4;

// constant + sum of coefficient x parameter, in units of an angle.
struct Expression {
  int8_t coefficients[kMostParameters];
  int64_t constant;
  int parameter() const {  // of an expression that is one parameter; -1 of a constant
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

// How a source's next gate is found and checked. Gates are numbered as they are found, wires as they are met.
struct Step {
  uint8_t kind = 0;
  int8_t from = -1, from_port = 0, is_after = 0;      // it follows (or precedes) gate `from` on the wire of that port
  int8_t wires[2] = {-1, -1}, is_new[2] = {0, 0};     // of its ports
  int8_t before[2] = {-1, -1}, after[2] = {-1, -1};   // gates found already that are next to it
  int8_t parameter = -1, is_bound = 0;                // of the angle; is_bound: it has to be the same as before
  int64_t constant = 0;
  auto key() const {
    return std::make_tuple(kind, from, from_port, is_after, wires[0], wires[1], is_new[0], is_new[1], before[0],
                           before[1], after[0], after[1], parameter, is_bound, constant);
  }
  bool operator<(const Step& other) const { return key() < other.key(); }
};

struct Source {
  std::vector<Step> steps;
  int8_t num_wires = 0, rule_wire[kMostWires] = {};            // met wire -> wire of the rule
  int8_t first[kMostWires] = {}, last[kMostWires] = {};        // found gates at the ends of each met wire
  std::vector<std::pair<int8_t, int8_t>> ways_round;           // (u, v): from behind u's last gate to v's first
};

// Finds the plan of a source: its gates in the order in which each shares a wire with one before.
class Planner {
 public:
  explicit Planner(const std::vector<SymbolicGate>& gates) : gates_(gates) { link(); }

  Source plan() {
    for (int gate = 0; gate >= 0; gate = beside_found()) {
      source_.steps.push_back(step(gate));
      number_[gate] = int8_t(found_.size());
      found_.push_back(gate);
    }
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
  // Joins each gate to those before and after it on its wires.
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

  // Returns the first gate not found that is next to one found, or -1.
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
