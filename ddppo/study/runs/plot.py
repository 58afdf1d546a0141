"""How do the curves of compared runs look? An SVG, or an HTML page with the tables: one file without scripts."""

from pathlib import Path

import numpy as np

from ddppo.files import write_text
from ddppo.study.page.chart import Axis, Chart, stylesheet
from ddppo.study.page.html import TEMPLATES
from ddppo.study.page.tables import Shown
from ddppo.study.runs.comparison import Comparison
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


def write(found: Comparison, path: Path) -> None:
    """Write the compared curve as SVG, or all charts and tables as a page. Raises StorageError."""
    if path.suffix == ".svg":
        write_text(path, chart(found, found.metric, "env_steps").svg(standalone=True))
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
        kept = np.unique(np.linspace(0, len(curve) - 1, min(len(curve), _MAX_POINTS)).round().astype(int))
        xs, ys = getattr(curve, against)[kept].tolist(), curve.values[kept].tolist()
        drawn.line(xs, ys, colour, run.letter)
        if len(xs) < 30:
            drawn.dots(xs, ys, colour, [f"{run.letter}: {y:.4g}" for y in ys])
    return drawn
