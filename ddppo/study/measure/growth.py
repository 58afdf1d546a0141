"""Is one W certainly faster than another? Intervals of the growth of FPS, with few seeds too."""

import math

import numpy as np

from ddppo.statistics import CONFIDENCE, LEAST_SEEDS
from ddppo.study.measure.slow import standard_error
from ddppo.study.measure.speedup import Study
from ddppo.study.measure.statistics import difference, t_quantile
from ddppo.study.read.record import Run

_RUNS_DIFFER = 0.05  # assumed standard deviation of FPS over runs, relative, if there is one seed
LEAST_DF = 3  # of a deviation that is pooled over W


def growth(study: Study, small: int, large: int, confidence: float) -> tuple[float, float]:
    """Return the interval of log FPS(large) - log FPS(small).

    From three seeds on it is Welch's. Two seeds do not tell how runs of one W differ (Student's t would give 9
    deviations and more). Then that is taken from all W, if these have 3 degrees of freedom or more; else it is the
    noise of iterations, and an assumed difference of 5 % between runs.
    """
    before, after = study.runs_at(small), study.runs_at(large)
    slower, faster = ([math.log(run.fps) for run in runs] for runs in (before, after))
    if min(len(slower), len(faster)) >= LEAST_SEEDS:
        return difference(faster, slower, confidence)
    middle = sum(faster) / len(faster) - sum(slower) / len(slower)
    # The deviation of runs, pooled over W.
    several = [
        np.log([r.fps for r in runs]) for runs in map(study.runs_at, study.world_sizes) if len(runs) > 1
    ]
    df = sum(len(x) - 1 for x in several)
    pooled = math.sqrt(sum(float(((x - x.mean()) ** 2).sum()) for x in several) / df) if df else 0.0
    if df < LEAST_DF:
        pooled, df = max(pooled, _RUNS_DIFFER), 10_000
    noise = [math.hypot(_noise(run), pooled) / len(runs) for runs in (before, after) for run in runs]
    half = t_quantile(1 - (1 - confidence) / 2, df) * math.hypot(*noise)
    return middle - half, middle + half


def not_faster(study: Study) -> set[int]:
    """Return the W that are certainly no faster than a smaller W, each by itself."""
    found = set()
    for i, row in enumerate(study.rows):
        smaller = [before.world_size for before in study.rows[:i]]
        if any(growth(study, before, row.world_size, CONFIDENCE)[1] <= 0 for before in smaller):
            found.add(row.world_size)
    return found


def perhaps_slower(study: Study) -> set[int]:
    """Return the W that may be slower than the smallest, each by itself; by time to target if that has an interval."""
    found = set()
    for row in study.rows[1:]:
        low = row.speedup_by_target.low
        if math.isnan(low):
            low = math.exp(growth(study, study.baseline, row.world_size, CONFIDENCE)[0])
        if low <= 1:
            found.add(row.world_size)
    return found


def _noise(run: Run) -> float:
    """Return the relative standard error of a run's mean iteration; 0 if its iterations are unknown."""
    t_iter = run.times["t_iter"].mean(axis=1) if "t_iter" in run.times else np.ones(1)
    return standard_error(t_iter)[0] / float(t_iter.mean())
