"""What does a run folder say about its run, complete or not? One row of a table, and curves.

Every folder is read: a run that is under way, or was killed, has no summary.json, and the last line of its
metrics.jsonl may be cut short. Folders that are no runs are skipped.
"""

import json
import math
import os
import time
from array import array
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ddppo.algorithms.known import training_section
from ddppo.config.stored import without_others
from ddppo.study.read.fields import FieldError, Fields, flat, one_line, parsed

_RANK_0 = b'"rank": 0,'  # as JsonlWriter writes it; lines of other ranks are not parsed
STATUSES = ("completed", "stopped", "failed", "running", "unfinished", "damaged")
_TAIL = 1 << 18  # bytes at the end of metrics.jsonl that are searched for the last iterations
_EVALUATED = "eval/return_mean"  # in the line of an iteration with an evaluation
_FRESH_S = 60.0  # a metrics.jsonl younger than this belongs to a run under way, perhaps on another machine
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of a run, at the iterations that have it."""

    env_steps: np.ndarray  # [points], of all ranks
    wall_s: np.ndarray  # [points], seconds of training
    values: np.ndarray  # [points]

    def __len__(self) -> int:
        return len(self.values)

    def at(self, env_steps: float) -> float:
        """Return the last value at or before `env_steps`; NaN before the first."""
        last = int(np.searchsorted(self.env_steps, env_steps, side="right")) - 1
        return float(self.values[last]) if last >= 0 else math.nan

    def reached(self, level: float) -> tuple[float, float]:
        """Return env_steps and wall_s of the first value at or above `level`; NaN if there is none."""
        there = np.flatnonzero(self.values >= level)
        if not len(there):
            return math.nan, math.nan
        return float(self.env_steps[there[0]]), float(self.wall_s[there[0]])


NOTHING = Curve(*(np.zeros(0) for _ in range(3)))


@dataclass(slots=True)
class _Columns:
    env_steps: "array[float]" = field(default_factory=lambda: array("d"))
    wall_s: "array[float]" = field(default_factory=lambda: array("d"))
    values: "array[float]" = field(default_factory=lambda: array("d"))


def read_curves(path: Path) -> tuple[dict[str, Curve], int]:
    """Return the curves of a metrics.jsonl, by metric, and the number of lines that could not be read.

    Per-rank metrics are those of rank 0. A line with no more steps than the line before is damaged and does not count.
    """
    found: dict[str, _Columns] = {}
    unread, last = 0, -math.inf
    try:
        file = path.open("rb")
    except OSError:
        return {}, 0
    with file:
        for text in file:
            # A quick look at the start of the line: most lines are those of other ranks.
            if _RANK_0 not in text[:200]:
                continue
            try:
                line = json.loads(text)
                steps, wall_s = float(line["env_steps"]), float(line["wall_s"])
            except (ValueError, KeyError, TypeError, RecursionError):
                unread += text.endswith(b"\n")  # a line without an end is being written
                continue
            if not steps > last:
                unread += 1
                continue
            last = steps
            # Every finite metric is a point of its curve.
            for name, value in line.items():
                if "/" in name and isinstance(value, float) and math.isfinite(value):
                    columns = found.setdefault(name, _Columns())
                    columns.env_steps.append(steps)
                    columns.wall_s.append(wall_s)
                    columns.values.append(value)
    curves = {
        name: Curve(np.array(c.env_steps), np.array(c.wall_s), np.array(c.values))
        for name, c in found.items()
    }
    return curves, unread


# -- One row for each run.


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run. Unknown numbers are NaN, unknown texts ""."""

    path: Path
    name: str  # relative to the listed folder
    status: str  # one of STATUSES
    task: str = ""
    world_size: float = math.nan
    topology: str = ""
    seed: float = math.nan
    env_steps: float = math.nan
    total_steps: float = math.nan
    final_return: float = math.nan  # of the final evaluation, or the last one, or the last training episodes
    best_return: float = math.nan  # of the best evaluation
    fps: float = math.nan
    wall_s: float = math.nan
    when: datetime | None = None  # of the last start
    commit: str = ""
    settings: Mapping[str, Any] | None = None  # under dotted names ("ppo.gamma")
    why: str = ""  # a damaged run is damaged


def read_records(folder: Path) -> list[RunRow]:
    """Return all runs at or below `folder`, in the order of their paths."""
    locks, found = _locks(), []
    for here, subfolders, _ in os.walk(folder):
        # Below a run there are no other runs; hidden folders are skipped.
        if is_run(path := Path(here)) and (record := _read(path, folder, locks)) is not None:
            found.append(record)
            subfolders.clear()
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
    return found


def read_record(folder: Path) -> RunRow | None:
    """Return the run in a folder; None if the folder is no run's."""
    return _read(folder, folder, _locks())


def is_run(folder: Path) -> bool:
    """Return whether a folder has files of a run, be they complete or not."""
    return any((folder / name).is_file() for name in ("config.yaml", "summary.json", "metrics.jsonl"))


def _read(path: Path, below: Path, locks: frozenset[int]) -> RunRow | None:
    name = _name(path.relative_to(below) if path != below else Path(path.name or path))
    try:
        if (path / "summary.json").is_file():
            # A run that ended has a summary; otherwise its settings and the lines so far.
            summary = parsed((path / "summary.json").read_text(encoding="utf-8"))
            if "schema_version" not in summary.values or "kind" in summary.values:
                return None  # not a run's: another program's, or a report's, which has a `kind`
            return _of_summary(path, name, summary)
        config = _config(path)
        return None if config is None else _of_metrics(path, name, config, locks)
    except (OSError, ValueError, FieldError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else e
        return RunRow(path, name, "damaged", why=one_line(reason), when=_written(path))


def _of_summary(path: Path, name: str, summary: Fields) -> RunRow:
    config = summary.section("config", default={})
    status = summary.text("status", default="")
    evaluation = summary.section("eval", default={})
    final = evaluation.section("final", default={}).number("return_mean", default=math.nan)
    best = evaluation.section("best", default={}).number("return_mean", default=math.nan)
    # A run that was stopped has no final evaluation: take its last return.
    if math.isnan(final) and summary.values.get("env_steps"):
        final = _last_return(_evaluations(path / "metrics.jsonl"), _tail(path / "metrics.jsonl"))
    return RunRow(
        path,
        name,
        status if status in STATUSES else "damaged",
        **_of_config(config),
        env_steps=summary.number("env_steps", default=math.nan),
        final_return=final,
        best_return=best,
        fps=summary.number("fps", default=math.nan),
        wall_s=summary.number("wall_s", default=math.nan),
        when=_time(summary.text("started_at", default="")) or _written(path),
        commit=summary.text("git_commit", default=""),
        why="" if status in STATUSES else f"status={one_line(status)} in summary.json",
    )


def _of_metrics(path: Path, name: str, config: Fields, locks: frozenset[int]) -> RunRow:
    """Return the record of a run without summary.json: one that goes on, or was cut off."""
    lines = _tail(path / "metrics.jsonl")
    last = Fields(lines[-1] if lines else {})
    scores = _evaluations(path / "metrics.jsonl")
    return RunRow(
        path,
        name,
        "running" if _is_under_way(path, locks) else "unfinished",
        **_of_config(config),
        env_steps=last.number("env_steps", default=math.nan if lines else 0.0),
        final_return=_last_return(scores, lines),
        best_return=max(scores, default=math.nan),
        fps=last.number("rollout/fps", default=math.nan),
        wall_s=last.number("wall_s", default=math.nan),
        when=_written(path),
    )


def _of_config(config: Fields) -> dict[str, Any]:
    env, dist = config.section("env", default={}), config.section("dist", default={})
    training = config.section(training_section(config.values), default={})
    return {
        "task": env.text("id", default=""),
        "world_size": dist.number("world_size", default=math.nan),
        "topology": dist.text("topology", default=""),
        "seed": math.nan if config.values.get("seed") is None else config.whole("seed", high=2**63),
        "total_steps": training.number("total_steps", default=math.nan),
        "settings": flat(without_others(config.tree(), imports=False)),
    }


def _config(path: Path) -> Fields | None:
    """Return config.yaml; None if it is not a run's. Raises OSError, or ValueError if it is cut off."""
    try:
        loaded = yaml.load((path / "config.yaml").read_text(encoding="utf-8"), Loader=_LOADER)
    except yaml.YAMLError as e:
        raise ValueError(f"config.yaml is not readable: {one_line(e)}") from e
    if not isinstance(loaded, dict) or not {"env", training_section(loaded), "dist"} <= loaded.keys():
        if (path / "metrics.jsonl").is_file():
            raise ValueError("config.yaml is not the configuration of a run")
        return None
    return Fields(loaded)


def _tail(path: Path) -> list[dict[str, Any]]:
    """Return the lines of rank 0 in the last _TAIL bytes of metrics.jsonl, without damaged ones."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            text = file.read()
    except OSError:
        return []
    pieces = text.split(b"\n")[:-1]  # after the last newline is a line that is being written
    lines = []
    for piece in pieces[1:] if size > _TAIL else pieces:
        with suppress(ValueError, RecursionError):
            line = json.loads(piece)
            if isinstance(line, dict) and line.get("rank") == 0:
                lines.append(line)
    return lines


def _evaluations(path: Path) -> list[float]:
    """Return the mean return of every evaluation in metrics.jsonl; only lines with an evaluation are parsed."""
    wanted, found = f'"{_EVALUATED}"'.encode(), []
    with suppress(OSError), path.open("rb") as file:
        for text in file:
            if wanted in text:
                with suppress(ValueError, RecursionError):
                    line = json.loads(text)
                    if isinstance(line, dict) and isinstance(value := line.get(_EVALUATED), float):
                        found.append(value)
    return found


def _last_return(scores: list[float], lines: list[dict[str, Any]]) -> float:
    """Return the score of the last evaluation or, without one, the last training return in the lines."""
    if scores:
        return scores[-1]
    values = (line.get("rollout/return_mean") for line in reversed(lines))
    return next((float(value) for value in values if isinstance(value, (int, float))), math.nan)


def _is_under_way(path: Path, locks: frozenset[int]) -> bool:
    """Return whether a process of this machine has locked the folder, or metrics.jsonl was written lately."""
    with suppress(OSError):
        if (path / ".lock").stat().st_ino in locks:
            return True
    with suppress(OSError):
        return time.time() - (path / "metrics.jsonl").stat().st_mtime < _FRESH_S
    return False


def _locks() -> frozenset[int]:
    """Return the inodes of all locked files on this machine. Trying to lock one could stop a run that begins."""
    with suppress(OSError, ValueError, IndexError):
        lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
        # "1: FLOCK ADVISORY WRITE <pid> <device>:<inode> 0 EOF"; with "->" as its second word a process still waits.
        return frozenset(int(words[5].split(":")[2]) for words in lines if words[1] == "FLOCK")
    return frozenset()


def _written(path: Path) -> datetime | None:
    for name in ("config.yaml", "summary.json", "metrics.jsonl"):
        with suppress(OSError):
            return datetime.fromtimestamp((path / name).stat().st_mtime, UTC)
    return None


def _time(text: str) -> datetime | None:
    with suppress(ValueError):
        found = datetime.fromisoformat(text)
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    return None


def _name(path: Path) -> str:
    """Return a path as printable text: file systems allow any bytes in a name."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
