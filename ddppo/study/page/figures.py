"""Which charts does a study have? Speedup, lost efficiency, times and ranks over W, then returns and stability.

A chart that would show the same curve for every W is replaced by a sentence.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ddppo.study.columns import duration, percent
from ddppo.study.explain.accounting import Account, cause_name
from ddppo.study.measure.speedup import Study, curve
from ddppo.study.measure.statistics import SeedMedian
from ddppo.study.page.chart import Axis, Chart, named, workers
from ddppo.study.predict.intervals import Prediction
from ddppo.study.predict.outlook import Outlook
from ddppo.study.read.record import PARTS, Run

_PARTS = {
    "t_rollout": ("blue", "t_rollout: acting, stepping"),
    "t_learn": ("green", "t_learn: learning"),
    "t_sync": ("orange", "t_sync: waiting"),
    "t_comm": ("red", "t_comm: communication"),
    "t_other": ("grey", "t_other: the rest"),
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
_COLOURS = ("blue", "orange", "green", "red", "purple", "sky", "grey", "ink")  # of each W
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


def overview(study: Study, accounts: Sequence[Account], ahead: Outlook) -> list[Chart]:
    """Return the two charts at the top: speedup, and lost efficiency by cause."""
    several = [_speedup(study, ahead)] if len(study.rows) > 1 else []
    return several + ([_loss(study, accounts)] if accounts else [])


def times(study: Study, ahead: Outlook) -> list[Chart]:
    """Return the charts of efficiency and of an iteration's parts, if the runs have the numbers."""
    several = [_efficiency(study, ahead)] if len(study.rows) > 1 else []
    return several + ([_breakdown(study)] if any(row.parts for row in study.rows) else [])


# -- Charts over W.


def _speedup(study: Study, ahead: Outlook) -> Chart:
    """Return the chart of S(W): ideal, predicted by the model and by the law, and measured."""
    base, largest = study.baseline, 2 * study.world_sizes[-1]
    predicted, changed = (
        [p for p in found if base <= p.world_size <= largest] for found in (ahead.as_measured, ahead.changed)
    )
    sizes = sorted({*study.world_sizes, *(p.world_size for p in predicted)})
    chart = Chart(
        "speedup",
        f"Speedup S(W), {study.rule} scaling",
        workers(sizes),
        Axis(f"S(W) = FPS(W) / FPS({base})", "log2", shows=(1, 2)),
        "A dot is a seed, the line joins medians.",
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
    return chart


def _efficiency(study: Study, ahead: Outlook) -> Chart:
    base = study.baseline
    predicted = [p for p in ahead.as_measured if p.world_size >= base]
    sizes = sorted({*study.world_sizes, *(p.world_size for p in predicted)})
    chart = Chart(
        "efficiency",
        "Efficiency E(W)",
        workers(sizes),
        Axis("E(W) = S(W) / W" if base == 1 else f"E(W) = S(W) * {base} / W", shows=(0,)),
        "The part of W workers' throughput that is left.",
    )
    chart.line(sizes, [1] * len(sizes), "grey", "ideal", dashed=True)
    _model(chart, predicted, "efficiency", "orange", "model")
    _model(chart, ahead.changed, "efficiency", "red", f"model with {changes(ahead)}")
    # E of a seed: its S times W_1 / W.
    seeds = {key: s * base / key[0] for key, s in _speedups(study).items()}
    _measured(chart, study, [row.efficiency for row in study.rows], seeds, "E")
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


def _measured(
    chart: Chart,
    study: Study,
    values: Sequence[SeedMedian],
    seeds: Mapping[tuple[int, int], float],
    what: str,
) -> None:
    """Draw the medians as a line with their intervals, and a dot for each seed."""
    chart.line(study.world_sizes, [e.median for e in values], "blue", "measured")
    for w, value in zip(study.world_sizes, values, strict=True):
        chart.whisker(w, value.low, value.high, "blue")
    fps = {(run.world_size, run.seed): run.fps for run in study.runs}
    texts = [f"W={w}, seed {s}: {what} = {v:.3g} ({fps[w, s]:,.0f} steps/s)" for (w, s), v in seeds.items()]
    chart.seeds([w for w, _ in seeds], list(seeds.values()), "blue", texts)


def _loss(study: Study, accounts: Sequence[Account]) -> Chart:
    """Return the chart of lost efficiency: for each W a stack of causes, losses above 0 and gains below."""
    chart = Chart(
        "loss",
        "Why: the lost efficiency 1 - E(W)",
        named([str(a.world_size) for a in accounts]),
        Axis("share of the iteration (%)", shows=(0,)),
        "Causes add up to 1 - E(W); below 0 is a gain. A line in a bar: lowest to highest seed.",
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
            if len(seeds) > 1 and abs(share) >= 0.1 * largest:
                chart.whisker(i, start + 100 * min(seeds), start + 100 * max(seeds))
    # Their sum.
    sums = [f"W={a.world_size}: 1 - E = {percent(a.loss)}" for a in accounts]
    chart.dots(range(len(accounts)), [100 * a.loss for a in accounts], "ink", sums, "1 - E(W), their sum")
    return chart


def _breakdown(study: Study) -> Chart:
    rows = [row for row in study.rows if row.parts]
    chart = Chart(
        "breakdown",
        "Where an iteration's time goes",
        named([str(row.world_size) for row in rows]),
        Axis("time per iteration (ms)", shows=(0,)),
        "Parts of t_iter, means over ranks, iterations and seeds.",
    )
    first = study.rows[0]
    for i, row in enumerate(rows):
        _stack(chart, i, row.parts, f"W={row.world_size}")
        # The ideal iteration as a line across the bar.
        ideal = 1000 * first.t_iter["mean"] * (1 if study.rule == "weak" else study.baseline / row.world_size)
        chart.line([i - 0.42, i + 0.42], [ideal, ideal], "ink", "ideal")
    return chart


def _stack(chart: Chart, at: int, parts: Mapping[str, float], name: str) -> None:
    bottom = 0.0
    for part in PARTS:
        (colour, label), value = _PARTS[part], 1000 * parts.get(part, 0.0)
        text = f"{name}, {label} {duration(value / 1000)}"
        chart.bar(at, bottom, bottom + value, colour, text, label)
        bottom += value


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
    each = Chart(
        "ranks_at_largest",
        f"Each rank at W={last.world_size}",
        named([str(rank.rank) for rank in last.ranks], "rank"),
        Axis("time per iteration (ms)", shows=(0,)),
        "The others wait for the rank that waits least. A line: p5 to p95 of t_rollout.",
    )
    for i, rank in enumerate(last.ranks):
        _stack(each, i, rank.times, f"rank {rank.rank}")
        each.whisker(i, 1000 * rank.t_rollout_p5, 1000 * rank.t_rollout_p95)
    return [spread, each]


def changes(ahead: Outlook) -> str:
    """Return the changes of what_if, as the user wrote them."""
    return ", ".join(f"{name}={value}" for name, value in ahead.changes.items())


# -- Learning: returns over steps and time, and stability over W.


def learning(study: Study) -> tuple[list[Chart], list[str]]:
    """Return the charts that differ over W, and sentences on the numbers that do not."""
    drawn, sentences = [], []
    if any(len(curve(run)) > 1 for run in study.runs):
        same = len(study.rows) > 1 and _same_curves(study)
        if same:
            sentences.append(
                "Every W learned the same: at the same environment steps a seed has the same returns for any W, "
                "so its curve is drawn once."
            )
        drawn = [_curves(study, "env_steps", once=same), _curves(study, "wall_s", once=False)]
    stability, flat = _stability(study)
    if flat:
        sentences.append(f"The same at every W, to {100 * _SAME:g} % of their medians: {', '.join(flat)}.")
    return drawn + stability, sentences


def _same_curves(study: Study) -> bool:
    """Return whether all runs of a seed have the same curve over environment steps, up to rounding."""
    first: dict[int, list[tuple[int, float]]] = {}
    for run in study.runs:
        points = [(p.env_steps, round(p.return_mean, 6)) for p in curve(run)]
        if first.setdefault(run.seed, points) != points:
            return False
    return len(first) < len(study.runs)


def _curves(study: Study, against: str, *, once: bool) -> Chart:
    """Return the chart of returns over "env_steps" or "wall_s"; `once` draws one curve for all W."""
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
    # One line for each W; a band if there are few of them.
    ends = []
    for row, colour in zip(study.rows[:1] if once else study.rows, _COLOURS * 3, strict=False):
        runs = [run for run in study.runs_at(row.world_size) if len(curve(run)) > 1]
        runs = [run for run in runs if steps or not run.others]  # seconds of several world sizes are mixed
        if not runs:
            continue
        grid, scores = _on_one_grid(runs, against)
        if len(runs) > 1 and banded:
            chart.band(grid, scores.min(axis=0).tolist(), scores.max(axis=0).tolist(), colour)
        chart.line(
            grid, np.median(scores, axis=0).tolist(), colour, "every W" if once else f"W={row.world_size}"
        )
        ends += [grid[0], grid[-1]]
    # The target across the whole chart.
    if ends and not math.isnan(study.target_return):
        target = [study.target_return] * 2
        chart.line([min(ends), max(ends)], target, "grey", f"target {study.target_return:g}", dashed=True)
    return chart


def _on_one_grid(runs: Sequence[Run], against: str, num_points: int = 120) -> tuple[list[float], np.ndarray]:
    """Return a grid that the curves of all runs cover, and the last score at each of its points, `[runs, points]`."""
    xs = [np.array([getattr(point, against) for point in curve(run)], dtype=float) for run in runs]
    ys = [np.array([point.return_mean for point in curve(run)]) for run in runs]
    # From the last begin to the first end, or the whole range if the curves do not overlap.
    start, end = max(x[0] for x in xs), min(x[-1] for x in xs)
    if not end > start:
        start, end = min(x[0] for x in xs), max(x[-1] for x in xs)
    inside = np.unique(np.concatenate(xs))
    inside = inside[(inside >= start) & (inside <= end)]
    grid = inside if len(inside) <= num_points else np.linspace(start, end, num_points)
    # Scores are held from one point to the next: nothing is interpolated.
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
