"""Random numbers by their place: no generator, and the same numbers in NumPy and C++ for a game in any batch.

Number `slot` of step t of an episode is output t * SLOTS + slot of SplitMix64 started at the episode's key (Steele, Lea
and Flood 2014, "Fast splittable pseudorandom number generators"), its upper 53 bits in [0, 1).
"""

import numpy as np

SLOTS = 4
GREEN, TARGET, EXPLOIT, DETECTION = range(SLOTS)
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_PLACES = _GAMMA * np.arange(1, SLOTS + 1, dtype=np.uint64)[:, None]
_STRIDE = _GAMMA * np.array([SLOTS], np.uint64)


def draws(keys: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return all numbers `[SLOTS, n]` of step `times` `[n]` of the episodes `keys` `[n]`; both uint64."""
    z = keys + times * _STRIDE + _PLACES
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
