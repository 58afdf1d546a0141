"""Gunther's universal scalability law, from W and FPS alone: the baseline beside the model of an iteration.

    X(W) = gamma W / (1 + sigma (W - 1) + kappa W (W - 1))

gamma: steps/s of one worker. sigma: contention, the part that only one worker at a time can do. kappa: coherence, what
every pair of workers costs. X is largest at W = sqrt((1 - sigma) / kappa). Source: Gunther 2007, Guerrilla Capacity
Planning, ch. 4 to 6, doi:10.1007/978-3-540-31010-5.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ddppo.errors import ConfigError
from ddppo.study.predict.fitting import nnls
from ddppo.study.predict.intervals import Errors, Prediction, errors, moved, predicted

_REPLICATES = 100


@dataclass(frozen=True, slots=True)
class Usl:
    """The law as W / X = alone + serial (W - 1) + pairs W (W - 1), in seconds a step.

    besides: ranks that step no environments, a learner among actors; the law's W are the others.
    """

    alone: float
    serial: float
    pairs: float
    besides: int = 0

    def fps(self, world_size: float) -> float:
        """Return X in steps/s."""
        w = world_size - self.besides
        return w / (self.alone + self.serial * (w - 1) + self.pairs * w * (w - 1))

    @property
    def sigma(self) -> float:
        """Contention, huge where the fit leaves nothing to one worker alone."""
        return self.serial / self.alone

    @property
    def kappa(self) -> float:
        """Coherence, likewise."""
        return self.pairs / self.alone

    @property
    def peak(self) -> float:
        """W of the largest throughput: 1 where a second worker slows, inf where no further one ever does."""
        if self.pairs == 0:
            return math.inf if self.serial <= self.alone else 1.0 + self.besides
        return self.besides + max(1.0, math.sqrt(max(0.0, self.alone - self.serial) / self.pairs))

    def __str__(self) -> str:
        peak = "has no peak" if math.isinf(self.peak) else f"peaks at W={self.peak:.3g}"
        of = f" of the ranks but {self.besides} that steps no environments" if self.besides else ""
        law = f"By the universal scalability law{of}, sigma {self.sigma:.3g} and kappa {self.kappa:.3g}"
        return f"{law}, throughput {peak}"


@dataclass(frozen=True, eq=False)
class FittedUsl:
    """The law fitted to `fps`, {W: steps/s of its runs}; to these moved by their errors; and how far it is off."""

    fps: Mapping[int, Sequence[float]]
    usl: Usl
    replicates: tuple[Usl, ...]
    errors: Errors

    def predict(self, world_sizes: Sequence[int]) -> list[Prediction]:
        """Return predictions; intervals as those of the model."""
        laws, base = (self.usl, *self.replicates), min(self.fps)
        fps = {w: np.array([law.fps(w) for law in laws]) for w in {base, *world_sizes}}
        return [predicted(w, base, (fps[w], fps[base]), self.errors, {}) for w in world_sizes]

    def without(self, world_size: int) -> "FittedUsl":
        return fit_usl_with_errors({w: x for w, x in self.fps.items() if w != world_size}, self.usl.besides)


def fit_usl(fps: Mapping[int, Sequence[float]], besides: int = 0) -> Usl:
    """Fit to {W: steps/s of its runs}, by non-negative least squares of relative errors.

    besides: ranks of each W that step no environments. The law is linear in 1 / gamma, sigma / gamma and kappa / gamma.
    Of two W, which cannot tell sigma from kappa, kappa is 0 (Amdahl's law). Raises ConfigError for fewer.
    """
    if len(fps) < 2:
        only = f"only W={', '.join(map(str, fps))} was measured"
        raise ConfigError(f"{only}, which does not tell what another W costs; add one to the sweep")
    w = np.array([world_size - besides for world_size, runs in fps.items() for _ in runs], dtype=float)
    y = w / np.array([x for runs in fps.values() for x in runs])
    columns = [np.ones(len(w)), w - 1, w * (w - 1)][: len(fps)]
    alone, serial, pairs = (*nnls(columns, y, y).tolist(), 0.0)[:3]
    return Usl(max(alone, 1e-6 * float(y.min())), serial, pairs, besides)  # one worker takes some time


def fit_usl_with_errors(fps: Mapping[int, Sequence[float]], besides: int = 0) -> FittedUsl:
    """Fit the law, and how far it may be off."""
    measured = {w: float(np.median(x)) for w, x in fps.items()}
    rng, own = np.random.default_rng(0), fit_usl(fps, besides)
    factors = [moved(fps, rng) for _ in range(_REPLICATES)]
    others = [fit_usl({w: [by[w] * x] for w, x in measured.items()}, besides) for by in factors]
    off = errors(measured, own.fps, lambda sizes: fit_usl({w: fps[w] for w in sizes}, besides).fps)
    return FittedUsl(fps, own, tuple(others), off)


def overhead(world_size: int, speedup: float) -> float:
    """Return h = W / S - 1 in ideal iterations, negative if superlinear. Raises ConfigError for what cannot be one."""
    if world_size < 2 or not speedup > 0:
        rule = "needs at least 2 workers and a speedup above 0"
        raise ConfigError(f"published world_size={world_size}, speedup={speedup:g}: {rule}")
    return world_size / speedup - 1


def of_published_point(world_size: int, speedup: float) -> str:
    """Return what one published point implies and what it cannot say.

    A speedup S at W0 workers says how much longer an iteration took than S = W0 would have allowed, h = W0 / S - 1
    ideal iterations, and nothing about how that grows. The truth of a synchronous system lies mostly between none
    at all, S(W) = W / (1 + h), and growth in proportion, h(W) = sigma (W - 1) with sigma = h / (W0 - 1), which is
    Amdahl's law. Weak scaling is meant, as published: a worker keeps its batch.
    """
    w, h, e = world_size, overhead(world_size, speedup), speedup / world_size
    said = f"{speedup:g} times at {w} workers: efficiency {100 * e:.1f} %, overhead {h:.3f} of an ideal iteration.\n"
    if h <= 0:
        return said + "Superlinear: more than W workers' worth; no overhead to extrapolate."
    sigma = h / (w - 1)
    amdahl = Usl(1.0, sigma, 0.0)
    grown = f"{amdahl.fps(2 * w):,.1f} and {amdahl.fps(8 * w):,.1f} times, never above {1 / sigma:,.0f}"
    return (
        f"{said}If the overhead stays as it is (bandwidth-bound sums), {2 * w} workers are {2 * w / (1 + h):,.1f} "
        f"times as fast as one and {8 * w} are {8 * w / (1 + h):,.1f} times.\nIf it grows with W (rings bound by "
        f"latency, a shared resource), {grown}; half the workers are wasted beyond W={1 + 1 / sigma:,.0f}.\nOne point "
        "cannot say which: that needs times per rank at two or more W (give a sweep folder instead)."
    )
