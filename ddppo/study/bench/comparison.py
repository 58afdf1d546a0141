"""Is one speed another? Ratios with exact intervals that assume no distribution, and a verdict. Pure arithmetic.

Rounds on a shared machine are few and have outliers, so that means and deviations say little.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddppo.errors import ConfigError

ERROR = 0.05  # chance that the truth lies below the interval, and that it lies above


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast, and between which bounds the truth is with 90 % confidence."""

    estimate: float
    low: float
    high: float
    count: int

    def verdict(self, tolerance: float) -> str:
        """Return slower, faster, same or unclear.

        slower: by more than `tolerance`, and not by chance; faster: likewise. same: within it even at the interval's
        ends. Anything else is unclear, and more rounds would tell.
        """
        if self.estimate < 1 - tolerance and self.high < 1:
            return "slower"
        if self.estimate > 1 + tolerance and self.low > 1:
            return "faster"
        return "same" if self.low >= 1 - tolerance and self.high <= 1 + tolerance else "unclear"


def middle(values: Sequence[float]) -> float:
    """Return the median."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Return the median of the ratios of pairs measured side by side, with the interval of the sign test.

    The interval is [r_(k), r_(n+1-k)] for the largest k with P(Binomial(n, 1/2) < k) <= ERROR; with less than 5 pairs
    there is none, and it is all of the line.

    Source: Conover 1999, Practical Nonparametric Statistics, ch. 3.2.
    """
    ratios = sorted(a / b for a, b in zip(numerators, denominators, strict=True))
    n = len(ratios)
    tails = [sum(math.comb(n, i) for i in range(k)) / 2**n for k in range(n + 1)]
    k = max(k for k, tail in enumerate(tails) if tail <= ERROR)
    low, high = (ratios[k - 1], ratios[n - k]) if k else (0.0, math.inf)
    return Ratio(middle(ratios), low, high, n)


def unpaired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Return the median of the ratios of all pairs (Hodges and Lehmann), with the interval of the Mann-Whitney test.

    The interval is [r_(k), r_(mn+1-k)] for the largest k with P(U < k) <= ERROR, where U counts the pairs of one order
    when both samples have one distribution; 3 against 3 values are the fewest that have one.

    Source: Conover 1999, Practical Nonparametric Statistics, ch. 5.4.
    """
    m, n = len(numerators), len(denominators)
    ratios = sorted(a / b for a in numerators for b in denominators)
    counts = _orders(m, n)
    k, tail = 0, counts[0]
    while tail <= ERROR * math.comb(m + n, m):
        k += 1
        tail += counts[k]
    low, high = (ratios[k - 1], ratios[m * n - k]) if k else (0.0, math.inf)
    return Ratio(middle(ratios), low, high, min(m, n))


def _orders(m: int, n: int) -> list[int]:
    """Return for u = 0 to m n how many orders of m and n values have u pairs of the first before the second.

    The coefficients of the Gaussian binomial (m + n over m), by its product formula.
    """
    counts = [1] + [0] * (m * n)
    for i in range(1, m + 1):
        for u in range(m * n, n + i - 1, -1):  # times 1 - q^(n + i)
            counts[u] -= counts[u - n - i]
        for u in range(i, m * n + 1):  # over 1 - q^i
            counts[u] += counts[u - i]
    return counts


def check_rounds(num_rounds: int, *, paired: bool) -> None:
    """Raise ConfigError where no outcome of so few rounds could be told from chance."""
    fewest = 5 if paired else 3
    if num_rounds < fewest:
        raise ConfigError(
            f"rounds={num_rounds} can tell no slowdown from chance: a comparison needs rounds={fewest} or more"
        )
