"""How sure is a median over seeds? Medians with 95 % intervals.

Intervals are Student's for one sample, Welch's for two, both of the logarithms if values are positive, and order
statistics for times of which some are +inf.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddppo.statistics import CONFIDENCE, LEAST_SEEDS, median

_LARGEST_LOG = 700.0  # its exp is a float


@dataclass(frozen=True, slots=True)
class SeedMedian:
    """A median over seeds, with its 95 % interval."""

    median: float
    low: float  # NaN if there are too few seeds for an interval
    high: float
    count: int  # seeds with a value
    values: tuple[float, ...] = ()  # one per seed, in the order of the seeds; NaN for a seed without a value

    def scaled(self, by: float) -> "SeedMedian":
        values = tuple(by * v for v in self.values)
        return SeedMedian(by * self.median, by * self.low, by * self.high, self.count, values)


NOTHING = SeedMedian(math.nan, math.nan, math.nan, 0)


def t_quantile(p: float, df: float) -> float:
    """Return the p-quantile of Student's t with `df` degrees of freedom."""
    from scipy.special import stdtrit  # its import takes as long as the rest of a report

    return float(stdtrit(df, p))


def t_probability(x: float, df: float) -> float:
    """Return the probability that Student's t with `df` degrees of freedom is below x."""
    from scipy.special import stdtr

    return float(stdtr(df, x))


def difference(
    above: Sequence[float], below: Sequence[float] | None = None, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return Student's interval of mean(above), or Welch's of mean(above) - mean(below).

    The interval is m +- t(1 - (1 - confidence) / 2, df) sqrt(sum of s_i^2 / n_i), with df after Satterthwaite. It is
    (NaN, NaN) if a sample has one value. Source: Welch 1947, doi:10.1093/biomet/34.1-2.28.
    """
    # One sample, or two.
    samples = [np.asarray(s, dtype=np.float64) for s in (above, below) if s is not None]
    if min(map(len, samples)) < 2:
        return math.nan, math.nan
    middle = float(samples[0].mean() - (samples[1].mean() if len(samples) > 1 else 0.0))
    variances = [float(s.var(ddof=1)) / len(s) for s in samples]
    total = math.fsum(variances)
    if not total > (1e-12 * middle) ** 2:  # all values are equal, up to rounding
        return middle, middle
    # Satterthwaite's degrees of freedom; for one sample they are n - 1.
    df = total**2 / sum(v**2 / (len(s) - 1) for v, s in zip(variances, samples, strict=True))
    half = t_quantile(1 - (1 - confidence) / 2, df) * math.sqrt(total)
    return middle - half, middle + half


def estimate(values: Sequence[float], *, positive: bool = False) -> SeedMedian:
    """Return the median of `values`, one per seed, with Student's interval; of logarithms if they are `positive`.

    NaN values are left out.
    """
    known = [v for v in values if not math.isnan(v)]
    if not known:
        return NOTHING
    if len(known) < LEAST_SEEDS:
        low, high = math.nan, math.nan
    elif positive:
        low, high = (math.exp(min(x, _LARGEST_LOG)) for x in difference([math.log(v) for v in known]))
    else:
        low, high = difference(known)
    return SeedMedian(median(known), low, high, len(known), tuple(values))


def time_estimate(seconds: Sequence[float]) -> SeedMedian:
    """Return the median of times, some of them +inf (never), with an interval by order statistics.

    The interval [x_(k), x_(n + 1 - k)] misses the median only if fewer than k of n values lie on one side of it. That
    has the probability 2 P[Bin(n, 1/2) < k], which can be brought to 5 % from n = 6 on; fewer seeds have no interval.
    Source: David and Nagaraja 2003, Order Statistics, section 7.1.
    """
    known = sorted(v for v in seconds if not math.isnan(v))
    if not known:
        return NOTHING
    # The largest k with at most 5 % outside.
    n, k, outside = len(known), 0, 0.0
    while (outside := outside + 2 * math.comb(n, k) / 2**n) <= 1 - CONFIDENCE:
        k += 1
    low, high = (known[k - 1], known[n - k]) if k else (math.nan, math.nan)
    return SeedMedian(median(known), low, high, n, tuple(seconds))


def ratio(values: Sequence[float], base: Sequence[float], *, inverse: bool = False) -> SeedMedian:
    """Return median(values) / median(base) of positive numbers over independent seeds, or the `inverse` (for times).

    The interval is Welch's interval of the logarithms. A sample against itself, or with an infinite value, has no
    interval. Returns NOTHING if a median is infinite or 0.
    """
    known, below = ([v for v in side if not math.isnan(v)] for side in (values, base))
    if not all(0 < median(side) < math.inf for side in (known, below)):
        return NOTHING
    # Times: a smaller median is the larger ratio.
    sign, middle, low, high = (-1 if inverse else 1), median(below), math.nan, math.nan
    # Seeds of the base itself are not independent of it.
    enough = values is not base and min(len(known), len(below)) >= LEAST_SEEDS
    if enough and all(0 < v < math.inf for v in (*known, *below)):
        logs = difference([sign * math.log(v) for v in known], [sign * math.log(v) for v in below])
        low, high = (math.exp(min(d, _LARGEST_LOG)) for d in logs)
    seeds = tuple((v / middle) ** sign if 0 < v < math.inf else math.nan for v in values)
    return SeedMedian((median(known) / middle) ** sign, low, high, min(len(known), len(below)), seeds)
