"""How far may a prediction be off? Intervals of 95 %.

A prediction is wrong for three reasons: the runs vary, the runs cannot tell all parameters apart, and the law is not
the truth. The first two are simulated, by fits to runs that are moved by their own errors. The third is estimated from
the law's misfit at the fitted W and, beyond these, from its error at each next W when fitted to the smaller ones.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_TAIL = 0.025  # on either side of a 95 % interval
_RUN_CV, _RUN_DF = 0.01, 2.0  # prior: relative deviation between runs of one W, and its degrees of freedom
_CHECKED, _UNCHECKED = 0.01, 0.15  # prior: error of a law at twice the largest W, with and without checks
_DF = 5.0  # degrees of freedom of a law's own error, as if estimated from about six checks
_DRAWS = 20  # of a law's error, for each fit

Law = Callable[[int], float]  # FPS by W


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction for one W, with 95 % intervals."""

    world_size: int
    base: int  # the smallest W measured
    fps: float
    fps_low: float
    fps_high: float
    speedup: float  # FPS(W) / FPS(base), both by the same law
    speedup_low: float
    speedup_high: float
    t_iter: float  # seconds; NaN if the law predicts throughput only
    # Mean seconds over ranks, which sum to t_iter; {} if the law predicts throughput only.
    parts: dict[str, float]

    @property
    def efficiency(self) -> float:
        """speedup * base / W."""
        return self.speedup * self.base / self.world_size

    @property
    def efficiency_low(self) -> float:
        return self.speedup_low * self.base / self.world_size

    @property
    def efficiency_high(self) -> float:
        return self.speedup_high * self.base / self.world_size


@dataclass(frozen=True, slots=True)
class Errors:
    """The errors of a law, as differences of log FPS."""

    misfit: dict[int, float]  # {W: error} at the fitted W
    # Root mean square per doubling of W, of predictions of each W from the smaller ones. Predictions from more W weigh
    # more.
    doubling: float

    @property
    def relative(self) -> dict[int, float]:
        """The misfit as predicted / measured - 1."""
        return {w: math.expm1(off) for w, off in self.misfit.items()}

    def at(self, world_size: int) -> float:
        """Return the standard deviation of the law's error at W."""
        fitted = sorted(self.misfit)
        # At a fitted W: its own misfit, but at least the usual one.
        usual = float(np.mean([m**2 for m in self.misfit.values()]))
        if world_size in self.misfit:
            return max(usual, self.misfit[world_size] ** 2) ** 0.5
        # Elsewhere: doublings beyond the fitted range; between fitted W half a doubling.
        beyond = max(np.log2(world_size / fitted[-1]), np.log2(fitted[0] / world_size), 0.5)
        return float(usual + (self.doubling * beyond) ** 2) ** 0.5


def errors(measured: Mapping[int, float], fitted: Law, refit: Callable[[Sequence[int]], Law]) -> Errors:
    """Return the errors of the law `fitted` to all W, and of its refits to the first two W or more."""
    sizes = sorted(measured)
    misfit = {w: float(np.log(fitted(w) / measured[w])) for w in sizes}
    # Begin with the prior. Then refit to the first i W and predict the next, the latest first.
    squares, weights = [(_CHECKED if len(sizes) > 2 else _UNCHECKED) ** 2], [1.0]
    for i in range(len(sizes) - 1, 1, -1):
        before, w = sizes[:i], sizes[i]
        off = float(np.log(refit(before)(w) / measured[w])) / float(np.log2(w / before[-1]))
        squares.append(off**2)
        weights.append(0.25 ** (len(squares) - 2))
    return Errors(misfit, float(np.average(squares, weights=weights)) ** 0.5)


def predicted(
    world_size: int, base: int, fits: tuple[np.ndarray, np.ndarray], off: Errors, parts: dict[str, float]
) -> Prediction:
    """Return the prediction for W.

    fits: FPS at W and at base, each `[1 + replicates]`, the law's own value first, then those of the replicates.
    """
    here, there = fits
    error, base_error = off.at(world_size), off.at(base)
    # S at the base is 1 by definition.
    speedup_error = 0.0 if world_size == base else math.hypot(error, base_error)
    return Prediction(
        world_size,
        base,
        float(here[0]),
        *_interval(here, error),
        float(here[0] / there[0]),
        *_interval(here / there, speedup_error),
        t_iter=sum(parts.values()) if parts else math.nan,
        parts=parts,
    )


def _interval(fits: np.ndarray, error: float) -> tuple[float, float]:
    """Return the 95 % interval of the fits with the law's error (Student's t) added; it contains the first fit."""
    rng = np.random.default_rng(0)
    # Every fit with some draws of the error of the law.
    drawn = np.log(fits)[:, None] + error * rng.standard_t(_DF, (len(fits), _DRAWS))
    low, high = np.exp(np.quantile(drawn, (_TAIL, 1 - _TAIL)))
    return float(min(low, fits[0])), float(max(high, fits[0]))


def moved(fps: Mapping[int, Sequence[float]], rng: np.random.Generator) -> dict[int, float]:
    """Draw {W: factor}, the factor by which the median of the runs at each W may be off.

    The variance between runs of one W is s^2 = (d0 s0^2 + sum over W and runs of (log x - median)^2) / d with d = d0 +
    sum over W of (runs - 1), drawn from its scaled inverse chi-square. A deviation counts as at most 4 times the median
    deviation, because a run that stalled says nothing about the others.
    """
    off = [np.abs(np.log(np.asarray(x)) - np.median(np.log(x))) for x in fps.values() if len(x) > 1]
    pooled = np.concatenate([np.zeros(1), *off])
    most = 4 * float(np.median(pooled[pooled > 0])) if pooled.any() else 0.0
    df = _RUN_DF + sum(len(x) - 1 for x in off)
    squares = _RUN_DF * _RUN_CV**2 + float((np.minimum(pooled, most) ** 2).sum())
    spread = float(np.sqrt(squares / rng.chisquare(df)))
    # The standard error of a median of n normal values is sqrt(pi / 2) times that of a mean.
    error = {w: spread * (1.2533 if len(x) > 2 else 1.0) / len(x) ** 0.5 for w, x in fps.items()}
    return {w: float(np.exp(e * rng.standard_normal())) for w, e in error.items()}
