"""The figures of learning: curves against environment steps and wall-clock, stability diagnostics by W.

Colours of the curves: cividis, dark is few workers.
"""

import math
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from ddppo.study.measure.speedup import Study
from ddppo.study.measure.time_to_target import curve
from ddppo.study.page.figure_style import BLUE, GREY, Plot, panel, short, workers_axis
from ddppo.study.runs import Run

_STABILITY = {
    "approx_kl": "approx. KL (nats)",
    "clip_fraction": "clip fraction",
    "entropy": "entropy (nats)",
    "value_loss": "value loss (reward²)",
    "explained_variance": "explained variance",
    "grad_norm": "gradient norm",
}


def plots(study: Study) -> list[Plot]:
    """Draw what the runs have numbers for."""
    drawn = []
    if any(len(curve(run)) > 1 for run in study.runs):
        drawn += [_curves(study, "env_steps"), _curves(study, "wall_s")]
    if any(set(row.stability) & set(_STABILITY) for row in study.rows):
        drawn.append(_stability(study))
    return drawn


def _curves(study: Study, against: str) -> Plot:
    figure, axes = panel()
    shades = matplotlib.colormaps["cividis"](np.linspace(0.0, 0.85, len(study.rows)))
    for row, colour in zip(study.rows, shades, strict=True):
        runs = [run for run in study.runs_at(row.world_size) if len(curve(run)) > 1]
        if against == "wall_s":
            runs = [run for run in runs if not run.others]  # the seconds of several world sizes
        if not runs:
            continue
        grid, scores = _on_one_grid(runs, against)
        axes.plot(grid, np.median(scores, axis=0), color=colour, label=f"W={row.world_size}")
        if len(runs) > 1:
            axes.fill_between(
                grid, scores.min(axis=0), scores.max(axis=0), color=colour, alpha=0.18, linewidth=0
            )
    if not math.isnan(study.target_return):
        axes.axhline(study.target_return, color=GREY, linestyle=":", label=f"target {study.target_return:g}")
    steps = against == "env_steps"
    axes.set_xlabel("environment steps (all workers)" if steps else "training time (s)")
    if steps:
        axes.xaxis.set_major_formatter(lambda x, _: short(x))
    what = (
        "evaluation return"
        if any(len(r.evaluations) > 1 for r in study.runs)
        else "return of training episodes"
    )
    axes.set_ylabel(f"{what} (reward)")
    axes.set_title("Learning against " + ("environment steps" if steps else "wall-clock"))
    axes.legend(ncols=2 if len(study.rows) > 4 else 1)
    name = "learning_steps" if steps else "learning_wall"
    return Plot(name, "Median over seeds; the band reaches from the lowest to the highest seed.", figure)


def _on_one_grid(runs: Sequence[Run], against: str, num_points: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Return a grid that all runs' curves cover, and `[runs, points]` the last score seen at each of its points."""
    xs = [np.array([getattr(point, against) for point in curve(run)], dtype=float) for run in runs]
    ys = [np.array([point.return_mean for point in curve(run)]) for run in runs]
    start, end = max(x[0] for x in xs), min(x[-1] for x in xs)
    if not end > start:
        start, end = min(x[0] for x in xs), max(x[-1] for x in xs)
    inside = np.unique(np.concatenate(xs))
    inside = inside[(inside >= start) & (inside <= end)]
    grid = inside if len(inside) <= num_points else np.linspace(start, end, num_points)
    held = [y[np.maximum(np.searchsorted(x, grid, side="right") - 1, 0)] for x, y in zip(xs, ys, strict=True)]
    return grid, np.array(held)


def _stability(study: Study) -> Plot:
    present = [name for name in _STABILITY if any(name in row.stability for row in study.rows)]
    columns = min(3, len(present))
    lines = math.ceil(len(present) / columns)
    figure = Figure(figsize=(3.65 * columns, 2.6 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes, name in zip(grid, present, strict=False):
        rows = [row for row in study.rows if name in row.stability]
        found = {q: np.array([row.stability[name][q] for row in rows]) for q in ("p5", "p50", "p95")}
        spread = [found["p50"] - found["p5"], found["p95"] - found["p50"]]
        sizes = [row.world_size for row in rows]
        axes.errorbar(sizes, found["p50"], spread, color=BLUE, marker="o", capsize=3)
        workers_axis(axes, sizes)
        axes.set_title(_STABILITY[name])
    for axes in grid[len(present) :]:
        axes.set_axis_off()
    expected = (
        "Under strong scaling they should not depend on W."
        if study.rule == "strong"
        else "Under weak scaling the batch grows with W, and some of them with it."
    )
    caption = f"Medians over iterations and seeds; whiskers are p5 and p95. {expected}"
    return Plot("stability", caption, figure)
