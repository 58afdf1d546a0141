"""Circuits of a batch as one graph without padding, of no more nodes than are needed."""

import ctypes
from typing import Any, NamedTuple

import torch

from ddppo.domains.circuits import PLUGIN

SLOTS = 4  # neighbours of a gate: before it on ports 0 and 1, after it on ports 0 and 1
# What a message knows of its edge: the sender's port, the receiver's, and whether it runs against the edge.
EDGE_KINDS = tuple(
    (sender, receiver, reverse) for sender in (0, 1) for receiver in (0, 1) for reverse in (0, 1)
)
_INT, _LONG, _POINTER = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p


class Graph(NamedTuple):
    """Nodes near some roots, end to end: by distance from the nearest root, then observation, then node.

    nodes [M]: observation * max_nodes + node. neighbours [D, SLOTS]: the places of each node's neighbours in that
    order, -1 where there is none, and kinds [D, SLOTS] the rows of EDGE_KINDS; those farthest away have none listed.
    sizes [L + 1]: nodes within L, L - 1, ..., 0 of the roots. What layer l needs of the layer before are the first
    sizes[l - 1], and it computes the first sizes[l].
    """

    nodes: torch.Tensor
    neighbours: torch.Tensor
    kinds: torch.Tensor
    sizes: list[int]


def graph_around(roots: torch.Tensor, obs: dict[str, torch.Tensor], radius: int) -> Graph:
    """Return the graph of all nodes within `radius` edges of the roots `[n, max_nodes]` bool, real nodes all."""
    edges = obs["edges"]
    if is_native(edges):
        return _graph_in_cpp(roots, edges, obs["num_edges"], obs["num_nodes"], radius)
    return _graph_in_torch(roots, edges, obs["num_edges"], obs["num_nodes"], radius)


def is_native(numbers: torch.Tensor) -> bool:
    """Return whether the C++ library computes with such numbers here."""
    is_known = numbers.device.type == "cpu" and numbers.dtype in (torch.float32, torch.float64)
    return is_known and PLUGIN.cpp.why_not() is None


def functions(dtype: torch.dtype) -> dict[str, Any]:
    """Return the library's functions of numbers of this type."""
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
    distance = torch.full((nowhere + 1,), far, device=roots.device)  # the last is that of no neighbour
    distance[:-1][roots.flatten()] = 0
    for step in range(1, far):
        nearest = distance[table].amin(-1)
        distance[:-1] = torch.where(nearest < step, distance[:-1].clamp(max=step), distance[:-1])
    index = torch.cat([(distance[:-1] == step).nonzero()[:, 0] for step in range(far)])
    sizes = [int((distance[:-1] <= step).sum()) for step in range(radius, -1, -1)]
    places = index.new_full((nowhere + 1,), -1)
    places[index] = torch.arange(len(index), device=index.device)
    receivers = index[: sizes[1]]
    return Graph(index, places[table[receivers]], kinds[receivers], sizes)


def _neighbours(
    edges: torch.Tensor, num_edges: torch.Tensor, num_nodes: torch.Tensor, max_nodes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return every node's neighbours `[n * max_nodes, SLOTS]`, n * max_nodes where there is none, and kinds of edge."""
    n, max_edges, _ = edges.shape
    whole = edges.long()
    counts = num_nodes.long()[:, 0].clamp(max=max_nodes)
    limits = torch.stack([counts, torch.full_like(counts, 2)] * 2, -1)
    is_real = torch.arange(max_edges, device=edges.device) < num_edges.long()
    is_real &= ((edges >= 0) & (whole < limits[:, None])).all(-1)
    row = is_real.nonzero()[:, 0]
    source, port, destination, entry = whole[is_real].unbind(-1)
    source, destination = source + row * max_nodes, destination + row * max_nodes
    table = torch.full((n * max_nodes, SLOTS), n * max_nodes, device=edges.device)
    kinds = torch.zeros_like(table)
    table[destination, entry], kinds[destination, entry] = source, (port * 2 + entry) * 2
    table[source, 2 + port], kinds[source, 2 + port] = destination, (entry * 2 + port) * 2 + 1
    return table, kinds
