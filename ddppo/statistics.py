"""Statistics of lists of numbers: medians, interquartile means, intervals by Student's t. Pure arithmetic."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

CONFIDENCE = 0.95
LEAST_SEEDS = (
    3  # of an interval: with two, Student's t reaches 9 standard deviations far, and two dots say more
)
_RESAMPLES, _SEED = 2000, 20260101  # the seed is any; fixed, so that a report made twice says the same twice


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median over seeds, with its 95 % interval, which is NaN where none is honest.

    count: the seeds that have a value. values: one per seed, in the order of the seeds; NaN where one has none.
    """

    median: float
    low: float
    high: float
    count: int
    values: tuple[float, ...] = ()

    def scaled(self, by: float) -> "Estimate":
        values = tuple(by * v for v in self.values)
        return Estimate(by * self.median, by * self.low, by * self.high, self.count, values)


NOTHING = Estimate(math.nan, math.nan, math.nan, 0)


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


def bootstrap(statistic: Callable[[np.ndarray], np.ndarray], sample: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % percentile-bootstrap interval of `statistic`, which reduces the last axis of `[resamples, n]`.

    It holds the truth in 95 % of cases with many values only: 52 % with two, 75 % with three. NaN with one.
    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, ch. 13.
    """
    n = len(sample)
    if n < 2:
        return math.nan, math.nan
    picks = np.random.default_rng(_SEED).integers(n, size=(_RESAMPLES, n))
    values = np.sort(statistic(np.asarray(sample, dtype=np.float64)[picks]))
    tail = (1 - CONFIDENCE) / 2
    return float(values[math.floor(tail * _RESAMPLES)]), float(values[math.ceil((1 - tail) * _RESAMPLES) - 1])


@cache
def t_quantile(p: float, df: float) -> float:
    """Return the p-quantile of Student's t with `df` >= 1 degrees of freedom, to 1e-4 of itself for p up to 0.9999.

    With x = sqrt(df) tan(a) its density is proportional to cos(a)^(df - 1) da.
    """
    df = min(df, 1e4)  # more is a normal distribution, to 1e-4
    widest = min(math.pi / 2, 8 / math.sqrt(df) if df > 30 else math.inf)
    a = np.linspace(-widest, widest, 40_001)
    density = np.cos(a) ** (df - 1)
    cdf = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(df) * math.tan(float(np.interp(p, cdf / cdf[-1], a)))


def difference(
    above: Sequence[float], below: Sequence[float] | None = None, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return Student's interval of mean(above), or Welch's of mean(above) - mean(below); NaN with one value in either.

    m +- t(1 - (1 - confidence) / 2, df) sqrt(sum of s_i^2 / n_i), df after Satterthwaite. Source: Welch 1947,
    doi:10.1093/biomet/34.1-2.28.
    """
    samples = [np.asarray(s, dtype=np.float64) for s in (above, below) if s is not None]
    if min(map(len, samples)) < 2:
        return math.nan, math.nan
    middle = float(samples[0].mean() - (samples[1].mean() if len(samples) > 1 else 0.0))
    variances = [float(s.var(ddof=1)) / len(s) for s in samples]
    total = math.fsum(variances)
    if not total > (1e-12 * middle) ** 2:  # all alike, but for rounding
        return middle, middle
    df = total**2 / sum(v**2 / (len(s) - 1) for v, s in zip(variances, samples, strict=True))
    half = t_quantile(1 - (1 - confidence) / 2, df) * math.sqrt(total)
    return middle - half, middle + half


def estimate(values: Sequence[float]) -> Estimate:
    """Return the median of `values`, one per seed, with Student's interval; NaN values do not count."""
    known = [v for v in values if not math.isnan(v)]
    if not known:
        return NOTHING
    low, high = difference(known) if len(known) >= LEAST_SEEDS else (math.nan, math.nan)
    return Estimate(median(known), low, high, len(known), tuple(values))


def time_estimate(seconds: Sequence[float]) -> Estimate:
    """Return the median of times of which some are +inf (never), with an interval by order statistics.

    [x_(k), x_(n + 1 - k)] holds the median unless fewer than k of n values lie on one side of it:
    2 P[Bin(n, 1/2) < k] is at most 5 % from n = 6 on. Source: David and Nagaraja 2003, Order Statistics, section 7.1.
    """
    known = sorted(v for v in seconds if not math.isnan(v))
    if not known:
        return NOTHING
    n, k, outside = len(known), 0, 0.0
    while (outside := outside + 2 * math.comb(n, k) / 2**n) <= 1 - CONFIDENCE:
        k += 1
    low, high = (known[k - 1], known[n - k]) if k else (math.nan, math.nan)
    return Estimate(median(known), low, high, n, tuple(seconds))


def ratio(values: Sequence[float], base: Sequence[float], *, inverse: bool = False) -> Estimate:
    """Return median(values) / median(base) of positive numbers over independent seeds, or its `inverse` (of times).

    The interval is Welch's of the logarithms; none of a sample against itself, or where a seed is infinite. Nothing
    where a median is infinite or 0.
    """
    known, below = ([v for v in side if not math.isnan(v)] for side in (values, base))
    if not all(0 < median(side) < math.inf for side in (known, below)):
        return NOTHING
    sign, middle, low, high = (-1 if inverse else 1), median(below), math.nan, math.nan
    enough = values is not base and min(len(known), len(below)) >= LEAST_SEEDS
    if enough and all(0 < v < math.inf for v in (*known, *below)):
        logs = difference([sign * math.log(v) for v in known], [sign * math.log(v) for v in below])
        low, high = (math.exp(min(d, 700.0)) for d in logs)
    seeds = tuple((v / middle) ** sign if 0 < v < math.inf else math.nan for v in values)
    return Estimate((median(known) / middle) ** sign, low, high, min(len(known), len(below)), seeds)
