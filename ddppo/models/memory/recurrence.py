"""The recurrences of LSTM and GRU in C++ (ddppo/native/src/recurrence.cpp), with gradients by hand: on one CPU thread.

T rows, m environments, H units. keeps `[T, m]`: what the state before each row is times, 0 where an episode starts.
Every row of an environment is computed by itself: it does not depend on which, and how many, are computed beside it.
Oracle: the loops of torch in cores.py.
"""

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ddppo.native import library

_LANES = 16  # numbers in the longest vector of a processor; H is filled up with zeros, which stay zeros


def lstm(
    inputs: torch.Tensor, h: torch.Tensor, c: torch.Tensor, weight: torch.Tensor, keeps: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return outputs `[T, m, H]`, and c `[m, H]` after the last row, from W_x x + b `[T, m, 4H]` and W_h `[4H, H]`."""
    units = h.shape[-1]
    if lacking := -units % _LANES:
        inputs, weight = _filled(inputs, 4, lacking), _filled(F.pad(weight, (0, lacking)).t(), 4, lacking).t()
        h, c = F.pad(h, (0, lacking)), F.pad(c, (0, lacking))
    outputs, c = _LSTM.apply(inputs, h, c, weight, keeps)
    return outputs[..., :units], c[..., :units]


def gru(
    inputs: torch.Tensor, h: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, keeps: torch.Tensor
) -> torch.Tensor:
    """Return outputs `[T, m, H]` from W_x x + b `[T, m, 3H]`, W_h `[3H, H]` and what W_h h is added to `[3H]`."""
    units = h.shape[-1]
    if lacking := -units % _LANES:
        inputs, weight = _filled(inputs, 3, lacking), _filled(F.pad(weight, (0, lacking)).t(), 3, lacking).t()
        h, bias = F.pad(h, (0, lacking)), _filled(bias, 3, lacking)
    outputs: torch.Tensor = _GRU.apply(inputs, h, weight, bias, keeps)
    return outputs[..., :units]


class _LSTM(Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: torch.Tensor,
        h: torch.Tensor,
        c: torch.Tensor,
        weight: torch.Tensor,
        keeps: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        sizes = (*inputs.shape[:2], h.shape[-1])
        keeps, after = keeps.contiguous(), c.clone(memory_format=torch.contiguous_format)
        gates = torch.empty_like(inputs, memory_format=torch.contiguous_format)
        h_before, c_before, tanh_c, outputs = (inputs.new_empty(sizes) for _ in range(4))
        before = (inputs.contiguous(), keeps, h.contiguous(), after, weight.t().contiguous())
        _run("lstm_forward", sizes, *before, gates, h_before, c_before, tanh_c, outputs)
        ctx.save_for_backward(weight, keeps, gates, h_before, c_before, tanh_c)
        return outputs, after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_outputs: torch.Tensor, of_c: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        weight, keeps, gates, h_before, c_before, tanh_c = ctx.saved_tensors
        dh, dc = torch.zeros_like(h_before[0]), of_c.clone(memory_format=torch.contiguous_format)
        of_gates = torch.empty_like(gates)
        after = (of_outputs.contiguous(), keeps, dh, dc, weight.contiguous())
        _run("lstm_backward", h_before.shape, *after, gates, c_before, tanh_c, of_gates)
        return of_gates, dh, dc, of_gates.flatten(0, 1).t() @ h_before.flatten(0, 1), None


class _GRU(Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: torch.Tensor,
        h: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        keeps: torch.Tensor,
    ) -> torch.Tensor:
        sizes = (*inputs.shape[:2], h.shape[-1])
        keeps, gates = keeps.contiguous(), torch.empty_like(inputs, memory_format=torch.contiguous_format)
        n, h_before, outputs = (inputs.new_empty(sizes) for _ in range(3))
        before = (inputs.contiguous(), keeps, h.contiguous(), weight.t().contiguous(), bias.contiguous())
        _run("gru_forward", sizes, *before, gates, n, h_before, outputs)
        ctx.save_for_backward(weight, keeps, gates, n, h_before)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        weight, keeps, gates, n, h_before = ctx.saved_tensors
        dh, of_h, of_inputs = torch.zeros_like(n[0]), torch.empty_like(gates), torch.empty_like(gates)
        after = (of_outputs.contiguous(), keeps, dh, weight.contiguous())
        _run("gru_backward", n.shape, *after, gates, n, h_before, of_h, of_inputs)
        flat = of_h.flatten(0, 1)
        return of_inputs, dh, flat.t() @ h_before.flatten(0, 1), flat.sum(dim=0), None


def _run(name: str, sizes: tuple[int, ...], *arrays: torch.Tensor) -> None:
    """Call the function of that name for the type of `arrays`, which are contiguous and in the order of its struct."""
    kind = {torch.float32: "float", torch.float64: "double"}[arrays[0].dtype]
    assert all(x.is_contiguous() for x in arrays)
    of = (ctypes.c_void_p * len(arrays))(*(x.data_ptr() for x in arrays))
    getattr(library(), f"{name}_{kind}")(*map(ctypes.c_int64, sizes), of)


def _filled(x: torch.Tensor, num_parts: int, lacking: int) -> torch.Tensor:
    """Return x `[..., num_parts * H]` with so many zeros behind each part."""
    return F.pad(x.unflatten(-1, (num_parts, -1)), (0, lacking)).flatten(-2)
