// The observation of a circuit and of the rewrites that apply to it, and the step by one of them, for
// ddppo/domains/circuits/task/board.py.
#include <cmath>

#include "features.hpp"

namespace {

// Unpack a circuit from bytes: angles [n] int64, wires [n, 2] int16, kinds [n] uint8.
Gates unpacked(int64_t n, const uint8_t* packed) {
  return gates_of(n, packed + 12 * n, reinterpret_cast<const int16_t*>(packed + 8 * n),
                  reinterpret_cast<const int64_t*>(packed));
}

void pack(const Gates& gates, uint8_t* packed) {
  const size_t n = gates.size();
  for (size_t i = 0; i < n; i++) {
    std::memcpy(packed + 8 * i, &gates[i].angle, 8);
    std::memcpy(packed + 8 * n + 4 * i, gates[i].wires, 4);
    packed[12 * n + i] = gates[i].kind;
  }
}

// Settings from Python: sizes of the arrays, and which actions are listed even where no rule matches: one that changes
// nothing once (nop_once) or at each node (nop_at_nodes), and a wrong one at each node (wrong_at_nodes). has_graph,
// has_features: whether kinds, angles and edges are filled, and whether features are.
struct Settings {
  int32_t max_nodes, max_pairs, nop_once, nop_at_nodes, wrong_at_nodes, has_graph, has_features;
};

// The arrays of an observation, and ages [max_nodes]. Python owns their memory.
struct Row {
  int8_t* kinds;
  float* angles;
  int32_t *edges, *pairs, *num_nodes, *num_edges, *num_pairs;
  int8_t *fresh, *action_mask, *growth;
  int32_t *features, *ages;
};

// A pair that matches, and where its features are kept.
struct Choice {
  int32_t node, rule, at;
  bool operator<(const Choice& other) const {
    return std::make_pair(node, rule) < std::make_pair(other.node, other.rule);
  }
};

// The results of a call besides the observation; board.py reads them by these names.
struct Facts {
  int64_t node, rule, num_gates, depth, num_too_large, num_without_room;
  uint8_t digest[16];
};

enum What : int64_t { kRewritten, kUnchanged, kWrong };

struct Board {
  const Rules& rules;
  const Settings settings;
  const Row row;
  int64_t *offered, *applied;  // counts by rule, then that of the one that changes nothing
  PairFeatures pair_features;
  std::vector<Choice> choices;
  std::vector<int32_t> places;  // kNumFeatures of each pair that matches

  int32_t nop() const { return rules.size(); }

  // Perform action number `action` of the listed pairs on the circuit that is shown.
  What choose(int64_t action, int32_t num_qubits, const Gates& gates, Gates& result, Facts& facts) {
    facts.node = facts.rule = -1;
    if (action < 0 || action >= *row.num_pairs) return clear_fresh(), kWrong;
    const int32_t node = row.pairs[2 * action], rule = row.pairs[2 * action + 1];
    facts.node = node, facts.rule = rule;
    note_offered(action);
    // Actions without a rewrite: a wrong one, and one that changes nothing.
    if (rule > nop()) return clear_fresh(), kWrong;
    if (rule == nop()) {
      clear_fresh();
      if (node >= 0) row.fresh[node] = 1;
      if (settings.has_features) show(gates, num_qubits, facts);  // features depend on what is fresh
      return kUnchanged;
    }
    // A rewrite: show its result, with the gates that it inserted marked as fresh.
    applied[rule]++;
    Dag dag(gates, num_qubits);
    std::vector<uint8_t> marks;
    std::vector<int32_t> origins, before(row.ages, row.ages + gates.size());
    rules.apply(dag, node, rule, result, marks, &origins);
    clear_fresh();
    std::copy(marks.begin(), marks.end(), row.fresh);
    for (size_t i = 0; i < origins.size(); i++) row.ages[i] = origins[i] < 0 ? 0 : std::min(before[origins[i]] + 1, kOld);
    show(result, num_qubits, facts);
    return kRewritten;
  }

  // Fill the observation from a circuit in canonical order; `fresh` and `ages` are set before.
  void show(const Gates& gates, int32_t num_qubits, Facts& facts) {
    Dag dag(gates, num_qubits);
    *row.num_nodes = dag.size();
    if (settings.has_graph) {
      show_nodes(dag);
      show_edges(dag);
    }
    list_pairs(dag, facts);
    show_pairs(dag.size());
    facts.num_gates = dag.size();
    facts.depth = depth(gates, num_qubits);
    digest_in_order(gates, num_qubits, facts.digest);
  }

 private:
  void clear_fresh() { std::fill_n(row.fresh, settings.max_nodes, int8_t(0)); }

  // Count the rules that are listed at the node of the action. Pairs of a node stand side by side.
  void note_offered(int64_t action) {
    const int32_t node = row.pairs[2 * action];
    int64_t i = action;
    while (i > 0 && row.pairs[2 * (i - 1)] == node) i--;
    for (; i < *row.num_pairs && row.pairs[2 * i] == node; i++)
      if (row.pairs[2 * i + 1] <= nop()) offered[row.pairs[2 * i + 1]]++;
  }

  void show_nodes(const Dag& dag) {
    std::fill_n(row.kinds, settings.max_nodes, int8_t(-1));
    std::fill_n(row.angles, 2 * settings.max_nodes, 0.0f);
    for (int32_t i = 0; i < dag.size(); i++) {
      const Gate& gate = dag.gates[i];
      row.kinds[i] = int8_t(gate.kind);
      if (gate.kind != RZ) continue;
      const double radians = double(gate.angle) * (2 * M_PI / double(kTurn));
      row.angles[2 * i] = float(std::sin(radians)), row.angles[2 * i + 1] = float(std::cos(radians));
    }
  }

  void show_edges(const Dag& dag) {
    int32_t* edge = row.edges;
    for (int32_t i = 0; i < dag.size(); i++)
      for (int p = 0; p < dag.gates[i].num_ports(); p++)
        if (const int32_t next = dag.next(i, p); next >= 0) {
          edge[0] = i, edge[1] = p, edge[2] = next, edge[3] = dag.port(next, dag.gates[i].wires[p]);
          edge += 4;
        }
    *row.num_edges = int32_t((edge - row.edges) / 4);
    std::fill(edge, row.edges + 8 * settings.max_nodes, -1);
  }

  // List the pairs of a node and a rule that matches there, ascending. Rules that could exceed max_nodes are left out.
  void list_pairs(Dag& dag, Facts& facts) {
    const int32_t room_of_nodes = settings.max_nodes - dag.size();
    choices.clear(), places.clear();
    facts.num_too_large = 0;
    if (settings.has_features) pair_features.begin(dag, row.fresh, row.ages);
    for (int32_t g = 0; g < dag.size(); g++) {
      const size_t first = choices.size();
      rules.matches(dag, g, [&](int32_t begin, int32_t end, const Found& found) {
        if (settings.has_features) pair_features.match(dag, begin, found);
        for (int32_t rule = begin; rule < end; rule++) {
          if (rules.growth(rule) > room_of_nodes) {
            facts.num_too_large++;
            continue;
          }
          choices.push_back({g, rule, int32_t(places.size())});
          if (!settings.has_features) continue;
          places.resize(places.size() + kNumFeatures);
          pair_features.write(dag, rule, &places[places.size() - kNumFeatures]);
        }
      });
      std::sort(choices.begin() + first, choices.end());
    }
    // Too many pairs for the observation: keep those that add the fewest gates, then those of the first rules, then
    // those of the first nodes.
    const int64_t room = settings.max_pairs - num_always(dag.size());
    facts.num_without_room = std::max<int64_t>(0, int64_t(choices.size()) - room);
    if (!facts.num_without_room) return;
    const auto worth = [&](const Choice& choice) {
      return std::make_tuple(rules.growth(choice.rule), choice.rule, choice.node);
    };
    std::nth_element(choices.begin(), choices.begin() + room, choices.end(),
                     [&](const auto& a, const auto& b) { return worth(a) < worth(b); });
    choices.resize(room);
    std::sort(choices.begin(), choices.end());
  }

  // Return the number of pairs that are listed even where no rule matches.
  int64_t num_always(int32_t num_nodes) const {
    return settings.nop_once + int64_t(num_nodes) * (settings.nop_at_nodes + settings.wrong_at_nodes);
  }

  // Write the pairs: at each node its matches, then the pairs that are always listed, whose rule numbers are higher.
  void show_pairs(int32_t num_nodes) {
    int32_t* pair = row.pairs;
    int8_t* growth = row.growth;
    int32_t* features = row.features;
    const auto add = [&](int32_t node, int32_t rule, int32_t at = -1) {
      pair[0] = node, pair[1] = rule, pair += 2;
      *growth++ = rule < nop() ? int8_t(rules.growth(rule)) : int8_t(0);
      if (!settings.has_features) return;
      if (at < 0) pair_features.write_nop(features);
      else std::copy_n(&places[at], kNumFeatures, features);
      features += kNumFeatures;
    };
    if (settings.nop_once) add(-1, nop());
    auto choice = choices.begin();
    for (int32_t g = 0; g < num_nodes; g++) {
      for (; choice != choices.end() && choice->node == g; ++choice) add(g, choice->rule, choice->at);
      if (settings.nop_at_nodes) add(g, nop());
      if (settings.wrong_at_nodes) add(g, nop() + 1);
    }
    // Fill the rest of the arrays.
    const int64_t count = (pair - row.pairs) / 2;
    *row.num_pairs = int32_t(count);
    std::fill(pair, row.pairs + 2 * settings.max_pairs, -1);
    std::fill(growth, row.growth + settings.max_pairs, int8_t(0));
    if (settings.has_features) std::fill(features, row.features + kNumFeatures * settings.max_pairs, 0);
    std::fill_n(row.action_mask, count, int8_t(1));
    std::fill(row.action_mask + count, row.action_mask + settings.max_pairs, int8_t(0));
  }
};

}  // namespace

extern "C" {

// Make a board. row: the addresses of the arrays of Row, in its order.
void* board_new(const void* rules, const int32_t* settings, const int64_t* row, int64_t* offered, int64_t* applied) {
  const auto at = [&](int i) { return reinterpret_cast<void*>(row[i]); };
  const auto integers = [&](int i) { return static_cast<int32_t*>(at(i)); };
  const auto bytes = [&](int i) { return static_cast<int8_t*>(at(i)); };
  return new Board{
      *static_cast<const Rules*>(rules),
      {settings[0], settings[1], settings[2], settings[3], settings[4], settings[5], settings[6]},
      {bytes(0), static_cast<float*>(at(1)), integers(2), integers(3), integers(4), integers(5), integers(6), bytes(7),
       bytes(8), bytes(9), integers(10), integers(11)},
      offered,
      applied,
      PairFeatures(*static_cast<const Rules*>(rules)),
      {},
      {}};
}

void board_free(void* board) { delete static_cast<Board*>(board); }

int64_t board_num_weights(const void* rules) { return num_weights(static_cast<const Rules*>(rules)->size()); }

// Write the observation of a circuit in canonical order; Python has set fresh and ages.
void board_show(void* board, int64_t n, int32_t num_qubits, const uint8_t* packed, void* facts) {
  static_cast<Board*>(board)->show(unpacked(n, packed), num_qubits, *static_cast<Facts*>(facts));
}

// Perform the action with number `action` on the circuit that is shown. After a rewrite, write the observation of the
// result, and pack it. Return a `What`.
int64_t board_choose(
    void* board, int64_t action, int64_t n, int32_t num_qubits, const uint8_t* packed, uint8_t* result, void* facts) {
  Gates rewritten;
  const What what = static_cast<Board*>(board)->choose(
      action, num_qubits, unpacked(n, packed), rewritten, *static_cast<Facts*>(facts));
  if (what == kRewritten) pack(rewritten, result);
  return what;
}

}  // extern "C"
