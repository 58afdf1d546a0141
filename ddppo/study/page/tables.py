"""The numbers of a report: rows for CSV and JSON, scalars for TensorBoard, and the table on the terminal."""

import csv
import io
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ddppo.statistics import Estimate
from ddppo.study.explain.accounting import Account
from ddppo.study.measure.speedup import Row, Study
from ddppo.study.measure.time_to_target import time_to_target
from ddppo.study.runs import PARTS, Run


def run_row(run: Run) -> dict[str, Any]:
    """Return one line of per_run.csv; times are means over ranks and iterations after warm-up, in seconds."""
    times = {f"{name}_mean": float(values.mean()) for name, values in run.times.items() if values.size}
    return {
        "env_id": run.env_id,
        "rule": run.rule,
        "world_size": run.world_size,
        "seed": run.seed,
        "num_envs": run.num_envs,
        "rollout_steps": run.rollout_steps,
        "env_steps": run.env_steps,
        "wall_s": run.wall_s,
        "fps": run.fps,
        "iterations_measured": len(run.steps),
        "iterations_of_other_world_sizes": sum(run.others.values()),
        **{f"{name}_mean": times.get(f"{name}_mean", math.nan) for name in ("t_iter", *PARTS)},
        "final_return": run.final_return,
        "target_return": run.target_return,
        "time_to_target_s": time_to_target(run),
        "path": run.path,
    }


def study_row(study: Study, row: Row, account: Account | None) -> dict[str, Any]:
    """Return one line of summary.csv: everything about one W, flat."""
    return {
        "env_id": study.env_id,
        "rule": study.rule,
        "world_size": row.world_size,
        "seeds": len(row.seeds),
        "num_envs": row.num_envs,
        "rollout_steps": row.rollout_steps,
        "steps_per_iter": row.steps_per_iter,
        **_spelled("fps", row.fps),
        **_spelled("speedup", row.speedup),
        **_spelled("efficiency", row.efficiency),
        **_spelled("time_to_target_s", row.time_to_target),
        "num_reached_target": row.num_reached,
        **_spelled("speedup_by_target", row.speedup_by_target),
        **_spelled("efficiency_by_target", row.efficiency_by_target),
        **{f"t_iter_{name}_s": value for name, value in row.t_iter.items()},
        **{f"{part}_mean_s": row.parts.get(part, math.nan) for part in PARTS},
        "rho_comm": row.rho_comm,
        "rho_sync": row.rho_sync,
        "oversubscription": row.oversubscription,
        "stragglers": " ".join(str(rank.rank) for rank in row.stragglers),
        **_spelled("final_return", row.final_return),
        **{f"{name}_p50": quantiles["p50"] for name, quantiles in row.stability.items()},
        **({} if account is None else {f"loss_{cause}": share for cause, share in account.shares.items()}),
    }


def _spelled(name: str, value: Estimate) -> dict[str, float]:
    return {
        name: value.median,
        f"{name}_low": value.low,
        f"{name}_high": value.high,
        f"{name}_iqm": value.iqm,
        f"{name}_iqm_low": value.iqm_low,
        f"{name}_iqm_high": value.iqm_high,
    }


def study_rows(study: Study, accounts: Sequence[Account]) -> list[dict[str, Any]]:
    of = {account.world_size: account for account in accounts}
    return [study_row(study, row, of.get(row.world_size)) for row in study.rows]


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV under the union of their columns; NaN is empty, infinity `inf`."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: "" if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()})
    return buffer.getvalue()


def to_json(value: Any) -> str:
    """Return JSON in which NaN and infinity are null."""
    return json.dumps(_jsonable(value), indent=2, allow_nan=False) + "\n"


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)


def detail(row: Row) -> dict[str, Any]:
    """Return what summary.json tells of one W beyond its flat row: ranks and stability."""
    return {"ranks": [asdict(rank) for rank in row.ranks], "stability": row.stability}


def write_tensorboard(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write every finite number of the rows as scaling/<name>, with W as the step."""
    event_pb2 = import_module("tensorboard.compat.proto.event_pb2")
    summary_pb2 = import_module("tensorboard.compat.proto.summary_pb2")
    writer = import_module("tensorboard.summary.writer.event_file_writer").EventFileWriter(str(folder))
    for row in rows:
        values = [
            summary_pb2.Summary.Value(tag=f"scaling/{name}", simple_value=float(value))
            for name, value in row.items()
            if name != "world_size" and isinstance(value, (int, float)) and math.isfinite(value)
        ]
        summary = summary_pb2.Summary(value=values)
        writer.add_event(event_pb2.Event(wall_time=time.time(), step=int(row["world_size"]), summary=summary))
    writer.close()


# -- for people ------------------------------------------------------------------------------------------------------


def speed_table(study: Study) -> tuple[list[str], list[list[str]]]:
    """Return head and cells: throughput, speedup, efficiency, time to target, return."""
    reached = any(row.time_to_target.count for row in study.rows)
    scored = any(row.final_return.count for row in study.rows)
    head = ["W", "seeds", "FPS", "S", "E"]
    head += [f"s to {study.target_return:g}", "reached", "S by time", "E by time"] if reached else []
    head += ["return"] if scored else []
    lines = []
    for row in study.rows:
        cells = [str(row.world_size), str(len(row.seeds)), interval(row.fps, "{:,.0f}")]
        cells += [interval(row.speedup, "{:.3g}"), interval(row.efficiency, "{:.3g}")]
        if reached:
            cells += [
                interval(row.time_to_target, "{:.3g}"),
                f"{row.num_reached} of {row.time_to_target.count}",
                interval(row.speedup_by_target, "{:.3g}"),
                interval(row.efficiency_by_target, "{:.3g}"),
            ]
        lines.append(cells + ([interval(row.final_return, "{:.4g}")] if scored else []))
    return head, lines


def iqm_table(study: Study) -> tuple[list[str], list[list[str]]]:
    """Return head and cells: the interquartile means of the same; no cells where every W has one seed."""
    columns = [("FPS", "fps", "{:,.0f}"), ("S", "speedup", "{:.3g}"), ("E", "efficiency", "{:.3g}")]
    if any(row.time_to_target.count for row in study.rows):
        columns += [
            (f"s to {study.target_return:g}", "time_to_target", "{:.3g}"),
            ("S by time", "speedup_by_target", "{:.3g}"),
            ("E by time", "efficiency_by_target", "{:.3g}"),
        ]
    if any(row.final_return.count for row in study.rows):
        columns.append(("return", "final_return", "{:.4g}"))
    lines = []
    if any(len(row.seeds) > 1 for row in study.rows):
        for row in study.rows:
            values = [(getattr(row, name), form) for _, name, form in columns]
            cells = [
                interval(Estimate(value.iqm, math.nan, value.iqm_low, value.iqm_high, value.count), form)
                for value, form in values
            ]
            lines.append([str(row.world_size), *cells])
    return ["W", *(f"{name} (IQM)" for name, _, _ in columns)], lines


def time_table(study: Study) -> tuple[list[str], list[list[str]]]:
    """Return head and cells: latency and parts of the iteration in ms, ratios, slow ranks; no cells without times."""
    head = ["W", "t_iter ms", "p50", "p95", "max", *PARTS, "rho_comm", "rho_sync", "slow ranks"]
    lines = []
    for row in study.rows:
        if math.isnan(row.t_iter["mean"]):
            continue
        seconds = [*(row.t_iter[name] for name in ("mean", "p50", "p95", "max"))]
        seconds += [row.parts.get(part, math.nan) for part in PARTS]
        slow = " ".join(str(rank.rank) for rank in row.stragglers) or "none"
        ratios = [number(100 * row.rho_comm, "{:.1f} %"), number(100 * row.rho_sync, "{:.1f} %")]
        lines.append([str(row.world_size), *map(milliseconds, seconds), *ratios, slow])
    return head, lines


def number(value: float, form: str) -> str:
    """Return a number for people: a dash for NaN, `never` for +inf (a target that was not reached)."""
    return "–" if math.isnan(value) else "never" if math.isinf(value) else form.format(value)


def milliseconds(seconds: float) -> str:
    """Return a duration in ms with three digits, more for whole ones."""
    return number(1000 * seconds, "{:,.0f}" if seconds >= 1 else "{:.3g}")


def interval(value: Estimate, form: str) -> str:
    """Return `median [low, high]`, without the interval where there is none."""
    middle = number(value.median, form)
    if math.isnan(value.low):
        return middle
    return f"{middle} [{number(value.low, form)}, {number(value.high, form)}]"


def terminal(study: Study, width: int | None = None) -> str:
    """Return the short table: medians only."""
    head, lines = speed_table(study)
    of_times, timed = time_table(study)
    shown = [of_times.index(name) for name in ("t_iter ms", "rho_comm", "rho_sync", "slow ranks")]
    if timed:
        head += [of_times[i] for i in shown]
        of_row = {line[0]: line for line in timed}
        unknown = ["–"] * len(of_times)
        lines = [line + [of_row.get(line[0], unknown)[i] for i in shown] for line in lines]
    table = Table(title=title(study), title_justify="left", header_style="bold", box=SIMPLE_HEAD)
    for name in head:
        table.add_column(name, justify="right")
    for line in lines:
        table.add_row(*(cell.split(" [")[0] for cell in line))
    output = io.StringIO()
    Console(width=width, file=output).print(table)
    return "\n".join(line.rstrip() for line in output.getvalue().rstrip().splitlines())


def title(study: Study) -> str:
    runs = len(study.runs)
    return f"{study.env_id}, {study.rule} scaling, {runs} run{'s' if runs > 1 else ''}"
