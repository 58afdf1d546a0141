"""Somebody else's runs, from a CSV or JSONL file: one row per run, columns mapped to ours by name."""

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ddppo.config import near
from ddppo.errors import ConfigError
from ddppo.scaling.runs import PARTS, LeftOut, Reading, Run

# Our columns, and what each is. A row needs world_size and either fps or env_steps and wall_s.
COLUMNS = {
    "world_size": "workers W",
    "fps": "environment steps of all workers per second",
    "seed": "seed; rows of one W without seeds are numbered",
    "env_steps": "environment steps of the whole run",
    "wall_s": "seconds of training of the whole run",
    "num_envs": "environments of all workers",
    "rollout_steps": "steps per environment and iteration",
    "final_return": "return at the end",
    "t_iter": "mean seconds per iteration",
    **{part: f"mean seconds per iteration in {part}, means over workers" for part in PARTS},
}


@dataclass(frozen=True, slots=True)
class ForeignTable:
    """Where the rows are and how to read them: columns maps our names to those of the file."""

    path: Path
    columns: Mapping[str, str]
    env_id: str = "unknown"
    rule: str = "strong"


def read_table(table: ForeignTable) -> Reading:
    """Read a table of runs. Raises ConfigError if a column is missing; a row that is no run is left out."""
    rows = _rows(table.path)
    if not rows:
        raise ConfigError(f"{table.path} has no rows: it needs a line per run, with column names first")
    columns = _mapping(table, sorted({name for _, row in rows for name in row}))
    runs: list[Run] = []
    left_out = []
    counts: dict[int, int] = {}
    for number, row in rows:
        where = f"{table.path}, line {number}"
        try:
            values = {ours: _number(row.get(theirs), theirs) for ours, theirs in columns.items()}
            run = _run(where, table, values, counts)
        except ValueError as e:
            left_out.append(LeftOut(where, str(e), "correct the row, or remove it"))
            continue
        counts[run.world_size] = counts.get(run.world_size, 0) + 1
        runs.append(run)
    return Reading(runs, left_out)


def _rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return the rows with their line numbers."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} cannot be read as text: {e}") from e
    lines = text.splitlines()
    if path.suffix in (".jsonl", ".ndjson"):
        rows = []
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as e:
                raise ConfigError(f"{path}, line {number}, is not JSON: {e}") from e
            if not isinstance(row, dict):
                raise ConfigError(
                    f'{path}, line {number}, is not a JSON object such as {{"W": 1, "FPS": 1000}}'
                )
            rows.append((number, row))
        return rows
    head = lines[0] if lines else ""
    delimiter = max(",;\t", key=head.count)
    reader = csv.DictReader(lines, delimiter=delimiter, skipinitialspace=True)
    return [(reader.line_num, {(k or "").strip(): v for k, v in row.items()}) for row in reader]


def _mapping(table: ForeignTable, present: list[str]) -> dict[str, str]:
    """Return our names to theirs, of all columns that the file has."""
    for ours, theirs in table.columns.items():
        if ours not in COLUMNS:
            there_are = f"{near(ours, list(COLUMNS))}; there are {', '.join(COLUMNS)}"
            raise ConfigError(f"columns: {ours} is not a column of a report{there_are}")
        if theirs not in present:
            raise ConfigError(
                f"columns: {table.path} has no column {theirs}{near(theirs, present)}; it has {', '.join(present)}"
            )
    mapping = {name: name for name in COLUMNS if name in present} | dict(table.columns)
    if "world_size" not in mapping or not ("fps" in mapping or {"env_steps", "wall_s"} <= mapping.keys()):
        raise ConfigError(
            f"{table.path} needs columns for world_size and for fps (or env_steps and wall_s), it has "
            f'{", ".join(present)}: name them, e.g. columns="{{world_size: W, fps: FPS}}"'
        )
    return mapping


def _number(cell: Any, column: str) -> float:
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return math.nan
    try:
        return float(cell)
    except (TypeError, ValueError):
        raise ValueError(f"{column}={cell!r} is not a number") from None


def _run(where: str, table: ForeignTable, values: dict[str, float], counts: dict[int, int]) -> Run:
    def get(name: str) -> float:
        return values.get(name, math.nan)

    def whole(name: str) -> int:
        return 0 if math.isnan(get(name)) else int(get(name))

    workers = get("world_size")
    if not (workers >= 1 and workers == int(workers)):
        raise ValueError(f"world_size={workers:g} is not a whole number of at least 1")
    world_size = int(workers)
    fps = get("fps")
    if math.isnan(fps) and get("wall_s") > 0:
        fps = get("env_steps") / get("wall_s")
    if not (fps > 0 and math.isfinite(fps)):
        raise ValueError(f"fps={fps:g} is not a number above 0")
    # The same mean for every worker: that is all a table of means tells.
    times = {
        name: np.full((1, world_size), get(name))
        for name in ("t_iter", *PARTS)
        if not math.isnan(get(name)) and not math.isnan(get("t_iter"))
    }
    steps = np.array([fps * get("t_iter")]) if times else np.array([])
    return Run(
        path=where,
        env_id=table.env_id,
        world_size=world_size,
        seed=counts.get(world_size, 0) if math.isnan(get("seed")) else int(get("seed")),
        rule=table.rule,
        num_envs=whole("num_envs"),
        rollout_steps=whole("rollout_steps"),
        num_epochs=0,
        num_minibatches=0,
        num_parameters=0,
        cores=0,
        env_steps=whole("env_steps"),
        wall_s=get("wall_s"),
        fps=fps,
        final_return=get("final_return"),
        target_return=math.nan,
        times=times,
        steps=steps,
        evaluations=(),
    )
