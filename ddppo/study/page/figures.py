"""The charts of a study against W: speedup, why it is lost, where time goes, and the ranks."""

import math
from collections.abc import Sequence

import numpy as np

from ddppo.statistics import Estimate
from ddppo.study.columns import duration
from ddppo.study.explain.accounting import Account, cause_name
from ddppo.study.measure.speedup import Study
from ddppo.study.measure.time_to_target import time_to_target
from ddppo.study.page.chart import Axis, Chart, named, workers
from ddppo.study.page.tables import number, percent
from ddppo.study.predict.intervals import Prediction
from ddppo.study.predict.outlook import Outlook
from ddppo.study.runs import PARTS

PART_COLOURS = dict(zip(PARTS, ("blue", "green", "orange", "red", "grey"), strict=True))
PART_LABELS = {
    "t_rollout": "acting, stepping",
    "t_learn": "learning",
    "t_sync": "waiting",
    "t_comm": "communication",
    "t_other": "the rest",
}
CAUSE_COLOURS = {
    "communication": "red",
    "waiting": "orange",
    "slow": "sky",
    "acting": "blue",
    "learning": "green",
    "cores": "purple",
    "other": "grey",
    "unexplained": "ink",
}


def overview(study: Study, accounts: Sequence[Account], ahead: Outlook) -> list[Chart]:
    """Draw what a reader looks at first, side by side: how much faster, and what became of the rest."""
    return [_speedup(study, ahead), *([_loss(study, accounts)] if accounts else [])]


def times(study: Study, ahead: Outlook) -> list[Chart]:
    """Draw efficiency and where the time of an iteration goes, of what the runs have numbers for."""
    drawn = [_efficiency(study, ahead)]
    if any(row.parts for row in study.rows):
        drawn.append(_breakdown(study))
    if sum(not math.isnan(row.t_iter["mean"]) for row in study.rows) > 1:
        drawn.append(_t_iter(study))
    return drawn


# -- against W -------------------------------------------------------------------------------------------------------


def _speedup(study: Study, ahead: Outlook) -> Chart:
    base, sizes = study.baseline, study.world_sizes
    shown = [p for p in ahead.as_measured if base <= p.world_size <= 2 * sizes[-1]]
    chart = Chart(
        "speedup",
        f"Speedup S(W), {study.rule} scaling",
        workers(sorted({*sizes, *(p.world_size for p in shown)})),
        Axis(f"S(W) = FPS(W) / FPS({base})", "log2"),
        caption="A dot is a seed, the line joins medians.",
    )
    ends = [sizes[0], max([sizes[-1], *(p.world_size for p in shown)])]
    chart.line(ends, [w / base for w in ends], "grey", "ideal", dashed=True)
    _model(chart, shown, "speedup", "orange", "model")
    changed = [p for p in ahead.changed if base <= p.world_size <= 2 * sizes[-1]]
    _model(chart, changed, "speedup", "red", f"model with {changes(ahead)}")
    if ahead.usl is not None:
        law = [ahead.usl.fps(w) / ahead.usl.fps(base) for w in chart.ticks]
        chart.line(chart.ticks, law, "purple", "scalability law", dashed=True)
    _seeds(chart, study, "S", [row.speedup for row in study.rows], _speedups(study), "measured")
    return chart


def by_target(study: Study) -> list[Chart]:
    """Draw the speedup by time to target; nothing where that was not measured."""
    base, rows = study.baseline, [r for r in study.rows if math.isfinite(r.speedup_by_target.median)]
    if len(rows) < 2:
        return []
    chart = Chart(
        "speedup_by_target",
        f"Speedup by time to {study.target_return:g}",
        workers(study.world_sizes),
        Axis(f"T({base}) / T(W)", "log2"),
        caption="A dot is a seed that got there, the line joins medians.",
    )
    chart.line([r.world_size for r in rows], [r.speedup_by_target.median for r in rows], "green")
    first = study.rows[0].time_to_target.median
    reached = {(run.world_size, run.seed): time_to_target(run) for run in study.runs}
    for (w, seed), seconds in reached.items():
        if math.isfinite(seconds):
            said = f"W={w}, seed {seed}: {duration(seconds)}"
            chart.dots([w], [first / seconds], "green", [said], kind="seed")
    return [chart]


def _efficiency(study: Study, ahead: Outlook) -> Chart:
    base = study.baseline
    shown = [p for p in ahead.as_measured if p.world_size >= base]
    chart = Chart(
        "efficiency",
        "Efficiency E(W)",
        workers(sorted({*study.world_sizes, *(p.world_size for p in shown)})),
        Axis("E(W) = S(W) / W" if base == 1 else f"E(W) = S(W) * {base} / W", shows=(0,)),
        caption="The part of W workers' throughput that is left.",
    )
    largest = max([study.world_sizes[-1], *(p.world_size for p in shown)])
    chart.line([base, largest], [1, 1], "grey", "ideal", dashed=True)
    _model(chart, shown, "efficiency", "orange", "model")
    _model(chart, ahead.changed, "efficiency", "red", f"model with {changes(ahead)}")
    seeds = {key: s * base / key[0] for key, s in _speedups(study).items()}
    _seeds(chart, study, "E", [row.efficiency for row in study.rows], seeds, "measured")
    return chart


def _model(chart: Chart, found: Sequence[Prediction], quantity: str, colour: str, label: str) -> None:
    sizes = [p.world_size for p in found]
    low, middle, high = ([getattr(p, quantity + end) for p in found] for end in ("_low", "", "_high"))
    chart.band(sizes, low, high, colour)
    chart.line(sizes, middle, colour, label, dashed=True)


def _speedups(study: Study) -> dict[tuple[int, int], float]:
    """Return {(W, seed): FPS over the median at the smallest W}."""
    first = study.rows[0].fps.median
    return {(run.world_size, run.seed): run.fps / first for run in study.runs}


def _seeds(
    chart: Chart,
    study: Study,
    what: str,
    values: Sequence[Estimate],
    seeds: dict[tuple[int, int], float],
    label: str,
) -> None:
    """Draw medians as a line, their intervals where there are any, and a dot for each seed."""
    sizes = study.world_sizes
    chart.line(sizes, [e.median for e in values], "blue", label)
    for w, value in zip(sizes, values, strict=True):
        chart.whisker(w, value.low, value.high, "blue")
    if any(len(row.seeds) > 1 for row in study.rows):
        _dots(chart, study, what, seeds, "blue")
    else:
        said = [f"W={w}: {what} = {e.median:.3g}" for w, e in zip(sizes, values, strict=True)]
        chart.dots(sizes, [e.median for e in values], "blue", said)


def _dots(chart: Chart, study: Study, what: str, values: dict[tuple[int, int], float], colour: str) -> None:
    fps = {(run.world_size, run.seed): run.fps for run in study.runs}
    said = [f"W={w}, seed {s}: {what} = {v:.3g} ({fps[w, s]:,.0f} steps/s)" for (w, s), v in values.items()]
    chart.dots([w for w, _ in values], list(values.values()), colour, said, kind="seed")


def _loss(study: Study, accounts: Sequence[Account]) -> Chart:
    chart = Chart(
        "loss",
        "Why: the lost efficiency 1 - E(W)",
        named([str(a.world_size) for a in accounts], "workers W"),
        Axis("share of the iteration (%)", shows=(0,)),
        caption="Causes add up to 1 - E(W); below 0 is a gain. A line in a bar: lowest to highest seed.",
    )
    above, below = [0.0] * len(accounts), [0.0] * len(accounts)
    largest = max(abs(a.loss) for a in accounts)
    for cause in accounts[0].shares:
        colour, name = CAUSE_COLOURS.get(cause, "sky"), cause_name(cause, study.rule)
        if all(abs(a.shares[cause]) < 0.02 * largest for a in accounts):
            continue  # nobody would see it
        for i, account in enumerate(accounts):
            share = account.shares[cause]
            side = above if share >= 0 else below
            start, side[i] = side[i], side[i] + 100 * share
            seeds = getattr(account, "by_seed", {}).get(cause, ())
            said = f"W={account.world_size}: {name} {percent(share)}"
            if len(seeds) > 1:
                said += f" (seeds: {', '.join(map(percent, seeds))})"
            chart.bar(i, start, side[i], colour, said, name)
            if len(seeds) > 1 and abs(share) >= 0.1 * largest:
                chart.whisker(i, start + 100 * min(seeds), start + 100 * max(seeds))
    sums = [f"W={a.world_size}: 1 - E = {percent(a.loss)}" for a in accounts]
    chart.dots(range(len(accounts)), [100 * a.loss for a in accounts], "ink", sums, "1 - E(W), their sum")
    return chart


def _breakdown(study: Study) -> Chart:
    rows = [row for row in study.rows if row.parts]
    chart = Chart(
        "breakdown",
        "Where an iteration's time goes",
        named([str(row.world_size) for row in rows], "workers W"),
        Axis("time per iteration (ms)", shows=(0,)),
        caption="Parts of t_iter, means over ranks, iterations and seeds.",
    )
    first = study.rows[0].t_iter["mean"]
    for i, row in enumerate(rows):
        bottom = 0.0
        for part in PARTS:
            value = 1000 * row.parts.get(part, 0.0)
            said = f"W={row.world_size}: {PART_LABELS[part]} ({part}) {duration(value / 1000)}"
            chart.bar(i, bottom, bottom + value, PART_COLOURS[part], said, PART_LABELS[part])
            bottom += value
        ideal = 1000 * first * (1 if study.rule == "weak" else study.baseline / row.world_size)
        chart.line([i - 0.42, i + 0.42], [ideal, ideal], "ink", "ideal")
    return chart


def _t_iter(study: Study) -> Chart:
    chart = Chart(
        "t_iter",
        "Time of an iteration",
        workers(study.world_sizes),
        Axis("t_iter (ms)", "log10"),
        caption="Means over ranks; quantiles over iterations and seeds.",
    )
    for name, colour in (("max", "grey"), ("p95", "orange"), ("mean", "blue"), ("p50", "green")):
        values = [1000 * row.t_iter[name] for row in study.rows]
        said = [f"W={w}: {name} {duration(v / 1000)}" for w, v in zip(study.world_sizes, values, strict=True)]
        chart.line(study.world_sizes, values, colour, name, dashed=name in ("p50", "max"))
        chart.dots(study.world_sizes, values, colour, said)
    return chart


# -- ranks -----------------------------------------------------------------------------------------------------------


def ranks(study: Study) -> list[Chart]:
    """Draw how ranks differ at every W, and each rank's time at the largest; nothing where ranks are not known."""
    rows = [row for row in study.rows if len(row.ranks) > 1]
    if not rows:
        return []
    spread = Chart(
        "ranks",
        "How ranks differ",
        workers([row.world_size for row in rows]),
        Axis("t_rollout / median rank's", shows=(0.9, 1.1)),
        caption="A dot is a rank; slow ones are red.",
    )
    spread.line([rows[0].world_size, rows[-1].world_size], [1, 1], "grey", dashed=True)
    for row in rows:
        places = row.world_size * 2 ** np.linspace(-0.12, 0.12, len(row.ranks))
        slow = {rank.rank for rank in row.slow_ranks}
        for place, rank in zip(places, row.ranks, strict=True):
            said = f"W={row.world_size}, rank {rank.rank}: {number(rank.ratio, '{:.2f}')} times the median rank's"
            spread.dots([place], [rank.ratio], "red" if rank.rank in slow else "blue", [said], kind="seed")
    last = rows[-1]
    each = Chart(
        "ranks_at_largest",
        f"Each rank at W={last.world_size}",
        Axis(
            "rank", ticks={float(r): str(r) for r in range(0, len(last.ranks), max(1, len(last.ranks) // 16))}
        ),
        Axis("time per iteration (ms)", shows=(0,)),
        caption="Who waits least is who the others wait for. A line: p5 to p95 of t_rollout.",
    )
    for i, rank in enumerate(last.ranks):
        bottom = 0.0
        for part in PARTS:
            value = 1000 * rank.times.get(part, 0.0)
            said = f"rank {rank.rank}: {PART_LABELS[part]} {duration(value / 1000)}"
            each.bar(i, bottom, bottom + value, PART_COLOURS[part], said, PART_LABELS[part])
            bottom += value
        each.whisker(i, 1000 * rank.t_rollout_p5, 1000 * rank.t_rollout_p95)
    return [spread, each]


def changes(ahead: Outlook) -> str:
    """Return what a what-if changes, as it was asked for."""
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in ahead.changes.items()
    )
