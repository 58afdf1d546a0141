"""Time to target: when a run first reached a return."""

import math
from collections.abc import Sequence

from ddppo.study.read.record import Evaluation, Run


def first_reaching(curve: Sequence[Evaluation], target_return: float) -> Evaluation | None:
    """Return the first point at or above the target; nothing is interpolated between points."""
    return next((point for point in curve if point.return_mean >= target_return), None)


def curve(run: Run) -> tuple[Evaluation, ...]:
    """Return the evaluations of a run, or its windowed training returns if it was not evaluated while it trained."""
    return run.evaluations if len(run.evaluations) > 1 or not run.returns else run.returns


def time_to_target(run: Run) -> float:
    """Return the training seconds at which `curve` or an evaluation was first seen at or above the run's target.

    +inf if it never was (the run is censored). NaN if there is no target or nothing to compare with it, and for a run
    of several world sizes, whose seconds are those of none of them.
    """
    if not math.isnan(run.reached_at_s):
        return run.reached_at_s
    return math.nan if run.others else _to_target(run, "wall_s")


def steps_to_target(run: Run) -> float:
    """Return the same in environment steps of all ranks, also for a run of several world sizes."""
    return _to_target(run, "env_steps")


def _to_target(run: Run, what: str) -> float:
    # A run that was evaluated only at its end was at the target then at the latest.
    points = sorted({*curve(run), *run.evaluations}, key=lambda point: point.wall_s)
    if math.isnan(run.target_return) or not points:
        return math.nan
    reached = first_reaching(points, run.target_return)
    return math.inf if reached is None else float(getattr(reached, what))
