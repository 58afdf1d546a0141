"""Minibatches drawn from a permutation that every rank derives for itself."""

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ddppo.native import loaded
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


class Batch:
    """A rollout flattened to samples: `fields` `[E * T, ...]` by their names in a minibatch."""

    def __init__(self, rollout: Rollout, advantages: torch.Tensor, returns: torch.Tensor) -> None:
        fields: Minibatch = {
            "obs": rollout.obs,
            "actions": rollout.actions,
            "logprobs": rollout.logprobs,
            "values": rollout.values,
            "advantages": advantages,
            "returns": returns,
            "weights": rollout.valid.to(advantages.dtype),
        }
        if rollout.action_mask is not None:
            fields["mask"] = rollout.action_mask
        self.fields = _by_field(lambda x: x.flatten(0, 1), fields)
        self._shuffled: Minibatch = {}

    def minibatches(self, order: torch.Tensor, bounds: list[int]) -> list[Minibatch]:
        """Return views of the samples in `order` `[E * T]`, cut at `bounds`; valid until the next call."""
        sizes = [end - start for start, end in itertools.pairwise(bounds)]
        if not self._shuffled:
            self._shuffled = _by_field(torch.empty_like, self.fields)

        def gather(x: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return torch.index_select(x, 0, order, out=out).split(sizes)

        return zipped({name: zipped(x) for name, x in _by_field(gather, self.fields, self._shuffled).items()})


def _by_field(function: Callable[..., Any], fields: Minibatch, *others: Minibatch) -> dict[str, Any]:
    return {name: each(function, x, *(other[name] for other in others)) for name, x in fields.items()}
