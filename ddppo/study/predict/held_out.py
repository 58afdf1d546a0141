"""How good the model is: fitted without some W that were measured, how far is it off there?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan

import numpy as np

from ddppo.study.predict.model import FittedModel, fit, tells_times
from ddppo.study.predict.usl import fit_usl
from ddppo.study.runs import Run

TOLERANCE = 0.15


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One W that the model was not fitted to. measured_fps: median over seeds, as FPS(W) everywhere.

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
        law = (
            ""
            if isnan(self.usl_fps)
            else f" (the universal scalability law by {100 * self.usl_error:+.1f} %)"
        )
        return (
            f"Held out: fitted on W={', '.join(map(str, self.fitted_on))}, the model predicts {self.fps:,.0f} steps/s "
            f"({self.fps_low:,.0f} to {self.fps_high:,.0f}) at W={self.world_size}, where {self.measured_fps:,.0f} "
            f"were measured: off by {100 * self.error:+.1f} %{law}, {verdict} {100 * TOLERANCE:.0f} %"
        )


def measured_fps(runs: Sequence[Run]) -> dict[int, float]:
    """Return FPS(W), the median over seeds, at every W measured."""
    return {w: float(np.median(fps)) for w, fps in fps_of(runs).items()}


def fps_of(runs: Sequence[Run]) -> dict[int, list[float]]:
    """Return {W: FPS of its runs}, W ascending."""
    world_sizes = sorted({run.world_size for run in runs})
    return {w: [r.fps for r in runs if r.world_size == w] for w in world_sizes}


def held_out(model: FittedModel, runs: Sequence[Run]) -> list[HeldOut]:
    """Compare the model with `runs`, at each W that it was not fitted to."""
    fitted_on = tuple(sorted({point.run.world_size for point in model.points}))
    measured = {w: fps for w, fps in measured_fps(runs).items() if w not in fitted_on}
    seen = fps_of([run for run in runs if run.world_size in fitted_on])
    usl = fit_usl(seen) if len(seen) > 1 else None
    return [
        HeldOut(
            fitted_on,
            p.world_size,
            p.fps,
            p.fps_low,
            p.fps_high,
            measured[p.world_size],
            nan if usl is None else usl.fps(p.world_size),
        )
        for p in model.predict(sorted(measured))
    ]


def each_held_out(runs: Sequence[Run]) -> tuple[HeldOut, ...]:
    """Fit to all W but one and compare there, the largest and every other; nothing unless three W tell their times.

    Raises ConfigError if the others cannot be fitted.
    """
    runs = [run for run in runs if tells_times(run)]
    world_sizes = sorted({run.world_size for run in runs})
    if len(world_sizes) < 3:
        return ()
    model = fit([run for run in runs if run.world_size < world_sizes[-1]])
    return tuple(held_out(model, runs))


def judged(misfit: Mapping[int, float]) -> str:
    """Return how far the model is off at each W that it was fitted to, and whether that is within the tolerance."""
    off = ", ".join(
        f"W={w} {100 * m:+.1f} %" + ("" if abs(m) <= TOLERANCE else " (NOT within)")
        for w, m in misfit.items()
    )
    return f"Predicted against measured, where the model was fitted: {off}; within is {100 * TOLERANCE:.0f} %"
