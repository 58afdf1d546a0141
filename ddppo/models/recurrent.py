"""Models with memory: one step for acting, many steps in a row for learning.

`Recurrent` is the interface, also for a user's own model (docs/guide/memory.md). `RecurrentActorCritic` at the end is
model.memory=lstm|gru: a trunk, a recurrent `Core` and two heads. Between stand the cores, and their recurrences in C++.
"""

import abc
import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ddppo.config.model_settings import LayerSettings
from ddppo.models.actor_critic import ActorCritic, Obs, linear
from ddppo.models.distributions import begin_log_std_, policy_outputs, policy_params
from ddppo.models.on_trunk import make_trunk
from ddppo.native import library
from ddppo.spaces import EnvSpec, each, leaves


class Recurrent(ActorCritic):
    """An actor-critic that remembers state_size numbers of each environment, all 0 at the start of an episode.

    A subclass sets `state_size` in __init__ and defines `step` and `unroll`; unroll equals step, row after row.
    forward, action_params and value are a step from a state of 0, as at the start of an episode.
    """

    stays_eager = "a loop over the steps of a rollout is not compiled"

    @abc.abstractmethod
    def step(self, obs: Obs, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]: ...

    @abc.abstractmethod
    def unroll(
        self, obs: Obs, state: torch.Tensor, starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

    def forward(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        like = next(self.parameters())
        params, values, _ = self.step(obs, like.new_zeros(len(leaves(obs)[0]), self.state_size))
        return params, values

    def action_params(self, obs: Obs) -> torch.Tensor:
        return self(obs)[0]

    def value(self, obs: Obs) -> torch.Tensor:
        return self(obs)[1]


# -- The recurrences of LSTM and GRU in C++ (native/src/recurrence.cpp) with hand-written gradients, on one CPU thread.
#
# T rows, m environments, H units. keeps `[T, m]`: factor of the state before each row, 0 at the start of an episode.
# The result of an environment does not depend on the environments beside it. Tests compare with the loops in torch
# (`LSTM.recur`, `GRU.recur`).


_LANES = 16  # numbers in the longest SIMD vector; H is padded to a multiple with zeros, which stay zeros


def lstm(
    inputs: torch.Tensor, h: torch.Tensor, c: torch.Tensor, weight: torch.Tensor, keeps: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return outputs `[T, m, H]` and c `[m, H]` after the last row.

    inputs: W_x x + b, `[T, m, 4H]`; h, c: `[m, H]`; weight: W_h, `[4H, H]`.
    """
    units = h.shape[-1]
    # Pad every gate to a multiple of the vector length; the padding stays 0 and is cut off at the end.
    if lacking := -units % _LANES:
        inputs, weight = _filled(inputs, 4, lacking), _filled(F.pad(weight, (0, lacking)).t(), 4, lacking).t()
        h, c = F.pad(h, (0, lacking)), F.pad(c, (0, lacking))
    outputs, c = _LSTM.apply(inputs, h, c, weight, keeps)
    return outputs[..., :units], c[..., :units]


def gru(
    inputs: torch.Tensor, h: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, keeps: torch.Tensor
) -> torch.Tensor:
    """Return outputs `[T, m, H]`.

    inputs: W_x x + b, `[T, m, 3H]`; h: `[m, H]`; weight: W_h, `[3H, H]`; bias: added to W_h h, `[3H]`.
    """
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
    """Call the C++ function `name` for the type of `arrays`: contiguous, in the order of the fields of its struct."""
    kind = {torch.float32: "float", torch.float64: "double"}[arrays[0].dtype]
    assert all(x.is_contiguous() for x in arrays)
    of = (ctypes.c_void_p * len(arrays))(*(x.data_ptr() for x in arrays))
    getattr(library(), f"{name}_{kind}")(*map(ctypes.c_int64, sizes), of)


def _filled(x: torch.Tensor, num_parts: int, lacking: int) -> torch.Tensor:
    """Return x `[..., num_parts * H]` with `lacking` zeros behind each of its parts."""
    return F.pad(x.unflatten(-1, (num_parts, -1)), (0, lacking)).flatten(-2)


# -- Recurrent layers over time. The state is reset to 0 at the start of every episode.
#
# Only the recurrence goes row by row: W_x x + b is one product over all rows. If `learns_in_cpp` is set, on one CPU
# thread, the learner's rows are computed in C++ (lstm and gru above). The loops in torch here serve acting, GPUs and
# tracing.


Keeps = Sequence[torch.Tensor | None]  # for each row, the factor `[m, 1]` of the state before it; None = 1


class Core(nn.Module, abc.ABC):
    """Recurrent layers of H units each, from features `[T, m, F]` to `[T, m, H]`.

    The state of an environment holds `parts` vectors of H numbers for each layer: S = num_layers * parts * H. Weights
    are initialised orthogonal with gain 1 and biases with 0, as in CleanRL's ppo_atari_lstm
    (https://docs.cleanrl.dev/rl-algorithms/ppo/#ppo_atari_lstmpy).
    """

    gates: int  # 4 for LSTM, 3 for GRU
    parts: int  # vectors of a layer's state: 2 for LSTM (h, c), 1 for GRU (h)
    learns_in_cpp = False

    def __init__(self, inputs: int, units: int, num_layers: int) -> None:
        super().__init__()
        self.units, self.num_layers = units, num_layers
        rows = self.gates * units
        sizes = [inputs, *[units] * (num_layers - 1)]
        self.weights_x = nn.ParameterList(_orthogonal(rows, size) for size in sizes)
        self.weights_h = nn.ParameterList(_orthogonal(rows, units) for _ in sizes)
        self.biases = nn.ParameterList(torch.zeros(rows) for _ in sizes)

    @property
    def state_size(self) -> int:
        """S, numbers that the core remembers of one environment."""
        return self.num_layers * self.parts * self.units

    @property
    def num_products(self) -> int:
        """Multiplications with a weight that one step takes."""
        return sum(weight.numel() for weight in (*self.weights_x, *self.weights_h))

    def forward(
        self, x: torch.Tensor, state: torch.Tensor, starts: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the outputs of the last layer `[T, m, H]`, and the state `[m, S]` after the last row.

        x: `[T, m, F]`; state: `[m, S]` before row 0; starts: `[T, m]` bool, True if the state before the row is 0, None
        for never.
        """
        is_in_cpp = self.learns_in_cpp and len(x) > 1
        kept = x.new_ones(x.shape[:2]) if starts is None else (~starts).to(x.dtype)
        keeps: Keeps = [None] * len(x)
        if starts is not None and not is_in_cpp:
            rows = kept.unsqueeze(-1).unbind()
            keeps = list(rows)
            if (
                starts.is_cpu
            ):  # most rows start no episode and need no product; to ask a device which takes longer
                keeps = [
                    row if some else None for row, some in zip(rows, starts.any(1).tolist(), strict=True)
                ]
        # Layer by layer: the input part of all rows at once, then the recurrence row by row.
        after: list[torch.Tensor] = []
        for i, of_layer in enumerate(
            state.unflatten(-1, (self.num_layers, self.parts, self.units)).unbind(1)
        ):
            inputs = F.linear(x, self.weights_x[i], self.biases[i])
            of_layer = of_layer.unbind(1)
            if is_in_cpp:
                x, last = self.recur_in_cpp(inputs, of_layer, kept, i)
            else:
                x, last = self.recur(inputs, of_layer, keeps, i)
            after += last
        return x, torch.cat(after, dim=-1)

    @abc.abstractmethod
    def recur(
        self, inputs: torch.Tensor, state: tuple[torch.Tensor, ...], keeps: Keeps, layer: int
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the outputs `[T, m, H]` of a layer, and the parts of its state `[m, H]` after the last row.

        inputs: W_x x + b, `[T, m, gates * H]`; keeps: for each row, the factor of the state before it.
        """

    @abc.abstractmethod
    def recur_in_cpp(
        self, inputs: torch.Tensor, state: tuple[torch.Tensor, ...], kept: torch.Tensor, layer: int
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the results of `recur`, up to rounding. kept: factor of the state before each row, `[T, m]`."""


class LSTM(Core):
    """Long short-term memory (Hochreiter and Schmidhuber 1997; the gates of torch.nn.LSTM, in its order).

    i, f, g, o = W_x x + W_h h + b;  c = sigmoid(f) c + sigmoid(i) tanh(g);  h = sigmoid(o) tanh(c)
    """

    gates, parts = 4, 2

    def recur(
        self, inputs: torch.Tensor, state: tuple[torch.Tensor, ...], keeps: Keeps, layer: int
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        (h, c), rows, weight = state, [], self.weights_h[layer].t()
        for x, keep in zip(inputs.unbind(), keeps, strict=True):
            if keep is not None:
                h, c = h * keep, c * keep
            i, f, g, o = torch.addmm(x, h, weight).chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            rows.append(h)
        return torch.stack(rows), [h, c]

    def recur_in_cpp(
        self, inputs: torch.Tensor, state: tuple[torch.Tensor, ...], kept: torch.Tensor, layer: int
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        h, c = state
        outputs, c = lstm(inputs, h, c, self.weights_h[layer], kept)
        return outputs, [outputs[-1], c]


class GRU(Core):
    """Gated recurrent unit (Cho et al. 2014, arXiv:1406.1078; the gates of torch.nn.GRU, in its order).

    r, z = sigmoid(W_x x + W_h h + b);  n = tanh(W_xn x + b_n + r (W_hn h + b_hn));  h = (1 - z) n + z h
    """

    gates, parts = 3, 1

    def __init__(self, inputs: int, units: int, num_layers: int) -> None:
        super().__init__(inputs, units, num_layers)
        self.biases_hn = nn.ParameterList(torch.zeros(units) for _ in range(num_layers))

    def recur(
        self, inputs: torch.Tensor, state: tuple[torch.Tensor, ...], keeps: Keeps, layer: int
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        (h,), rows, two = state, [], 2 * self.units
        weight, bias = self.weights_h[layer].t(), self._bias(layer)
        for x, keep in zip(inputs.unbind(), keeps, strict=True):
            if keep is not None:
                h = h * keep
            of_h = torch.addmm(bias, h, weight)
            r, z = torch.sigmoid(x[:, :two] + of_h[:, :two]).chunk(2, dim=-1)
            n = torch.tanh(x[:, two:] + r * of_h[:, two:])
            h = n + z * (h - n)
            rows.append(h)
        return torch.stack(rows), [h]

    def recur_in_cpp(
        self, inputs: torch.Tensor, state: tuple[torch.Tensor, ...], kept: torch.Tensor, layer: int
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        (h,) = state
        outputs = gru(inputs, h, self.weights_h[layer], self._bias(layer), kept)
        return outputs, [outputs[-1]]

    def _bias(self, layer: int) -> torch.Tensor:
        """Return the bias `[3H]` that is added to W_h h: only the n gate has one."""
        bias = self.biases_hn[layer]
        return torch.cat([bias.new_zeros(2 * self.units), bias])


CORES: dict[str, type[Core]] = {"lstm": LSTM, "gru": GRU}


def _orthogonal(rows: int, columns: int) -> torch.Tensor:
    return nn.init.orthogonal_(torch.empty(rows, columns))


# -- model.memory=lstm|gru: a recurrent core on a trunk, and two heads on the core.


class RecurrentActorCritic(Recurrent):
    """A trunk, a recurrent core, and heads for policy and value on the core. Initialised as MLP and `Core` are."""

    stays_eager = "only the recurrence of a model with memory is compiled"

    def __init__(self, spec: EnvSpec, config: LayerSettings) -> None:
        super().__init__(spec, config)
        self.trunk = make_trunk(spec, config)
        self.core = CORES[config.memory](self.trunk.num_features, config.memory_size, config.memory_layers)
        self.state_size = self.core.state_size
        self.policy_head = linear(config.memory_size, policy_outputs(spec.action, config), gain=0.01)
        self.value_head = linear(config.memory_size, 1, gain=1.0)
        self.log_std = begin_log_std_(self.policy_head, spec.action, config)

    def step(self, obs: Obs, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden, state = self.core(self.trunk(obs).unsqueeze(0), state)
        return *self._heads(hidden[0]), state

    def portable_step(self, obs: Obs, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, state = self.core(self.trunk.plain(obs).unsqueeze(0), state)
        return self._heads(hidden[0])[0], state

    def unroll(
        self, obs: Obs, state: torch.Tensor, starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # [T, m, ...] -> [T * m, ...] -> [T, m, F]: the trunk has one batch dimension
        features = self.trunk(each(lambda x: x.flatten(0, 1), obs)).unflatten(0, starts.shape)
        hidden, _ = self.core(features, state, starts)
        return self._heads(hidden)

    def unchanged(self) -> AbstractContextManager[None]:
        return self.trunk.unchanged()

    def num_products(self) -> int:
        heads = self.policy_head.weight.numel() + self.value_head.weight.numel()
        return self.trunk.num_products + self.core.num_products + heads

    def _heads(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        params = policy_params(self.policy_head(hidden), self.log_std, is_gaussian=self.is_gaussian)
        return params, self.value_head(hidden).squeeze(-1)
