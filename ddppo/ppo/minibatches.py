"""Minibatches drawn from a permutation that every rank derives for itself."""

import ctypes
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from ddppo.config.algorithm_settings import AlgorithmSettings
from ddppo.native import loaded
from ddppo.ppo.advantages import Estimates
from ddppo.ppo.normalization import Gather, ObsNormalizer, merge_moments, variance
from ddppo.ppo.rollout import Rollout
from ddppo.scaling import BatchShape
from ddppo.seeding import minibatch_permutation
from ddppo.spaces import each, zipped

Minibatch = dict[str, Any]  # tensors `[n, ...]` by field; obs as the model takes them, one or several


def minibatch_bounds(batch_size: int, num_minibatches: int) -> list[int]:
    """Return M + 1 offsets that cut B samples into M parts whose sizes differ by at most one."""
    return [m * batch_size // num_minibatches for m in range(num_minibatches + 1)]


def local_minibatches(
    seed: int, iteration: int, epoch: int, shape: BatchShape, rank: int
) -> tuple[np.ndarray, list[int]]:
    """Return this rank's samples of one epoch in order `[E * T]`, and M + 1 offsets of its minibatches in there.

    Sample (t, i) of the global batch has number t * N + i, so a minibatch holds the same transitions whatever W is;
    a rank keeps those of its own environments, renumbered t * E + (i - first). Counts may differ between ranks.
    """
    permutation = minibatch_permutation(seed, iteration, epoch, shape.batch_size)
    bounds = minibatch_bounds(shape.batch_size, shape.num_minibatches)
    if shape.world_size == 1:
        return permutation, bounds
    if (native := loaded()) is not None and shape.batch_size < 2**32:
        local, offsets = np.empty(shape.local_batch_size, np.int64), np.empty(len(bounds), np.int64)
        sizes = (shape.num_envs, rank * shape.local_num_envs, shape.local_num_envs)
        cuts = (ctypes.c_int64 * len(bounds))(*bounds)
        native.stream_share(
            permutation.ctypes, ctypes.c_int64(len(permutation)), *map(ctypes.c_int64, sizes), cuts,
            ctypes.c_int64(len(bounds)), local.ctypes, offsets.ctypes,
        )  # fmt: skip
        return local, offsets.tolist()
    steps, envs = np.divmod(permutation, shape.num_envs)
    local_envs = envs - rank * shape.local_num_envs
    is_local = (local_envs >= 0) & (local_envs < shape.local_num_envs)
    local = steps[is_local] * shape.local_num_envs + local_envs[is_local]
    num_local_before = np.concatenate([[0], np.cumsum(is_local)])
    return local, [int(num_local_before[b]) for b in bounds]


def of_first(num_samples: int, order: np.ndarray, bounds: list[int]) -> tuple[np.ndarray, list[int]]:
    """Return minibatches without samples from number `num_samples` on: of a rollout that ended early."""
    return only(np.arange(order.max(initial=-1) + 1) < num_samples, order, bounds)


def by_shard(order: np.ndarray, bounds: list[int], shape: BatchShape) -> tuple[np.ndarray, list[int]]:
    """Return this rank's minibatches with each cut into the rank's shards, and M * S + 1 offsets of these parts.

    The samples of a shard, E / S environments next to each other, keep their order: it does not depend on W.
    """
    shards, envs = shape.local_num_shards, shape.local_num_envs
    num_parts = (len(bounds) - 1) * shards
    parts = np.repeat(np.arange(0, num_parts, shards), np.diff(bounds)) + order % envs // (envs // shards)
    small = parts.astype(np.min_scalar_type(num_parts))  # which NumPy sorts by radix up to 16 bits
    offsets = np.cumsum(np.bincount(parts, minlength=num_parts))
    return order[np.argsort(small, kind="stable")], [0, *offsets.tolist()]


def only(is_used: np.ndarray, order: np.ndarray, bounds: list[int]) -> tuple[np.ndarray, list[int]]:
    """Return minibatches without the samples that `is_used` `[n]` does not name."""
    keeps = is_used[order]
    num_kept_before = np.concatenate([[0], np.cumsum(keeps)])
    return order[keeps], [int(num_kept_before[b]) for b in bounds]


def fields_of(rollout: Rollout, estimates: Estimates) -> Minibatch:
    """Return what learning reads, `[T, E, ...]` by its name in a minibatch."""
    of_values = estimates.returns is not None
    fields: Minibatch = {  # in the order that libraries were compiled for
        "obs": rollout.obs,
        "actions": rollout.actions,
        "logprobs": rollout.logprobs,
        **({"values": rollout.values} if of_values else {}),
        "advantages": estimates.advantages,
        **({"returns": estimates.returns} if of_values else {}),
        "weights": estimates.weights,
    }
    if rollout.action_mask is not None:
        fields["mask"] = rollout.action_mask
    return fields


At = Callable[
    ..., tuple[torch.Tensor, torch.Tensor]
]  # a model as it learns: ddppo.models.actor_critic.EvaluateActions


def outputs(at: At, minibatch: Minibatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return action parameters `[n, P]` and values `[n]` of the samples of a minibatch."""
    if "inputs" in minibatch:
        return at(*minibatch["inputs"])
    if "unrolled" in minibatch:
        params, values = at(*minibatch["unrolled"])
        return params.flatten(0, 1), values.flatten(0, 1)
    return at(minibatch["obs"], minibatch["actions"])


class Minibatches(Protocol):
    """What minibatches are taken from, made as `Class(rollout, estimates)`: `ActorCritic.minibatch_class`.

    fields: `[n, L, ...]` by name, those of `fields_of` for each of n units, rows of L steps in a row of which a
    minibatch is made. A class of a model's own takes an environment's T steps for a unit.
    """

    fields: Minibatch

    def minibatches(self, order: torch.Tensor, bounds: list[int]) -> Iterable[Minibatch]:
        """Return the units in `order` `[n]`, cut at `bounds`: samples `[k, ...]` by field, flattened.

        Besides "inputs", the arguments of `ActorCritic.evaluate_minibatch`, and "places", units and rows, `[k]`
        each: where they stand in `fields`.
        """
        ...


class Batch:
    """A rollout flattened to samples: `fields` `[E * T, ...]` by their names in a minibatch.

    apart: every minibatch has memory of its own, so that not even its place in there depends on the others.
    """

    def __init__(self, rollout: Rollout, estimates: Estimates, *, apart: bool = False) -> None:
        self.fields = _by_field(lambda x: x.flatten(0, 1), fields_of(rollout, estimates))
        self._apart = apart
        self._room: Minibatch = {}

    def minibatches(self, order: torch.Tensor, bounds: list[int]) -> list[Minibatch]:
        """Return views of the samples in `order` `[n]`, n <= E * T, cut at `bounds`; valid until the next call."""
        sizes = [end - start for start, end in itertools.pairwise(bounds)]
        if self._apart:
            return [
                _by_field(functools.partial(torch.index_select, dim=0, index=part), self.fields)
                for part in order.split(sizes)
            ]
        if len(self._room) < len(self.fields):
            self._room = _by_field(torch.empty_like, self.fields)

        def gather(x: torch.Tensor, room: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return torch.index_select(x, 0, order, out=room[: len(order)]).split(sizes)

        return zipped({name: zipped(x) for name, x in _by_field(gather, self.fields, self._room).items()})


def _by_field(function: Callable[..., Any], fields: Minibatch, *others: Minibatch) -> dict[str, Any]:
    return {name: each(function, x, *(other[name] for other in others)) for name, x in fields.items()}


# -- Minibatches of a model with memory: what some environments went through, step after step.


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


OfRollout = Batch | Histories | Minibatches


# -- What all ranks agree on before they learn from a rollout: counts, moments, and what minibatches leave out.


Plan = tuple[np.ndarray, list[int]]  # of an epoch: samples in their order, and where minibatches begin


class RolloutStats(NamedTuple):
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

    config: AlgorithmSettings
    num_shards: int
    num_sequences: int
    gather: Gather
    obs_normalizer: ObsNormalizer | None

    def __call__(
        self, rollout: Rollout, estimates: Estimates, plan: list[Plan]
    ) -> tuple[Estimates, RolloutStats, list[Plan]]:
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
            return estimates, RolloutStats(counts, weight, None), plan
        agreed = RolloutStats(counts, weight, _explained_variance(merged))
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


# -- Advantages normalised within each minibatch, by moments over all ranks.


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
