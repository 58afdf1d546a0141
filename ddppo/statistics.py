"""Statistics of lists of numbers: medians, interquartile means, bootstrapped intervals. Pure arithmetic."""

import math
from collections.abc import Callable, Sequence

import numpy as np

CONFIDENCE = 0.95
LEAST_SEEDS = (
    3  # for an interval: with two seeds, Student's t gives 9 standard deviations, and two dots say more
)
_RESAMPLES, _SEED = 2000, 20260101  # any seed, but a fixed one: a report made twice is the same


def median(values: Sequence[float]) -> float:
    """Return the median; +inf counts as larger than every number. NaN for no values.

    For an even number of values it is the mean of the middle two, so +inf if one of them is.
    """
    return float(np.median(np.asarray(values, dtype=np.float64))) if len(values) else math.nan


def iqm(values: Sequence[float]) -> float:
    """Return the interquartile mean: the mean after floor(n/4) values are dropped at either end.

    The same as scipy.stats.trim_mean(values, 0.25), which rliable uses (arXiv:2108.13264). No value counts by a
    fraction, so fewer than four values are not trimmed. Needs at least one value.
    """
    cut = len(values) // 4
    return float(np.mean(np.sort(np.asarray(values, dtype=np.float64))[cut : len(values) - cut]))


def means_of(samples: np.ndarray) -> np.ndarray:
    """Return the means over the last axis, for `bootstrap`."""
    return samples.mean(axis=-1)


def iqms(samples: np.ndarray) -> np.ndarray:
    """Return `iqm` over the last axis, for `bootstrap`."""
    # Drop the lowest and the highest quarter.
    cut = samples.shape[-1] // 4
    return np.sort(samples, axis=-1)[..., cut : samples.shape[-1] - cut].mean(axis=-1)


def spread(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """Return mean, p50, p95 and max of `values`; percentiles interpolate linearly. NaN for no values."""
    if not len(values):
        return dict.fromkeys(("mean", "p50", "p95", "max"), math.nan)
    x = np.asarray(values, dtype=np.float64)
    p50, p95 = np.percentile(x, (50, 95))
    return {"mean": float(x.mean()), "p50": float(p50), "p95": float(p95), "max": float(x.max())}


def bootstrap(statistic: Callable[[np.ndarray], np.ndarray], sample: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % percentile-bootstrap interval of `statistic`, which reduces the last axis of `[resamples, n]`.

    It contains the true value in 95 % of cases only with many values: in 52 % with two, 75 % with three. NaN with one.
    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, ch. 13.
    """
    n = len(sample)
    if n < 2:
        return math.nan, math.nan
    # Draw n values with replacement, many times; the interval is between two percentiles of the statistic.
    picks = np.random.default_rng(_SEED).integers(n, size=(_RESAMPLES, n))
    values = np.sort(statistic(np.asarray(sample, dtype=np.float64)[picks]))
    tail = (1 - CONFIDENCE) / 2
    return float(values[math.floor(tail * _RESAMPLES)]), float(values[math.ceil((1 - tail) * _RESAMPLES) - 1])
