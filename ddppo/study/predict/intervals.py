"""Intervals of predictions: what few seeds leave open, and how far a law is off where it is compared with runs.

A prediction is wrong because the runs that it was fitted to vary, because they cannot tell everything, and because the
law is not the truth. The first two are played: fits to runs moved by their own errors. The third is judged by the law
itself: its misfit where it was fitted, and, beyond that, by how much it missed each next W when fitted to those before.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_TAIL = 0.025  # on either side of a 95 % interval
_RUN_CV, _RUN_DF = 0.01, 2.0  # how far runs of one W differ, as if seen in so many comparisons before
_CHECKED, _UNCHECKED = 0.01, 0.15  # how far a law is off at twice the largest W: beside checks, without any
_DF = 5.0  # of Student's t for a law's own error: as known as from about six checks
_DRAWS = 20  # of a law's error for every fit

Law = Callable[[int], float]  # FPS by W


@dataclass(frozen=True, slots=True)
class Prediction:
    """One W. Intervals hold 95 %; parts are mean seconds per iteration over ranks and add up to t_iter.

    speedup is FPS(W) / FPS(base) of the same system, by the same law, base the smallest W measured. t_iter and parts
    are NaN and empty where a law tells throughput alone.
    """

    world_size: int
    base: int
    fps: float
    fps_low: float
    fps_high: float
    speedup: float
    speedup_low: float
    speedup_high: float
    t_iter: float
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
    """How far a law is off, as differences of logarithms of FPS.

    misfit: {W: at the W fitted}. doubling: root mean square per doubling of W, where each next W was predicted from
    those before; later ones, which knew more, count more.
    """

    misfit: dict[int, float]
    doubling: float

    @property
    def relative(self) -> dict[int, float]:
        """The misfit as predicted / measured - 1."""
        return {w: math.expm1(off) for w, off in self.misfit.items()}

    def at(self, world_size: int) -> float:
        """Return how far the law may be off at W: one standard deviation."""
        fitted = sorted(self.misfit)
        usual = float(np.mean([m**2 for m in self.misfit.values()]))
        if world_size in self.misfit:
            return max(usual, self.misfit[world_size] ** 2) ** 0.5
        beyond = max(np.log2(world_size / fitted[-1]), np.log2(fitted[0] / world_size), 0.5)
        return float(usual + (self.doubling * beyond) ** 2) ** 0.5


def errors(measured: Mapping[int, float], fitted: Law, refit: Callable[[Sequence[int]], Law]) -> Errors:
    """Compare FPS `measured` at each W with a law's, and those of the law refitted to the first two W or more."""
    sizes = sorted(measured)
    misfit = {w: float(np.log(fitted(w) / measured[w])) for w in sizes}
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
    """Return a prediction from FPS by a law at W and at W = base, each `[1 + fits]`, the law's own value first."""
    here, there = fits
    error, base_error = off.at(world_size), off.at(base)
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
    """Return the 95 % interval: the spread of fits and Student's t of the law's error; it holds the first."""
    rng = np.random.default_rng(0)
    drawn = np.log(fits)[:, None] + error * rng.standard_t(_DF, (len(fits), _DRAWS))
    low, high = np.exp(np.quantile(drawn, (_TAIL, 1 - _TAIL)))
    return float(min(low, fits[0])), float(max(high, fits[0]))


def moved(fps: Mapping[int, Sequence[float]], rng: np.random.Generator) -> dict[int, float]:
    """Return {W: factor}: by how much the median of the runs at each W may be off, drawn once.

    Runs of one W differ by s^2 = (d0 s0^2 + sum over W and runs of (log x - middle)^2) / d, d = d0 + sum over W of
    (runs - 1), drawn from its scaled inverse chi-square. A deviation counts for at most 4 times the median one: a run
    that stalled says nothing of the others.
    """
    off = [np.abs(np.log(np.asarray(x)) - np.median(np.log(x))) for x in fps.values() if len(x) > 1]
    pooled = np.concatenate([np.zeros(1), *off])
    most = 4 * float(np.median(pooled[pooled > 0])) if pooled.any() else 0.0
    df = _RUN_DF + sum(len(x) - 1 for x in off)
    squares = _RUN_DF * _RUN_CV**2 + float((np.minimum(pooled, most) ** 2).sum())
    spread = float(np.sqrt(squares / rng.chisquare(df)))
    # Of a median of n normal values, sqrt(pi / 2) times that of a mean.
    error = {w: spread * (1.2533 if len(x) > 2 else 1.0) / len(x) ** 0.5 for w, x in fps.items()}
    return {w: float(np.exp(e * rng.standard_normal())) for w, e in error.items()}
