"""How do the curves of compared runs, or of groups, look? A PNG, an SVG, or an HTML page with the tables: one file."""

import math
from pathlib import Path

import numpy as np

from ddppo.files import replacing, write_text
from ddppo.options import filled
from ddppo.study.page.chart import Axis, Chart, stylesheet
from ddppo.study.page.html import TEMPLATES
from ddppo.study.page.tables import Shown
from ddppo.study.runs.comparison import Comparison
from ddppo.study.runs.groups import Grouped, PlotOptions, check_file, grouped, table
from ddppo.study.runs.records import NOTHING

_COLOURS = ("blue", "orange", "green", "red", "purple", "sky", "grey", "ink")  # of each run
# Metrics with a chart of their own on the page.
_FURTHER = {
    "rollout/return_mean": "training return",
    "train/entropy": "entropy (nats)",
    "train/approx_kl": "approx. KL (nats)",
    "train/clip_fraction": "clip fraction",
    "train/value_loss": "value loss (reward²)",
    "train/explained_variance": "explained variance",
    "rollout/fps": "steps/s",
}
_MAX_POINTS = 400  # of a line; more cannot be seen
_LONGEST_TITLE = 48  # letters


def write(found: Comparison, path: Path) -> None:
    """Write the compared curve as a picture, or all charts and tables as a page. Raises StorageError, ConfigError."""
    if path.suffix != ".html":
        _write_picture(chart(found, found.metric, "env_steps"), path)
        return
    # The compared curve over steps and time, then further metrics over steps.
    names = [name for name in _FURTHER if name != found.metric]
    drawn = [chart(found, found.metric, against) for against in ("env_steps", "wall_s")]
    drawn += [
        chart(found, name, "env_steps") for name in names if any(name in run.curves for run in found.runs)
    ]
    letters = [run.letter for run in found.runs]
    text = TEMPLATES.get_template("runs.html.j2").render(
        title=f"{len(letters)} runs compared",
        runs=[(run.letter, str(run.record.path)) for run in found.runs],
        charts_drawn=drawn,
        tables=[(t.title, Shown(["", *letters], t.rows), t.notes) for t in found.tables],
        style=stylesheet("chart.css") + stylesheet("style.css"),
    )
    write_text(path, text)


def write_groups(found: Grouped, path: Path) -> None:
    """Write the curves of groups as a picture or, with their table, as a page. Raises StorageError, ConfigError."""
    drawn = groups_chart(found)
    if path.suffix != ".html":
        _write_picture(drawn, path)
        return
    head, *rows = table(found)
    text = TEMPLATES.get_template("runs.html.j2").render(
        title=drawn.title,
        runs=[(group.label, ", ".join(member.name for member in group.members)) for group in found.groups],
        charts_drawn=[drawn],
        tables=[(found.metric, Shown(head, rows), found.notes)],
        style=stylesheet("chart.css") + stylesheet("style.css"),
    )
    write_text(path, text)


def plot_of_run(
    run_dir: Path, metric: str | None, *, x: str = "steps", window: int = 1, file: str | Path | None = None
) -> str:
    """Return the curve of a run as SVG, and write it to `file`. Raises ConfigError, StorageError."""
    given = {"folder": str(run_dir), "group": "run", "metric": metric, "x": x, "window": window}
    if file is not None:
        given["file"] = str(file)
    options = filled(PlotOptions, given)
    check_file(options)
    found = grouped(options, {})
    if file is not None:
        write_groups(found, Path(file))
    return groups_chart(found).svg(standalone=True)


def groups_chart(found: Grouped) -> Chart:
    """Return the chart with a line and a band for each group; without a band, its runs are thin lines."""
    options, name = found.options, {"mean": "mean", "iqm": "interquartile mean"}[found.options.statistic]
    steps = options.x == "steps"
    unit, scale = (
        ("environment steps", 1.0) if steps else _unit(max(group.grid[-1] for group in found.groups))
    )
    # A title that is too long for the picture becomes the metric; several metrics become the first.
    first, *others = found.metric.split(" or ")
    metric = found.metric if len(found.metric) <= _LONGEST_TITLE else f"{first} and others"
    by = f" by {', '.join(found.keys)}" if found.keys else ""
    drawn = Chart(
        "groups",
        f"{metric}{by}" if len(metric + by) <= _LONGEST_TITLE else metric,
        Axis(unit, shows=(0.0,)),
        Axis(f"{first} and others" if others else first),
        f"Lines: {name} over runs. Bands: 95 % percentile-bootstrap intervals over runs; nothing is interpolated.",
    )
    for group, colour in zip(found.groups, _COLOURS, strict=False):
        if math.isnan(group.low[-1]) and len(group.members) > 1:
            for member in group.members:
                curve = member.curve
                kept = _few(len(curve))
                xs = curve.env_steps[kept] if steps else curve.wall_s[kept] / 3600 * scale
                drawn.line(xs.tolist(), curve.values[kept].tolist(), colour, thin=True, text=member.name)
        drawn.band([scale * x for x in group.grid], group.low, group.high, colour)
    for group, colour in zip(found.groups, _COLOURS, strict=False):
        xs = [scale * x for x in group.grid]
        drawn.line(xs, group.middle, colour, f"{group.label} ({len(group.members)})")
    return drawn


def _unit(hours: float) -> tuple[str, float]:
    """Return the name of an axis that ends after `hours`, and its units in an hour."""
    unit, scale = (
        ("hours", 1.0) if hours >= 1 else ("minutes", 60.0) if hours >= 1 / 30 else ("seconds", 3600.0)
    )
    return f"{unit} of training", scale


def _write_picture(drawn: Chart, path: Path) -> None:
    if path.suffix == ".svg":
        write_text(path, drawn.svg(standalone=True))
        return
    from ddppo.study.page.png import png  # imports Pillow

    picture = png(drawn)
    with replacing(path, "wb") as file:
        file.write(picture)


def _few(points: int) -> np.ndarray:
    """Return the places of at most _MAX_POINTS points."""
    return np.unique(np.linspace(0, points - 1, min(points, _MAX_POINTS)).round().astype(int))


def chart(found: Comparison, metric: str, against: str) -> Chart:
    """Return the chart of a metric over "env_steps" or "wall_s", with a line for every run that has it."""
    steps = against == "env_steps"
    drawn = Chart(
        f"{metric.replace('/', '_')}_{against}",
        f"{metric} against {'environment steps' if steps else 'time'}",
        Axis("environment steps of all workers" if steps else "training time (s)"),
        Axis(_FURTHER.get(metric, metric)),
    )
    for run, colour in zip(found.runs, _COLOURS, strict=False):
        curve = run.curves.get(metric, NOTHING)
        if not len(curve):
            continue
        # Thin long curves; short ones get dots too.
        kept = _few(len(curve))
        xs, ys = getattr(curve, against)[kept].tolist(), curve.values[kept].tolist()
        drawn.line(xs, ys, colour, run.letter)
        if len(xs) < 30:
            drawn.dots(xs, ys, colour, [f"{run.letter}: {y:.4g}" for y in ys])
    return drawn
