"""Which ranks are slow throughout a run, and how much time do they cost?

A rank is slow relative to the level of the ranks that are not slow. Chance, crowded cores and differences that cost
nothing are ruled out: the conditions are in `_slow_ranks`.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from ddppo.study.measure.statistics import t_quantile
from ddppo.study.read.record import Run

PHASES = ("t_rollout", "t_learn")
SLOW_RATIO = 1.1  # a slow rank takes more than this many times the level ...
SLOW_MATTERS = 0.01  # ... and exceeds it by more than this part of t_iter ...
SUSPECTED_RATIO = 1.03  # of a rank that is slow at another W
_DEVIATIONS = 4.0  # ... by more than this many standard deviations of the ranks below the level ...
_CONFIDENCE = 0.999  # ... and not by chance, with this confidence
_BLOCK = 5  # iterations; the times of neighbouring iterations are not independent


@dataclass(frozen=True, slots=True)
class Slowness:
    """The slow ranks of a run, and their cost in seconds per iteration, by phase."""

    ranks: dict[str, dict[int, float]]  # {phase: {rank: its time / the level}}
    own: dict[str, float]  # time of slow ranks beyond the level, mean over all ranks
    # Time by which the iteration is longer: mean over iterations of max over ranks of x - max over ranks of x', where
    # x' has slow ranks brought to the level.
    total: dict[str, float]


def slowness(
    run: Run,
    *,
    expected: Mapping[str, float],
    turns: float = 1.0,
    suspected: Mapping[str, Collection[int]] | None = None,
) -> Slowness:
    """Find the ranks of a run that are slow in the rollout or in the update.

    Args:
        expected: seconds of each phase, derived from the smallest W.
        turns: compute threads per core, relative to the smallest W. Threads that take turns on a core may stretch a
            rank so many times without being slow.
        suspected: by phase, ranks that are slow at another W. Of these a smaller excess counts.
    """
    found = Slowness({}, {}, {})
    # Roles of other topologies differ in their times without being slow.
    comparable = run.world_size > 1 and run.tells_ranks and run.ranks_are_alike
    for phase in PHASES if comparable else ():
        x = run.times.get(phase, np.zeros((1, 1)))
        level, t_iter = expected.get(phase, math.nan), float(run.times["t_iter"].mean())
        known = (suspected or {}).get(phase, ())
        slow = _slow_ranks(x, level, t_iter, turns, known)
        # A rank with one environment more than others takes longer without being slow: count its time per environment.
        if slow and len(set(run.shares)) > 1:
            fewer = min(run.shares) / np.array(run.shares)
            per_env = _slow_ranks(x * fewer, level, t_iter, turns, known)
            slow = {rank: min(slow[rank], per_env[rank]) for rank in slow.keys() & per_env.keys()}
        if slow:
            # The same times with slow ranks brought to the level.
            levelled = x.copy()
            levelled[:, list(slow)] /= np.array(list(slow.values()))
            found.ranks[phase] = slow
            found.own[phase] = float((x - levelled).mean())
            found.total[phase] = float((x.max(axis=1) - levelled.max(axis=1)).mean())
    return found


def _slow_ranks(
    x: np.ndarray, expected: float, t_iter: float, turns: float, suspected: Collection[int]
) -> dict[int, float]:
    """Return {rank: its time / the level} of the slow columns of `x` `[iterations, W]`.

    The mean of a slow rank is above SLOW_RATIO * turns times the level, and it exceeds the level by more than
        - SLOW_MATTERS of t_iter,
        - 4 standard deviations of the ranks below the level (they are one half of a symmetric spread), and
        - chance from iteration to iteration (p < 0.001).

    For a suspected rank the ratio is SUSPECTED_RATIO, and the other two are a fifth and a half as much.
    """
    means = x.mean(axis=0)
    level = level_of(means, expected)
    spread = float(np.sqrt(((level - means[means <= level]) ** 2).mean()))
    least = np.full(
        len(means), max((SLOW_RATIO * turns - 1) * level, SLOW_MATTERS * t_iter, _DEVIATIONS * spread)
    )
    lower = max((SUSPECTED_RATIO * turns - 1) * level, SLOW_MATTERS / 5 * t_iter, _DEVIATIONS / 2 * spread)
    least[[rank for rank in suspected if rank < len(means)]] = lower
    # Chance: the standard error of the difference to the ranks that are not slow.
    others = x[:, means <= SLOW_RATIO * level].mean(axis=1)
    found = {}
    # The last condition: the excess is not chance.
    for rank in np.flatnonzero(means - level > least) if level > 0 else ():
        noise, df = standard_error(x[:, rank] - others)
        if noise == 0 or means[rank] - level > t_quantile(_CONFIDENCE, df) * noise:
            found[int(rank)] = float(means[rank] / level)
    return found


def level_of(means: np.ndarray, expected: float = math.nan) -> float:
    """Return the level of the ranks that are not slow, from the means of all ranks.

    It is the lower median of the means, so that up to half of the ranks may be slow. If a group of fast ranks stands
    clearly apart and is nearer to `expected`, it is the median of that group: then most ranks may be slow.
    """
    ordered = np.sort(means)
    middle = float(ordered[(len(ordered) - 1) // 2])
    if len(ordered) < 3 or not (expected > 0 and ordered[0] > 0):
        return middle
    # The fast group ends at the largest step from one mean to the next.
    cut = int((ordered[1:] / ordered[:-1]).argmax()) + 1
    fast, rest = ordered[:cut], ordered[cut:]
    within = max(float(fast.std()), float(rest.std()))
    # The fast group is clearly apart, in ratio and in deviations.
    apart = rest[0] > SLOW_RATIO * fast[-1] and rest[0] - fast[-1] > _DEVIATIONS * within
    level = float(fast[(cut - 1) // 2])
    # Which of the two levels is nearer to the expected time?
    nearer = abs(math.log(level / expected)) < abs(math.log(middle / expected))
    return level if apart and nearer else middle


def standard_error(x: np.ndarray) -> tuple[float, int]:
    """Return the standard error of the mean of `x` `[iterations]`, and its degrees of freedom; 0 for one iteration.

    Neighbouring iterations are not independent. Means of blocks of them nearly are, and are used if there are enough.
    """
    if len(x) >= 5 * _BLOCK:
        x = np.array([block.mean() for block in np.array_split(x, len(x) // _BLOCK)])
    return float(x.std(ddof=1)) / len(x) ** 0.5 if len(x) > 1 else 0.0, len(x) - 1
