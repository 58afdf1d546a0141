"""Minibatches of a model with memory: what some environments went through, step after step."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from ddppo.ppo.acting.rollout import Rollout
from ddppo.ppo.advantages.estimators import Estimates
from ddppo.ppo.learning.minibatches import Minibatch, fields_of
from ddppo.spaces import each


class Histories:
    """A rollout in sequences of L steps in a row: `fields` `[C * E, L, ...]`, sequence c of environment i at c * E + i.

    C = T / L sequences of an environment, each of which begins with the state that the rollout holds for its first row.
    A minibatch is L * m samples, and under "unrolled" what `ActorCritic.unroll` reads: obs `[L, m, ...]`, the state
    `[m, S]` before row 0, and where episodes start `[L, m]`.
    """

    def __init__(self, rollout: Rollout, estimates: Estimates) -> None:
        assert rollout.state is not None, "the collector of a model with memory"
        num_sequences = len(rollout.state)

        def in_sequences(x: torch.Tensor) -> torch.Tensor:
            # [T, E, ...] -> [C, L, E, ...] -> [C, E, L, ...] -> [C * E, L, ...]
            return x.unflatten(0, (num_sequences, -1)).transpose(1, 2).flatten(0, 1)

        self.fields: Minibatch = {
            name: each(in_sequences, x) for name, x in fields_of(rollout, estimates).items()
        }
        self._state, self._starts = rollout.state.flatten(0, 1), in_sequences(rollout.episode_start)

    def minibatches(self, order: torch.Tensor, bounds: list[int]) -> Iterator[Minibatch]:
        """Yield the sequences in `order` `[n]`, cut at `bounds`."""
        for start, end in itertools.pairwise(bounds):
            # A model is asked for something even where no sequence is here, for other ranks wait for its gradient.
            is_empty = start == end
            yield self._minibatch(order.new_zeros(1) if is_empty else order[start:end], is_empty=is_empty)

    def _minibatch(self, sequences: torch.Tensor, *, is_empty: bool) -> Minibatch:
        def chosen(x: torch.Tensor) -> torch.Tensor:
            return x.index_select(0, sequences).transpose(0, 1)  # [m, L, ...] -> [L, m, ...]

        fields: dict[str, Any] = {name: each(chosen, x) for name, x in self.fields.items()}
        unrolled = (fields.pop("obs"), self._state.index_select(0, sequences), chosen(self._starts))
        samples = {name: x.flatten(0, 1) for name, x in fields.items()}
        if is_empty:
            samples["weights"] = torch.zeros_like(samples["weights"])
        return {**samples, "unrolled": unrolled}
