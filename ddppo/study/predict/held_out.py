"""How good a law is: fitted without some W that were measured, how far is it off there?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan

from ddppo.statistics import median
from ddppo.study.predict.model import FittedModel
from ddppo.study.predict.usl import FittedUsl, fit_usl
from ddppo.study.read.record import Run, by_world_size

TOLERANCE = 0.15


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One W that the law was not fitted to. measured_fps: median over seeds, as FPS(W) everywhere.

    usl_fps: what the universal scalability law predicts, fitted to the same W; NaN where it cannot be.
    """

    fitted_on: tuple[int, ...]
    world_size: int
    fps: float
    fps_low: float
    fps_high: float
    measured_fps: float
    usl_fps: float

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        return self.fps / self.measured_fps - 1

    @property
    def usl_error(self) -> float:
        """The same of the universal scalability law."""
        return self.usl_fps / self.measured_fps - 1

    @property
    def within(self) -> bool:
        return abs(self.error) <= TOLERANCE

    def __str__(self) -> str:
        verdict = "within" if self.within else "NOT within"
        alone = isnan(self.usl_fps) or self.usl_fps == self.fps
        law = "" if alone else f" (the universal scalability law by {100 * self.usl_error:+.1f} %)"
        return (
            f"Held out: fitted on W={', '.join(map(str, self.fitted_on))}, {self.fps:,.0f} steps/s "
            f"({self.fps_low:,.0f} to {self.fps_high:,.0f}) are predicted at W={self.world_size}, where "
            f"{self.measured_fps:,.0f} were measured: off by {100 * self.error:+.1f} %{law}, {verdict} "
            f"{100 * TOLERANCE:.0f} %"
        )


def fps_of(runs: Sequence[Run]) -> dict[int, list[float]]:
    """Return {W: FPS of its runs}, W ascending."""
    return {w: [run.fps for run in same] for w, same in by_world_size(runs).items()}


def held_out(law: FittedModel | FittedUsl, runs: Sequence[Run]) -> list[HeldOut]:
    """Compare a law with `runs`, at each W that it was not fitted to."""
    fps, fitted_on = fps_of(runs), tuple(sorted(law.fps))
    seen = {w: fps[w] for w in fitted_on if w in fps}
    besides = law.usl.besides if isinstance(law, FittedUsl) else 0
    usl = fit_usl(seen, besides) if len(seen) > 1 else None
    checks = []
    for p in law.predict([w for w in fps if w not in fitted_on]):
        measured, simple = median(fps[p.world_size]), nan if usl is None else usl.fps(p.world_size)
        checks.append(HeldOut(fitted_on, p.world_size, p.fps, p.fps_low, p.fps_high, measured, simple))
    return checks


def each_held_out(law: FittedModel | FittedUsl, runs: Sequence[Run]) -> tuple[HeldOut, ...]:
    """Fit to all W but one and compare there, at each W above the smallest; nothing unless there are three."""
    sizes = sorted(law.fps)
    known, left = [run for run in runs if run.world_size in sizes], sizes[1:] if len(sizes) > 2 else []
    return tuple(check for w in left for check in held_out(law.without(w), known))


def judged(misfit: Mapping[int, float]) -> str:
    """Return how far a law is off at each W that it was fitted to, and whether that is within the tolerance."""
    marks = {w: "" if abs(m) <= TOLERANCE else " (NOT within)" for w, m in misfit.items()}
    off = ", ".join(f"W={w} {100 * m:+.1f} %{marks[w]}" for w, m in misfit.items())
    return f"Predicted against measured, where the law was fitted: {off}; within is {100 * TOLERANCE:.0f} %"
