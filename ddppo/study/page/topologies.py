"""How are topologies shown side by side? A figure, two tables, and the rows of topologies.csv."""

import math
from typing import Any

from ddppo.study.columns import duration, percent, whole
from ddppo.study.measure.speedup import time_to_target
from ddppo.study.measure.topologies import Side, SideBySide
from ddppo.study.page.chart import Axis, Chart, named
from ddppo.study.page.tables import Shown, measured, number, shown, study_row
from ddppo.study.read.record import PARTS

_COLOURS = ("blue", "orange", "green", "red", "purple", "sky", "grey", "ink")  # of each topology
# Columns of a study's table that are left out here: they are about one study, or in the table of times.
_LEFT_OUT = ("S", "E", "S by time", "iteration", "p95", "waiting", "communication", "slow ranks")
_HEADS = dict(zip(PARTS, ("acting", "learning", "waiting", "communication", "rest"), strict=True))


def figure(found: SideBySide) -> Chart:
    """Draw a bar for each topology and W, the median over seeds, and a dot for each seed."""
    target, unit = found.best.study.target_return, "s" if found.by_target else "steps/s"
    chart = Chart(
        "topologies",
        "Topologies: " + ("time to target" if found.by_target else "throughput"),
        named([str(side.row.world_size) for side in found.sides], "workers W of each topology"),
        Axis(f"time to a return of {target:g} (s)" if found.by_target else "FPS (steps/s)", shows=(0,)),
        "A bar is a median over seeds, a dot a seed. "
        + ("Less is better; no bar: not reached." if found.by_target else "More is better."),
    )
    # One colour for each topology, a bar for each W.
    names = dict.fromkeys(side.study.topology for side in found.sides)
    colours = dict(zip(names, _COLOURS * len(names), strict=False))
    for i, side in enumerate(found.sides):
        middle = (side.row.time_to_target if found.by_target else side.row.fps).median
        seeds = {run.seed: time_to_target(run) if found.by_target else run.fps for run in side.runs}
        if math.isfinite(middle):
            topology, text = side.study.topology, f"{side.name}: {whole(middle)} {unit}"
            chart.bar(i, 0, middle, colours[topology], text, topology)
        texts = [f"seed {seed}: {whole(value)} {unit}" for seed, value in seeds.items()]
        chart.seeds([i] * len(seeds), list(seeds.values()), "ink", texts)
    return chart


def results(found: SideBySide) -> Shown:
    """Return the table of results of each topology at each W."""
    rows, topologies = [side.row for side in found.sides], [side.study.topology for side in found.sides]
    ranks = [", ".join(f"{n} x {role}" for role, n in side.ranks.items()) or "–" for side in found.sides]
    ends = [f"{_wall_s(side):.3g}" for side in found.sides]
    columns = {"topology": topologies, "ranks": ranks} | measured(rows, found.best.study.target_return)
    return shown(
        {name: cells for name, cells in columns.items() if name not in _LEFT_OUT} | {"s to the end": ends}
    )


def times(found: SideBySide) -> Shown:
    """Return the table of each role's time by part, and of the messages of an iteration."""
    lines = [(side, role, spent) for side in found.sides for role, spent in side.spent.items()]
    columns = {
        "topology": [side.study.topology for side, _, _ in lines],
        "W": [str(side.row.world_size) for side, _, _ in lines],
        "ranks": [f"{side.ranks[role]} x {role}" for side, role, _ in lines],
        "iteration": [duration(side.iteration_s) for side, _, _ in lines],
        **{head: [percent(spent[part]) for _, _, spent in lines] for part, head in _HEADS.items()},
        "messages": [number(side.messages, "{:,.0f}") for side, _, _ in lines],
        "kB": [number(side.num_bytes / 1000, "{:,.0f}") for side, _, _ in lines],
    }
    for i, (_, _, spent) in enumerate(lines):
        # In brackets behind the waiting: for which role.
        if waits := [f"{part} {percent(x)}" for part, x in spent.items() if part not in PARTS and x >= 0.005]:
            columns["waiting"][i] += f" [{', '.join(waits)}]"
    # Columns that only some topologies have.
    for head, name in (("lag", "lag"), ("rows a forward", "inference_batch")):
        values = [getattr(side, name) for side, _, _ in lines]
        if not all(map(math.isnan, values)):
            columns[head] = [number(value, "{:.3g}") for value in values]
    return shown(columns)


def rows(found: SideBySide) -> list[dict[str, Any]]:
    """Return the lines of topologies.csv: one for each topology, W and role, with the shares of its ranks' time."""
    lines = []
    for side in found.sides:
        # The numbers of the topology at this W are repeated for each role.
        same = study_row(side.study, side.row, None) | {
            "wall_s": _wall_s(side),
            "messages": side.messages,
            "bytes": side.num_bytes,
            "lag_mean": side.lag,
            "inference_batch": side.inference_batch,
        }
        for role, spent in side.spent.items() or [("", {})]:
            shares = {f"share_{part.replace(' ', '_')}": share for part, share in spent.items()}
            lines.append(same | {"role": role, "ranks": side.ranks.get(role, side.row.world_size)} | shares)
    return lines


def _wall_s(side: Side) -> float:
    return sum(run.wall_s for run in side.runs) / len(side.runs)
