"""Somebody else's runs, from a CSV or JSONL file: one row per run, columns mapped to ours by name."""

import csv
import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ddppo.config.fields import near
from ddppo.errors import ConfigError
from ddppo.study.read import fields
from ddppo.study.read.fields import FieldError, Fields
from ddppo.study.read.record import PARTS, LeftOut, Origin, Reading, Run

# docs/report.md says what each is.
_SIZES = ("num_envs", "rollout_steps", "num_epochs", "num_minibatches", "num_parameters", "cores")
_TEXTS = ("env_id", "rule", "topology")
_OF_TARGET = ("final_return", "target_return", "time_to_target_s", "iterations_of_other_world_sizes")
COLUMNS = (
    *("world_size", "fps", *_TEXTS, "seed", "env_steps", "wall_s", *_SIZES, "threads_per_rank"),
    *(*_OF_TARGET, "t_iter", *PARTS),
)
_LONGER = 1.5  # times what the throughput makes of an iteration: warm-up and rounding are not more
_NO_SEED = -(2**63)  # the least there is, which nobody takes
_SHOWN = 16  # names of columns in a message
Rows = tuple[
    list[tuple[int, dict[str, Any]]], list[LeftOut]
]  # with line numbers; and the lines that are none


class _UnitError(FieldError):
    """Seconds that are hardly seconds."""


@dataclass(frozen=True, slots=True)
class ForeignTable:
    """Where the rows are and how to read them: columns maps our names to those of the file.

    env_id and rule hold for rows that do not tell theirs.
    """

    path: Path
    columns: Mapping[str, str]
    env_id: str = "unknown"
    rule: str = "strong"


def read_table(table: ForeignTable) -> Reading:
    """Read a table of runs. Raises ConfigError if a column is missing; a row that is no run is left out."""
    rows, left_out = _rows(table.path)
    if not rows and not left_out:
        raise ConfigError(f"{table.path} has no rows: it needs a line per run, with column names first")
    present = sorted({name for _, row in rows for name in row if name})
    columns = _mapping(table, present) if rows else {}
    found: list[tuple[int, Run]] = []
    first: dict[str, int] = {}
    asked: _UnitError | None = None
    for number, row in rows:
        try:
            same = first.setdefault(repr(sorted(row.items())), number)
            if same != number:
                raise FieldError(f"it repeats line {same}, which counts once")
            values = {our: _cell(row.get(n), n, is_text=our in _TEXTS) for our, n in columns.items()}
            found.append((number, _run(f"{table.path}, line {number}", table, values)))
        except FieldError as e:
            asked = e if isinstance(e, _UnitError) and asked is None else asked
            left_out.append(_left_out(table.path, number, e))
    if asked is not None and not found:
        raise ConfigError(f"{table.path}: {asked}")
    runs, again = _one_of_a_seed(table.path, found)
    ignored = [name for name in present if name not in columns.values()]
    remarks = [f"Columns of {table.path} that are not read: {_listed(ignored)}."] if ignored else []
    if "cores" not in columns and any(run.times for run in runs):
        other = "waiting, communication and the other causes"
        remarks.append(f"{table.path} has no column cores: what it costs to share them stands under {other}.")
    return Reading(runs, left_out + again, remarks)


def _one_of_a_seed(path: Path, found: list[tuple[int, Run]]) -> tuple[list[Run], list[LeftOut]]:
    """Return the last run of each task, rule, topology, W and seed, and those before it; without a seed it gets one."""
    runs: dict[tuple[str, str, str, int, int], tuple[int, Run]] = {}
    again = []
    # Rows without a seed last, the sort being stable.
    for number, run in sorted(found, key=lambda each: each[1].seed == _NO_SEED):
        group = (run.env_id, run.rule, run.topology, run.world_size)
        if run.seed == _NO_SEED:
            run = replace(run, seed=next(seed for seed in itertools.count() if (*group, seed) not in runs))
        elif (*group, run.seed) in runs:
            said = f"line {number} has W={run.world_size} seed={run.seed} again, and as the later one counts"
            again.append(_left_out(path, runs[*group, run.seed][0], FieldError(said)))
        runs[*group, run.seed] = number, run
    return [run for _, run in runs.values()], again


def _left_out(path: Path, number: int, error: FieldError) -> LeftOut:
    return LeftOut(f"{path}, line {number}", str(error), "correct the row, or remove it")


def _rows(path: Path) -> Rows:
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            lines = re.split("\r\n|\n|\r", file.read())
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e
    if "\0" in lines[0]:
        raise ConfigError(f"{path} is not text: give a .csv or .jsonl file, in UTF-8")
    return _json_rows(path, lines) if path.suffix in (".jsonl", ".ndjson") else _csv_rows(path, lines)


def _json_rows(path: Path, lines: list[str]) -> Rows:
    rows, left_out = [], []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                rows.append((number, dict(fields.parsed(line).values)))
            except FieldError as e:
                left_out.append(_left_out(path, number, e))
    return rows, left_out


def _csv_rows(path: Path, lines: list[str]) -> Rows:
    delimiter = max(",;\t", key=lines[0].count)
    rows, left_out = [], []
    head: list[str] | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            # A line at a time: a quote that is never closed would swallow every row after it.
            (cells,) = csv.reader([line], delimiter=delimiter, skipinitialspace=True, strict=True)
        except csv.Error as e:
            if head is None:
                raise ConfigError(f"{path}, line {number}, has no column names: {fields.one_line(e)}") from e
            left_out.append(_left_out(path, number, FieldError(f"it is not CSV: {fields.one_line(e)}")))
            continue
        if head is None:
            head = [name.strip() for name in cells]
        elif any(cells[len(head) :]):
            error = FieldError(f"it has {len(cells)} cells, {len(head)} columns have names")
            left_out.append(_left_out(path, number, error))
        else:
            rows.append((number, dict(zip(head, cells, strict=False))))
    return rows, left_out


def _mapping(table: ForeignTable, present: list[str]) -> dict[str, str]:
    """Return our names to theirs, of all columns that the file has; times may be called t_iter_mean, as we do."""
    for ours, theirs in table.columns.items():
        if ours not in COLUMNS:
            there_are = f"{near(ours, COLUMNS)}; there are {', '.join(COLUMNS)}"
            raise ConfigError(f"columns: {ours} is not a column of a report{there_are}")
        if theirs not in present:
            there_are = f"{near(theirs, present)}; it has {_listed(present)}"
            raise ConfigError(f"columns: {table.path} has no column {theirs}{there_are}")
    spelled = {name: next((n for n in (name, f"{name}_mean") if n in present), None) for name in COLUMNS}
    mapping = {name: n for name, n in spelled.items() if n is not None} | dict(table.columns)
    if "world_size" not in mapping or not ("fps" in mapping or {"env_steps", "wall_s"} <= mapping.keys()):
        raise ConfigError(
            f"{table.path} needs columns for world_size and for fps (or env_steps and wall_s), it has "
            f'{_listed(present)}: name them, e.g. columns="{{world_size: W, fps: FPS}}"'
        )
    return mapping


def _listed(names: list[str]) -> str:
    shown = ", ".join(fields.one_line(name, 40) for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _cell(cell: Any, column: str, *, is_text: bool) -> Any:
    """Return None for an empty cell, and the number that a text spells where it should."""
    if isinstance(cell, str):
        cell = cell.strip() or None
    if isinstance(cell, str) and not is_text:
        try:
            cell = float(cell)
        except ValueError:
            raise FieldError(f"{fields.one_line(column, 60)}={fields.quoted(cell)} is not a number") from None
    return None if isinstance(cell, float) and math.isnan(cell) else cell


def _run(where: str, table: ForeignTable, values: dict[str, Any]) -> Run:
    row = Fields(values)
    world_size = fields.as_whole(
        "world_size", values.get("world_size", math.nan), low=1, high=fields.MOST_WORKERS
    )
    wall_s = row.number("wall_s", above=0, high=fields.LARGEST_SECONDS, default=math.nan)
    env_steps = row.whole("env_steps", default=0)
    of_whole = env_steps / wall_s if wall_s > 0 else math.nan
    fps = fields.as_number("fps", of_whole if values.get("fps") is None else values["fps"], above=0)
    sizes: dict[str, Any] = {name: row.whole(name, high=fields.MOST_PARAMETERS, default=0) for name in _SIZES}
    steps = float(sizes["num_envs"] * sizes["rollout_steps"])
    times = _times(row, steps / fps or wall_s)
    if times and not steps:
        steps = fps * float(times["t_iter"][0, 0])
    return Run(
        path=where,
        env_id=row.text("env_id", default=table.env_id),
        world_size=world_size,
        seed=row.whole("seed", low=_NO_SEED, high=2**63, default=_NO_SEED),
        rule=row.text("rule", choices=("strong", "weak"), default=table.rule),
        **sizes,
        env_steps=env_steps,
        wall_s=wall_s,
        fps=fps,
        final_return=row.number("final_return", default=math.nan),
        target_return=row.number("target_return", default=math.nan),
        times=times,
        steps=np.array([steps]) if times else np.array([]),
        evaluations=(),
        origin=Origin(threads_per_rank=row.whole("threads_per_rank", low=1, high=1e6, default=1)),
        reached_at_s=_reached_at_s(row),
        topology=row.text("topology", default="ddp"),
    )


def _reached_at_s(row: Fields) -> float:
    """Return the time to target that a row tells: +inf if it never was, NaN if the row tells of none."""
    told = row.values.get("time_to_target_s", math.nan)
    if told is None:  # never, if something was asked for and came of it
        asked = all(row.values.get(name, 0) is not None for name in ("target_return", "final_return"))
        told = math.inf if asked else math.nan
    if row.whole("iterations_of_other_world_sizes", default=0) or told != told:
        return math.nan
    return (
        math.inf if told == math.inf else row.number("time_to_target_s", low=0, high=fields.LARGEST_SECONDS)
    )


def _times(row: Fields, longest: float) -> dict[str, np.ndarray]:
    """Return t_iter and the parts that the row has `[1, 1]`: a table of means tells nothing of single workers.

    longest: seconds that an iteration takes by the throughput, or the whole run.
    """
    t_iter = row.number("t_iter", above=0, high=fields.LARGEST_SECONDS, default=math.nan)
    if t_iter > _LONGER * longest:
        raise _UnitError(
            f"t_iter={t_iter:g} is {t_iter / longest:.3g} times the {longest:.3g} s that num_envs * rollout_steps / "
            "fps (or wall_s) leave for an iteration: are these milliseconds? Times are in seconds, and num_envs are "
            "those of all workers"
        )
    seconds = {"t_iter": t_iter}
    for part in PARTS:
        # As in a run's own lines, t_other is what the others leave, and may be a rounding below 0.
        low = -1e-6 if part != "t_other" else -fields.LARGEST_SECONDS
        seconds[part] = row.number(part, low=low, high=fields.LARGEST_SECONDS, default=math.nan)
        if seconds[part] > t_iter * (1 + 1e-6):
            raise _UnitError(
                f"{part}={seconds[part]:g} is more than t_iter={t_iter:g}, of which it is a part: are these "
                "milliseconds? Times are in seconds"
            )
    if math.isnan(t_iter):
        return {}
    return {name: np.full((1, 1), t) for name, t in seconds.items() if not math.isnan(t)}
