"""Advantages normalised within each minibatch, by moments over all ranks."""

from collections.abc import Sequence

import numpy as np
import torch

from ddppo.ppo.learning.step import OfRollout
from ddppo.ppo.normalization import Gather, merge_moments, variance

_EPS = 1e-8


class AdvantagesByMinibatch:
    """(A - mean) / std over the samples of each minibatch, as in OpenAI baselines' ppo2 and Stable-Baselines3.

    plan: of each epoch, this rank's units, samples or sequences, in order `[n]`, and M * S + 1 offsets of the parts of
    its M minibatches, one of each of the rank's S shards. Sums are taken part by part, in the order of the plan; one
    collective for all epochs. A minibatch whose advantages are all alike teaches the policy nothing; one of a single
    sample, which has no deviation, is left as it is.
    """

    def __init__(
        self,
        batch: OfRollout,
        plan: Sequence[tuple[np.ndarray, list[int]]],
        num_shards: int,
        gather: Gather,
    ) -> None:
        self._fields, self._plan, self._num_shards = batch.fields, plan, num_shards
        advantages = batch.fields["advantages"]
        rows = advantages.reshape(len(advantages), -1)
        self._rows = rows.cpu().numpy().astype(np.float64)  # [n, rows of a unit], a copy
        valid = batch.fields["weights"].reshape(self._rows.shape).cpu().numpy() > 0
        own = torch.stack([self._moments(valid, *of_epoch) for of_epoch in plan], dim=2)  # [S, 3, K, M]
        merged = merge_moments(gather(own).flatten(0, 1))
        is_alone = merged[0] == 1
        self._means = merged[1].masked_fill(is_alone, 0.0).numpy()
        self._scales = (1.0 / (variance(merged).sqrt() + _EPS)).masked_fill(is_alone, 1.0).numpy()

    def epoch(self, k: int) -> None:
        """Leave the advantages of epoch `k` in the batch."""
        order, bounds = self._plan[k]
        minibatches = self._parts(bounds) // self._num_shards
        means, scales = (x[k][minibatches, None] for x in (self._means, self._scales))
        field = self._fields["advantages"]
        normalized = torch.from_numpy((self._rows[order] - means) * scales).to(field.device, field.dtype)
        field[torch.from_numpy(order).to(field.device)] = normalized.reshape(len(order), *field.shape[1:])

    def _moments(self, valid: np.ndarray, order: np.ndarray, bounds: list[int]) -> torch.Tensor:
        """Return (count, mean, M2) of every part of one epoch's minibatches, `[S, 3, M]`."""
        num_parts, counted = len(bounds) - 1, valid[order].ravel()
        parts = np.repeat(self._parts(bounds), self._rows.shape[1])[counted]
        x = self._rows[order].ravel()[counted]
        counts = np.bincount(parts, minlength=num_parts).astype(np.float64)
        means = np.bincount(parts, x, num_parts) / np.maximum(counts, 1)
        squares = np.bincount(parts, np.square(x - means[parts]), num_parts)
        by_part = np.stack([counts, means, squares]).reshape(3, -1, self._num_shards)
        return torch.from_numpy(np.ascontiguousarray(by_part.transpose(2, 0, 1)))

    def _parts(self, bounds: list[int]) -> np.ndarray:
        """Return for every unit in order which part of a minibatch it is in, `[n]`."""
        return np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
