"""Statistics of lists of numbers: medians, interquartile means, bootstrap intervals. Pure arithmetic."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95
_SEED = 20260101  # any; fixed, so that a report made twice says the same twice


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median over seeds and the IQM, with their 95 % bootstrap intervals, which are NaN with one seed."""

    median: float
    iqm: float
    low: float
    high: float
    count: int
    iqm_low: float = math.nan
    iqm_high: float = math.nan


NOTHING = Estimate(math.nan, math.nan, math.nan, math.nan, 0)


def median(values: Sequence[float]) -> float:
    """Return the median; +inf counts as larger than every number. NaN for no values.

    Of an even number it is the mean of the two in the middle, so +inf as soon as one of them is.
    """
    return float(np.median(np.asarray(values, dtype=np.float64))) if len(values) else math.nan


def iqm(values: Sequence[float]) -> float:
    """Return the interquartile mean: the mean after floor(n/4) values are dropped at either end.

    The same as scipy.stats.trim_mean(values, 0.25), which rliable uses (arXiv:2108.13264). No value counts
    by a fraction, so fewer than four are not trimmed at all. Takes at least one value.
    """
    cut = len(values) // 4
    return float(np.mean(np.sort(np.asarray(values, dtype=np.float64))[cut : len(values) - cut]))


def spread(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """Return mean, p50, p95 and max of `values`; percentiles interpolate linearly. NaN for no values."""
    if not len(values):
        return dict.fromkeys(("mean", "p50", "p95", "max"), math.nan)
    x = np.asarray(values, dtype=np.float64)
    p50, p95 = np.percentile(x, (50, 95))
    return {"mean": float(x.mean()), "p50": float(p50), "p95": float(p95), "max": float(x.max())}


def bootstrap(
    statistic: Callable[..., np.ndarray], *samples: Sequence[float], num_resamples: int = NUM_RESAMPLES
) -> tuple[float, float]:
    """Return the 95 % percentile-bootstrap interval of `statistic` of one or more independent samples over seeds.

    `statistic` takes one array `[num_resamples, n]` per sample and reduces the last axis. Percentiles are order
    statistics, without interpolation, so that +inf does no harm. NaN where no sample has two values.

    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, ch. 13.
    """
    if max((len(sample) for sample in samples), default=0) < 2 or not all(len(s) for s in samples):
        return math.nan, math.nan
    generator = np.random.default_rng(_SEED)
    resampled = []
    for sample in samples:
        picks = generator.integers(len(sample), size=(num_resamples, len(sample)))
        resampled.append(np.asarray(sample, dtype=np.float64)[picks])
    values = np.sort(statistic(*resampled))
    tail = (1 - CONFIDENCE) / 2
    return float(values[math.floor(tail * num_resamples)]), float(
        values[math.ceil((1 - tail) * num_resamples) - 1]
    )


def medians(samples: np.ndarray) -> np.ndarray:
    """Return the median over the last axis."""
    return np.median(samples, axis=-1)


def means(samples: np.ndarray) -> np.ndarray:
    """Return the mean over the last axis."""
    return np.mean(samples, axis=-1)


def iqms(samples: np.ndarray) -> np.ndarray:
    """Return the interquartile mean over the last axis."""
    count = samples.shape[-1]
    return np.mean(np.sort(samples, axis=-1)[..., count // 4 : count - count // 4], axis=-1)


def estimate(values: Sequence[float]) -> Estimate:
    """Return median and IQM of `values`, one per seed, and their intervals; NaN values do not count."""
    values = [v for v in values if not math.isnan(v)]
    if not values:
        return NOTHING
    return Estimate(
        median(values), iqm(values), *bootstrap(medians, values), len(values), *bootstrap(iqms, values)
    )


def ratio(numerators: Sequence[float], denominators: Sequence[float], scale: float = 1.0) -> Estimate:
    """Return scale * median(numerators) / median(denominators) over independent seeds, with its interval.

    iqm is the ratio of the two IQMs, with its own. A number over +inf is 0; +inf over anything is undefined, NaN.
    """
    numerators = [v for v in numerators if not math.isnan(v)]
    denominators = [v for v in denominators if not math.isnan(v)]
    if not numerators or not denominators or math.isinf(median(numerators)):
        return NOTHING

    def quotient_of(middle: Callable[[np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
        def quotient(above: np.ndarray, below: np.ndarray) -> np.ndarray:
            top = middle(above)
            # A resample whose middle never got there says nothing about the ratio but that it is large.
            return scale * np.where(np.isinf(top), np.inf, np.where(np.isinf(top), 1.0, top) / middle(below))

        return quotient

    point = scale * median(numerators) / median(denominators)
    low, high = bootstrap(quotient_of(medians), numerators, denominators)
    of_iqms, iqm_low, iqm_high = math.nan, math.nan, math.nan
    if not math.isinf(iqm(numerators)):
        of_iqms = scale * iqm(numerators) / iqm(denominators)
        iqm_low, iqm_high = bootstrap(quotient_of(iqms), numerators, denominators)
    count = min(len(numerators), len(denominators))
    return Estimate(point, of_iqms, low, high, count, iqm_low, iqm_high)
