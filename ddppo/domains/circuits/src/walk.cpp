// The interface of walks for ddppo/domains/circuits/walk.py.
#include "learning.hpp"

extern "C" {

void* walk_new(const void* rules, int64_t n, int32_t num_qubits, const uint8_t* kinds, const int16_t* wires,
               const int64_t* angles, const WalkSettings* settings, const LearnSettings* learn) {
  const Rules& known = *static_cast<const Rules*>(rules);
  const Gates start = gates_of(n, kinds, wires, angles);
  AnyWalk* walk;
  if (learn != nullptr) {
    const Learning policy(known, settings->prior, *learn, int32_t(settings->room) + kMostGates);
    walk = new Walk<Learning>(known, start, num_qubits, *settings, policy);
  } else {
    walk = new Walk<AtRandom>(known, start, num_qubits, *settings, AtRandom(known, settings->prior));
  }
  return walk;
}

void walk_free(void* walk) { delete static_cast<AnyWalk*>(walk); }

int64_t walk_go(void* walk, int64_t num_steps, double until) {
  return static_cast<AnyWalk*>(walk)->go(num_steps, until);
}

// Read or write the weights of a walk that learns, if there is room for all; return their number.
int64_t walk_table(void* walk, int64_t most, double* table, int64_t is_written) {
  std::vector<double>* known = static_cast<AnyWalk*>(walk)->table();
  if (known == nullptr) return 0;
  const int64_t n = int64_t(known->size());
  if (n > most) return n;
  if (is_written) std::copy_n(table, n, known->begin());
  else std::copy(known->begin(), known->end(), table);
  return n;
}

void walk_facts(const void* walk, WalkFacts* facts) { *facts = static_cast<const AnyWalk*>(walk)->facts(); }

// Write the best circuit, and the rewrites that lead to it, in rows of (wire, place, rule).
void walk_best(const void* walk, uint8_t* kinds, int16_t* wires, int64_t* angles, int32_t* path) {
  const AnyWalk& known = *static_cast<const AnyWalk*>(walk);
  write(known.best(), kinds, wires, angles);
  for (const Rewrite& each : known.path()) *path++ = each.wire, *path++ = each.place, *path++ = each.rule;
}

// Take a circuit that another walk found. Return whether it is better than all before.
int64_t walk_receive(void* walk, int64_t n, const uint8_t* kinds, const int16_t* wires, const int64_t* angles,
                     double cost, int64_t length, const int32_t* path) {
  std::vector<Rewrite> rewrites(length);
  for (Rewrite& each : rewrites) each = {path[0], path[1], path[2]}, path += 3;
  return static_cast<AnyWalk*>(walk)->receive(gates_of(n, kinds, wires, angles), cost, rewrites);
}

// For tests: the circuit of the episode, at most `most` gates; returns their number.
int64_t walk_now(void* walk, int64_t most, uint8_t* kinds, int16_t* wires, int64_t* angles) {
  const Gates& gates = static_cast<AnyWalk*>(walk)->now();
  if (int64_t(gates.size()) <= most) write(gates, kinds, wires, angles);
  return int64_t(gates.size());
}

// For tests: all matches in the order in which shares of a draw are laid out; weights are negative where a match is not
// possible now. Returns their number.
int64_t walk_matches(void* walk, int64_t most, int32_t* rows, double* weights) {
  std::vector<Rewrite> found;
  std::vector<double> of_each;
  static_cast<AnyWalk*>(walk)->matches(found, of_each);
  for (size_t k = 0; k < found.size() && int64_t(k) < most; k++) {
    rows[3 * k] = found[k].wire, rows[3 * k + 1] = found[k].place, rows[3 * k + 2] = found[k].rule;
    weights[k] = of_each[k];
  }
  return int64_t(found.size());
}

}  // extern "C"
