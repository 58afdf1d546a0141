"""How long W ranks wait for the slowest of them: distributions of a rank's slowness, and expected maxima."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Quantiles are kept at these standard normal deviates: out to 1e-9 on either side, enough for 1e6 ranks.
_Z = np.linspace(-6.0, 6.0, 1201)
_LOWER = np.array([0.5 * math.erfc(-z / math.sqrt(2)) for z in _Z])
_UPPER = np.array([0.5 * math.erfc(z / math.sqrt(2)) for z in _Z])

_TAIL_SHARE = 0.1  # the part of the residuals to which the tail is fitted
_TAIL_SHAPES = (-0.5, 0.4)  # outside: no finite variance of the estimate, or of the maximum
_LEAST_CV = 1e-8
_FASTEST = 0.05  # a factor below this on a rank's time is not a rollout


@dataclass(frozen=True, eq=False)
class Noise:
    """A factor on the time of one rank, mean 1, as its quantiles at fixed probabilities `[1201]`."""

    quantiles: np.ndarray

    def expected_max(self, world_size: int) -> float:
        """Return E[max of W independent factors] = integral of x d F(x)^W; 1 at W = 1."""
        return _mean_under(self.quantiles, world_size * np.log(_LOWER))

    def expected_max_with_late(self, world_size: int, late: Sequence[float]) -> float:
        """Return E[max(X_1, ..., X_W)] where the first len(late) of the factors have `late` added to them.

        The distribution function of the maximum is F(x)^(W - k) F(x - late_1) ... F(x - late_k).
        """
        late = [d for d in late if d > 0.0]
        if not late:
            return self.expected_max(world_size)
        assert len(late) <= world_size
        x = np.sort(np.concatenate([self.quantiles, *(self.quantiles + d for d in late)]))
        with np.errstate(divide="ignore"):
            log_cdf = sum((np.log(self._cdf(x - d)) for d in late), np.zeros_like(x))
            if world_size > len(late):
                log_cdf += (world_size - len(late)) * np.log(self._cdf(x))
        return _mean_under(x, log_cdf)

    @property
    def cv(self) -> float:
        """Standard deviation of the factor."""
        weights = np.diff(_LOWER, prepend=0.0)
        mean = float(weights @ self.quantiles)
        return math.sqrt(float(weights @ (self.quantiles - mean) ** 2))

    def with_cv(self, cv: float) -> "Noise":
        """Return the same shape, stretched about the mean to a standard deviation of `cv`."""
        own = self.cv
        if own < _LEAST_CV * 10:
            return lognormal(cv)
        return _normalised(1.0 + (self.quantiles - 1.0) * (cv / own))

    def _cdf(self, x: np.ndarray) -> np.ndarray:
        return np.interp(x, self.quantiles, _LOWER, left=0.0, right=1.0)


def lognormal(cv: float) -> Noise:
    """Return lognormal noise of mean 1 and standard deviation `cv`: exp(s z - s^2 / 2), s^2 = log(1 + cv^2).

    No noise at all has a width that nobody can measure, for quantiles to be told apart.
    """
    s = max(math.sqrt(math.log1p(cv * cv)), _LEAST_CV)
    quantiles = np.exp(s * _Z)
    return Noise(quantiles / _mean_under(quantiles, np.log(_LOWER)))


def empirical(residuals: Sequence[float] | np.ndarray, cv: float) -> Noise:
    """Return noise shaped like `residuals` (deviations from the mean, any scale), with a fitted tail above 90 %.

    Below, the sample's quantiles. Above the 90 % quantile u a generalized Pareto tail, at exceedance probability q
    u + s / xi ((q / 0.1)^-xi - 1), fitted by probability-weighted moments: xi = 2 - a0 / (a0 - 2 a1), s = a0 (1 - xi),
    with a0 = E[Y], a1 = E[Y (1 - F(Y))] of the excesses Y. Source: Hosking and Wallis 1987, doi:10.2307/1269343.
    """
    x = np.sort(np.asarray(residuals, dtype=np.float64))
    n = len(x)
    assert n >= 20, f"{n} residuals do not make a tail"
    assert x[0] < x[-1], f"{n} residuals, all {x[0]}, do not make a distribution"
    quantiles = np.quantile(x, _LOWER)
    u = float(np.quantile(x, 1 - _TAIL_SHARE))
    excess = x[x > u] - u
    a0 = float(excess.mean()) if len(excess) else 0.0
    if a0 > 0.0:
        ranks = (np.arange(1, len(excess) + 1) - 0.35) / len(excess)
        a1 = float((excess * (1 - ranks)).mean())
        xi = 2.0 - a0 / (a0 - 2 * a1) if a0 > 2 * a1 else _TAIL_SHAPES[1]
        xi = float(np.clip(xi, *_TAIL_SHAPES))
        in_tail = _UPPER < _TAIL_SHARE
        q = np.log(_UPPER[in_tail] / _TAIL_SHARE)
        scale = a0 * (1 - xi)
        quantiles[in_tail] = u + scale * (np.expm1(-xi * q) / xi if abs(xi) > 1e-9 else -q)
    weights = np.diff(_LOWER, prepend=0.0)
    centred = quantiles - weights @ quantiles
    return _normalised(1.0 + centred * cv / math.sqrt(weights @ centred**2))


def normal_expected_max(world_size: int) -> float:
    """Return E[max of W standard normals]: 0, 0.564, 0.846, 1.029, ... (David and Nagaraja, Order Statistics)."""
    return _mean_under(_Z, world_size * np.log(_LOWER))


def _normalised(quantiles: np.ndarray) -> Noise:
    positive = np.maximum.accumulate(np.maximum(quantiles, _FASTEST))
    return Noise(positive / _mean_under(positive, np.log(_LOWER)))


def _mean_under(x: np.ndarray, log_cdf: np.ndarray) -> float:
    """Return the mean of the distribution function exp(log_cdf) at ascending `x`; what is beyond sits at the ends."""
    cdf = np.exp(log_cdf)
    inside = float((np.diff(cdf) * (x[1:] + x[:-1]) / 2).sum())
    return float(cdf[0] * x[0] + inside + (1.0 - cdf[-1]) * x[-1])
