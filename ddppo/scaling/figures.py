"""The figures of a report, as matplotlib Figures: W on a log2 axis, units on axes, colours that all eyes tell apart.

Colours of the parts: Okabe and Ito 2008, https://jfly.uni-koeln.de/color/; of the curves: cividis, dark is few workers.
"""

import math
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from ddppo.scaling.accounting import Account, cause_name
from ddppo.scaling.figure_style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    Plot,
    estimates,
    from_zero,
    legend_below,
    log_scale,
    panel,
    short,
    style,
    workers_axis,
)
from ddppo.scaling.runs import PARTS, Run
from ddppo.scaling.speedup import Study
from ddppo.scaling.time_to_target import curve

PART_COLOURS = dict(zip(PARTS, (BLUE, GREEN, ORANGE, VERMILLION, GREY), strict=True))
PART_LABELS = {
    "t_rollout": "t_rollout: acting, stepping",
    "t_learn": "t_learn: forward, backward",
    "t_sync": "t_sync: waiting",
    "t_comm": "t_comm: communication",
    "t_other": "t_other: the rest",
}
CAUSE_COLOURS = {
    "communication": VERMILLION,
    "waiting": ORANGE,
    "stragglers": SKY,
    "acting": BLUE,
    "learning": GREEN,
    "cores": PURPLE,
    "other": GREY,
    "unexplained": "#222222",
}
_STABILITY = {
    "approx_kl": "approx. KL (nats)",
    "clip_fraction": "clip fraction",
    "entropy": "entropy (nats)",
    "value_loss": "value loss (reward²)",
    "explained_variance": "explained variance",
    "grad_norm": "gradient norm",
}


def plots(study: Study, accounts: Sequence[Account]) -> list[Plot]:
    """Draw every figure that the runs have numbers for."""
    timed = bool(study.rows[0].parts)
    with style():
        drawn = [_fps(study), _speedup(study), _efficiency(study)]
        if not all(math.isnan(row.t_iter["mean"]) for row in study.rows):
            drawn.append(_t_iter(study))
        if timed:
            drawn.append(_breakdown(study))
        if accounts:
            drawn.append(_loss(study, accounts))
        if timed:
            drawn.append(_ratios(study))
        if any(len(row.ranks) > 1 for row in study.rows):
            drawn.append(_ranks(study))
        if any(len(curve(run)) > 1 for run in study.runs):
            drawn += [_curves(study, "env_steps"), _curves(study, "wall_s")]
        if any(set(row.stability) & set(_STABILITY) for row in study.rows):
            drawn.append(_stability(study))
    return drawn


# -- against W -------------------------------------------------------------------------------------------------------


def _fps(study: Study) -> Plot:
    figure, axes = panel()
    estimates(axes, study.world_sizes, [r.fps for r in study.rows], BLUE, "measured")
    first = study.rows[0]
    ideal = [first.fps.median * w / study.baseline for w in study.world_sizes]
    axes.plot(study.world_sizes, ideal, color=GREY, linestyle="--", label="ideal")
    workers_axis(axes, study.world_sizes)
    log_scale(axes)
    axes.set_ylabel("environment steps per second")
    axes.set_title(f"Throughput FPS(W), {study.rule} scaling")
    axes.legend()
    return Plot("fps", "Environment steps of all workers per second of training, after warm-up.", figure)


def _speedup(study: Study) -> Plot:
    figure, axes = panel()
    sizes = study.world_sizes
    estimates(axes, sizes, [r.speedup for r in study.rows], BLUE, "by throughput")
    if any(math.isfinite(r.speedup_by_target.median) for r in study.rows):
        by_target = [r.speedup_by_target for r in study.rows]
        estimates(axes, sizes, by_target, VERMILLION, f"by time to {study.target_return:g}")
    axes.plot(sizes, [w / study.baseline for w in sizes], color=GREY, linestyle="--", label="ideal")
    workers_axis(axes, sizes)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    axes.set_ylabel(f"speedup over W={study.baseline} (1)")
    axes.set_title(f"Speedup S(W), {study.rule} scaling")
    axes.legend()
    return Plot("speedup", "S(W) = FPS(W) / FPS(1); by time to target it is T(1) / T(W).", figure)


def _efficiency(study: Study) -> Plot:
    figure, axes = panel()
    sizes = study.world_sizes
    estimates(axes, sizes, [r.efficiency for r in study.rows], BLUE, "by throughput")
    if any(math.isfinite(r.efficiency_by_target.median) for r in study.rows):
        by_target = [r.efficiency_by_target for r in study.rows]
        estimates(axes, sizes, by_target, VERMILLION, f"by time to {study.target_return:g}")
    axes.axhline(1, color=GREY, linestyle="--", label="ideal")
    workers_axis(axes, sizes)
    from_zero(axes)
    axes.set_ylabel("efficiency S(W) / W (1)")
    axes.set_title(f"Efficiency E(W), {study.rule} scaling")
    axes.legend()
    return Plot("efficiency", "The part of W workers' throughput that is left.", figure)


def _t_iter(study: Study) -> Plot:
    figure, axes = panel()
    sizes = study.world_sizes
    for name, colour, line in (
        ("max", GREY, ":"),
        ("p95", ORANGE, "-"),
        ("mean", BLUE, "-"),
        ("p50", GREEN, "--"),
    ):
        values = [1000 * row.t_iter[name] for row in study.rows]
        axes.plot(sizes, values, color=colour, linestyle=line, marker="o", label=name)
    workers_axis(axes, sizes)
    log_scale(axes)
    axes.set_ylabel("t_iter (ms)")
    axes.set_title("Iteration latency t_iter(W)")
    axes.legend()
    return Plot("t_iter", "Time of an iteration (mean over ranks), over iterations and seeds.", figure)


def _breakdown(study: Study) -> Plot:
    figure, axes = panel()
    positions = np.arange(len(study.rows))
    bottom = np.zeros(len(study.rows))
    for part in PARTS:
        values = np.array([1000 * row.parts.get(part, 0.0) for row in study.rows])
        axes.bar(
            positions,
            values,
            bottom=bottom,
            width=0.65,
            color=PART_COLOURS[part],
            edgecolor="white",
            linewidth=0.5,
            label=PART_LABELS[part],
        )
        bottom += values
    first = study.rows[0]
    ideal = [
        1000 * first.t_iter["mean"] * (1 if study.rule == "weak" else study.baseline / w)
        for w in study.world_sizes
    ]
    for x, y in zip(positions, ideal, strict=True):
        axes.plot(
            [x - 0.42, x + 0.42], [y, y], color="black", linewidth=1.4, label="ideal" if x == 0 else None
        )
    axes.set_xticks(positions, [str(w) for w in study.world_sizes])
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("workers W")
    axes.set_ylabel("time per iteration (ms)")
    axes.set_title("Where an iteration's time goes")
    legend_below(figure, axes, 2)
    return Plot("breakdown", "Exclusive parts of t_iter, means over ranks, iterations and seeds.", figure)


def _ratios(study: Study) -> Plot:
    figure, axes = panel()
    for values, colour, label in (
        ([r.rho_comm for r in study.rows], VERMILLION, "rho_comm: communication"),
        ([r.rho_sync for r in study.rows], ORANGE, "rho_sync: waiting"),
    ):
        axes.plot(study.world_sizes, [100 * v for v in values], color=colour, marker="o", label=label)
    workers_axis(axes, study.world_sizes)
    from_zero(axes)
    axes.set_ylabel("share of t_iter (%)")
    axes.set_title("Communication and waiting")
    axes.legend()
    return Plot("rho", "rho_comm = t_comm / t_iter and rho_sync = t_sync / t_iter.", figure)


def _loss(study: Study, accounts: Sequence[Account]) -> Plot:
    figure, axes = panel()
    positions = np.arange(len(accounts))
    above, below = np.zeros(len(accounts)), np.zeros(len(accounts))
    for cause, colour in CAUSE_COLOURS.items():
        values = np.array([100 * a.shares[cause] for a in accounts])
        if np.all(np.abs(values) < 0.5):
            continue
        axes.bar(
            positions,
            values,
            bottom=np.where(values >= 0, above, below),
            width=0.65,
            color=colour,
            edgecolor="white",
            linewidth=0.5,
            label=cause_name(cause, study.rule),
        )
        above += values.clip(min=0)
        below += values.clip(max=0)
    losses = [100 * a.loss for a in accounts]
    axes.plot(positions, losses, "D", color="black", markersize=6, label="1 - E(W), their sum")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(positions, [str(a.world_size) for a in accounts])
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("workers W")
    axes.set_ylabel("share of the iteration (%)")
    axes.set_title("Why: the lost efficiency by cause")
    legend_below(figure, axes, 2)
    return Plot("loss", "The causes add up to 1 - E(W); what is below 0 is a gain.", figure)


# -- ranks, curves, stability ----------------------------------------------------------------------------------------


def _ranks(study: Study) -> Plot:
    figure = Figure(figsize=(11, 3.7), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    rows = [row for row in study.rows if len(row.ranks) > 1]
    for row in rows:
        x = row.world_size * 2 ** np.linspace(-0.12, 0.12, len(row.ranks))
        left.plot(x, [r.ratio for r in row.ranks], "o", color=BLUE, markersize=5)
        for position, rank in zip(x, row.ranks, strict=True):
            if rank.straggler:
                left.plot([position], [rank.ratio], "o", color=VERMILLION, markersize=7)
                left.annotate(
                    f"rank {rank.rank}",
                    (position, rank.ratio),
                    xytext=(6, 4),
                    textcoords="offset points",
                    fontsize=8,
                )
    left.axhline(1, color=GREY, linestyle="--")
    workers_axis(left, [row.world_size for row in rows])
    left.set_ylabel("t_rollout / median rank's (1)")
    left.set_title("Spread of ranks (stragglers in red)")
    last = rows[-1]
    positions = np.arange(len(last.ranks))
    bottom = np.zeros(len(positions))
    for part in PARTS:
        values = np.array([1000 * r.times.get(part, 0.0) for r in last.ranks])
        right.bar(
            positions,
            values,
            bottom=bottom,
            width=0.7,
            color=PART_COLOURS[part],
            edgecolor="white",
            linewidth=0.5,
            label=part,
        )
        if part == "t_rollout":
            low = values - [1000 * r.t_rollout_p5 for r in last.ranks]
            high = np.array([1000 * r.t_rollout_p95 for r in last.ranks]) - values
            right.errorbar(
                positions,
                values,
                [low.clip(min=0), high.clip(min=0)],
                fmt="none",
                ecolor="black",
                capsize=2,
                elinewidth=1,
                zorder=3,
            )
        bottom += values
    step = max(1, len(positions) // 16)
    right.set_xticks(positions[::step], [str(r) for r in positions[::step]])
    right.grid(visible=False, axis="x")
    right.set_xlabel("rank")
    right.set_ylabel("time per iteration (ms)")
    right.set_title(f"Each rank at W={last.world_size}")
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper")
    return Plot(
        "ranks",
        "Left: mean t_rollout of each rank relative to the median rank. Right: whiskers are p5 and p95 of t_rollout; "
        "who waits least is who the others wait for.",
        figure,
    )


def _curves(study: Study, against: str) -> Plot:
    figure, axes = panel()
    shades = matplotlib.colormaps["cividis"](np.linspace(0.0, 0.85, len(study.rows)))
    for row, colour in zip(study.rows, shades, strict=True):
        runs = [run for run in study.runs_at(row.world_size) if len(curve(run)) > 1]
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
    return Plot(
        "stability",
        "Medians over iterations and seeds; whiskers are p5 and p95. Under strong scaling they should not depend on W.",
        figure,
    )
