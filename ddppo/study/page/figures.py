"""Which charts show a study over W? Speedup, efficiency, the parts of an iteration, the lost efficiency, and ranks."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ddppo.study.columns import duration, percent
from ddppo.study.explain.accounting import Account, cause_name
from ddppo.study.measure.belief import odd_runs
from ddppo.study.measure.speedup import SpeedupRow, Study
from ddppo.study.measure.statistics import SeedMedian
from ddppo.study.page.chart import Axis, Chart, named, unit_of, workers
from ddppo.study.predict.intervals import Prediction
from ddppo.study.predict.outlook import Outlook
from ddppo.study.read.record import PARTS

_PARTS = {
    "t_rollout": ("blue", "acting, stepping"),
    "t_learn": ("green", "learning"),
    "t_sync": ("orange", "waiting"),
    "t_comm": ("red", "communication"),
    "t_other": ("grey", "the rest"),
}
_CAUSES = {
    "communication": "red",
    "waiting": "orange",
    "slow": "sky",
    "acting": "blue",
    "learning": "green",
    "cores": "purple",
    "other": "grey",
    "unexplained": "ink",
}


# -- Speedup and efficiency.


def speedup(study: Study, ahead: Outlook) -> Chart:
    """Return the chart of S(W): ideal, measured, and predicted by the model and by the law."""
    base = study.baseline
    predicted, changed = (
        [p for p in found if p.world_size >= base] for found in (ahead.as_measured, ahead.changed)
    )
    sizes = sorted({*study.world_sizes, *(p.world_size for p in predicted)})
    chart = Chart(
        "speedup",
        f"Speedup S(W), {study.rule} scaling",
        workers(sizes),
        Axis(f"S(W) = FPS(W) / FPS({base})", "log2", shows=(1, 2)),
        _caption(row.speedup for row in study.rows),
    )
    chart.line(sizes, [w / base for w in sizes], "grey", "ideal", dashed=True)
    by_law = all(math.isnan(p.t_iter) for p in predicted)  # runs with throughput only have no model
    _model(chart, predicted, "speedup", "orange", "scalability law" if by_law else "model")
    _model(chart, changed, "speedup", "red", f"model with {changes(ahead)}")
    # The scalability law as a baseline beside the model.
    if ahead.usl is not None and not by_law:
        law = [ahead.usl.fps(w) / ahead.usl.fps(base) for w in sizes]
        chart.line(sizes, law, "purple", "scalability law", dashed=True)
    _measured(chart, study, [row.speedup for row in study.rows], _speedups(study), "S")
    for row in study.rows[1:]:
        chart.note(row.world_size, row.speedup.median, f"{row.speedup.median:.3g}", below=True)
    return chart


def efficiency(study: Study) -> Chart:
    """Return the chart of E(W) as measured; odd seeds are labelled, and listed in the caption with their folders."""
    base = study.baseline
    odd = odd_runs(study)
    folders = [f" Odd: W={run.world_size}, seed {run.seed}: {Path(run.path).name}." for run in odd[:2]]
    chart = Chart(
        "efficiency",
        "Efficiency: the part of ideal speed",
        workers(study.world_sizes),
        Axis("E(W) = S(W) / W" if base == 1 else f"E(W) = S(W) * {base} / W", shows=(0,)),
        _caption(row.efficiency for row in study.rows) + "".join(folders),
    )
    chart.line(study.world_sizes, [1] * len(study.rows), "grey", "ideal", dashed=True)
    # E of a seed: its S times W_1 / W.
    seeds = {key: s * base / key[0] for key, s in _speedups(study).items()}
    _measured(chart, study, [row.efficiency for row in study.rows], seeds, "E")
    for run in odd:
        chart.note(run.world_size, seeds[run.world_size, run.seed], f"seed {run.seed}")
    return chart


def _caption(values: Iterable[SeedMedian]) -> str:
    known = any(not math.isnan(value.low) for value in values)
    return "Dots: seeds. Line: medians." + (" Band: 95 % intervals." if known else "")


def _model(chart: Chart, found: Sequence[Prediction], quantity: str, colour: str, label: str) -> None:
    sizes = [p.world_size for p in found]
    low, middle, high = ([getattr(p, quantity + end) for p in found] for end in ("_low", "", "_high"))
    chart.band(sizes, low, high, colour)
    chart.line(sizes, middle, colour, label, dashed=True)


def _speedups(study: Study) -> dict[tuple[int, int], float]:
    """Return {(W, seed): FPS over the median at the smallest W}."""
    first = study.rows[0].fps.median
    return {(run.world_size, run.seed): run.fps / first for run in study.runs}


def _measured(
    chart: Chart,
    study: Study,
    values: Sequence[SeedMedian],
    seeds: Mapping[tuple[int, int], float],
    what: str,
) -> None:
    """Draw the medians as a line with their intervals, and a dot for each seed."""
    # The interval of the smallest W, relative to itself, has no width.
    ends = [(v.low, v.high) if v.count and not math.isnan(v.low) else (v.median, v.median) for v in values]
    if any(low < high for low, high in ends):
        # A band of many times the values would hide them: it may end at the frame.
        known = [*seeds.values(), *(v.median for v in values if v.count)]
        within = 0.0 if 0 in chart.y.shows else min(known) / 2, 1.5 * max(1.0, *known)
        chart.band(study.world_sizes, [low for low, _ in ends], [high for _, high in ends], "blue", within)
        if any(low < within[0] or high > within[1] for low, high in ends):
            chart.caption = chart.caption.replace("intervals", "intervals, beyond the frame", 1)
    chart.line(study.world_sizes, [e.median for e in values], "blue", "measured")
    fps = {(run.world_size, run.seed): run.fps for run in study.runs}
    texts = [f"W={w}, seed {s}: {what} = {v:.3g} ({fps[w, s]:,.0f} steps/s)" for (w, s), v in seeds.items()]
    chart.seeds([w for w, _ in seeds], list(seeds.values()), "blue", texts)


# -- Where the time goes.


def time_of_iterations(study: Study) -> Chart | None:
    """Return a bar for each W: the parts of an iteration's wall-clock time (%), in the run with the median FPS.

    Of an even number of runs it is the mean of the two in the middle. None without times by part, or if ranks share no
    iteration.
    """
    known = [(row, *_parts_of_iteration(row)) for row in study.rows if row.parts]
    if not known or not all(run.ranks_are_in_step for run in study.runs):
        return None
    chart = Chart(
        "breakdown",
        "Where an iteration's time goes",
        named([str(row.world_size) for row, *_ in known]),
        Axis("part of an iteration (%)", shows=(0, 100)),
        "Runs with the median FPS. Above the line is lost.",
    )
    # One part after another, on top of those before, so that the legend has their order.
    tops = [0.0] * len(known)
    for part, (colour, label) in _PARTS.items():
        for i, (row, took, parts) in enumerate(known):
            bottom, tops[i] = tops[i], tops[i] + 100 * parts.get(part, 0.0)
            if tops[i] > bottom:
                text = f"W={row.world_size}: {label} {percent(parts[part])} of {duration(took)}"
                chart.bar(i, bottom, tops[i], colour, text, label)
    for i, (row, *_) in enumerate(known):
        ideal, text = 100 * row.efficiency.median, f"W={row.world_size}: E = {percent(row.efficiency.median)}"
        if row.world_size != study.baseline:
            chart.line([i - 0.42, i + 0.42], [ideal, ideal], "ink", "ideal iteration", text=text)
    return chart


def _parts_of_iteration(row: SpeedupRow) -> tuple[float, dict[str, float]]:
    """Return the seconds of an iteration, and {part: its share of them}.

    Wall-clock time outside the parts, such as saving a checkpoint, counts as t_other.
    """
    took = row.steps_per_iter / row.fps.median
    took = row.t_iter["mean"] if math.isnan(took) else took
    shares = {part: seconds / took for part, seconds in row.parts.items()}
    return took, shares | {"t_other": shares.get("t_other", 0.0) + max(1 - sum(shares.values()), 0.0)}


def loss(study: Study, accounts: Sequence[Account]) -> Chart:
    """Return the chart of lost efficiency: for each W a stack of causes, losses above 0 and gains below."""
    chart = Chart(
        "loss",
        "Why: the lost efficiency 1 - E(W)",
        named([str(a.world_size) for a in accounts]),
        Axis("share of the iteration (%)", shows=(0,)),
        "Causes add up to 1 - E(W); below 0 is a gain. Lines: 95 % intervals of large shares.",
    )
    # Bars of causes, one on another.
    largest = max(abs(a.loss) for a in accounts)
    for i, account in enumerate(accounts):
        ends = {True: 0.0, False: 0.0}  # where the stacks above and below 0 end so far
        for cause, colour in _CAUSES.items():
            share, seeds = account.shares.get(cause, 0.0), account.by_seed.get(cause, ())
            start, end = ends[share >= 0], ends[share >= 0] + 100 * share
            ends[share >= 0] = end
            name = cause_name(cause, study.rule)
            text = f"W={account.world_size}: {name} {percent(share)}"
            text += f" (seeds: {', '.join(map(percent, seeds))})" if len(seeds) > 1 else ""
            # A cause is in the legend only if a bar of it can be seen.
            seen = any(abs(a.shares.get(cause, 0.0)) >= 0.02 * largest for a in accounts)
            if share:
                chart.bar(i, start, end, colour, text, name if seen else "")
            low, high = account.between[cause]
            if abs(share) >= 0.1 * largest:
                chart.whisker(i, start + 100 * low, start + 100 * high)
    # Their sum.
    sums = [f"W={a.world_size}: 1 - E = {percent(a.loss)}" for a in accounts]
    chart.dots(range(len(accounts)), [100 * a.loss for a in accounts], "ink", sums, "1 - E(W), their sum")
    return chart


def _stack(chart: Chart, at: int, parts: Mapping[str, float], factor: float, name: str) -> None:
    bottom = 0.0
    for part in PARTS:
        (colour, label), seconds = _PARTS[part], parts.get(part, 0.0)
        top = bottom + factor * seconds
        chart.bar(at, bottom, top, colour, f"{name}, {label} {duration(seconds)}", label)
        bottom = top


def ranks(study: Study) -> list[Chart]:
    """Return the charts of differences between ranks at every W, and of each rank's time at the largest W.

    [] if the runs have no times of single ranks.
    """
    rows = [row for row in study.rows if len(row.ranks) > 1]
    if not rows:
        return []
    spread = Chart(
        "ranks",
        "How ranks differ",
        workers(row.world_size for row in rows),
        Axis("t_rollout / that of ranks not slow", shows=(0.9, 1, 1.1)),
        "A dot is a rank; slow ones are red.",
    )
    for row in rows:
        # Spread the dots of one W sideways, so that they do not cover each other.
        places = row.world_size * 2 ** np.linspace(-0.12, 0.12, len(row.ranks))
        slow = {rank.rank for rank in row.slow_ranks}
        for place, rank in zip(places, row.ranks, strict=True):
            text = f"W={row.world_size}, rank {rank.rank}: {rank.ratio:.2f} times"
            spread.seeds([place], [rank.ratio], "red" if rank.rank in slow else "blue", [text])
    # Each rank at the largest W.
    last = rows[-1]
    unit = unit_of(max(rank.times["t_iter"] for rank in last.ranks))
    each = Chart(
        "ranks_at_largest",
        f"Each rank at W={last.world_size}",
        named([str(rank.rank) for rank in last.ranks], "rank"),
        Axis(f"time per iteration ({unit[1]})", shows=(0,)),
        "The others wait for the rank that waits least. A line: p5 to p95 of t_rollout.",
    )
    for i, rank in enumerate(last.ranks):
        _stack(each, i, rank.times, unit[0], f"rank {rank.rank}")
        each.whisker(i, unit[0] * rank.t_rollout_p5, unit[0] * rank.t_rollout_p95)
    return [spread, each]


def changes(ahead: Outlook) -> str:
    """Return the changes of what_if, as the user wrote them."""
    return ", ".join(f"{name}={value}" for name, value in ahead.changes.items())
