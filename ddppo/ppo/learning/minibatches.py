"""Minibatches drawn from a permutation that every rank derives for itself."""

import ctypes
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
import torch

from ddppo.native import loaded
from ddppo.ppo.acting.rollout import Rollout
from ddppo.ppo.advantages.estimators import Estimates
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


class Minibatches(Protocol):
    """What minibatches are taken from, made as `Class(rollout, estimates)`: `ActorCritic.minibatch_class`.

    fields: `[n, L, ...]` by name, those of `fields_of` for each of n units, rows of L steps in a row of which a
    minibatch is made. A class of a model's own takes an environment's T steps for a unit.
    """

    fields: Minibatch

    def minibatches(self, order: torch.Tensor, bounds: list[int]) -> Iterable[Minibatch]:
        """Return the units in `order` `[n]`, cut at `bounds`: samples `[k, ...]` by field, flattened.

        Besides "inputs", what `ActorCritic.at_minibatch` is given for the k samples, and "places", units and rows,
        `[k]` each: where they stand in `fields`.
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
