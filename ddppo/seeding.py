"""Random streams, derived from (seed, purpose, indices) and never from the rank.

So random numbers do not depend on which rank steps an environment, nor on the number of ranks. Streams are
counter-based (Philox 4x64, Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): the purpose sets the
key, the indices set the counter's high words, so streams never overlap.
"""

import ctypes
from functools import cache

import numpy as np

from ddppo.native import loaded

_PURPOSES = {
    "env": 1,
    "action": 2,
    "minibatch": 3,
    "eval": 4,
    "model": 5,
    "restart": 6,
    "group": 7,
    "curriculum": 8,
    "search": 9,
    "learn": 10,
}


@cache
def _key(seed: int, purpose: str) -> np.ndarray:
    return np.random.SeedSequence([seed, _PURPOSES[purpose]]).generate_state(2, np.uint64)


def stream(seed: int, purpose: str, a: int = 0, b: int = 0) -> np.random.Generator:
    """Return the generator of `purpose` at indices (a, b), the same on every rank.

    `purpose` is a key of _PURPOSES; a and b are non-negative.
    """
    return np.random.Generator(np.random.Philox(key=_key(seed, purpose), counter=[0, 0, a, b]))


def derived_seed(seed: int, purpose: str, a: int = 0, b: int = 0) -> int:
    """Return a 31-bit integer seed for libraries that take one (Gymnasium, torch)."""
    return int(stream(seed, purpose, a, b).integers(2**31 - 1))


def action_noise(
    seed: int, iteration: int, env_indices: range, rollout_steps: int, num_noise: int, *, normal: bool
) -> np.ndarray:
    """Return the noise `[T, E, num_noise]` that turns action distributions into actions, as float64.

    Uniform on [0, 1), or standard normal. Environment i at iteration k reads stream (seed, "action", i, k) on any rank.
    """
    # C++ draws the same bits, for the common case of one number a step.
    noise = np.empty((rollout_steps, len(env_indices), num_noise))
    if num_noise == 1 and not normal and env_indices.step == 1 and (native := loaded()) is not None:
        key = _key(seed, "action")
        first = ctypes.c_uint64(env_indices.start)
        native.stream_uniform(
            key.ctypes, first, ctypes.c_uint64(iteration), *map(ctypes.c_int64, noise.shape[:2]), noise.ctypes
        )
        return noise
    for column, index in enumerate(env_indices):
        generator = stream(seed, "action", index, iteration)
        shape = (rollout_steps, num_noise)
        noise[:, column] = generator.standard_normal(shape) if normal else generator.random(shape)
    return noise


def minibatch_permutation(seed: int, iteration: int, epoch: int, batch_size: int) -> np.ndarray:
    """Return the permutation `[B]` of all ranks' samples for one epoch, the same on every rank."""
    if (native := loaded()) is not None and batch_size < 2**32:
        order = np.empty(batch_size, np.int64)
        numbers = (ctypes.c_uint64(epoch), ctypes.c_uint64(iteration), ctypes.c_int64(batch_size))
        native.stream_permutation(_key(seed, "minibatch").ctypes, *numbers, order.ctypes)
        return order
    return stream(seed, "minibatch", epoch, iteration).permutation(batch_size)
