"""How good the model is: fitted without some W that were measured, how far is it off there?"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddppo.study.predict.model import FittedModel, fit, tells_times
from ddppo.study.runs import Run

TOLERANCE = 0.15


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One W that the model was not fitted to. measured_fps: median over seeds, as FPS(W) everywhere."""

    fitted_on: tuple[int, ...]
    world_size: int
    fps: float
    fps_low: float
    fps_high: float
    measured_fps: float

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        return self.fps / self.measured_fps - 1

    def __str__(self) -> str:
        verdict = "within" if abs(self.error) <= TOLERANCE else "NOT within"
        return (
            f"Held out: fitted on W={', '.join(map(str, self.fitted_on))}, the model predicts {self.fps:,.0f} steps/s "
            f"({self.fps_low:,.0f} to {self.fps_high:,.0f}) at W={self.world_size}, where {self.measured_fps:,.0f} "
            f"were measured: off by {100 * self.error:+.1f} %, {verdict} {100 * TOLERANCE:.0f} %"
        )


def measured_fps(runs: Sequence[Run]) -> dict[int, float]:
    """Return FPS(W), the median over seeds, at every W measured."""
    world_sizes = sorted({run.world_size for run in runs})
    return {w: float(np.median([r.fps for r in runs if r.world_size == w])) for w in world_sizes}


def held_out(model: FittedModel, runs: Sequence[Run]) -> list[HeldOut]:
    """Compare the model with `runs`, at each W that it was not fitted to."""
    fitted_on = tuple(sorted({point.run.world_size for point in model.points}))
    measured = {w: fps for w, fps in measured_fps(runs).items() if w not in fitted_on}
    predictions = model.predict(sorted(measured))
    return [
        HeldOut(fitted_on, p.world_size, p.fps, p.fps_low, p.fps_high, measured[p.world_size])
        for p in predictions
    ]


def without_the_largest(runs: Sequence[Run]) -> HeldOut | None:
    """Fit to all W but the largest and compare there; None unless three W tell their times.

    Raises ConfigError if the others cannot be fitted.
    """
    runs = [run for run in runs if tells_times(run)]
    world_sizes = sorted({run.world_size for run in runs})
    if len(world_sizes) < 3:
        return None
    model = fit([run for run in runs if run.world_size < world_sizes[-1]])
    return held_out(model, runs)[0]
