"""Minibatches drawn from a permutation that every rank derives for itself."""

import numpy as np

from ddppo.scaling import BatchShape
from ddppo.seeding import minibatch_permutation


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
    steps, envs = np.divmod(permutation, shape.num_envs)
    local_envs = envs - rank * shape.local_num_envs
    is_local = (local_envs >= 0) & (local_envs < shape.local_num_envs)
    local = steps[is_local] * shape.local_num_envs + local_envs[is_local]
    num_local_before = np.concatenate([[0], np.cumsum(is_local)])
    return local, [int(num_local_before[b]) for b in bounds]
