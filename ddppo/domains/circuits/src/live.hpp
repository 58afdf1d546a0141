// A circuit that is rewritten in place, and its matches, kept up to date near each rewrite.
//
// Gates live in slots, linked along wires. After a rewrite, only the gates near it are matched again. A rewrite far away
// can change whether a match is convex (a path through other gates may lead round it); so that is looked up when a match
// is drawn, and the draw is repeated if it is not. The matches that are left have the probabilities that they would have
// in a list of convex matches.
#pragma once
#include <array>
#include <cstring>

#include "rewriting.hpp"

// A rewrite in a form that does not depend on slots: the first gate of the source is gate number `place` on `wire`, its
// first wire.
struct Rewrite {
  int32_t wire, place, rule;
};

// Hashes circuits: 128 bits from the gates on each wire, in their order. Circuits are equal, up to swaps of gates that
// share no wire, if and only if these are.
struct Key {
  uint64_t a = 0, b = 0;
  bool operator==(const Key& other) const { return a == other.a && b == other.b; }
};

inline uint64_t scrambled(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class Live {
 public:
  // What a rewrite changed.
  struct Change {
    int32_t removed[kMostGates], inserted[kMostGates];
    int num_removed = 0, num_inserted = 0;
    int32_t joined[2 * kMostWires];  // the gates that became neighbours, on wires on which nothing was inserted
    int num_joined = 0;
  };

  Live(const Rules& rules, int32_t num_qubits, int32_t room)
      : num_qubits(num_qubits), gates(room), rules_(rules), links_(2 * room), level_(room), first_(num_qubits),
        wire_keys_(num_qubits), behind_(room, 0), seen_(room, 0) {}

  // Take a circuit, whose gates are in topological order.
  void load(const Gates& given) {
    const int32_t n = int32_t(given.size());
    order_.resize(n), free_.clear();
    for (int32_t i = int32_t(gates.size()) - 1; i >= n; i--) free_.push_back(i);
    std::fill(first_.begin(), first_.end(), -1);
    last_.assign(num_qubits, -1);
    for (int32_t i = 0; i < n; i++) {
      order_[i] = i, gates[i] = given[i];
      int32_t level = 0;
      for (int p = 0; p < given[i].num_ports(); p++) {
        const int16_t w = given[i].wires[p];
        join(last_[w], i, w), last_[w] = i;
        if (before(i, p) >= 0) level = std::max(level, level_[before(i, p)] + 1);
      }
      level_[i] = level;
    }
    for (int16_t w = 0; w < num_qubits; w++) {
      if (last_[w] >= 0) links_[2 * last_[w] + port(last_[w], w)].next = -1;
      wire_keys_[w] = wire_key(w);
    }
  }

  int32_t size() const { return int32_t(order_.size()); }
  int port(int32_t gate, int16_t wire) const { return gates[gate].wires[0] == wire ? 0 : 1; }
  int32_t before(int32_t gate, int p) const { return links_[2 * gate + p].before; }
  int32_t next(int32_t gate, int p) const { return links_[2 * gate + p].next; }
  const std::vector<int32_t>& order() const { return order_; }

  // Return the gates in a topological order.
  Gates all() const {
    Gates result(order_.size());
    for (size_t k = 0; k < order_.size(); k++) result[k] = gates[order_[k]];
    return result;
  }

  Key key() const {
    Key sum{uint64_t(num_qubits), 0};
    for (const Key& each : wire_keys_) sum.a += each.a, sum.b += each.b;
    return sum;
  }

  // Return the number of gates before this one on its first wire.
  int32_t place(int32_t gate) const {
    const int16_t wire = gates[gate].wires[0];
    int32_t count = 0;
    for (int32_t i = before(gate, 0); i >= 0; i = before(i, port(i, wire))) count++;
    return count;
  }

  // Return whether `from` is gate `to` or a path leads there. Levels grow along paths, so few gates are looked at.
  bool leads_to(int32_t from, int32_t to, int16_t) {
    if (from == to) return true;
    if (level_[from] >= level_[to]) return false;
    stack_.assign(1, from), seen_[from] = ++epoch_;
    while (!stack_.empty()) {
      const int32_t i = stack_.back();
      stack_.pop_back();
      for (int p = 0; p < gates[i].num_ports(); p++) {
        const int32_t j = next(i, p);
        if (j == to) return true;
        if (j < 0 || level_[j] >= level_[to] || seen_[j] == epoch_) continue;
        seen_[j] = epoch_, stack_.push_back(j);
      }
    }
    return false;
  }

  // Replace the gates found for `rule` by its target. `before_it(change)` is called before links change, with the gates
  // that are removed.
  template <class BeforeIt>
  void rewrite(int32_t rule, const Found& found, Change& change, BeforeIt&& before_it) {
    const Source& source = rules_.source(rule);
    // 1. The gates that go, and those beside them on each wire.
    int32_t ahead[kMostWires], after[kMostWires];
    int16_t wires[kMostWires];
    change.num_removed = int(source.steps.size()), change.num_inserted = change.num_joined = 0;
    std::copy_n(found.gates, change.num_removed, change.removed);
    for (int u = 0; u < source.num_wires; u++) {
      const int16_t wire = wires[source.rule_wire[u]] = found.wires[u];
      const int32_t begin = found.gates[source.first[u]], end = found.gates[source.last[u]];
      ahead[u] = before(begin, port(begin, wire)), after[u] = next(end, port(end, wire));
    }
    before_it(change);
    // 2. Gates that depend on the source come after the target in the order, all others before it.
    for (int k = 0; k < change.num_removed; k++) behind_[change.removed[k]] = epoch_ + 1;
    epoch_++;
    tail_.clear();
    size_t kept = 0;
    while (behind_[order_[kept]] != epoch_) kept++;
    for (size_t k = kept; k < order_.size(); k++) {
      const int32_t i = order_[k];
      if (behind_[i] == epoch_) continue;
      bool is_behind = false;
      for (int p = 0; p < gates[i].num_ports(); p++) is_behind |= before(i, p) >= 0 && behind_[before(i, p)] == epoch_;
      if (is_behind) behind_[i] = epoch_, tail_.push_back(i);
      else order_[kept++] = i;
    }
    order_.resize(kept);
    // 3. Insert the target, wire by wire behind what is ahead of it.
    for (int k = 0; k < change.num_removed; k++) free_.push_back(change.removed[k]);
    std::array<int32_t, kMostWires> at;
    for (int u = 0; u < source.num_wires; u++) at[u] = ahead[u];
    for (int k = 0; k < int(rules_.target(rule).size()); k++) {
      const Gate made = rules_.target_gate(rule, k, found, wires);
      if (made.kind == RZ && made.angle == 0) continue;
      const int32_t slot = free_.back();
      free_.pop_back();
      gates[slot] = made;
      for (int p = 0; p < made.num_ports(); p++)
        for (int u = 0; u < source.num_wires; u++)
          if (found.wires[u] == made.wires[p]) join(at[u], slot, made.wires[p]), at[u] = slot;
      order_.push_back(slot);
      change.inserted[change.num_inserted++] = slot;
    }
    for (int u = 0; u < source.num_wires; u++) {
      join(at[u], after[u], found.wires[u]);
      if (at[u] == ahead[u] && ahead[u] >= 0) change.joined[change.num_joined++] = ahead[u];
      if (at[u] == ahead[u] && after[u] >= 0) change.joined[change.num_joined++] = after[u];
      wire_keys_[found.wires[u]] = wire_key(found.wires[u]);
    }
    order_.insert(order_.end(), tail_.begin(), tail_.end());
    // 4. Levels of what comes from the target on.
    for (size_t k = kept; k < order_.size(); k++) {
      const int32_t i = order_[k];
      int32_t level = 0;
      for (int p = 0; p < gates[i].num_ports(); p++)
        if (const int32_t b = before(i, p); b >= 0) level = std::max(level, level_[b] + 1);
      level_[i] = level;
    }
  }

  const int32_t num_qubits;
  std::vector<Gate> gates;  // by slot

 private:
  struct Link {
    int32_t before, next;
  };

  // Let `b` follow `a` on a wire; -1 is its end.
  void join(int32_t a, int32_t b, int16_t wire) {
    if (a >= 0) links_[2 * a + port(a, wire)].next = b;
    else first_[wire] = b;
    if (b >= 0) links_[2 * b + port(b, wire)].before = a;
  }

  Key wire_key(int16_t wire) const {
    uint64_t a = 0x9e3779b97f4a7c15u, b = 0x2545f4914f6cdd1du;
    for (int32_t i = first_[wire]; i >= 0;) {
      const Gate& gate = gates[i];
      const int p = port(i, wire);
      const uint64_t other = gate.kind == CX ? uint64_t(gate.wires[1 - p]) + 1 : 0;
      const uint64_t word = uint64_t(gate.angle) ^ (other << 48) ^ (uint64_t(gate.kind * 2 + p + 1) << 8 | other << 12);
      const uint64_t mixed = scrambled(word + 0x9e3779b97f4a7c15u);
      a = (a ^ mixed) * 0xff51afd7ed558ccdu, a ^= a >> 32;
      b = (b + mixed) * 0xc4ceb9fe1a85ec53u, b ^= b >> 29;
      i = next(i, p);
    }
    return {scrambled(a + uint64_t(wire) * 0x632be59bd9b4e019u), scrambled(b ^ uint64_t(wire) << 40)};
  }

  const Rules& rules_;
  std::vector<Link> links_;       // by slot and port
  std::vector<int32_t> level_;    // by slot: the length of the longest path before it
  std::vector<int32_t> first_, last_;
  std::vector<Key> wire_keys_;
  std::vector<int32_t> order_, tail_, free_, stack_;
  std::vector<int64_t> behind_, seen_;
  int64_t epoch_ = 0;
};

// All matches of a live circuit with a weight each, and draws in proportion to them.
// `Entry` is a match at its slot: it has `rule` and `weight`.
template <class Entry>
class Matches {
 public:
  Matches(const Rules& rules, int32_t room) : rules_(rules), at_(room), seen_(room, 0) {
    for (leaves_ = 1; leaves_ < room; leaves_ *= 2) {}
    sums_.assign(2 * leaves_, 0.0);
    // How far from a change the first gate of a match may be, by its kind.
    std::fill_n(radius_, 4, 0);
    for (int32_t r = 0; r < rules.size(); r++) {
      const auto& steps = rules.source(r).steps;
      int far[kMostGates] = {}, farthest = 0;
      for (size_t k = 1; k < steps.size(); k++) farthest = std::max(farthest, far[k] = far[steps[k].from] + 1);
      radius_[steps[0].kind] = std::max(radius_[steps[0].kind], farthest);
    }
    most_ = *std::max_element(radius_, radius_ + 4);
  }

  const std::vector<Entry>& at(int32_t slot) const { return at_[slot]; }
  std::vector<Entry>& at(int32_t slot) { return at_[slot]; }
  double total() const { return sums_[1]; }

  // Match every gate of the circuit. make(slot, first rule, last rule + 1, found, entries) appends entries.
  template <class Make>
  void fill(Live& live, Make&& make) {
    for (auto& each : at_) each.clear();
    std::fill(sums_.begin(), sums_.end(), 0.0);
    for (const int32_t i : live.order()) list(live, i, make), sums_[leaves_ + i] = sum(i);
    for (int32_t k = leaves_ - 1; k > 0; k--) sums_[k] = sums_[2 * k] + sums_[2 * k + 1];
  }

  // Note the gates near those that will be removed, then, after the rewrite, those near the gates inserted; `update`
  // matches them again.
  void note_before(const Live& live, const Live::Change& change) {
    epoch_++, dirty_.clear();
    spread(live, change.removed, change.num_removed, nullptr, 0);
  }
  template <class Make>
  void update(Live& live, const Live::Change& change, Make&& make) {
    for (int k = 0; k < change.num_removed; k++) at_[change.removed[k]].clear(), set(change.removed[k], 0.0);
    for (int k = 0; k < change.num_removed; k++) seen_[change.removed[k]] = -epoch_;
    const size_t old = dirty_.size();
    epoch_++;
    spread(live, change.inserted, change.num_inserted, change.joined, change.num_joined);
    for (size_t k = old; k < dirty_.size(); k++) relist(live, dirty_[k], make);
    // Of the gates noted before, those that are left and were not met again.
    for (size_t k = 0; k < old; k++)
      if (const int32_t i = dirty_[k]; seen_[i] == epoch_ - 1) seen_[i] = epoch_, relist(live, i, make);
  }

  // Return the slot that holds the share `at`, 0 <= at < total(), and in `rest` what is left of it there.
  int32_t slot_at(double at, double& rest) const {
    int32_t k = 1;
    while (k < leaves_) {
      k *= 2;
      if (at >= sums_[k] && sums_[k + 1] > 0) at -= sums_[k], k++;
    }
    rest = at;
    return k - leaves_;
  }
  const Entry& entry_at(int32_t slot, double rest) const {
    const auto& entries = at_[slot];
    for (size_t k = 0; k + 1 < entries.size(); k++) {
      if (rest < entries[k].weight) return entries[k];
      rest -= entries[k].weight;
    }
    return entries.back();
  }

  void set(int32_t slot, double weight) {
    int32_t k = leaves_ + slot;
    if (sums_[k] == weight) return;
    sums_[k] = weight;
    for (k /= 2; k; k /= 2) sums_[k] = sums_[2 * k] + sums_[2 * k + 1];
  }
  double sum(int32_t slot) const {
    double total = 0;
    for (const Entry& each : at_[slot]) total += each.weight;
    return total;
  }

 private:
  // A live circuit in which every match counts as convex.
  struct Structure {
    Live& live;
    const std::vector<Gate>& gates;
    int port(int32_t gate, int16_t wire) const { return live.port(gate, wire); }
    int32_t before(int32_t gate, int p) const { return live.before(gate, p); }
    int32_t next(int32_t gate, int p) const { return live.next(gate, p); }
    bool leads_to(int32_t, int32_t, int16_t) const { return false; }
  };

  template <class Make>
  void list(Live& live, int32_t slot, Make& make) {
    Structure structure{live, live.gates};
    rules_.matches(structure, slot, [&](int32_t begin, int32_t end, const Found& found) {
      make(slot, begin, end, found, at_[slot]);
    });
  }
  template <class Make>
  void relist(Live& live, int32_t slot, Make& make) {
    at_[slot].clear();
    list(live, slot, make);
    set(slot, sum(slot));
  }

  // Append to dirty_ the gates that are near enough to some, by breadth-first search.
  void spread(const Live& live, const int32_t* from, int num_from, const int32_t* more, int num_more) {
    queue_.clear();
    for (int k = 0; k < num_from; k++) meet(live, from[k], 0);
    for (int k = 0; k < num_more; k++) meet(live, more[k], 0);
    for (size_t k = 0; k < queue_.size(); k++) {
      const auto [i, far] = queue_[k];
      if (far == most_) continue;
      for (int p = 0; p < live.gates[i].num_ports(); p++) {
        meet(live, live.before(i, p), far + 1);
        meet(live, live.next(i, p), far + 1);
      }
    }
  }
  void meet(const Live& live, int32_t slot, int far) {
    if (slot < 0 || seen_[slot] == epoch_) return;
    seen_[slot] = epoch_;
    queue_.emplace_back(slot, far);
    if (far <= radius_[live.gates[slot].kind]) dirty_.push_back(slot);
  }

  const Rules& rules_;
  std::vector<std::vector<Entry>> at_;  // by slot
  std::vector<double> sums_;            // a tree: node k is the sum of 2k and 2k + 1; leaves are slots
  int32_t leaves_;
  int radius_[4], most_;
  std::vector<int64_t> seen_;
  int64_t epoch_ = 0;
  std::vector<std::pair<int32_t, int>> queue_;
  std::vector<int32_t> dirty_;
};
