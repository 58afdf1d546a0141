"""The sum over a node's edges of what its neighbours send it, and its gradient."""

from typing import Any

import torch

from ddppo.domains.circuits.gnn.graphs import Graph, functions, is_native


def sum_of_messages(sent: torch.Tensor, offsets: torch.Tensor, graph: Graph, receivers: int) -> torch.Tensor:
    """Return sums `[receivers, C]`: s_i = sum over edges (j, i) of relu(x_j + b_k), k the kind of the edge.

    sent x `[M, C]`, offsets b `[len(EDGE_KINDS), C]`. In C++ where the library computes with such numbers: gathering,
    adding and keeping [receivers, SLOTS, C] by itself takes torch longer than all products of matrices.
    """
    neighbours, kinds = graph.neighbours[:receivers], graph.kinds[:receivers]
    if is_native(sent):
        return _Sum.apply(sent, offsets, neighbours, kinds)
    return sum_in_torch(sent, offsets, neighbours, kinds)


def sum_in_torch(
    sent: torch.Tensor, offsets: torch.Tensor, neighbours: torch.Tensor, kinds: torch.Tensor
) -> torch.Tensor:
    """Return the same of neighbours and kinds `[receivers, SLOTS]` by torch's own operations, on any device."""
    messages = (sent[neighbours.long().clamp(min=0)] + offsets[kinds.long()]).relu()
    return (messages * (neighbours >= 0).unsqueeze(-1)).sum(1)


class _Sum(torch.autograd.Function):
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
