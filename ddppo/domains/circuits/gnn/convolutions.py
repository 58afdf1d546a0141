"""Layers of graph networks: from what nodes are, to what they are once they have heard of their neighbours."""

from typing import Any

import torch
from torch import nn

from ddppo.domains.circuits.gnn.graphs import EDGE_KINDS, Graph
from ddppo.domains.circuits.gnn.messages import sum_of_messages
from ddppo.models.actor_critic import linear

_GAIN = 2**0.5  # of layers in front of a ReLU
_HEADS = 4


class Convolution(nn.Module):
    """From hidden `[M, inputs]` of a graph's first nodes to `[receivers, outputs]` of fewer of them."""

    kinds: torch.Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inputs = inputs
        self.register_buffer(
            "kinds", torch.tensor(EDGE_KINDS, dtype=torch.get_default_dtype()), persistent=False
        )

    def num_products(self) -> int:
        """Return how many products of weights one node takes."""
        return sum(p.numel() for p in self.parameters() if p.dim() == 2)

    def forward(self, hidden: torch.Tensor, graph: Graph, receivers: int) -> torch.Tensor:
        raise NotImplementedError


class QGNN(Convolution):
    """h'_i = relu(U [h_i, s_i] + c), s_i = sum over edges (j, i) of relu(W [h_j, port_j, port_i, reversed] + b).

    Quarl's layer (Li et al. 2023, arXiv:2307.10120). W h_j is one product a node, and the rest of W's one
    of the kind of edge; U is kept in two parts, so that nothing is put side by side.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.source = _matrix(inputs, outputs, _GAIN)
        self.edge = linear(len(EDGE_KINDS[0]), outputs, gain=_GAIN)
        self.own = linear(inputs, outputs, gain=1.0)
        self.heard = _matrix(outputs, outputs, 1.0)

    def forward(self, hidden: torch.Tensor, graph: Graph, receivers: int) -> torch.Tensor:
        heard = sum_of_messages(self.source(hidden), self.edge(self.kinds), graph, receivers)
        return torch.addmm(self.own(hidden[:receivers]), heard, self.heard.weight.T).relu()


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
        heard = sum_of_messages(hidden, self.edge(self.kinds), graph, receivers)
        return self.second(self.first((1 + self.eps) * hidden[:receivers] + heard).relu()).relu()


class Attention(Convolution):
    """h'_i = relu(U [h_i, s_i] + c), s_i = sum over edges (j, i) of softmax_j(q_i (k_j + e_ji) / sqrt(d)) (v_j + f_ji).

    4 heads; as Shi et al. 2021, arXiv:2009.03509, eq. 3 and 4. A node without edges hears 0.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.query = linear(inputs, outputs, gain=1.0)
        self.source = _matrix(inputs, 2 * outputs, 1.0)  # keys and values
        self.edge = linear(len(EDGE_KINDS[0]), 2 * outputs, gain=1.0)
        self.own = linear(inputs, outputs, gain=1.0)
        self.heard = _matrix(outputs, outputs, 1.0)

    def forward(self, hidden: torch.Tensor, graph: Graph, receivers: int) -> torch.Tensor:
        neighbours, kinds = graph.neighbours[:receivers].long(), graph.kinds[:receivers].long()
        own = hidden[:receivers]
        queries = self.query(own).unflatten(-1, (_HEADS, -1))
        sent = self.source(hidden)[neighbours.clamp(min=0)] + self.edge(self.kinds)[kinds]
        keys, values = (
            x.unflatten(-1, (_HEADS, -1)) for x in sent.chunk(2, dim=-1)
        )  # [receivers, SLOTS, heads, d]
        scores = torch.einsum("ihd,ishd->ish", queries, keys) / queries.shape[-1] ** 0.5
        is_there = (neighbours >= 0).unsqueeze(-1)
        shares = scores.masked_fill(~is_there, torch.finfo(scores.dtype).min).softmax(1) * is_there
        heard = torch.einsum("ish,ishd->ihd", shares, values).flatten(1)
        return torch.addmm(self.own(own), heard, self.heard.weight.T).relu()


CONVOLUTIONS: dict[str, type[Convolution]] = {"qgnn": QGNN, "gin": GIN, "attention": Attention}


def _matrix(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer: Any = nn.Linear(inputs, outputs, bias=False)
    nn.init.orthogonal_(layer.weight, gain)
    return layer
