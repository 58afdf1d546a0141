"""The charts of learning: returns against environment steps and time, stability by W; what is equal is said instead."""

import math
from collections.abc import Sequence

import numpy as np

from ddppo.study.measure.speedup import Study
from ddppo.study.measure.time_to_target import curve
from ddppo.study.page.chart import Axis, Chart, workers
from ddppo.study.read.record import Run

_COLOURS = ("blue", "orange", "green", "red", "purple", "sky", "grey", "ink")  # of W in turn
_STABILITY = {
    "approx_kl": "approx. KL (nats)",
    "clip_fraction": "clip fraction",
    "entropy": "entropy (nats)",
    "value_loss": "value loss (reward²)",
    "explained_variance": "explained variance",
    "grad_norm": "gradient norm",
}
_BANDS = 3  # more cannot be told apart
_SAME = 0.01  # relative difference over W that no reader would see in a chart


def charts(study: Study) -> tuple[list[Chart], list[str]]:
    """Return the charts that have something to show, and sentences on what is the same at every W."""
    drawn, said = [], []
    if any(len(curve(run)) > 1 for run in study.runs):
        same = len(study.rows) > 1 and _same_curves(study)
        if same:
            said.append(
                "Every W learned the same: at the same environment steps a seed has the same returns whatever W is, "
                "so its curve is drawn once."
            )
        drawn = [_curves(study, "env_steps", once=same), _curves(study, "wall_s", once=False)]
    stability, flat = _stability(study)
    if flat:
        said.append(f"The same at every W, to {100 * _SAME:g} % of their medians: {', '.join(flat)}.")
    return drawn + stability, said


def _same_curves(study: Study) -> bool:
    """Return whether the runs of each seed have one curve against environment steps, to rounding."""
    first: dict[int, list[tuple[int, float]]] = {}
    for run in study.runs:
        points = [(p.env_steps, round(p.return_mean, 6)) for p in curve(run)]
        if first.setdefault(run.seed, points) != points:
            return False
    return len(first) < len(study.runs)


def _curves(study: Study, against: str, *, once: bool) -> Chart:
    banded = once or len(study.rows) <= _BANDS
    steps, several = against == "env_steps", any(len(r.evaluations) > 1 for r in study.runs)
    chart = Chart(
        "learning_steps" if steps else "learning_wall",
        "Learning against " + ("environment steps" if steps else "time"),
        Axis("environment steps of all workers" if steps else "training time (s)"),
        Axis("evaluation return" if several else "return of training episodes"),
        "Medians over seeds"
        + ("; a band reaches from the lowest to the highest." if once or len(study.rows) <= _BANDS else "."),
    )
    ends = []
    for row, colour in zip(study.rows[:1] if once else study.rows, _COLOURS * 3, strict=False):
        runs = [run for run in study.runs_at(row.world_size) if len(curve(run)) > 1]
        runs = [run for run in runs if steps or not run.others]  # the seconds of several world sizes
        if not runs:
            continue
        grid, scores = _on_one_grid(runs, against)
        if len(runs) > 1 and banded:
            chart.band(grid, scores.min(axis=0).tolist(), scores.max(axis=0).tolist(), colour)
        chart.line(
            grid, np.median(scores, axis=0).tolist(), colour, "every W" if once else f"W={row.world_size}"
        )
        ends += [grid[0], grid[-1]]
    if ends and not math.isnan(study.target_return):
        target = [study.target_return] * 2
        chart.line([min(ends), max(ends)], target, "grey", f"target {study.target_return:g}", dashed=True)
    return chart


def _on_one_grid(runs: Sequence[Run], against: str, num_points: int = 120) -> tuple[list[float], np.ndarray]:
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
    return grid.tolist(), np.array(held)


def _stability(study: Study) -> tuple[list[Chart], list[str]]:
    """Return a chart of each diagnostic that differs over W, and the names of those that do not."""
    drawn, same = [], []
    for name, label in _STABILITY.items():
        found = {row.world_size: row.stability.get(name, {}) for row in study.rows}
        found = {w: q for w, q in found.items() if math.isfinite(q.get("p50", math.nan))}
        sizes, middles = list(found), [q["p50"] for q in found.values()]
        if len(sizes) > 1 and max(middles) - min(middles) <= _SAME * max(map(abs, middles)):
            same.append(label)
        elif sizes:
            caption = "Medians over iterations and seeds; lines from p5 to p95."
            chart = Chart(f"stability_{name}", label, workers(sizes), Axis(""), caption)
            for w, quantiles in found.items():
                chart.whisker(w, quantiles["p5"], quantiles["p95"], "blue")
            chart.line(sizes, middles, "blue")
            chart.dots(
                sizes, middles, "blue", [f"W={w}: {m:.3g}" for w, m in zip(sizes, middles, strict=True)]
            )
            drawn.append(chart)
    return drawn, same
