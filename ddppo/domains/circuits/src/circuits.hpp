// A circuit as arrays, its DAG, canonical order and digest, as in ddppo/domains/circuits/quantum/circuit.py.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "blake2b.hpp"

enum Kind : uint8_t { H = 0, X = 1, CX = 2, RZ = 3 };
constexpr int64_t kTurn = int64_t(1) << 48;

struct Gate {
  uint8_t kind;
  int16_t wires[2];  // the second is -1 for one-qubit gates
  int64_t angle;
  int num_ports() const { return kind == CX ? 2 : 1; }
};

// Gates in a topological order.
using Gates = std::vector<Gate>;

inline Gates gates_of(int64_t n, const uint8_t* kinds, const int16_t* wires, const int64_t* angles) {
  Gates gates(n);
  for (int64_t i = 0; i < n; i++) gates[i] = {kinds[i], {wires[2 * i], wires[2 * i + 1]}, angles[i]};
  return gates;
}

// The inverse of gates_of.
inline void write(const Gates& gates, uint8_t* kinds, int16_t* wires, int64_t* angles) {
  for (size_t i = 0; i < gates.size(); i++) {
    kinds[i] = gates[i].kind, angles[i] = gates[i].angle;
    wires[2 * i] = gates[i].wires[0], wires[2 * i + 1] = gates[i].wires[1];
  }
}

// Return the canonical order: gates by level (the length of the longest path before a gate), then by first wire.
inline std::vector<int32_t> canonical_order(const Gates& gates, int32_t num_qubits) {
  const size_t n = gates.size();
  // Two counting sorts: by first wire, then by level.
  std::vector<int32_t> level(n), free_at(num_qubits), by_wire(num_qubits + 1), by_level(n + 2), order(n), sorted(n);
  for (size_t i = 0; i < n; i++) {
    for (int p = 0; p < gates[i].num_ports(); p++) level[i] = std::max(level[i], free_at[gates[i].wires[p]]);
    for (int p = 0; p < gates[i].num_ports(); p++) free_at[gates[i].wires[p]] = level[i] + 1;
    by_wire[gates[i].wires[0] + 1]++;
    by_level[level[i] + 1]++;
  }
  for (int32_t w = 0; w < num_qubits; w++) by_wire[w + 1] += by_wire[w];
  for (size_t l = 0; l <= n; l++) by_level[l + 1] += by_level[l];
  for (size_t i = 0; i < n; i++) order[by_wire[gates[i].wires[0]]++] = int32_t(i);
  for (const int32_t i : order) sorted[by_level[level[i]]++] = i;
  return sorted;
}

// Write the digest, 16 bytes: BLAKE2b of num_qubits (uint32), then of kinds, wires and angles in canonical order.
inline void digest_in_order(const Gates& gates, int32_t num_qubits, uint8_t* digest) {
  Blake2b hash(16);
  hash.update(&num_qubits, 4);
  for (const Gate& gate : gates) hash.update(&gate.kind, 1);
  for (const Gate& gate : gates) hash.update(gate.wires, 4);
  for (const Gate& gate : gates) hash.update(&gate.angle, 8);
  hash.finish(digest, 16);
}

// The same for gates in any topological order.
inline void digest_of(const Gates& gates, int32_t num_qubits, uint8_t* digest) {
  Gates ordered;
  for (const int32_t i : canonical_order(gates, num_qubits)) ordered.push_back(gates[i]);
  digest_in_order(ordered, num_qubits, digest);
}

// Return the number of gates on the longest path.
inline int64_t depth(const Gates& gates, int32_t num_qubits) {
  std::vector<int64_t> free_at(num_qubits);
  int64_t deepest = 0;
  for (const Gate& gate : gates) {
    int64_t level = 0;
    for (int p = 0; p < gate.num_ports(); p++) level = std::max(level, free_at[gate.wires[p]] + 1);
    for (int p = 0; p < gate.num_ports(); p++) free_at[gate.wires[p]] = level;
    deepest = std::max(deepest, level);
  }
  return deepest;
}

// The DAG of a circuit: the gates before and after each gate on its wires, and whether a path leads to another gate.
class Dag {
 public:
  Dag(const Gates& gates, int32_t num_qubits)
      : gates(gates), num_qubits(num_qubits), links_(2 * gates.size()), last_(num_qubits, -1) {
    std::vector<int32_t> passed(num_qubits, 0);
    for (int32_t i = 0; i < size(); i++)
      for (int p = 0; p < gates[i].num_ports(); p++) {
        const int16_t w = gates[i].wires[p];
        links_[2 * i + p] = {last_[w], -1, passed[w]++};
        if (last_[w] >= 0) links_[2 * last_[w] + port(last_[w], w)].next = i;
        last_[w] = i;
      }
  }

  int32_t size() const { return int32_t(gates.size()); }
  int port(int32_t gate, int16_t wire) const { return gates[gate].wires[0] == wire ? 0 : 1; }
  int32_t before(int32_t gate, int p) const { return links_[2 * gate + p].before; }
  int32_t next(int32_t gate, int p) const { return links_[2 * gate + p].next; }

  // Return whether `from` is gate `to` or a path leads there. `to` is on `wire`.
  bool leads_to(int32_t from, int32_t to, int16_t wire) {
    if (reach_.empty()) fill_reach();
    return reach_[size_t(from) * num_qubits + wire] <= links_[2 * to + port(to, wire)].place;
  }

  const Gates& gates;
  const int32_t num_qubits;

 private:
  struct Link {
    int32_t before, next, place;  // place: the number of gates before it on the wire
  };

  // Fill reach_[i, w]: the place of the first gate on wire w to which a path from gate i leads.
  void fill_reach() {
    const size_t q = num_qubits;
    reach_.assign(gates.size() * q, INT32_MAX);
    for (int32_t i = size() - 1; i >= 0; i--) {
      int32_t* own = &reach_[i * q];
      for (int p = 0; p < gates[i].num_ports(); p++)
        if (const int32_t after = next(i, p); after >= 0) {
          const int32_t* theirs = &reach_[after * q];
          for (size_t w = 0; w < q; w++) own[w] = std::min(own[w], theirs[w]);
        }
      for (int p = 0; p < gates[i].num_ports(); p++) own[gates[i].wires[p]] = links_[2 * i + p].place;
    }
  }

  std::vector<Link> links_;
  std::vector<int32_t> last_, reach_;
};
