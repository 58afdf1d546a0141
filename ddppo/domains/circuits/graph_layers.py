"""Circuits of a batch as one graph without padding, and graph convolutions on it.

On CPUs, building the graph and summing messages are done in C++ (src/graph.cpp); the same in torch serves other
devices.
"""

import ctypes
from typing import Any, NamedTuple

import torch
from torch import nn

from ddppo.domains.circuits import PLUGIN
from ddppo.models.actor_critic import linear

# -- Circuits of a batch as one graph without padding, with no more nodes than needed --------------------------------


SLOTS = 4  # neighbours of a gate: before it on ports 0 and 1, after it on ports 0 and 1
# Features of an edge in a message: the sender's port, the receiver's port, and whether it runs against the edge.
EDGE_KINDS = tuple(
    (sender, receiver, reverse) for sender in (0, 1) for receiver in (0, 1) for reverse in (0, 1)
)
_INT, _LONG, _POINTER = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p


class Graph(NamedTuple):
    """The M nodes within L edges of some roots, sorted by distance from the nearest root, then observation, then node.

    Layer l reads the first sizes[l - 1] nodes and computes the first sizes[l], so that the last layer computes the
    roots alone.
    """

    nodes: torch.Tensor  # [M] observation * max_nodes + node
    # [D, SLOTS] positions in `nodes` of each node's neighbours, -1 for none. The farthest nodes have no row: no layer
    # computes them.
    neighbours: torch.Tensor
    kinds: torch.Tensor  # [D, SLOTS] row of EDGE_KINDS of each edge
    sizes: list[int]  # [L + 1] number of nodes within L, L - 1, ..., 0 edges of the roots


def graph_around(roots: torch.Tensor, obs: dict[str, torch.Tensor], radius: int) -> Graph:
    """Return the graph of all nodes within `radius` edges of the roots `[n, max_nodes]` bool. Roots are real nodes."""
    edges = obs["edges"]
    if is_native(edges):
        return _graph_in_cpp(roots, edges, obs["num_edges"], obs["num_nodes"], radius)
    return _graph_in_torch(roots, edges, obs["num_edges"], obs["num_nodes"], radius)


def is_native(numbers: torch.Tensor) -> bool:
    """Return whether the C++ library computes tensors of this device and type, and could be compiled here."""
    is_known = numbers.device.type == "cpu" and numbers.dtype in (torch.float32, torch.float64)
    return is_known and PLUGIN.cpp.why_not() is None


def functions(dtype: torch.dtype) -> dict[str, Any]:
    """Return the library's functions for this type."""
    if dtype not in _declared:
        library, suffix = PLUGIN.cpp.load(), {torch.float32: "float", torch.float64: "double"}[dtype]
        types: dict[str, list[Any]] = {
            "flat": [_LONG, _INT, _INT, _INT, *(_POINTER,) * 8],
            "sum": [_LONG, _LONG, *(_POINTER,) * 5],
            "sum_backward": [_LONG, _LONG, _LONG, *(_POINTER,) * 7],
        }
        found = {name: library[f"graph_{name}_{suffix}"] for name in types}
        for name, function in found.items():
            function.argtypes, function.restype = types[name], None
        _declared[dtype] = found
    return _declared[dtype]


_declared: dict[torch.dtype, dict[str, Any]] = {}


def _graph_in_cpp(
    roots: torch.Tensor, edges: torch.Tensor, num_edges: torch.Tensor, num_nodes: torch.Tensor, radius: int
) -> Graph:
    # Arrays for all nodes of the batch; C++ fills a part of them, and returns its size.
    (n, max_nodes), most = roots.shape, roots.numel()
    index = torch.empty(most, dtype=torch.int64)
    neighbours = torch.empty(most, SLOTS, dtype=torch.int32)
    kinds = torch.empty(most, SLOTS, dtype=torch.uint8)
    sizes = torch.empty(radius + 1, dtype=torch.int64)
    given = [x.contiguous() for x in (edges, num_edges, num_nodes, roots)]
    pointers = [x.data_ptr() for x in (*given, index, neighbours, kinds, sizes)]
    functions(edges.dtype)["flat"](n, max_nodes, edges.shape[1], radius, *pointers)
    found: list[int] = sizes.tolist()
    return Graph(index[: found[0]], neighbours[: found[1]], kinds[: found[1]], found)


def _graph_in_torch(
    roots: torch.Tensor, edges: torch.Tensor, num_edges: torch.Tensor, num_nodes: torch.Tensor, radius: int
) -> Graph:
    n, max_nodes = roots.shape
    table, kinds = _neighbours(edges, num_edges, num_nodes, max_nodes)
    nowhere = n * max_nodes
    far = radius + 1
    # Breadth-first search from the roots: after step s, distances up to s are known.
    # The last entry stands for a missing neighbour.
    distance = torch.full((nowhere + 1,), far, device=roots.device)
    distance[:-1][roots.flatten()] = 0
    for step in range(1, far):
        nearest = distance[table].amin(-1)
        distance[:-1] = torch.where(nearest < step, distance[:-1].clamp(max=step), distance[:-1])
    # Sort nodes by distance, and translate neighbours to positions in that order.
    index = torch.cat([(distance[:-1] == step).nonzero()[:, 0] for step in range(far)])
    sizes = [int((distance[:-1] <= step).sum()) for step in range(radius, -1, -1)]
    places = index.new_full((nowhere + 1,), -1)
    places[index] = torch.arange(len(index), device=index.device)
    receivers = index[: sizes[1]]
    return Graph(index, places[table[receivers]], kinds[receivers], sizes)


def _neighbours(
    edges: torch.Tensor, num_edges: torch.Tensor, num_nodes: torch.Tensor, max_nodes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the neighbours `[n * max_nodes, SLOTS]` of every node, n * max_nodes for none, and kinds of the edges."""
    n, max_edges, _ = edges.shape
    whole = edges.long()
    counts = num_nodes.long()[:, 0].clamp(max=max_nodes)
    limits = torch.stack([counts, torch.full_like(counts, 2)] * 2, -1)
    # Only real edges count: the check of a model feeds random numbers, which may name nodes that do not exist.
    is_real = torch.arange(max_edges, device=edges.device) < num_edges.long()
    is_real &= ((edges >= 0) & (whole < limits[:, None])).all(-1)
    row = is_real.nonzero()[:, 0]
    source, port, destination, entry = whole[is_real].unbind(-1)
    source, destination = source + row * max_nodes, destination + row * max_nodes
    table = torch.full((n * max_nodes, SLOTS), n * max_nodes, device=edges.device)
    kinds = torch.zeros_like(table)
    # An edge gives its destination a neighbour before it, and its source a neighbour after it.
    table[destination, entry], kinds[destination, entry] = source, (port * 2 + entry) * 2
    table[source, 2 + port], kinds[source, 2 + port] = destination, (entry * 2 + port) * 2 + 1
    return table, kinds


# -- The sum of the messages from a node's neighbours, and its gradient ----------------------------------------------


def sum_of_messages(sent: torch.Tensor, offsets: torch.Tensor, graph: Graph, receivers: int) -> torch.Tensor:
    """Return sums `[receivers, C]`: s_i = sum over edges (j, i) of relu(x_j + b_k), k the kind of the edge.

    In C++ on CPUs: in torch, gathering, adding and storing [receivers, SLOTS, C] takes longer than all matrix products.

    Args:
        sent: x `[M, C]`.
        offsets: b `[len(EDGE_KINDS), C]`.
        receivers: number of nodes that get a sum, the first ones of the graph.
    """
    neighbours, kinds = graph.neighbours[:receivers], graph.kinds[:receivers]
    if is_native(sent):
        return _SumOfMessages.apply(sent, offsets, neighbours, kinds)
    return sum_in_torch(sent, offsets, neighbours, kinds)


def sum_in_torch(
    sent: torch.Tensor, offsets: torch.Tensor, neighbours: torch.Tensor, kinds: torch.Tensor
) -> torch.Tensor:
    """Return the same sums by torch's own operations, on any device; neighbours and kinds are `[receivers, SLOTS]`."""
    messages = (sent[neighbours.long().clamp(min=0)] + offsets[kinds.long()]).relu()
    return (messages * (neighbours >= 0).unsqueeze(-1)).sum(1)


class _SumOfMessages(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, sent: torch.Tensor, offsets: torch.Tensor, neighbours: torch.Tensor, kinds: torch.Tensor
    ) -> torch.Tensor:
        inputs = [x.contiguous() for x in (sent, offsets, neighbours, kinds)]
        ctx.save_for_backward(*inputs)
        sums = sent.new_empty(len(neighbours), sent.shape[1])
        functions(sent.dtype)["sum"](*sums.shape, *(x.data_ptr() for x in (*inputs, sums)))
        return sums

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs = ctx.saved_tensors
        of_sent, of_offsets = (torch.empty_like(x) for x in inputs[:2])
        pointers = [x.data_ptr() for x in (*inputs, gradient.contiguous(), of_sent, of_offsets)]
        functions(gradient.dtype)["sum_backward"](len(of_sent), *gradient.shape, *pointers)
        return of_sent, of_offsets, None, None


# -- Graph convolutions ----------------------------------------------------------------------------------------------


_GAIN = 2**0.5  # of the initial weights of layers in front of a ReLU (He et al. 2015, arXiv:1502.01852)
_HEADS = 4


class Convolution(nn.Module):
    """Maps features `[M, inputs]` of a graph's first M nodes to features `[receivers, outputs]` of fewer of them."""

    kinds: torch.Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inputs = inputs
        self.register_buffer(
            "kinds", torch.tensor(EDGE_KINDS, dtype=torch.get_default_dtype()), persistent=False
        )

    def num_products(self) -> int:
        """Return the number of multiplications by weights for one node."""
        return sum(p.numel() for p in self.parameters() if p.dim() == 2)

    def forward(self, hidden: torch.Tensor, graph: Graph, receivers: int) -> torch.Tensor:
        raise NotImplementedError


class QGNN(Convolution):
    """h'_i = relu(U [h_i, s_i] + c), s_i = sum over edges (j, i) of relu(W [h_j, port_j, port_i, reversed] + b).

    Quarl's layer (Li et al. 2023, arXiv:2307.10120). W [h_j, ...] is split into W h_j, one product per node, and a part
    that depends on the kind of the edge alone. U is split likewise, so that nothing is concatenated.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        # Attribute names are keys of checkpoints: `heard` is the part of U that multiplies s_i.
        self.source = _matrix(inputs, outputs, _GAIN)
        self.edge = linear(len(EDGE_KINDS[0]), outputs, gain=_GAIN)
        self.own = linear(inputs, outputs, gain=1.0)
        self.heard = _matrix(outputs, outputs, 1.0)

    def forward(self, hidden: torch.Tensor, graph: Graph, receivers: int) -> torch.Tensor:
        sums = sum_of_messages(self.source(hidden), self.edge(self.kinds), graph, receivers)
        return torch.addmm(self.own(hidden[:receivers]), sums, self.heard.weight.T).relu()


class GIN(Convolution):
    """h'_i = relu(V relu(U ((1 + eps) h_i + s_i) + c) + d), s_i = sum over edges (j, i) of relu(h_j + e_ji).

    Xu et al. 2019, arXiv:1810.00826, eq. 4.1, with edges as in Hu et al. 2020, arXiv:1905.12265.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.eps = nn.Parameter(torch.zeros(1))
        self.edge = linear(len(EDGE_KINDS[0]), inputs, gain=1.0)
        self.first = linear(inputs, outputs, gain=_GAIN)
        self.second = linear(outputs, outputs, gain=_GAIN)

    def forward(self, hidden: torch.Tensor, graph: Graph, receivers: int) -> torch.Tensor:
        sums = sum_of_messages(hidden, self.edge(self.kinds), graph, receivers)
        return self.second(self.first((1 + self.eps) * hidden[:receivers] + sums).relu()).relu()


class Attention(Convolution):
    """h'_i = relu(U [h_i, s_i] + c), s_i = sum over edges (j, i) of softmax_j(q_i (k_j + e_ji) / sqrt(d)) (v_j + f_ji).

    4 heads; as Shi et al. 2021, arXiv:2009.03509, eq. 3 and 4. For a node without edges, s_i = 0.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.query = linear(inputs, outputs, gain=1.0)
        self.source = _matrix(inputs, 2 * outputs, 1.0)  # keys and values
        self.edge = linear(len(EDGE_KINDS[0]), 2 * outputs, gain=1.0)
        self.own = linear(inputs, outputs, gain=1.0)
        self.heard = _matrix(outputs, outputs, 1.0)

    def forward(self, hidden: torch.Tensor, graph: Graph, receivers: int) -> torch.Tensor:
        # Queries of the receivers; keys and values of their neighbours, shifted by the kind of the edge.
        neighbours, kinds = graph.neighbours[:receivers].long(), graph.kinds[:receivers].long()
        own = hidden[:receivers]
        queries = self.query(own).unflatten(-1, (_HEADS, -1))
        sent = self.source(hidden)[neighbours.clamp(min=0)] + self.edge(self.kinds)[kinds]
        # [receivers, SLOTS, 2 * outputs] -> twice [receivers, SLOTS, heads, d]
        keys, values = (x.unflatten(-1, (_HEADS, -1)) for x in sent.chunk(2, dim=-1))
        scores = torch.einsum("ihd,ishd->ish", queries, keys) / queries.shape[-1] ** 0.5
        # A mask of -inf would give NaN for a node without neighbours; the least number and a factor of 0 give 0.
        is_there = (neighbours >= 0).unsqueeze(-1)
        shares = scores.masked_fill(~is_there, torch.finfo(scores.dtype).min).softmax(1) * is_there
        sums = torch.einsum("ish,ishd->ihd", shares, values).flatten(1)
        return torch.addmm(self.own(own), sums, self.heard.weight.T).relu()


CONVOLUTIONS: dict[str, type[Convolution]] = {"qgnn": QGNN, "gin": GIN, "attention": Attention}


def _matrix(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer: Any = nn.Linear(inputs, outputs, bias=False)
    nn.init.orthogonal_(layer.weight, gain)
    return layer
