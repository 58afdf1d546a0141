"""How predictions and the recommendation are shown: a section of the page, and its figures."""

import math
from collections.abc import Sequence
from html import escape

from matplotlib.axes import Axes

from ddppo.statistics import Estimate
from ddppo.study.measure.speedup import Study
from ddppo.study.page.figure_style import BLUE, GREY, VERMILLION, Plot, draw, log_scale, workers_axis
from ddppo.study.page.html import embed, number_table
from ddppo.study.page.tables import interval, milliseconds
from ddppo.study.predict.model import Prediction
from ddppo.study.predict.outlook import Outlook


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
        parts.append(f"<p>{escape(ahead.recommendation.text())}</p>")
    if ahead.as_measured:
        parts.append(number_table(*_table(ahead.as_measured)))
    if ahead.changed:
        parts += [f"<p>Changed: {escape(_changes(ahead))}</p>", number_table(*_table(ahead.changed))]
    notes = (ahead.cores_rule, *ahead.quality, *ahead.remarks)
    parts += [f'<p class="quiet">{escape(note)}</p>' for note in notes if note]
    if drawn:
        parts.append('<div class="plots">' + "".join(map(embed, drawn)) + "</div>")
    return parts


def _changes(ahead: Outlook) -> str:
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in ahead.changes.items()
    )


def _table(predictions: Sequence[Prediction]) -> tuple[list[str], list[list[str]]]:
    head = ["W", "FPS predicted", "S", "E", "t_iter ms"]
    lines = [
        [
            str(p.world_size),
            interval(Estimate(p.fps, math.nan, p.fps_low, p.fps_high, 0), "{:,.0f}"),
            interval(Estimate(p.speedup, math.nan, p.speedup_low, p.speedup_high, 0), "{:.3g}"),
            interval(Estimate(p.efficiency, math.nan, p.efficiency_low, p.efficiency_high, 0), "{:.3g}"),
            milliseconds(p.t_iter),
        ]
        for p in predictions
    ]
    return head, lines
