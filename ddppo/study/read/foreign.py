"""What does a table of runs of another trainer say? A CSV or JSONL file has a row per run; columns map to ours by name.

A row with a wrong value is left out and named, and the others are still read.
"""

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

# docs/report.md explains every column.
_SIZES = ("num_envs", "rollout_steps", "num_epochs", "num_minibatches", "num_parameters", "cores")
_TEXTS = ("env_id", "rule", "topology")
_OF_TARGET = ("final_return", "target_return", "time_to_target_s", "iterations_of_other_world_sizes")
COLUMNS = (
    *("world_size", "fps", *_TEXTS, "seed", "env_steps", "wall_s", *_SIZES, "threads_per_rank"),
    *(*_OF_TARGET, "t_iter", *PARTS),
)
_LONGER = 1.5  # largest ratio of t_iter to steps / fps that warm-up and rounding can explain
_NO_SEED = -(2**63)  # the smallest allowed seed stands for none
_MAX_NAMES = 16  # of columns in a message
# Rows with line numbers; lines that are no rows.
Rows = tuple[list[tuple[int, dict[str, Any]]], list[LeftOut]]


class _UnitError(FieldError):
    """A time that is probably not in seconds."""


@dataclass(frozen=True, slots=True)
class ForeignTable:
    """A file of runs, and how to read it."""

    path: Path
    columns: Mapping[str, str]  # our name of a column -> its name in the file
    env_id: str = "unknown"  # for rows without one
    rule: str = "strong"  # for rows without one


def read_table(table: ForeignTable) -> Reading:
    """Read a table of runs. Raises ConfigError if a column is missing. A row that is no run is left out."""
    # 1. Lines become rows; columns get our names.
    rows, left_out = _rows(table.path)
    if not rows and not left_out:
        raise ConfigError(f"{table.path} has no rows: it needs a line per run, with column names first")
    present = sorted({name for _, row in rows for name in row if name})
    columns = _mapping(table, present) if rows else {}
    # 2. Rows become runs; a row with a mistake is left out.
    found: list[tuple[int, Run]] = []
    first: dict[str, int] = {}  # content of a row -> its first line
    unit_error: _UnitError | None = None
    for number, row in rows:
        try:
            # An exact copy of a row counts once.
            same = first.setdefault(repr(sorted(row.items())), number)
            if same != number:
                raise FieldError(f"it repeats line {same}, which counts once")
            values = {our: _cell(row.get(n), n, is_text=our in _TEXTS) for our, n in columns.items()}
            found.append((number, _run(f"{table.path}, line {number}", table, values)))
        except FieldError as e:
            unit_error = e if isinstance(e, _UnitError) and unit_error is None else unit_error
            left_out.append(_left_out(table.path, number, e))
    # If no row is left and times are the reason, say so as the error, not in a list of rows.
    if unit_error is not None and not found:
        raise ConfigError(f"{table.path}: {unit_error}")
    # 3. One run for each seed, and remarks on columns.
    runs, again = _one_of_a_seed(table.path, found)
    ignored = [name for name in present if name not in columns.values()]
    remarks = [f"Columns of {table.path} that are not read: {_listed(ignored)}."] if ignored else []
    if "cores" not in columns and any(run.times for run in runs):
        other = "waiting, communication and the other causes"
        remarks.append(f"{table.path} has no column cores: what it costs to share them stands under {other}.")
    return Reading(runs, left_out + again, remarks)


def _one_of_a_seed(path: Path, found: list[tuple[int, Run]]) -> tuple[list[Run], list[LeftOut]]:
    """Return the last run of each task, rule, topology, W and seed, and the earlier ones as left out.

    A run without a seed gets the smallest free one.
    """
    runs: dict[tuple[str, str, str, int, int], tuple[int, Run]] = {}
    again = []
    # Rows without a seed come last (the sort is stable), when all given seeds are known.
    for number, run in sorted(found, key=lambda each: each[1].seed == _NO_SEED):
        group = (run.env_id, run.rule, run.topology, run.world_size)
        # The smallest seed that no other run of the group has.
        if run.seed == _NO_SEED:
            run = replace(run, seed=next(seed for seed in itertools.count() if (*group, seed) not in runs))
        elif (*group, run.seed) in runs:
            reason = (
                f"line {number} has W={run.world_size} seed={run.seed} again, and as the later one counts"
            )
            again.append(_left_out(path, runs[*group, run.seed][0], FieldError(reason)))
        runs[*group, run.seed] = number, run
    return [run for _, run in runs.values()], again


def _left_out(path: Path, number: int, error: FieldError) -> LeftOut:
    return LeftOut(f"{path}, line {number}", str(error), "correct the row, or remove it")


def _rows(path: Path) -> Rows:
    try:
        # utf-8-sig removes the byte order mark that spreadsheets write.
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
    # The delimiter is the one that occurs most in the heading.
    delimiter = max(",;\t", key=lines[0].count)
    rows, left_out = [], []
    head: list[str] | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            # Parse one line at a time: over the whole file, a quote that is not closed would swallow all later rows.
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
    """Return {our name: its name in the file} for all columns of the file that a report uses.

    Times may have the suffix _mean, as in the tables that ddppo writes.
    """
    # Check the mapping of the user.
    for ours, theirs in table.columns.items():
        if ours not in COLUMNS:
            there_are = f"{near(ours, COLUMNS)}; there are {', '.join(COLUMNS)}"
            raise ConfigError(f"columns: {ours} is not a column of a report{there_are}")
        if theirs not in present:
            there_are = f"{near(theirs, present)}; it has {_listed(present)}"
            raise ConfigError(f"columns: {table.path} has no column {theirs}{there_are}")
    # Columns that need no mapping.
    spelled = {name: next((n for n in (name, f"{name}_mean") if n in present), None) for name in COLUMNS}
    mapping = {name: n for name, n in spelled.items() if n is not None} | dict(table.columns)
    if "world_size" not in mapping or not ("fps" in mapping or {"env_steps", "wall_s"} <= mapping.keys()):
        raise ConfigError(
            f"{table.path} needs columns for world_size and for fps (or env_steps and wall_s), it has "
            f'{_listed(present)}: name them, e.g. columns="{{world_size: W, fps: FPS}}"'
        )
    return mapping


def _listed(names: list[str]) -> str:
    shown = ", ".join(fields.one_line(name, 40) for name in names[:_MAX_NAMES])
    return shown + (f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else "")


def _cell(cell: Any, column: str, *, is_text: bool) -> Any:
    """Return the value of a cell: None if it is empty, a float if the column has numbers."""
    if isinstance(cell, str):
        cell = cell.strip() or None
    if isinstance(cell, str) and not is_text:
        try:
            cell = float(cell)
        except ValueError:
            raise FieldError(f"{fields.one_line(column, 60)}={fields.quoted(cell)} is not a number") from None
    return None if isinstance(cell, float) and math.isnan(cell) else cell


def _run(where: str, table: ForeignTable, values: dict[str, Any]) -> Run:
    """Return the run in a row. Raises FieldError."""
    # Required: world_size, and fps or env_steps and wall_s.
    row = Fields(values)
    world_size = fields.as_whole(
        "world_size", values.get("world_size", math.nan), low=1, high=fields.MOST_WORKERS
    )
    wall_s = row.number("wall_s", above=0, high=fields.LARGEST_SECONDS, default=math.nan)
    env_steps = row.whole("env_steps", default=0)
    # Throughput: the column, or env_steps / wall_s without one.
    mean_fps = env_steps / wall_s if wall_s > 0 else math.nan
    fps = fields.as_number("fps", mean_fps if values.get("fps") is None else values["fps"], above=0)
    # Optional: sizes and times.
    sizes: dict[str, Any] = {name: row.whole(name, high=fields.MOST_PARAMETERS, default=0) for name in _SIZES}
    steps = float(sizes["num_envs"] * sizes["rollout_steps"])
    times = _times(row, steps / fps or wall_s)
    # Steps of an iteration: from the sizes, or from throughput and time.
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
    """Return the time to target in a row: +inf if the target was never reached, NaN if the row does not say."""
    seconds = row.values.get("time_to_target_s", math.nan)
    if seconds is None:  # an empty cell: never reached, if the run had a target and a return
        had_target = all(row.values.get(name, 0) is not None for name in ("target_return", "final_return"))
        seconds = math.inf if had_target else math.nan
    # A time over iterations of several world sizes describes none of them.
    if row.whole("iterations_of_other_world_sizes", default=0) or seconds != seconds:
        return math.nan
    if seconds == math.inf:
        return math.inf
    return row.number("time_to_target_s", low=0, high=fields.LARGEST_SECONDS)


def _times(row: Fields, longest: float) -> dict[str, np.ndarray]:
    """Return t_iter and the parts in a row, each `[1, 1]`: a mean over iterations and ranks.

    longest: seconds of an iteration by its throughput, or of the whole run. Raises _UnitError if t_iter is far longer.
    """
    t_iter = row.number("t_iter", above=0, high=fields.LARGEST_SECONDS, default=math.nan)
    if t_iter > _LONGER * longest:
        raise _UnitError(
            f"t_iter={t_iter:g} is {t_iter / longest:.3g} times the {longest:.3g} s that num_envs * rollout_steps / "
            "fps (or wall_s) leave for an iteration: are these milliseconds? Times are in seconds, and num_envs are "
            "those of all workers"
        )
    # A part cannot be longer than its iteration.
    seconds = {"t_iter": t_iter}
    for part in PARTS:
        # t_other is the rest after the other parts, as in metrics.jsonl, so rounding may bring it below 0.
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
