"""The recurrences of LSTM and GRU on a CPU, with gradients by hand: operations of torch on few rows cost their calls.

Forward keeps what the gradient needs of every row. Backward first computes all factors of the chain rule for all rows
at once; what goes row by row is a product with W_h and a handful of NumPy's operations, which cost a third of torch's
in learning from few environments.
The gradient of W_h is one product over all rows. Oracle: the loops of torch in cores.py.

T rows, m environments, H units. keeps: of each row `[m, 1]`, what the state before it is times; None: 1.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

Keeps = Sequence[torch.Tensor | None]


class LSTMRows(NamedTuple):
    """What a forward pass left: gates i, f, g, o `[T, m, 4H]`, h and c before rows and tanh(c) after `[T, m, H]`."""

    gates: np.ndarray
    h_before: np.ndarray
    c_before: np.ndarray
    tanh_c: np.ndarray
    outputs: np.ndarray
    c: np.ndarray  # after the last row


def lstm_rows(
    inputs: torch.Tensor, h: torch.Tensor, c: torch.Tensor, weight: torch.Tensor, keeps: Keeps
) -> LSTMRows:
    """Return all rows from inputs W_x x + b `[T, m, 4H]`, the state `[m, H]` before them and W_h `[4H, H]`."""
    steps, envs, units = len(inputs), len(h), h.shape[-1]
    gates, transposed = torch.empty_like(inputs), weight.t()
    rows = torch.empty(4, steps, envs, units, dtype=h.dtype)
    h_before, c_before, tanh_c, outputs = rows.numpy()
    # sigmoid(x) = tanh(x / 2) / 2 + 1 / 2, so that one tanh serves all gates
    scale = np.full(4 * units, 0.5, gates.numpy().dtype)
    scale[2 * units : 3 * units] = 1
    shift = 1 - scale
    of_c, room = c.numpy().copy(), np.empty((envs, units), scale.dtype)
    h_rows, gate_rows, gate_arrays = rows[0].unbind(), gates.unbind(), gates.numpy()
    before = h.numpy()
    for t, (x, keep) in enumerate(zip(inputs.unbind(), keeps, strict=True)):
        kept = None if keep is None else keep.numpy()
        if kept is None:
            h_before[t], c_before[t] = before, of_c
        else:
            np.multiply(before, kept, out=h_before[t])
            np.multiply(of_c, kept, out=c_before[t])
        torch.addmm(x, h_rows[t], transposed, out=gate_rows[t])
        z = gate_arrays[t]
        z *= scale
        np.tanh(z, out=z)
        z *= scale
        z += shift
        i, f, g, o = (z[:, k * units : (k + 1) * units] for k in range(4))
        np.multiply(f, c_before[t], out=of_c)
        of_c += np.multiply(i, g, out=room)
        np.tanh(of_c, out=tanh_c[t])
        before = np.multiply(o, tanh_c[t], out=outputs[t])
    return LSTMRows(gate_arrays, h_before, c_before, tanh_c, outputs, of_c)


class LSTMRecurrence(Function):
    """Differentiable `lstm_rows`: the outputs `[T, m, H]`, and c `[m, H]` after the last row."""

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, h: torch.Tensor, c: torch.Tensor, weight: torch.Tensor, keeps: Keeps
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = lstm_rows(inputs.detach(), h.detach(), c.detach(), weight.detach(), keeps)
        ctx.rows, ctx.keeps = rows, keeps
        ctx.save_for_backward(weight)
        return torch.from_numpy(rows.outputs), torch.from_numpy(rows.c)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_outputs: torch.Tensor, of_c: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        rows: LSTMRows = ctx.rows
        steps, envs, units = rows.outputs.shape
        i, f, g, o = np.split(rows.gates, 4, axis=-1)
        by_c = np.stack([g * i * (1 - i), rows.c_before * f * (1 - f), i * (1 - g * g)], axis=2)
        by_h = rows.tanh_c * o * (1 - o)
        c_by_h = o * (1 - rows.tanh_c * rows.tanh_c)
        of_gates = torch.empty(steps, envs, 4 * units, dtype=weight.dtype)
        gate_rows, arrays = of_gates.unbind(), of_gates.numpy().reshape(steps, envs, 4, units)
        dh, dc = np.zeros_like(rows.c), of_c.numpy().copy()
        back, grads = torch.from_numpy(dh), of_outputs.numpy()
        for t in range(steps - 1, -1, -1):
            dh += grads[t]
            dc += dh * c_by_h[t]
            np.multiply(by_c[t], dc[:, None], out=arrays[t, :, :3])
            np.multiply(dh, by_h[t], out=arrays[t, :, 3])
            dc *= f[t]
            torch.mm(gate_rows[t], weight, out=back)
            if (keep := ctx.keeps[t]) is not None:
                dh *= keep.numpy()
                dc *= keep.numpy()
        before = torch.from_numpy(rows.h_before).flatten(0, 1)
        of_weight = of_gates.flatten(0, 1).t() @ before
        return of_gates, back, torch.from_numpy(dc), of_weight, None


class GRURows(NamedTuple):
    """What a forward pass left, `[T, m, H]` but for r, z `[T, m, 2H]`: n, W_hn h + b_hn, and h before each row."""

    gates: np.ndarray
    n: np.ndarray
    of_h: np.ndarray
    h_before: np.ndarray
    outputs: np.ndarray


def gru_rows(
    inputs: torch.Tensor, h: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, keeps: Keeps
) -> GRURows:
    """Return all rows from inputs `[T, m, 3H]`, h `[m, H]` before them, W_h `[3H, H]` and its bias `[3H]`."""
    steps, envs, units = len(inputs), len(h), h.shape[-1]
    transposed, half = weight.t(), 0.5
    rows = torch.empty(4, steps, envs, units, dtype=h.dtype)
    h_before, n_rows, of_h, outputs = rows.numpy()
    gates = np.empty((steps, envs, 2 * units), outputs.dtype)
    said = torch.empty(envs, 3 * units, dtype=h.dtype)
    told, given = said.numpy(), inputs.numpy()
    h_rows, before = rows[0].unbind(), h.numpy()
    for t, keep in enumerate(keeps):
        if keep is None:
            h_before[t] = before
        else:
            np.multiply(before, keep.numpy(), out=h_before[t])
        torch.addmm(bias, h_rows[t], transposed, out=said)
        x, rz, n = given[t], gates[t], n_rows[t]
        np.add(x[:, : 2 * units], told[:, : 2 * units], out=rz)
        rz *= half
        np.tanh(rz, out=rz)
        rz *= half
        rz += half
        of_h[t] = told[:, 2 * units :]
        np.multiply(rz[:, :units], of_h[t], out=n)
        n += x[:, 2 * units :]
        np.tanh(n, out=n)
        out = np.subtract(h_before[t], n, out=outputs[t])
        out *= rz[:, units:]
        out += n
        before = out
    return GRURows(gates, n_rows, of_h, h_before, outputs)


class GRURecurrence(Function):
    """Differentiable `gru_rows`: the outputs `[T, m, H]`."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: torch.Tensor,
        h: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        keeps: Keeps,
    ) -> torch.Tensor:
        ctx.rows = gru_rows(inputs.detach(), h.detach(), weight.detach(), bias.detach(), keeps)
        ctx.keeps = keeps
        ctx.save_for_backward(weight)
        return torch.from_numpy(ctx.rows.outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        rows: GRURows = ctx.rows
        steps, envs, units = rows.outputs.shape
        r, z = np.split(rows.gates, 2, axis=-1)
        n_by_h = (1 - z) * (1 - rows.n * rows.n)
        z_by_h = (rows.h_before - rows.n) * z * (1 - z)
        r_by_n = rows.of_h * r * (1 - r)
        of_h = torch.empty(steps, envs, 3 * units, dtype=weight.dtype)
        of_h_rows, arrays = of_h.unbind(), of_h.numpy().reshape(steps, envs, 3, units)
        of_n, dh = np.empty_like(rows.n), np.zeros((envs, units), rows.n.dtype)
        product = torch.empty(envs, units, dtype=weight.dtype)
        through, grads = product.numpy(), of_outputs.numpy()
        for t in range(steps - 1, -1, -1):
            dh += grads[t]
            dn = np.multiply(dh, n_by_h[t], out=of_n[t])
            np.multiply(dn, r_by_n[t], out=arrays[t, :, 0])
            np.multiply(dh, z_by_h[t], out=arrays[t, :, 1])
            np.multiply(dn, r[t], out=arrays[t, :, 2])
            torch.mm(of_h_rows[t], weight, out=product)
            dh *= z[t]
            dh += through
            if (keep := ctx.keeps[t]) is not None:
                dh *= keep.numpy()
        of_inputs = torch.cat([of_h[..., : 2 * units], torch.from_numpy(of_n)], dim=-1)
        flat = of_h.flatten(0, 1)
        of_weight = flat.t() @ torch.from_numpy(rows.h_before).flatten(0, 1)
        return of_inputs, torch.from_numpy(dh), of_weight, flat.sum(dim=0), None
