// Rewriting of circuits in batches, for ddppo/domains/circuits/quantum/rewriting.py.
//
// The gates of a batch stand end to end in arrays; `bounds` says where each circuit begins and ends.
#include <string>
#include <unordered_set>

#include "rewriting.hpp"

namespace {

// A batch of circuits. Circuit i has gates bounds[i] to bounds[i + 1].
struct Batch {
  int64_t size;
  const int64_t* bounds;
  const int32_t* num_qubits;
  const uint8_t* kinds;
  const int16_t* wires;
  const int64_t* angles;
  Gates operator[](int64_t i) const {
    const int64_t at = bounds[i];
    return gates_of(bounds[i + 1] - at, kinds + at, wires + 2 * at, angles + at);
  }
};

std::string name_of(const Gates& gates, int32_t num_qubits) {
  std::string digest(16, ' ');
  digest_of(gates, num_qubits, reinterpret_cast<uint8_t*>(digest.data()));
  return digest;
}

}  // namespace

extern "C" {

// Make rules. lengths [num_rules, 2]: the numbers of gates of source and target. kinds [G], wires [G, 2], coefficients
// [G, 4] and constants [G]: all gates end to end, of each rule first the source, then the target. Rules with the same
// source stand side by side.
void* circuits_rules_new(
    int64_t num_rules, const int32_t* lengths, const uint8_t* kinds, const int16_t* wires, const int8_t* coefficients,
    const int64_t* constants) {
  std::vector<Rules::Rule> rules(num_rules);
  int64_t at = 0;
  for (int64_t r = 0; r < num_rules; r++)
    for (int side = 0; side < 2; side++)
      for (int32_t i = 0; i < lengths[2 * r + side]; i++, at++) {
        SymbolicGate gate{kinds[at], {wires[2 * at], wires[2 * at + 1]}, {{}, constants[at]}};
        std::copy_n(coefficients + kMostParameters * at, kMostParameters, gate.angle.coefficients);
        (side ? rules[r].target : rules[r].source).push_back(gate);
      }
  return new Rules(std::move(rules));
}

void circuits_rules_free(void* rules) { delete static_cast<Rules*>(rules); }

// Fill the mask [all gates, num_rules + 1], zeros on entry, with 1 where a rule matches, and in the last column, which
// stands for doing nothing.
void circuits_mask(
    const void* rules, int64_t size, const int64_t* bounds, const int32_t* num_qubits, const uint8_t* kinds,
    const int16_t* wires, const int64_t* angles, uint8_t* mask) {
  const Rules& known = *static_cast<const Rules*>(rules);
  const Batch batch{size, bounds, num_qubits, kinds, wires, angles};
  for (int64_t i = 0; i < size; i++) {
    const Gates gates = batch[i];
    Dag dag(gates, num_qubits[i]);
    for (int32_t g = 0; g < dag.size(); g++) {
      uint8_t* row = mask + (bounds[i] + g) * (known.size() + 1);
      known.matches(dag, g, [&](int32_t begin, int32_t end) { std::fill(row + begin, row + end, uint8_t(1)); });
      row[known.size()] = 1;
    }
  }
}

// Fill the mask [size, num_rules + 1] in the same way, with one gate per circuit.
void circuits_rows(
    const void* rules, int64_t size, const int64_t* bounds, const int32_t* num_qubits, const uint8_t* kinds,
    const int16_t* wires, const int64_t* angles, const int32_t* gate_of, uint8_t* mask) {
  const Rules& known = *static_cast<const Rules*>(rules);
  const Batch batch{size, bounds, num_qubits, kinds, wires, angles};
  for (int64_t i = 0; i < size; i++) {
    const Gates gates = batch[i];
    Dag dag(gates, num_qubits[i]);
    uint8_t* row = mask + i * (known.size() + 1);
    known.matches(dag, gate_of[i], [&](int32_t begin, int32_t end) { std::fill(row + begin, row + end, uint8_t(1)); });
    row[known.size()] = 1;
  }
}

// Write the pairs (gate, rule) that match in one circuit, at most `most`; return how many there are.
int64_t circuits_pairs(
    const void* rules, int64_t n, int32_t num_qubits, const uint8_t* kinds, const int16_t* wires,
    const int64_t* angles, int64_t most, int32_t* pairs) {
  const Rules& known = *static_cast<const Rules*>(rules);
  const Gates gates = gates_of(n, kinds, wires, angles);
  Dag dag(gates, num_qubits);
  int64_t count = 0;
  for (int32_t g = 0; g < dag.size(); g++)
    known.matches(dag, g, [&](int32_t begin, int32_t end) {
      for (int32_t rule = begin; rule < end; rule++, count++)
        if (count < most) pairs[2 * count] = g, pairs[2 * count + 1] = rule;
    });
  return count;
}

// Apply rule_of[i] at gate_of[i] of each circuit. Results stand end to end with new_bounds [size + 1]; marks are 1 at
// the gates inserted and those just before them. Return the first i where the rule does not match, or -1.
int64_t circuits_apply(
    const void* rules, int64_t size, const int64_t* bounds, const int32_t* num_qubits, const uint8_t* kinds,
    const int16_t* wires, const int64_t* angles, const int32_t* gate_of, const int32_t* rule_of, int64_t* new_bounds,
    uint8_t* new_kinds, int16_t* new_wires, int64_t* new_angles, uint8_t* marks) {
  const Rules& known = *static_cast<const Rules*>(rules);
  const Batch batch{size, bounds, num_qubits, kinds, wires, angles};
  Gates result;
  std::vector<uint8_t> marked;
  new_bounds[0] = 0;
  for (int64_t i = 0; i < size; i++) {
    const Gates gates = batch[i];
    Dag dag(gates, num_qubits[i]);
    if (gate_of[i] < 0 || gate_of[i] >= dag.size() || rule_of[i] < 0 || rule_of[i] > known.size()) return i;
    // The number after the last rule changes nothing.
    if (rule_of[i] == known.size()) {
      result.clear();
      for (const int32_t g : canonical_order(gates, num_qubits[i])) result.push_back(gates[g]);
      marked.clear();
      for (const int32_t g : canonical_order(gates, num_qubits[i])) marked.push_back(g == gate_of[i]);
    } else if (!known.apply(dag, gate_of[i], rule_of[i], result, marked)) {
      return i;
    }
    const int64_t at = new_bounds[i];
    write(result, new_kinds + at, new_wires + 2 * at, new_angles + at);
    std::copy(marked.begin(), marked.end(), marks + at);
    new_bounds[i + 1] = at + int64_t(result.size());
  }
  return -1;
}

// Return whether at most `steps` rewrites lead from the first circuit of the batch to the second, with at most
// `most_gates` gates in between.
int32_t circuits_leads_to(
    const void* rules, int64_t size, const int64_t* bounds, const int32_t* num_qubits, const uint8_t* kinds,
    const int16_t* wires, const int64_t* angles, int64_t steps, int64_t most_gates) {
  const Batch batch{size, bounds, num_qubits, kinds, wires, angles};
  const int32_t qubits = num_qubits[0];
  const std::string wanted = name_of(batch[1], qubits);
  // Breadth-first search; circuits are known by their digests.
  std::vector<Gates> reached{batch[0]}, next;
  std::unordered_set<std::string> names{name_of(reached[0], qubits)};
  std::vector<uint8_t> marks;
  Gates result;
  for (int64_t step = 0; step < steps && !names.count(wanted); step++) {
    next.clear();
    for (const Gates& gates : reached) {
      Dag dag(gates, qubits);
      for (int32_t g = 0; g < dag.size(); g++)
        static_cast<const Rules*>(rules)->matches(dag, g, [&](int32_t begin, int32_t end) {
          for (int32_t rule = begin; rule < end; rule++) {
            static_cast<const Rules*>(rules)->apply(dag, g, rule, result, marks);
            if (int64_t(result.size()) <= most_gates && names.insert(name_of(result, qubits)).second)
              next.push_back(result);
          }
        });
    }
    reached.swap(next);
  }
  return int32_t(names.count(wanted));
}

void circuits_digest(
    int64_t n, int32_t num_qubits, const uint8_t* kinds, const int16_t* wires, const int64_t* angles,
    uint8_t* digest) {
  digest_of(gates_of(n, kinds, wires, angles), num_qubits, digest);
}

}  // extern "C"
