"""Which charts show how runs went? Returns over environment steps and time, stability over W, iterations over time.

A chart that would show the same curve for every W is replaced by a sentence.
"""

import math
from collections.abc import Sequence
from datetime import datetime

import numpy as np

from ddppo.study.columns import duration
from ddppo.study.measure.speedup import Study, curve
from ddppo.study.page.chart import Axis, Chart, unit_of, workers
from ddppo.study.read.record import Run, by_world_size

_COLOURS = ("blue", "orange", "green", "red", "purple", "sky", "grey", "ink")  # of each W, or of each seed
_STABILITY = {
    "approx_kl": "approx. KL (nats)",
    "clip_fraction": "clip fraction",
    "entropy": "entropy (nats)",
    "value_loss": "value loss (reward²)",
    "explained_variance": "explained variance",
    "grad_norm": "gradient norm",
}
_BANDS = 3  # in one chart; more would cover each other
_SAME = 0.01  # relative difference over W that would not be visible in a chart
_POINTS = 160  # of the line of a run's iterations
_STALLED = 8.0  # a longer point, in medians of its W, makes the axis of seconds logarithmic


# -- Returns.


def returns(study: Study) -> Chart | None:
    """Return the chart of returns over environment steps or, of runs without a curve, of final returns over W."""
    if any(len(curve(run)) > 1 for run in study.runs):
        return _curves(study, "env_steps", once=_are_the_same(study))
    return _finals(study) if any(row.final_return.count for row in study.rows) else None


def learning(study: Study) -> tuple[list[Chart], list[str]]:
    """Return the further charts of learning that differ over W, and sentences on the numbers that do not."""
    drawn, sentences = [], []
    if any(len(curve(run)) > 1 for run in study.runs):
        if _are_the_same(study):
            sentences.append(
                "At the same environment steps a seed has the same returns for any W, so its curve over steps is drawn "
                "once."
            )
        drawn = [_curves(study, "wall_s", once=False)]
    stability, flat = _stability(study)
    if flat:
        sentences.append(f"The same at every W, to {100 * _SAME:g} % of their medians: {', '.join(flat)}.")
    return drawn + stability, sentences


def _are_the_same(study: Study) -> bool:
    """Return whether all runs of a seed have the same curve over environment steps, up to rounding."""
    first: dict[int, list[tuple[int, float]]] = {}
    for run in study.runs:
        points = [(p.env_steps, round(p.return_mean, 6)) for p in curve(run)]
        if first.setdefault(run.seed, points) != points:
            return False
    return len(first) < len(study.runs)


def _finals(study: Study) -> Chart:
    """Return the chart of final returns: their medians with intervals, and a dot for each seed."""
    rows = [row for row in study.rows if row.final_return.count]
    chart = Chart(
        "returns",
        "Learning: final return",
        workers(row.world_size for row in rows),
        Axis("final return"),
        "Dots: seeds. Line: medians."
        + (" Bars: 95 % intervals." if any(math.isfinite(row.final_return.low) for row in rows) else ""),
    )
    chart.line([row.world_size for row in rows], [row.final_return.median for row in rows], "blue")
    for row in rows:
        chart.whisker(row.world_size, row.final_return.low, row.final_return.high, "blue")
        known = [(s, v) for s, v in zip(row.seeds, row.final_return.values, strict=True) if math.isfinite(v)]
        texts = [f"W={row.world_size}, seed {seed}: {value:.4g}" for seed, value in known]
        chart.seeds([row.world_size] * len(known), [value for _, value in known], "blue", texts)
    return chart


def _curves(study: Study, against: str, *, once: bool) -> Chart:
    """Return the chart of returns over "env_steps" or "wall_s"; `once` draws one curve for all W.

    Every W has a line, and a band if there are few of them; of many W only the smallest has one.
    """
    steps, several = against == "env_steps", any(len(r.evaluations) > 1 for r in study.runs)
    rows = study.rows[:1] if once else study.rows
    chart = Chart(
        "learning_steps" if steps else "learning_wall",
        "Learning: return by " + ("environment steps" if steps else "training time"),
        Axis("environment steps of all workers" if steps else "training time (s)"),
        Axis("evaluation return" if several else "return of training episodes"),
    )
    ends, banded = [], []
    for i, (row, colour) in enumerate(zip(rows, _COLOURS * 3, strict=False)):
        runs = [run for run in study.runs_at(row.world_size) if len(curve(run)) > 1]
        runs = [run for run in runs if steps or not run.others]  # seconds of several world sizes are mixed
        if not runs:
            continue
        xs = [np.array([getattr(point, against) for point in curve(run)], dtype=float) for run in runs]
        ys = [np.array([point.return_mean for point in curve(run)]) for run in runs]
        grid, scores = on_one_grid(xs, ys)
        if len(runs) > 1 and (i == 0 or len(rows) <= _BANDS):
            chart.band(grid, scores.min(axis=0).tolist(), scores.max(axis=0).tolist(), colour)
            banded.append(row.world_size)
        middle = np.median(scores, axis=0).tolist()
        chart.line(grid, middle, colour, "every W" if once else f"W={row.world_size}")
        ends += [grid[0], grid[-1]]
    # The target across the whole chart.
    if ends and not math.isnan(study.target_return):
        target = [study.target_return] * 2
        chart.line([min(ends), max(ends)], target, "grey", f"target {study.target_return:g}", dashed=True)
    of = "" if len(banded) == len(rows) else f" of W={study.baseline}"
    chart.caption = "Lines: medians over seeds." + (f" Bands: all seeds{of}." if banded else "")
    return chart


def on_one_grid(
    xs: Sequence[np.ndarray], ys: Sequence[np.ndarray], num_points: int = 120
) -> tuple[list[float], np.ndarray]:
    """Return a grid that all curves cover, and the last value of each at each of its points, `[curves, points]`."""
    # From the last begin to the first end, or the whole range if the curves do not overlap.
    start, end = max(x[0] for x in xs), min(x[-1] for x in xs)
    if not end > start:
        start, end = min(x[0] for x in xs), max(x[-1] for x in xs)
    inside = np.unique(np.concatenate(xs))
    inside = inside[(inside >= start) & (inside <= end)]
    grid = inside if len(inside) <= num_points else np.linspace(start, end, num_points)
    # Values are held from one point to the next: nothing is interpolated.
    held = [y[np.maximum(np.searchsorted(x, grid, side="right") - 1, 0)] for x, y in zip(xs, ys, strict=True)]
    return grid.tolist(), np.array(held)


def _stability(study: Study) -> tuple[list[Chart], list[str]]:
    """Return a chart for each stability metric that differs over W, and the names of those that do not."""
    drawn, same = [], []
    for name, label in _STABILITY.items():
        # Quantiles at each W that has them.
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


# -- Iterations over time.


def pace(all_runs: Sequence[Run]) -> list[Chart]:
    """Return a chart for each W: the seconds of iterations over time, a thin line for each run.

    Time is that of the day if the starts and ends of all runs are known, less than a day apart, and else the seconds
    since each run's start. A summary knows a run's start and end, and how long it trained between them: iterations are
    placed as if the rest of the time (start-up, evaluations) was spread evenly.
    """
    groups = by_world_size(run for run in all_runs if "t_iter" in run.times)
    shown = {w: runs for w, runs in groups.items() if any(len(run.times["t_iter"]) > 1 for run in runs)}
    spans = {run.path: _span(run) for runs in shown.values() for run in runs}
    known = [span for span in spans.values() if span is not None]
    by_day = len(known) == len(spans) > 0 and max(b for _, b in known) - min(a for a, _ in known) < 86400
    # Every panel has the same axis of time.
    midnight = min(a for a, _ in known) // 86400 * 86400 if by_day else 0.0
    lines = {
        run.path: _iterations(run, spans[run.path] if by_day else None, midnight)
        for r in shown.values()
        for run in r
    }
    if not lines:
        return []
    unit = unit_of(max(float(np.median(values)) for _, values in lines.values()))
    low, high = (pick(t for times, _ in lines.values() for t in times) for pick in (min, max))
    axis = Axis("time of day (UTC)", "linear", _clock_ticks(low, high), (low, high))
    if not by_day:
        axis = Axis("seconds since the run's start", "linear", None, (0.0, high))
    colours = dict(zip(sorted({run.seed for run in all_runs}), _COLOURS * len(all_runs), strict=False))
    drawn = list[Chart]()
    for w, runs in shown.items():
        every = np.concatenate([lines[run.path][1] for run in runs])
        stalls = every.max() > _STALLED * np.median(every)
        name = f"iteration ({unit[1]})"
        seconds = Axis(name, "log10") if stalls else Axis(name, "linear", None, (0.0,))
        chart = Chart(f"pace_{w}", f"Iterations over time, W={w}", axis, seconds)
        for run in runs:
            times, values = lines[run.path]
            text = f"W={w}, seed {run.seed}: {duration(float(np.median(values)))}, {run.path}"
            chart.line(
                times,
                [unit[0] * value for value in values],
                colours[run.seed],
                f"seed {run.seed}" if len(colours) <= len(_COLOURS) and not drawn else "",
                thin=True,
                text=text,
            )
        drawn.append(chart)
    drawn[0].caption = "A line is a run" + (
        "; start-up and evaluations are spread evenly between its start and its end." if by_day else "."
    )
    return drawn


def _span(run: Run) -> tuple[float, float] | None:
    """Return the start and the end of a run, seconds since the epoch; None if unknown or shorter than its training."""
    try:
        start, end = (
            datetime.fromisoformat(t).timestamp() for t in (run.origin.started_at, run.origin.finished_at)
        )
    except ValueError:
        return None
    # A resumed run was paused; summaries have whole seconds.
    return (start, end) if end - start > run.wall_s - 2 and not run.others else None


def _iterations(
    run: Run, span: tuple[float, float] | None, midnight: float
) -> tuple[list[float], list[float]]:
    """Return when the iterations of a run ended (s) and how long they took (s): means of groups, of a long run."""
    seconds = run.times["t_iter"].mean(axis=1)
    ends = np.cumsum(seconds)
    # Warm-up came before the iterations that are kept.
    ends += max(run.wall_s - float(ends[-1]), 0.0) if span is not None else 0.0
    if span is not None:
        ends = span[0] - midnight + ends * (span[1] - span[0]) / max(run.wall_s, float(ends[-1]))
    groups = np.array_split(np.arange(len(seconds)), min(len(seconds), _POINTS))
    return [float(ends[g].mean()) for g in groups], [float(seconds[g].mean()) for g in groups]


def _clock_ticks(low: float, high: float) -> dict[float, str]:
    """Return about five times of day between two numbers of seconds since midnight."""
    steps = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600)
    step = next((s for s in steps if (high - low) / s <= 5), steps[-1])
    at = range(math.ceil(low / step) * step, math.floor(high) + 1, step)
    form = "{:02d}:{:02d}:{:02d}" if step < 60 else "{:02d}:{:02d}"
    return {float(t): form.format(t // 3600 % 24, t // 60 % 60, t % 60) for t in at}
