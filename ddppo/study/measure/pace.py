"""Do the iterations of a run keep one pace? Stalls and a slow start are left out; other changes are told.

`steady` returns the runs without iterations that are not of the steady state, `change` the runs that have none, and
`drift` how much a machine slowed down over a whole sweep.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddppo.study.columns import duration, percent
from ddppo.study.measure.statistics import t_quantile
from ddppo.study.read.record import Run, by_world_size

STALLED = 20.0  # a longer iteration, in medians of its run, is a stall ...
FEW = 0.02  # ... and left out, if no more than this part of the iterations are
_SLOW_START, _START = 1.25, 1 / 3  # a slow start is so many times slower, and at most this part of a run
_BLOCKS = 12  # of a run, whose medians are compared
_CHANGE = 1.15  # a smaller change of pace is no reason for doubt
_DEVIATIONS = 8.0  # of a block's median: a smaller change may be chance


@dataclass(frozen=True, slots=True)
class Change:
    """A run whose pace changed."""

    run: Run
    factor: float  # by which the slow iterations are slower than the fast ones
    how: str  # in words

    def __str__(self) -> str:
        return f"at W={self.run.world_size}, seed {self.run.seed}, {self.how}"


# -- Iterations that are left out.


def steady(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Return the runs without stalls and without a slow start, and sentences on what was left out.

    The times, steps and FPS of a run are then those of the other iterations. A stall is an iteration of more than 20
    times the run's median. More than 2 % of stalls are none: they stay, and `change` tells them.
    """
    kept, left = [], list[tuple[float, str]]()
    for run in runs:
        x = _seconds(run)
        if len(x) < 10:
            kept.append(run)
            continue
        start = _slow_start(x)
        usual = float(np.median(x[start:]))
        stalled = np.flatnonzero(x > STALLED * usual)
        stalled = stalled[stalled >= start]
        stalled = stalled if len(stalled) <= FEW * len(x) else stalled[:0]
        out = np.zeros(len(x), dtype=bool)
        out[:start] = out[stalled] = True
        kept.append(_part(run, ~out) if out.any() else run)
        seconds = run.times["t_iter"].mean(axis=1)
        name, whole = f"W={run.world_size}, seed {run.seed}", float(seconds.sum())
        if start:
            lost = float(seconds[:start].sum())
            first = "the first iteration" if start == 1 else f"the first {start} iterations"
            slower = f"{float(np.median(x[:start])) / usual:.2g} times as long as the others"
            left.append((lost, f"{name}: {first} ({slower}, {percent(lost / whole)} of the time)"))
        for i in stalled.tolist():
            times = f"{duration(float(seconds[i]))}, {x[i] / usual:.0f} times the median"
            left.append((float(seconds[i]), f"{name}: iteration {i + 1} after warm-up ({times})"))
    if not left:
        return kept, []
    told = [text for _, text in sorted(left, key=lambda each: -each[0])]
    more = f"; and {len(told) - 3} more" if len(told) > 3 else ""
    what = "Left out of all speeds, because they are not the steady state (warm-up, compilation, a stall)"
    return kept, [f"{what}: {'; '.join(told[:3])}{more}."]


def _slow_start(x: np.ndarray) -> int:
    """Return the number of iterations at the start that are slower than the second half of the run; 0 if none."""
    usual = float(np.median(x[len(x) // 2 :]))
    slow = x > _SLOW_START * usual
    most = int(len(x) * _START)
    counts = np.cumsum(slow[:most])
    lengths = np.arange(1, most + 1)
    ends = np.flatnonzero(slow[:most] & (counts >= 0.8 * lengths))
    if not ends.size:
        return 0
    end = int(ends[-1]) + 1
    # Iterations that are slow now and then are no slow start. One or two must be very slow, or they may be chance.
    if slow[end:].mean() > 0.2 or (end < 3 and float(np.median(x[:end])) < 3 * usual):
        return 0
    return end


def _part(run: Run, kept: np.ndarray) -> Run:
    """Return the run with some of its iterations, and FPS for these: time outside t_iter is in proportion to t_iter."""
    times, steps = {name: t[kept] for name, t in run.times.items()}, run.steps[kept]
    pace = float(steps.mean() / times["t_iter"].mean()) / float(run.steps.mean() / run.times["t_iter"].mean())
    return replace(run, times=times, steps=steps, fps=run.fps * pace)


def _seconds(run: Run) -> np.ndarray:
    """Return seconds per step of each iteration, in means over ranks; empty if the run does not record iterations."""
    t_iter = run.times.get("t_iter")
    if t_iter is None or len(t_iter) != len(run.steps) or not run.ranks_are_in_step:
        return np.array([])
    x = t_iter.mean(axis=1) / np.maximum(run.steps, 1)
    return x if len(x) and bool((x > 0).all()) else np.array([])


# -- Changes within a run.


def change(runs: Sequence[Run]) -> list[Change]:
    """Return the runs whose pace changed by more than 15 %, as the pace of runs of other W did not.

    A run is cut into 12 blocks of iterations, and the logarithms of their medians are compared with those of the runs
    of other W: a change that all W share is learning (longer episodes, say), not the machine.
    """
    profiles = {run.path: _profile(_seconds(run)) for run in runs}
    by_w = {w: [profiles[run.path][0] for run in of_w] for w, of_w in by_world_size(runs).items()}
    of_w = {w: np.median(found, axis=0) for w, found in by_w.items() if all(len(p) == _BLOCKS for p in found)}
    changed = []
    for run in runs:
        x, (profile, noise) = _seconds(run), profiles[run.path]
        if len(x) >= 10 and (stalls := int((x > STALLED * np.median(x)).sum())) > FEW * len(x):
            slow = x[x > STALLED * np.median(x)]
            factor = float(np.median(slow) / np.median(x))
            text = f"{stalls} of {len(x)} iterations took more than {STALLED:g} times the median"
            changed.append(Change(run, factor, text))
            continue
        if len(profile) != _BLOCKS:
            continue
        # What other W share. Two W cannot tell which of them changed: both are compared with their mean.
        others = [p for w, p in of_w.items() if w != run.world_size or len(of_w) == 2]
        shared = np.median(others, axis=0) if len(of_w) > 1 else 0.0
        apart = profile - shared
        low, high = np.quantile(apart, (0.1, 0.9))
        most = float(high - low) * (2 if len(of_w) == 2 else 1)
        if most > np.log(_CHANGE) and most > _DEVIATIONS * noise:
            changed.append(Change(run, float(np.exp(most)), _how(x, apart, float(np.exp(most)))))
    return changed


def _profile(x: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the log of block medians less their median, `[_BLOCKS]`, and the standard error of one; empty if short."""
    if len(x) < 3 * _BLOCKS:
        return np.array([]), 0.0
    logs = np.log(x)
    medians = np.array([np.median(block) for block in np.array_split(logs, _BLOCKS)])
    # Noise from one iteration to the next, so that a change of pace is no noise.
    sigma = 1.4826 * float(np.median(np.abs(np.diff(logs)))) / 2**0.5
    return medians - np.median(medians), 1.2533 * sigma / (len(x) / _BLOCKS) ** 0.5


def _how(x: np.ndarray, apart: np.ndarray, factor: float) -> str:
    """Return a step, a trend or jumps, in words."""
    total = float(((apart - apart.mean()) ** 2).sum())
    at = np.arange(len(apart)) - (len(apart) - 1) / 2
    trend = float((at @ apart) ** 2 / (at @ at)) / total
    steps = {
        k: k * (len(apart) - k) / len(apart) * float(apart[k:].mean() - apart[:k].mean()) ** 2 / total
        for k in range(1, len(apart))
    }
    k = max(steps, key=lambda k: steps[k])
    slower = bool(apart[k:].mean() > apart[:k].mean())
    if trend > 0.8 and trend >= steps[k] - 0.05:
        return f"iterations became steadily {'slower' if slower else 'faster'}, by {factor:.2g} times in all"
    if steps[k] > 0.7:
        iteration = k * len(x) // len(apart)
        direction = "slower" if slower else "faster"
        return (
            f"iterations were {factor:.2g} times {direction} from about iteration {iteration} of {len(x)} on"
        )
    return f"stretches of iterations were {factor:.2g} times slower than others"


# -- A machine that drifts over the sweep.


def drift(timed: Sequence[tuple[Run, tuple[float, float]]]) -> float | None:
    """Return the change of log t_iter from the first run of a sweep to the last, if the runs show one; else None.

    timed: runs with their start and end in seconds. Runs of equal W show it by their speeds over start times. If no W
    has several runs, each run shows it by its own iterations, as far as a change grows with the duration of a run: one
    that is as large in short runs as in long ones is learning.
    """
    start = min(span[0] for _, span in timed)
    extent = max(span[0] for _, span in timed) - start
    groups: dict[int, list[tuple[float, float]]] = {}
    for run, span in timed:
        groups.setdefault(run.world_size, []).append((span[0] - start, -float(np.log(run.fps))))
    several = [np.array(of_w) for of_w in groups.values() if len(of_w) > 1]
    df = sum(len(of_w) - 1 for of_w in several) - 1
    if df >= 2:
        x = np.concatenate([of_w[:, 0] - of_w[:, 0].mean() for of_w in several])
        y = np.concatenate([of_w[:, 1] - of_w[:, 1].mean() for of_w in several])
        return _sure(x, y, df, extent)
    # One run of each W: from the first half of its iterations to the second.
    halves = []
    for run, span in timed:
        seconds = _seconds(run)
        if len(seconds) < 20:
            return None
        middle = len(seconds) // 2
        halves.append(
            (
                (span[1] - span[0]) / 2,
                float(np.log(np.median(seconds[middle:]) / np.median(seconds[:middle]))),
            )
        )
    if len(halves) < 3:
        return None
    x, y = np.array(halves).T
    by_time, by_run = float(((y - x * (x @ y) / (x @ x)) ** 2).sum()), float(((y - y.mean()) ** 2).sum())
    same_sign = bool((y > 0).all() or (y < 0).all())
    return _sure(x, y, len(halves) - 1, extent) if same_sign and by_time < by_run else None


def _sure(x: np.ndarray, y: np.ndarray, df: int, extent: float) -> float | None:
    """Return slope * extent of a line through 0, if the slope is certain (p < 0.003)."""
    slope = float(x @ y / (x @ x)) if x.any() else 0.0
    error = float(((y - slope * x) ** 2).sum() / df / max(float(x @ x), 1e-300)) ** 0.5
    return slope * extent if abs(slope) > t_quantile(0.9985, df) * error else None
