"""What all ranks agree on before they learn from a rollout: counts, moments, and what minibatches leave out."""

import itertools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from ddppo.config import PPOConfig
from ddppo.ppo.acting.rollout import Rollout
from ddppo.ppo.advantages.estimators import Estimates
from ddppo.ppo.learning.minibatches import only
from ddppo.ppo.normalization import Gather, ObsNormalizer, merge_moments

Plan = tuple[np.ndarray, list[int]]  # of an epoch: samples in their order, and where minibatches begin


class Agreed(NamedTuple):
    """What all ranks divide by: what each minibatch counts, by epochs, and the weight of all samples of one."""

    counts: list[list[float]]
    weight: float
    explained_variance: float | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agrees with all ranks, in one collective, on what learning divides by.

    num_shards: of this rank. num_sequences: into how many the rows of an environment are cut, of which minibatches are
    made; 0: of samples. gather: values `[...]` of every rank as `[W, ...]`. obs_normalizer: learns from the moments
    that are agreed on here.
    """

    config: PPOConfig
    num_shards: int
    num_sequences: int
    gather: Gather
    obs_normalizer: ObsNormalizer | None

    def __call__(
        self, rollout: Rollout, estimates: Estimates, plan: list[Plan]
    ) -> tuple[Estimates, Agreed, list[Plan]]:
        """Return estimates with normalised advantages, what was agreed, and the plan without what weighs nothing."""
        local_counts = self._local_counts(rollout, estimates, plan)
        # In NumPy and Python's own numbers: after an epoch in C++ every small operation of torch costs some 10 us.
        local_moments, num_shards = estimates.moments, self.num_shards
        counts_of_shards = np.zeros((num_shards, len(local_counts)))
        counts_of_shards[0] = local_counts
        mine = [
            counts_of_shards,
            np.zeros((1, 9)) if local_moments is None else local_moments.numpy().reshape(-1, 9),
        ]
        if estimates.counts is not None:
            mine.append(np.array([[estimates.weights.sum(dtype=torch.float64).item()]]))
        if self.obs_normalizer is not None:
            obs, valid = rollout.raw_obs, rollout.valid.cpu()
            mine.append(self.obs_normalizer.moments_of_shards(obs, valid, num_shards).flatten(1).numpy())
        # [W, S, ...] -> [W * S, ...], a row of each shard
        gathered = self.gather(torch.from_numpy(np.concatenate(mine, axis=1))).flatten(0, 1)
        at = np.cumsum([part.shape[1] for part in mine]).tolist()
        counts_of_all = gathered[:, : at[0]].numpy().sum(axis=0)
        merged = merge_moments(gathered[:, at[0] : at[1]].reshape(-1, 3, 3))
        if self.obs_normalizer is not None:
            self.obs_normalizer.update_(merge_moments(gathered[:, at[-2] :].reshape(len(gathered), 3, -1)))
        counts = counts_of_all.reshape(self.config.num_epochs, -1).tolist()
        weight = sum(counts[0])
        if estimates.counts is not None:
            weight = gathered[:, at[1]].sum().item()
            is_used = self._of_units(estimates.weights > 0)
            plan = [only(is_used > 0, order, bounds) for order, bounds in plan]
        if local_moments is None:
            return estimates, Agreed(counts, weight, None), plan
        agreed = Agreed(counts, weight, _explained_variance(merged))
        return self._normalized(estimates, local_moments, merged), agreed, plan

    def _local_counts(self, rollout: Rollout, estimates: Estimates, plan: list[Plan]) -> list[float]:
        """Return what each minibatch of this rank counts, epoch after epoch."""
        of_units = self._of_units(rollout.valid if estimates.counts is None else estimates.counts)
        all_count = of_units.dtype == bool and of_units.all()
        return [
            float(end - start if all_count else of_units[order[start:end]].sum())
            for order, bounds in plan
            for start, end in itertools.pairwise(bounds)
        ]

    def _normalized(
        self, estimates: Estimates, local_moments: torch.Tensor, merged: torch.Tensor
    ) -> Estimates:
        """Return estimates whose advantages are (A - mean) / std, where the moments of whole rollouts say so."""
        if self.config.normalize_advantages not in ("global", "local"):
            return estimates
        used = local_moments if self.config.normalize_advantages == "local" else merged
        (count, *_), (mean, *_), (squares, *_) = used.tolist()
        if (
            count == 1
        ):  # all else was a pseudo-step, or came too late: minus its mean nothing would be left of it
            return estimates
        std = math.sqrt(squares / max(count, 1.0))
        return replace(estimates, advantages=estimates.advantages.sub(mean).div_(std + 1e-8))

    def _of_units(self, x: torch.Tensor) -> np.ndarray:
        """Return x `[T, E]` of what minibatches are made of: samples `[T * E]`, or C sequences, summed, `[C * E]`."""
        if self.num_sequences:
            x = x.unflatten(0, (self.num_sequences, -1)).sum(dim=1)
        return x.flatten().cpu().numpy()


def _explained_variance(merged: torch.Tensor) -> float:
    """Return 1 - Var[returns - values] / Var[returns] from moments `[3, 3]`; NaN where all returns are alike."""
    _, _, (_, of_returns, of_errors) = merged.tolist()  # sums of squares: their ratio is that of variances
    return 1.0 - of_errors / of_returns if of_returns > 0 else math.nan
