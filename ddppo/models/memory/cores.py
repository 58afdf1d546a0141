"""Recurrent layers over time, started anew wherever an episode starts.

Only the recurrence goes row by row: what of a layer depends on its input alone is one product over all rows. A learner
on one CPU thread has the rows computed in C++ (recurrence.py), where `learns_in_cpp` says so; the loops of torch here
are for acting, for GPUs and for tracing.
"""

import abc
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from ddppo.models.memory import recurrence

Keeps = Sequence[torch.Tensor | None]  # of each row `[m, 1]`, what the state before it is times; None: 1


class Core(nn.Module, abc.ABC):
    """Layers of `units` H each, from features `[T, m, F]` to `[T, m, H]`.

    The state of an environment is `parts` vectors of H numbers for each layer, one behind the other:
    S = num_layers * parts * H. Weights begin orthogonal with gain 1 and biases at 0, as in CleanRL's ppo_atari_lstm
    (https://docs.cleanrl.dev/rl-algorithms/ppo/#ppo_atari_lstmpy).
    """

    gates: int
    parts: int
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
        """S, numbers remembered of one environment."""
        return self.num_layers * self.parts * self.units

    @property
    def num_products(self) -> int:
        """Products of weights that one step takes."""
        return sum(weight.numel() for weight in (*self.weights_x, *self.weights_h))

    def forward(
        self, x: torch.Tensor, state: torch.Tensor, starts: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the last layer says `[T, m, H]`, and the state `[m, S]` after the last row.

        x `[T, m, F]`; state `[m, S]` before row 0; starts `[T, m]` bool: rows before which the state is 0; None: none.
        """
        is_in_cpp = self.learns_in_cpp and len(x) > 1
        kept = x.new_ones(x.shape[:2]) if starts is None else (~starts).to(x.dtype)
        keeps: Keeps = [None] * len(x)
        if starts is not None and not is_in_cpp:
            rows = kept.unsqueeze(-1).unbind()
            keeps = [row if some else None for row, some in zip(rows, starts.any(1).tolist(), strict=True)]
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
        """Return the outputs `[T, m, H]` of a layer, and its parts of the state `[m, H]` after the last row.

        inputs `[T, m, gates * H]`: W_x x + b; keeps: of each row, what the state before it is times, `[m, 1]`.
        """

    @abc.abstractmethod
    def recur_in_cpp(
        self, inputs: torch.Tensor, state: tuple[torch.Tensor, ...], kept: torch.Tensor, layer: int
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return what `recur` does up to rounding; kept `[T, m]`: what the state before each row is times."""


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
        outputs, c = recurrence.lstm(inputs, h, c, self.weights_h[layer], kept)
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
        outputs = recurrence.gru(inputs, h, self.weights_h[layer], self._bias(layer), kept)
        return outputs, [outputs[-1]]

    def _bias(self, layer: int) -> torch.Tensor:
        """Return what W_h h is added to, `[3H]`: 0 but for n."""
        bias = self.biases_hn[layer]
        return torch.cat([bias.new_zeros(2 * self.units), bias])


CORES: dict[str, type[Core]] = {"lstm": LSTM, "gru": GRU}


def _orthogonal(rows: int, columns: int) -> torch.Tensor:
    return nn.init.orthogonal_(torch.empty(rows, columns))
