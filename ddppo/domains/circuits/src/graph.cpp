// The graphs of a batch end to end without padding, and the sum of messages over their edges.
//
// A gate has up to two ports, so at most four neighbours, each with a slot: 0 and 1 for the gates before it on ports 0
// and 1, 2 and 3 for the gates after it.
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int kSlots = 4, kEdgeKinds = 8;
constexpr uint8_t kFar = 255;

// Convert to an integer from 0 to `end` - 1; -1 for all other numbers.
template <class Real>
int32_t whole(Real x, int32_t end) {
  return x >= 0 && x < Real(end) ? int32_t(x) : -1;
}

// Convert to an integer from 0 to `most`; other numbers are clipped.
template <class Real>
int32_t count(Real x, int32_t most) {
  return x >= Real(most) ? most : x > 0 ? int32_t(x) : 0;
}

struct Neighbour {
  int32_t node;
  uint8_t edge;  // kind of edge: (port of the neighbour * 2 + own port) * 2 + whether the neighbour comes after
};

// Fill the table [max_nodes][4] from the edges [num_edges][4]: source and its port, destination and its port.
template <class Real>
void read_edges(const Real* edges, int32_t num_edges, int32_t num_nodes, Neighbour* table) {
  for (int32_t i = 0; i < num_nodes * kSlots; i++) table[i].node = -1;
  for (int32_t e = 0; e < num_edges; e++, edges += 4) {
    const int32_t source = whole(edges[0], num_nodes), port = whole(edges[1], 2);
    const int32_t destination = whole(edges[2], num_nodes), entry = whole(edges[3], 2);
    if (source < 0 || port < 0 || destination < 0 || entry < 0) continue;
    table[destination * kSlots + entry] = {source, uint8_t((port * 2 + entry) * 2)};
    table[source * kSlots + 2 + port] = {destination, uint8_t((entry * 2 + port) * 2 + 1)};
  }
}

// Set the distance of each node to the nearest root, or kFar if it is over `radius`, by breadth-first search.
// `reached` is scratch memory for all nodes.
void measure(
    const uint8_t* roots, int32_t num_nodes, int radius, const Neighbour* table, uint8_t* distance, int32_t* reached) {
  int32_t begin = 0, end = 0;
  for (int32_t i = 0; i < num_nodes; i++) {
    distance[i] = roots[i] ? 0 : kFar;
    if (roots[i]) reached[end++] = i;
  }
  for (int step = 1; step <= radius && begin < end && end < num_nodes; step++)
    for (const int32_t last = end; begin < last; begin++)
      for (int slot = 0; slot < kSlots; slot++) {
        const int32_t node = table[reached[begin] * kSlots + slot].node;
        if (node < 0 || distance[node] != kFar) continue;
        distance[node] = uint8_t(step);
        reached[end++] = node;
      }
}

// See graph_flat_float.
template <class Real>
void flat(
    int64_t rows, int32_t max_nodes, int32_t max_edges, int32_t radius, const Real* edges, const Real* num_edges,
    const Real* num_nodes, const uint8_t* roots, int64_t* index, int32_t* neighbours, uint8_t* kinds, int64_t* sizes) {
  // 1. The neighbours and distances of each row's nodes, and the number of nodes by distance and row.
  std::vector<Neighbour> tables(std::size_t(rows) * max_nodes * kSlots);
  std::vector<uint8_t> distances(std::size_t(rows) * max_nodes);
  std::vector<int32_t> counts(rows), positions(max_nodes);
  std::vector<int64_t> starts(std::size_t(radius + 1) * rows);  // numbers of nodes, from 2. on their starts
  for (int64_t row = 0; row < rows; row++) {
    Neighbour* table = tables.data() + row * max_nodes * kSlots;
    uint8_t* distance = distances.data() + row * max_nodes;
    const int32_t nodes = counts[row] = count(num_nodes[row], max_nodes);
    read_edges(edges + row * max_edges * 4, count(num_edges[row], max_edges), nodes, table);
    measure(roots + row * max_nodes, nodes, radius, table, distance, positions.data());
    for (int32_t i = 0; i < nodes; i++)
      if (distance[i] != kFar) starts[distance[i] * rows + row]++;
  }
  // 2. Where the nodes of each distance and row start.
  int64_t total = 0;
  for (int step = 0; step <= radius; step++) {
    for (int64_t row = 0; row < rows; row++) {
      const int64_t number = starts[step * rows + row];
      starts[step * rows + row] = total;
      total += number;
    }
    sizes[radius - step] = total;
  }
  // 3. The position of each node, and those of its neighbours.
  for (int64_t row = 0; row < rows; row++) {
    const Neighbour* table = tables.data() + row * max_nodes * kSlots;
    const uint8_t* distance = distances.data() + row * max_nodes;
    for (int32_t i = 0; i < counts[row]; i++)
      positions[i] = distance[i] == kFar ? -1 : int32_t(starts[distance[i] * rows + row]++);
    for (int32_t i = 0; i < counts[row]; i++) {
      if (distance[i] == kFar) continue;
      const int64_t at = positions[i];
      index[at] = row * max_nodes + i;
      if (distance[i] == radius) continue;  // it sends messages and receives none
      for (int slot = 0; slot < kSlots; slot++) {
        const Neighbour& there = table[i * kSlots + slot];
        neighbours[at * kSlots + slot] = there.node < 0 ? -1 : positions[there.node];
        kinds[at * kSlots + slot] = there.node < 0 ? 0 : there.edge;
      }
    }
  }
}

template <class Real>
void sum_messages(
    int64_t receivers, int64_t width, const Real* sent, const Real* offsets, const int32_t* neighbours,
    const uint8_t* kinds, Real* sums) {
  for (int64_t i = 0; i < receivers; i++) {
    Real* sum = sums + i * width;
    std::memset(sum, 0, width * sizeof(Real));
    for (int64_t e = i * kSlots; e < (i + 1) * kSlots; e++) {
      if (neighbours[e] < 0) continue;
      const Real *x = sent + neighbours[e] * width, *offset = offsets + kinds[e] * width;
#pragma GCC ivdep
      for (int64_t c = 0; c < width; c++) {
        const Real message = x[c] + offset[c];
        sum[c] += message > 0 ? message : Real(0);
      }
    }
  }
}

template <class Real>
void sum_messages_backward(
    int64_t senders, int64_t receivers, int64_t width, const Real* sent, const Real* offsets,
    const int32_t* neighbours, const uint8_t* kinds, const Real* gradient, Real* of_sent, Real* of_offsets) {
  std::memset(of_sent, 0, senders * width * sizeof(Real));
  std::memset(of_offsets, 0, kEdgeKinds * width * sizeof(Real));
  for (int64_t i = 0; i < receivers; i++) {
    const Real* g = gradient + i * width;
    for (int64_t e = i * kSlots; e < (i + 1) * kSlots; e++) {
      if (neighbours[e] < 0) continue;
      const Real *x = sent + neighbours[e] * width, *offset = offsets + kinds[e] * width;
      Real *to_x = of_sent + neighbours[e] * width, *to_offset = of_offsets + kinds[e] * width;
#pragma GCC ivdep
      for (int64_t c = 0; c < width; c++) {
        const Real passed = x[c] + offset[c] > 0 ? g[c] : Real(0);
        to_x[c] += passed;
        to_offset[c] += passed;
      }
    }
  }
}

}  // namespace

extern "C" {

// Put the nodes within `radius` of the roots [rows][max_nodes] end to end: by distance, then row, then node.
//
// index [nodes]: row * max_nodes + node. neighbours, kinds [nodes nearer than radius][4]: the position of each
// neighbour in that order or -1, and the kind of edge to it. sizes [radius + 1]: the numbers of nodes within radius,
// radius - 1, ..., 0.
void graph_flat_float(
    int64_t rows, int32_t max_nodes, int32_t max_edges, int32_t radius, const float* edges, const float* num_edges,
    const float* num_nodes, const uint8_t* roots, int64_t* index, int32_t* neighbours, uint8_t* kinds,
    int64_t* sizes) {
  flat(rows, max_nodes, max_edges, radius, edges, num_edges, num_nodes, roots, index, neighbours, kinds, sizes);
}

void graph_flat_double(
    int64_t rows, int32_t max_nodes, int32_t max_edges, int32_t radius, const double* edges, const double* num_edges,
    const double* num_nodes, const uint8_t* roots, int64_t* index, int32_t* neighbours, uint8_t* kinds,
    int64_t* sizes) {
  flat(rows, max_nodes, max_edges, radius, edges, num_edges, num_nodes, roots, index, neighbours, kinds, sizes);
}

// Compute sums[i] = sum over the neighbours of i of relu(sent[neighbour] + offsets[kind of edge]).
void graph_sum_float(
    int64_t receivers, int64_t width, const float* sent, const float* offsets, const int32_t* neighbours,
    const uint8_t* kinds, float* sums) {
  sum_messages(receivers, width, sent, offsets, neighbours, kinds, sums);
}

void graph_sum_double(
    int64_t receivers, int64_t width, const double* sent, const double* offsets, const int32_t* neighbours,
    const uint8_t* kinds, double* sums) {
  sum_messages(receivers, width, sent, offsets, neighbours, kinds, sums);
}

void graph_sum_backward_float(
    int64_t senders, int64_t receivers, int64_t width, const float* sent, const float* offsets,
    const int32_t* neighbours, const uint8_t* kinds, const float* gradient, float* of_sent, float* of_offsets) {
  sum_messages_backward(
      senders, receivers, width, sent, offsets, neighbours, kinds, gradient, of_sent, of_offsets);
}

void graph_sum_backward_double(
    int64_t senders, int64_t receivers, int64_t width, const double* sent, const double* offsets,
    const int32_t* neighbours, const uint8_t* kinds, const double* gradient, double* of_sent, double* of_offsets) {
  sum_messages_backward(
      senders, receivers, width, sent, offsets, neighbours, kinds, gradient, of_sent, of_offsets);
}

}  // extern "C"
