"""What can be predicted from W and FPS alone? Gunther's universal scalability law, the baseline of the model.

    X(W) = gamma W / (1 + sigma (W - 1) + kappa W (W - 1))

gamma: steps/s of one worker. sigma: contention, the part that only one worker at a time can do. kappa: coherence, the
cost of every pair of workers. X is largest at W = sqrt((1 - sigma) / kappa). Source: Gunther 2007, Guerrilla Capacity
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
    """The law in the form W / X = alone + serial (W - 1) + pairs W (W - 1), in seconds per step."""

    alone: float  # 1 / gamma
    serial: float  # sigma / gamma
    pairs: float  # kappa / gamma
    besides: int = (
        0  # ranks that step no environments (a learner among actors); W in the law counts the others
    )

    def fps(self, world_size: float) -> float:
        """Return X in steps/s."""
        w = world_size - self.besides
        return w / (self.alone + self.serial * (w - 1) + self.pairs * w * (w - 1))

    @property
    def sigma(self) -> float:
        """Contention; very large if the fit leaves almost no time to one worker alone."""
        return self.serial / self.alone

    @property
    def kappa(self) -> float:
        """Coherence; very large in the same case."""
        return self.pairs / self.alone

    @property
    def peak(self) -> float:
        """W with the largest throughput: 1 if a second worker slows training down, inf if no further worker does."""
        if self.pairs == 0:
            return math.inf if self.serial <= self.alone else 1.0 + self.besides
        return self.besides + max(1.0, math.sqrt(max(0.0, self.alone - self.serial) / self.pairs))

    def __str__(self) -> str:
        peak = "has no peak" if math.isinf(self.peak) else f"peaks at W={self.peak:.3g}"
        which = f" for all ranks but {self.besides} that steps no environments" if self.besides else ""
        law = f"By the universal scalability law{which}, sigma {self.sigma:.3g} and kappa {self.kappa:.3g}"
        return f"{law}, throughput {peak}"


@dataclass(frozen=True, eq=False)
class FittedUsl:
    """The law, fitted to runs."""

    fps: Mapping[int, Sequence[float]]  # {W: steps/s of its runs}
    usl: Usl
    replicates: tuple[Usl, ...]  # fitted to FPS moved by their errors
    errors: Errors

    def predict(self, world_sizes: Sequence[int]) -> list[Prediction]:
        """Return predictions, with intervals as for the model."""
        # The law itself comes first, then the replicates for the interval.
        laws, base = (self.usl, *self.replicates), min(self.fps)
        fps = {w: np.array([law.fps(w) for law in laws]) for w in {base, *world_sizes}}
        return [predicted(w, base, (fps[w], fps[base]), self.errors, {}) for w in world_sizes]

    def without(self, world_size: int) -> "FittedUsl":
        return fit_usl_with_errors({w: x for w, x in self.fps.items() if w != world_size}, self.usl.besides)


def fit_usl(fps: Mapping[int, Sequence[float]], besides: int = 0) -> Usl:
    """Fit the law to {W: steps/s of its runs}, by non-negative least squares of relative errors.

    The law is linear in 1 / gamma, sigma / gamma and kappa / gamma. Two W cannot tell sigma from kappa: then kappa is 0
    (Amdahl's law). Raises ConfigError for fewer W. besides: ranks of each W that step no environments.
    """
    if len(fps) < 2:
        only = f"only W={', '.join(map(str, fps))} was measured"
        raise ConfigError(f"{only}, and a law needs two W: add one to the sweep")
    # One equation for each run; errors are relative to its W / X.
    w = np.array([world_size - besides for world_size, runs in fps.items() for _ in runs], dtype=float)
    y = w / np.array([x for runs in fps.values() for x in runs])
    columns = [np.ones(len(w)), w - 1, w * (w - 1)][: len(fps)]
    alone, serial, pairs = (*nnls(columns, y, y).tolist(), 0.0)[:3]
    # A worker takes some time, so `alone` is above 0.
    return Usl(max(alone, 1e-6 * float(y.min())), serial, pairs, besides)


def fit_usl_with_errors(fps: Mapping[int, Sequence[float]], besides: int = 0) -> FittedUsl:
    """Fit the law, with replicates and errors."""
    measured = {w: float(np.median(x)) for w, x in fps.items()}
    rng, own = np.random.default_rng(0), fit_usl(fps, besides)
    # Replicates: medians moved by their errors.
    factors = [moved(fps, rng) for _ in range(_REPLICATES)]
    others = [fit_usl({w: [by[w] * x] for w, x in measured.items()}, besides) for by in factors]
    off = errors(measured, own.fps, lambda sizes: fit_usl({w: fps[w] for w in sizes}, besides).fps)
    return FittedUsl(fps, own, tuple(others), off)


def overhead(world_size: int, speedup: float) -> float:
    """Return h = W / S - 1 in ideal iterations; negative if superlinear. Raises ConfigError unless W >= 2 and S > 0."""
    if world_size < 2 or not speedup > 0:
        rule = "needs at least 2 workers and a speedup above 0"
        raise ConfigError(f"published world_size={world_size}, speedup={speedup:g}: {rule}")
    return world_size / speedup - 1


def of_published_point(world_size: int, speedup: float) -> str:
    """Return a text on what one published speedup implies, and what it cannot say.

    A speedup S at W0 workers says that an iteration took h = W0 / S - 1 ideal iterations longer than ideal. It says
    nothing about how h grows with W. A synchronous system mostly lies between no growth, S(W) = W / (1 + h), and growth
    in proportion, h(W) = sigma (W - 1) with sigma = h / (W0 - 1), which is Amdahl's law. This is for weak scaling, as
    usually published: a worker keeps its batch.
    """
    w, h, e = world_size, overhead(world_size, speedup), speedup / world_size
    text = f"{speedup:g} times at {w} workers: efficiency {100 * e:.1f} %, overhead {h:.3f} of an ideal iteration.\n"
    if h <= 0:
        return text + "Superlinear: more than W workers' worth; no overhead to extrapolate."
    sigma = h / (w - 1)
    amdahl = Usl(1.0, sigma, 0.0)
    grown = f"{amdahl.fps(2 * w):,.1f} and {amdahl.fps(8 * w):,.1f} times, never above {1 / sigma:,.0f}"
    return (
        f"{text}If the overhead stays as it is (bandwidth-bound sums), {2 * w} workers are {2 * w / (1 + h):,.1f} "
        f"times as fast as one and {8 * w} are {8 * w / (1 + h):,.1f} times.\nIf it grows with W (rings bound by "
        f"latency, a shared resource), {grown}; half the workers are wasted beyond W={1 + 1 / sigma:,.0f}.\nOne point "
        "cannot say which: that needs times per rank at two or more W (give a sweep folder instead)."
    )
