"""Ranks that are always slower than the others, and what an iteration would be shorter by without that."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ddppo.study.measure.statistics import t_quantile
from ddppo.study.read.record import Run

PHASES = ("t_rollout", "t_learn")
SLOW_RATIO = 1.1
SLOW_MATTERS = 0.01
_BLOCK = 5  # iterations; neighbours are not independent
_APART = 4.0  # standard deviations of the ranks that are no slower than the level
_SURE = 0.999


@dataclass(frozen=True, slots=True)
class Slowness:
    """ranks: {phase: {rank: how many times the level of the others}}. Seconds per iteration:

    own: what slow ranks take beyond the level in each phase, mean over all ranks. total: what the iteration is longer
    by, mean over iterations of max over ranks of x - max over ranks of x', x' with slow ranks brought to the level.
    """

    ranks: dict[str, dict[int, float]]
    own: dict[str, float]
    total: dict[str, float]


def slowness(run: Run, *, expected: Mapping[str, float], turns: float = 1.0) -> Slowness:
    """Find the ranks of a run that are slow in acting or in learning.

    expected: seconds of each phase that the smallest W lets expect. turns: compute threads of a core relative to there:
    where cores are crowded, taking turns alone may stretch a rank so many times.
    """
    found = Slowness({}, {}, {})
    comparable = run.world_size > 1 and run.tells_ranks and run.ranks_are_alike
    for phase in PHASES if comparable else ():
        x = run.times.get(phase, np.zeros((1, 1)))
        slow = _slow(x, expected.get(phase, math.nan), float(run.times["t_iter"].mean()), turns)
        if slow:
            cured = x.copy()
            cured[:, list(slow)] /= np.array(list(slow.values()))
            found.ranks[phase] = slow
            found.own[phase] = float((x - cured).mean())
            found.total[phase] = float((x.max(axis=1) - cured.max(axis=1)).mean())
    return found


def _slow(x: np.ndarray, expected: float, t_iter: float, turns: float) -> dict[int, float]:
    """Return {rank: times the level} of the slow columns of `x` `[iterations, W]`.

    Slow is above 1.1 turns times the level, by more than 1 % of t_iter, by more than 4 standard deviations of the ranks
    below the level (half of a symmetric spread), and by more than chance from iteration to iteration (p < 0.001).
    """
    means = x.mean(axis=0)
    level = level_of(means, expected)
    spread = float(np.sqrt(((level - means[means <= level]) ** 2).mean()))
    least = max((SLOW_RATIO * turns - 1) * level, SLOW_MATTERS * t_iter, _APART * spread)
    others = x[:, means <= SLOW_RATIO * level].mean(axis=1)
    found = {}
    for rank in np.flatnonzero(means - level > least) if level > 0 else ():
        noise, df = standard_error(x[:, rank] - others)
        if noise == 0 or means[rank] - level > t_quantile(_SURE, df) * noise:
            found[int(rank)] = float(means[rank] / level)
    return found


def level_of(means: np.ndarray, expected: float = math.nan) -> float:
    """Return the level of the ranks that are not slow: the lower median of their means, so that half may be slow.

    More are where a group of fast ones stands clearly apart, and is nearer to what the smallest W lets expect.
    """
    ordered = np.sort(means)
    middle = float(ordered[(len(ordered) - 1) // 2])
    if len(ordered) < 3 or not (expected > 0 and ordered[0] > 0):
        return middle
    cut = int((ordered[1:] / ordered[:-1]).argmax()) + 1
    fast, rest = ordered[:cut], ordered[cut:]
    within = max(float(fast.std()), float(rest.std()))
    apart = rest[0] > SLOW_RATIO * fast[-1] and rest[0] - fast[-1] > _APART * within
    level = float(fast[(cut - 1) // 2])
    nearer = abs(math.log(level / expected)) < abs(math.log(middle / expected))
    return level if apart and nearer else middle


def standard_error(x: np.ndarray) -> tuple[float, int]:
    """Return that of the mean of `x` `[iterations]`, 0 of one, and its degrees of freedom.

    Neighbours are not independent, means of blocks of them nearly are.
    """
    if len(x) >= 5 * _BLOCK:
        x = np.array([block.mean() for block in np.array_split(x, len(x) // _BLOCK)])
    return float(x.std(ddof=1)) / len(x) ** 0.5 if len(x) > 1 else 0.0, len(x) - 1
