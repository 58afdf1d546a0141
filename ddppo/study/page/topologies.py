"""The page's part on topologies side by side: one figure, two tables, and the rows of topologies.csv."""

import math
from collections.abc import Sequence
from typing import Any

from ddppo.study.columns import duration, percent, whole
from ddppo.study.measure.time_to_target import time_to_target
from ddppo.study.measure.topologies import Side, SideBySide
from ddppo.study.page.chart import Axis, Chart, named
from ddppo.study.page.tables import Shown, interval, number
from ddppo.study.runs import PARTS

_COLOURS = ("blue", "orange", "green", "red", "purple", "sky", "grey", "ink")  # of topologies in turn
_HEADS = dict(zip(PARTS, ("acting", "learning", "waiting", "communication", "rest"), strict=True))


def figure(found: SideBySide, name: str = "topologies") -> Chart:
    """Draw a bar for each topology and W, the median over seeds, and a dot for each seed."""
    target = found.best.runs[0].target_return
    what = f"time to a return of {target:g} (s)" if found.by_target else "FPS (steps/s)"
    chart = Chart(
        name,
        "Topologies: " + ("time to target" if found.by_target else "throughput"),
        named([str(side.row.world_size) for side in found.sides], "workers W of each topology"),
        Axis(what, shows=(0,)),
        "A bar is a median over seeds, a dot a seed"
        + ("; less is better. Without a bar: not reached." if found.by_target else "; more is better."),
    )
    colours = dict(
        zip(dict.fromkeys(side.topology for side in found.sides), _COLOURS * len(found.sides), strict=False)
    )
    for i, side in enumerate(found.sides):
        middle = (side.row.time_to_target if found.by_target else side.row.fps).median
        values = [time_to_target(run) if found.by_target else run.fps for run in side.runs]
        if math.isfinite(middle):
            said = f"{side.name}: {whole(middle)}{' s' if found.by_target else ' steps/s'}"
            chart.bar(i, 0, middle, colours[side.topology], said, side.topology)
        said_of = [f"seed {run.seed}: {whole(value)}" for run, value in zip(side.runs, values, strict=True)]
        chart.seeds([i] * len(values), values, "ink", said_of)
    return chart


def results(found: SideBySide) -> Shown:
    """Return what came of each topology at each W."""
    rows = [side.row for side in found.sides]
    columns: dict[str, list[str]] = {
        "topology": [side.topology for side in found.sides],
        "W": [str(row.world_size) for row in rows],
        "ranks": [_ranks(side) for side in found.sides],
        "seeds": [str(len(row.seeds)) for row in rows],
        "FPS": [interval(row.fps, "{:,.0f}") for row in rows],
    }
    if any(row.time_to_target.count for row in rows):
        target = found.best.runs[0].target_return
        columns[f"s to {target:g}"] = [interval(row.time_to_target, "{:.3g}", "not reached") for row in rows]
        columns["reached"] = [f"{row.num_reached} of {row.time_to_target.count}" for row in rows]
    if any(not math.isnan(run.wall_s) for side in found.sides for run in side.runs):
        columns["s to the end"] = [f"{_wall_s(side):.3g}" for side in found.sides]
    if any(row.final_return.count for row in rows):
        columns["return"] = [interval(row.final_return, "{:.4g}") for row in rows]
    return _shown(columns)


def _wall_s(side: Side) -> float:
    return sum(run.wall_s for run in side.runs) / len(side.runs)


def times(found: SideBySide) -> Shown:
    """Return where the time of each role goes, and what an iteration exchanges."""
    told = [(side, role, spent) for side in found.sides for role, spent in side.spent.items()]
    waits = sorted({part for _, _, spent in told for part in spent if part.startswith("for ")})
    columns: dict[str, list[str]] = {
        "topology": [side.topology for side, _, _ in told],
        "W": [str(side.row.world_size) for side, _, _ in told],
        "ranks": [f"{side.ranks[role]} x {role}" for side, role, _ in told],
        "iteration": [duration(side.row.t_iter["mean"]) for side, _, _ in told],
        **{head: [percent(spent[part]) for _, _, spent in told] for part, head in _HEADS.items()},
        **{wait: [percent(spent.get(wait, math.nan)) for _, _, spent in told] for wait in waits},
        "messages": [number(side.messages, "{:,.0f}") for side, _, _ in told],
        "kB": [number(side.num_bytes / 1000, "{:,.3g}") for side, _, _ in told],
    }
    for head, name in (("lag", "lag"), ("rows a forward", "inference_batch")):
        if any(not math.isnan(getattr(side, name)) for side, _, _ in told):
            columns[head] = [number(getattr(side, name), "{:.3g}") for side, _, _ in told]
    return _shown(columns)


def _ranks(side: Side) -> str:
    return ", ".join(f"{count} x {role}" for role, count in side.ranks.items()) or "–"


def _shown(columns: dict[str, list[str]]) -> Shown:
    return Shown(list(columns), [list(line) for line in zip(*columns.values(), strict=True)])


def rows(found: SideBySide) -> list[dict[str, Any]]:
    """Return the lines of topologies.csv: one for each topology, W and role; shares of a role's time are fractions."""
    lines = []
    for side in found.sides:
        row = side.row
        same = {
            "env_id": found.env_id,
            "rule": found.rule,
            "topology": side.topology,
            "world_size": row.world_size,
            "seeds": len(row.seeds),
            "fps": row.fps.median,
            "fps_low": row.fps.low,
            "fps_high": row.fps.high,
            "time_to_target_s": row.time_to_target.median,
            "num_reached_target": row.num_reached,
            "wall_s": _wall_s(side),
            "final_return": row.final_return.median,
            "t_iter_mean_s": row.t_iter["mean"],
            "messages": side.messages,
            "bytes": side.num_bytes,
            "lag_mean": side.lag,
            "inference_batch": side.inference_batch,
        }
        for role, spent in side.spent.items() or [("", {})]:
            shares = {f"share_{part.replace(' ', '_')}": share for part, share in spent.items()}
            lines.append(same | {"role": role, "ranks": side.ranks.get(role, row.world_size)} | shares)
    return lines


def as_json(found: SideBySide, said: Sequence[str]) -> dict[str, Any]:
    """Return what summary.json says of them."""
    return {
        "env_id": found.env_id,
        "rule": found.rule,
        "best": {"topology": found.best.topology, "world_size": found.best.row.world_size},
        "by": "time_to_target_s" if found.by_target else "fps",
        "behind": [
            {
                "topology": each.side.topology,
                "world_size": each.side.row.world_size,
                "times": each.times.median,
                "times_low": each.times.low,
                "times_high": each.times.high,
                "times_of_seeds": list(each.times.values),
                "steps": each.steps,
                "pace": each.pace,
            }
            for each in found.behind
        ],
        "said": list(said),
        "topologies": rows(found),
    }
