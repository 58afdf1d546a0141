"""What all ranks learn from one another before the first minibatch, and advantages normalised by it.

A minibatch is spread over ranks, so its loss is a local sum over a global count, and advantages are normalised by
moments over all ranks. `reduce_rollout_stats` finds both in one collective, the same for any W:

    count per minibatch     sum over ranks      divides the loss of that minibatch
    advantage moments       merged by count     (A - mean) / std, ppo.normalize_advantages=global
    observation moments     merged by count     update the running moments of ppo.normalize_obs

`MinibatchAdvantages` is ppo.normalize_advantages=minibatch, which takes a collective of its own.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from ddppo.config.algorithm_settings import SurrogateSettings
from ddppo.device import wide_dtype
from ddppo.ppo.advantages import Estimates
from ddppo.ppo.minibatches import EpochPlan, MinibatchSource, only
from ddppo.ppo.normalization import Gather, ObsNormalizer, merge_moments, variance
from ddppo.ppo.rollout import Rollout

_EPS = 1e-8  # added to the deviation of advantages


class RolloutStats(NamedTuple):
    """Equal on all ranks."""

    # [K][M]: what the loss of each minibatch is divided by; 0: no rank has a sample in it.
    counts: list[list[float]]
    weight: float  # what the sums of statistics over one epoch are divided by
    explained_variance: float | None  # 1 - Var[returns - values] / Var[returns]; None if no value is learned


def reduce_rollout_stats(
    rollout: Rollout,
    estimates: Estimates,
    plan: list[EpochPlan],
    config: SurrogateSettings,
    gather: Gather,
    *,
    num_shards: int,
    in_units: Callable[[torch.Tensor], np.ndarray],
    obs_normalizer: ObsNormalizer | None,
) -> tuple[Estimates, RolloutStats, list[EpochPlan]]:
    """Return estimates with normalised advantages, the statistics of all ranks, and the plan without unused samples.

    gather: values `[...]` of every rank as `[W, ...]`; called once. num_shards: S, of this rank. in_units: turns
    `[T, E]` into the units that `plan` orders (samples or sequences). obs_normalizer: is updated.
    """
    # 1. This rank's row: named columns of float64, one row per shard [S, n], so that sums keep the shards' order.
    #    NumPy and Python numbers, because after an epoch in C++ every small torch operation costs some 10 us.
    counts = np.zeros((num_shards, config.num_epochs * len(plan[0].bounds[1:])))
    counts[0] = _local_counts(rollout, estimates, plan, in_units)
    # [3, 3] or [S, 3, 3]: (count, mean, M2) x (advantages, returns, returns - values).
    own = estimates.moments
    columns = {
        "counts": counts,
        "moments": np.zeros((1, 9)) if own is None else own.numpy().reshape(-1, 9),
    }
    if estimates.counts is not None:
        columns["weight"] = np.array(
            [[estimates.weights.sum(dtype=wide_dtype(estimates.weights.device)).item()]]
        )
    if obs_normalizer is not None:
        by_shard = obs_normalizer.moments_of_shards(rollout.raw_obs, _valid_rows(rollout).cpu(), num_shards)
        columns["obs_moments"] = by_shard.flatten(1).numpy()  # [S, 3, n] -> [S, 3 * n]

    # 2. The one collective: every rank gets the rows of all shards of all ranks, [W, S, n] -> [W * S, n].
    row = torch.from_numpy(np.concatenate(list(columns.values()), axis=1))
    rows = gather(row).flatten(0, 1)
    parts = rows.split([column.shape[1] for column in columns.values()], dim=1)
    of_all = dict(zip(columns, parts, strict=True))

    # 3. What the losses are divided by.
    summed = of_all["counts"].numpy().sum(axis=0)
    counts_by_epoch = summed.reshape(config.num_epochs, -1).tolist()
    weight = sum(counts_by_epoch[0])
    if estimates.counts is not None:
        weight = of_all["weight"].sum().item()
        is_used = in_units(estimates.weights > 0) > 0
        plan = [only(is_used, *epoch) for epoch in plan]

    # 4. Running moments of observations, and advantages normalised by the moments of all ranks.
    if obs_normalizer is not None:
        obs_moments = of_all["obs_moments"]
        obs_normalizer.update_(merge_moments(obs_moments.reshape(len(obs_moments), 3, -1)))
    if own is None:
        return estimates, RolloutStats(counts_by_epoch, weight, None), plan
    merged = merge_moments(of_all["moments"].reshape(-1, 3, 3))
    stats = RolloutStats(counts_by_epoch, weight, _explained_variance(merged))
    if config.normalize_advantages == "global":
        estimates = _normalized(estimates, merged)
    elif config.normalize_advantages == "local":  # this rank's own moments: results depend on W
        estimates = _normalized(estimates, own.reshape(3, 3))
    return estimates, stats, plan


def _local_counts(
    rollout: Rollout,
    estimates: Estimates,
    plan: list[EpochPlan],
    in_units: Callable[[torch.Tensor], np.ndarray],
) -> list[float]:
    """Return what each minibatch counts on this rank, K * M numbers, epoch after epoch."""
    counts = in_units(_valid_rows(rollout) if estimates.counts is None else estimates.counts)
    if counts.dtype == bool and counts.all():  # every sample counts 1, the usual case
        return [float(end - start) for _, bounds in plan for start, end in itertools.pairwise(bounds)]
    return [
        float(counts[order[start:end]].sum())
        for order, bounds in plan
        for start, end in itertools.pairwise(bounds)
    ]


def _valid_rows(rollout: Rollout) -> torch.Tensor:
    """Return which rows are valid `[T, E]`; on the host if all are, so that a device need not be asked."""
    return torch.ones(rollout.valid.shape, dtype=torch.bool) if rollout.is_full else rollout.valid


def _normalized(estimates: Estimates, moments: torch.Tensor) -> Estimates:
    """Return estimates with advantages (A - mean) / (std + 1e-8), by moments `[3, 3]`."""
    (count, *_), (mean, *_), (squares, *_) = moments.tolist()  # the first column is that of advantages
    if count == 1:  # one valid sample: A - mean would be 0, and nothing would be learned from it
        return estimates
    std = math.sqrt(squares / max(count, 1.0))
    return replace(estimates, advantages=estimates.advantages.sub(mean).div_(std + _EPS))


def _explained_variance(merged: torch.Tensor) -> float:
    """Return 1 - Var[returns - values] / Var[returns] of moments `[3, 3]`; NaN if all returns are equal."""
    _, _, (_, of_returns, of_errors) = merged.tolist()  # sums of squares: their ratio is that of variances
    return 1.0 - of_errors / of_returns if of_returns > 0 else math.nan


class MinibatchAdvantages:
    """(A - mean) / std over the samples of each minibatch, as in OpenAI baselines' ppo2 and Stable-Baselines3.

    One collective for all epochs. Sums are taken part by part, in the order of the plan, so that they do not depend on
    W. A minibatch of equal advantages teaches the policy nothing; a minibatch of one sample has no
    deviation and keeps its advantage.
    """

    def __init__(
        self,
        batch: MinibatchSource,
        plan: Sequence[EpochPlan],  # with M * S + 1 bounds an epoch: a minibatch has a part for each shard
        num_shards: int,  # S, of this rank
        gather: Gather,
    ) -> None:
        self._fields, self._plan, self._num_shards = batch.fields, plan, num_shards
        advantages = batch.fields["advantages"]
        rows = advantages.reshape(len(advantages), -1)
        self._rows = rows.cpu().numpy().astype(np.float64)  # [n, rows of a unit], a copy
        valid = batch.fields["weights"].reshape(self._rows.shape).cpu().numpy() > 0
        own = torch.stack([self._moments(valid, *epoch) for epoch in plan], dim=2)  # [S, 3, K, M]
        merged = merge_moments(gather(own).flatten(0, 1))
        is_alone = merged[0] == 1
        self._means = merged[1].masked_fill(is_alone, 0.0).numpy()
        self._scales = (1.0 / (variance(merged).sqrt() + _EPS)).masked_fill(is_alone, 1.0).numpy()

    def begin_epoch(self, epoch: int) -> None:
        """Write the advantages of this epoch into the batch."""
        order, bounds = self._plan[epoch]
        minibatches = self._parts(bounds) // self._num_shards
        means, scales = (x[epoch][minibatches, None] for x in (self._means, self._scales))
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
        """Return the part of a minibatch that each unit of the order is in, `[n]`."""
        return np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
