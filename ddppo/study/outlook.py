"""The part of a report that looks ahead: predictions for W not measured, and which W to use."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from matplotlib.axes import Axes

from ddppo.errors import ConfigError
from ddppo.options import filled
from ddppo.statistics import Estimate
from ddppo.study import recommend
from ddppo.study.figure_style import BLUE, GREY, VERMILLION, Plot, draw, log_scale, workers_axis
from ddppo.study.held_out import HeldOut, without_the_largest
from ddppo.study.html import embed, number_table, preformatted
from ddppo.study.model import FittedModel, Prediction, WhatIf, fit
from ddppo.study.recommend import Recommendation
from ddppo.study.speedup import Study
from ddppo.study.tables import interval, milliseconds, number


@dataclass(frozen=True, slots=True)
class Outlook:
    """Predictions of the system as measured and with `changes`; remarks say what is missing and why.

    held_out: the largest W against a model that was fitted without it, where at least three W were measured.
    """

    as_measured: tuple[Prediction, ...]
    changed: tuple[Prediction, ...]
    changes: dict[str, Any]
    misfit: dict[int, float]
    held_out: HeldOut | None
    recommendation: Recommendation | None
    remarks: tuple[str, ...]


def outlook(
    study: Study,
    *,
    what_if: Mapping[str, Any],
    predict_to: int | None,
    efficiency_floor: float,
    price_per_worker_hour: float,
) -> Outlook:
    """Fit the model and recommend. Raises ConfigError for a what_if that has no meaning or no effect."""
    changes = _what_if(what_if)
    model: FittedModel | None = None
    check: HeldOut | None = None
    remarks: list[str] = []
    try:
        if len(study.rows) == 1:
            raise ConfigError(
                f"only W={study.baseline} was measured, which does not tell what another W costs; add one to the sweep"
            )
        model = fit(study.runs)
        remarks += model.notes
    except ConfigError as e:
        remarks.append(f"No predictions: {e}.")
        if changes.changes:
            raise ConfigError(f"what_if={dict(what_if)} has no effect: {e}") from e
    if model is not None:
        try:
            check = without_the_largest(study.runs)
        except ConfigError as e:
            remarks.append(f"The model cannot be checked without the largest W: {e}.")
    largest = predict_to or min(1024, max(64, 4 * study.world_sizes[-1]))
    as_measured = _predictions(study, model, largest, WhatIf())
    changed = _predictions(study, model, largest, changes) if changes.changes else ()
    times = {row.world_size: row.time_to_target.median for row in study.rows if row.time_to_target.count}
    recommendation = None
    if len(study.rows) > 1 and (times or any(run.env_steps for run in study.runs)):
        recommendation = recommend.recommend(
            recommend.Study(study.runs, times),
            model,
            efficiency_floor=efficiency_floor,
            price_per_worker_hour=price_per_worker_hour,
        )
    misfit = {} if model is None else model.misfit
    return Outlook(as_measured, changed, changes.changes, misfit, check, recommendation, tuple(remarks))


def _what_if(given: Mapping[str, Any]) -> WhatIf:
    try:
        return filled(WhatIf, given)
    except ConfigError as e:
        raise ConfigError(f"what_if: {e}") from e


def _predictions(
    study: Study, model: FittedModel | None, largest: int, what_if: WhatIf
) -> tuple[Prediction, ...]:
    if model is None:
        return ()
    powers = [2**i for i in range(largest.bit_length()) if 2**i <= largest]
    asked = sorted({*study.world_sizes, *powers})
    return tuple(model.predict([w for w in asked if model.divides(w, what_if)], what_if))


# -- showing it ------------------------------------------------------------------------------------------------------


def plots(study: Study, ahead: Outlook) -> list[Plot]:
    """Draw predicted throughput and efficiency against what was measured; nothing without predictions."""
    if not ahead.as_measured:
        return []
    what = f"; red: {_changes(ahead)}" if ahead.changed else ""
    caption = f"Points were measured, lines are the fitted model with its 95 % interval{what}."

    def of_fps(axes: Axes) -> None:
        axes.plot(
            study.world_sizes, [row.fps.median for row in study.rows], "o", color="black", label="measured"
        )
        _paint(axes, ahead, "fps")
        log_scale(axes)
        axes.set_ylabel("environment steps per second")
        axes.set_title(f"What if: throughput, {study.rule} scaling")
        axes.legend()

    def of_efficiency(axes: Axes) -> None:
        if study.baseline == 1:
            values = [row.efficiency.median for row in study.rows]
            axes.plot(study.world_sizes, values, "o", color="black", label="measured")
        _paint(axes, ahead, "efficiency")
        axes.axhline(1, color=GREY, linestyle="--")
        axes.set_ylim(bottom=0)
        axes.set_ylabel("efficiency S(W) / W (1)")
        axes.set_title(f"What if: efficiency, {study.rule} scaling")
        axes.legend()

    return [
        draw("what_if_fps", caption, of_fps),
        draw("what_if_efficiency", "The same as S(W) / W.", of_efficiency),
    ]


def _paint(axes: Axes, ahead: Outlook, quantity: str) -> None:
    for predictions, colour, label in (
        (ahead.as_measured, BLUE, "model"),
        (ahead.changed, VERMILLION, "model, changed"),
    ):
        if not predictions:
            continue
        sizes = [p.world_size for p in predictions]
        middle, low, high = (
            [getattr(p, quantity + suffix) for p in predictions] for suffix in ("", "_low", "_high")
        )
        axes.plot(sizes, middle, color=colour, label=label)
        axes.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0)
    workers_axis(axes, [p.world_size for p in ahead.as_measured])


def section(ahead: Outlook, drawn: Sequence[Plot]) -> list[str]:
    """Return the HTML of the section "What if, and which W"."""
    parts = []
    if ahead.recommendation is not None:
        parts.append(preformatted(ahead.recommendation.text()))
    if ahead.as_measured:
        parts.append(number_table(*_table(ahead.as_measured)))
    if ahead.changed:
        parts += [f"<p>Changed: {escape(_changes(ahead))}</p>", number_table(*_table(ahead.changed))]
    notes = [] if ahead.held_out is None else [f"{ahead.held_out}."]
    notes += ahead.remarks
    if ahead.misfit:
        off = ", ".join(f"W={w} {100 * m:+.1f} %" for w, m in ahead.misfit.items())
        notes.append(f"Predicted against measured t_iter, at the W that the model was fitted to: {off}.")
    parts += [f'<p class="quiet">{escape(note)}</p>' for note in notes]
    if drawn:
        parts.append('<div class="plots">' + "".join(map(embed, drawn)) + "</div>")
    return parts


def _changes(ahead: Outlook) -> str:
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in ahead.changes.items()
    )


def _table(predictions: Sequence[Prediction]) -> tuple[list[str], list[list[str]]]:
    head = ["W", "FPS predicted", "measured", "S", "E", "t_iter ms"]
    lines = [
        [
            str(p.world_size),
            interval(Estimate(p.fps, math.nan, p.fps_low, p.fps_high, 0), "{:,.0f}"),
            number(p.measured_fps, "{:,.0f}"),
            interval(Estimate(p.speedup, math.nan, p.speedup_low, p.speedup_high, 0), "{:.3g}"),
            interval(Estimate(p.efficiency, math.nan, p.efficiency_low, p.efficiency_high, 0), "{:.3g}"),
            milliseconds(p.t_iter),
        ]
        for p in predictions
    ]
    return head, lines
