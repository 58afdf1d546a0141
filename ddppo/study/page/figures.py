"""The figures of a study against W, as matplotlib Figures: throughput, speedup, where time goes, why it is lost."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from ddppo.study.explain.accounting import Account, cause_name
from ddppo.study.measure.speedup import Study
from ddppo.study.page import learning_figures
from ddppo.study.page.figure_style import (
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
    style,
    workers_axis,
)
from ddppo.study.runs import PARTS

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
        drawn += learning_figures.plots(study)
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
    first = study.baseline
    caption = f"S(W) = FPS(W) / FPS({first}); by time to target it is T({first}) / T(W)."
    return Plot("speedup", caption, figure)


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
    axes.set_ylabel("efficiency S(W) / W (1)" if study.baseline == 1 else "efficiency (1)")
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
    axes.set_title(f"Iteration latency t_iter(W), {study.rule} scaling")
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
    axes.set_title(f"Where an iteration's time goes, {study.rule} scaling")
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
    axes.set_title(f"Communication and waiting, {study.rule} scaling")
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
    axes.set_title(f"Why: the lost efficiency, {study.rule} scaling")
    legend_below(figure, axes, 2)
    return Plot("loss", "The causes add up to 1 - E(W); what is below 0 is a gain.", figure)


# -- ranks -----------------------------------------------------------------------------------------------------------


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
