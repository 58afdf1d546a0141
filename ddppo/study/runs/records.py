"""What each run folder below a folder says of its run, complete or not, as one line of a table and as curves.

Whatever lies there is read: runs under way or cut off have no summary.json, a kill may have cut the last line of
metrics.jsonl, and folders of others are passed over.
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

from ddppo.config.stored import without_others
from ddppo.study.read.fields import FieldError, Fields, flat, one_line, parsed

_RANK_0 = b'"rank": 0,'  # as JsonlWriter writes it: the other lines need no parser
STATUSES = ("completed", "stopped", "failed", "running", "unfinished", "damaged")
_TAIL = 1 << 18  # bytes at the end of metrics.jsonl in which a run's last iterations are looked for
_EVALUATED = "eval/return_mean"  # in a line of an iteration that was followed by an evaluation
_FRESH_S = 60.0  # since the last line of a run that goes on on another machine
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric `[points]` where it was told: env_steps (sum over ranks), wall_s (seconds of training), values."""

    env_steps: np.ndarray
    wall_s: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    def at(self, env_steps: float) -> float:
        """Return the last value told at or before so many steps; NaN before the first."""
        last = int(np.searchsorted(self.env_steps, env_steps, side="right")) - 1
        return float(self.values[last]) if last >= 0 else math.nan

    def reached(self, level: float) -> tuple[float, float]:
        """Return env_steps and wall_s of the first value at or above `level`; NaN where there is none."""
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
    """Return the curves of a metrics.jsonl by metric, and how many of its lines could not be read.

    Of per-rank metrics those of rank 0. Steps never go back: what a damaged file has twice counts once.
    """
    found: dict[str, _Columns] = {}
    unread, last = 0, -math.inf
    try:
        file = path.open("rb")
    except OSError:
        return {}, 0
    with file:
        for text in file:
            if _RANK_0 not in text[:200]:
                continue
            try:
                line = json.loads(text)
                steps, wall_s = float(line["env_steps"]), float(line["wall_s"])
            except (ValueError, KeyError, TypeError, RecursionError):
                unread += text.endswith(b"\n")  # else it is being written
                continue
            if not steps > last:
                unread += 1
                continue
            last = steps
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


# -- a line for each run ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run. Numbers that are not known are NaN, texts empty; settings are flat ("ppo.gamma").

    final_return: of the final evaluation, else of the last one, else of the last training episodes. best_return: of
    the best evaluation. when: of the last start. why: what is wrong with a damaged one.
    """

    path: Path
    name: str
    status: str
    task: str = ""
    world_size: float = math.nan
    topology: str = ""
    seed: float = math.nan
    env_steps: float = math.nan
    total_steps: float = math.nan
    final_return: float = math.nan
    best_return: float = math.nan
    fps: float = math.nan
    wall_s: float = math.nan
    when: datetime | None = None
    commit: str = ""
    settings: Mapping[str, Any] | None = None
    why: str = ""


def read_records(folder: Path) -> list[RunRow]:
    """Return all runs at or below `folder`, in the order of their paths."""
    locks, found = _locks(), []
    for here, subfolders, _ in os.walk(folder):
        if is_run(path := Path(here)) and (record := _read(path, folder, locks)) is not None:
            found.append(record)
            subfolders.clear()
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
    return found


def read_record(folder: Path) -> RunRow | None:
    """Return the run of one run folder; None where it is none."""
    return _read(folder, folder, _locks())


def is_run(folder: Path) -> bool:
    """Return whether a folder has files of a run, whole or not."""
    return any((folder / name).is_file() for name in ("config.yaml", "summary.json", "metrics.jsonl"))


def _read(path: Path, below: Path, locks: frozenset[int]) -> RunRow | None:
    name = _name(path.relative_to(below) if path != below else Path(path.name or path))
    try:
        if (path / "summary.json").is_file():
            summary = parsed((path / "summary.json").read_text(encoding="utf-8"))
            if "schema_version" not in summary.values or "kind" in summary.values:
                return None  # somebody else's, or a report's: its `kind` tells it from a run's
            return _of_summary(path, name, summary)
        config = _config(path)
        return None if config is None else _of_metrics(path, name, config, locks)
    except (OSError, ValueError, FieldError) as e:
        said = e.strerror if isinstance(e, OSError) and e.strerror else e
        return RunRow(path, name, "damaged", why=one_line(said), when=_written(path))


def _of_summary(path: Path, name: str, summary: Fields) -> RunRow:
    config = summary.section("config", default={})
    status = summary.text("status", default="")
    evaluation = summary.section("eval", default={})
    final = evaluation.section("final", default={}).number("return_mean", default=math.nan)
    best = evaluation.section("best", default={}).number("return_mean", default=math.nan)
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
    return {
        "task": env.text("id", default=""),
        "world_size": dist.number("world_size", default=math.nan),
        "topology": dist.text("topology", default=""),
        "seed": math.nan if config.values.get("seed") is None else config.whole("seed", high=2**63),
        "total_steps": config.section("ppo", default={}).number("total_steps", default=math.nan),
        "settings": flat(without_others(config.tree(), imports=False)),
    }


def _config(path: Path) -> Fields | None:
    """Return config.yaml; None where it is not a run's. Raises OSError, ValueError for one that is cut off."""
    try:
        loaded = yaml.load((path / "config.yaml").read_text(encoding="utf-8"), Loader=_LOADER)
    except yaml.YAMLError as e:
        raise ValueError(f"config.yaml is not readable: {one_line(e)}") from e
    if not isinstance(loaded, dict) or not {"env", "ppo", "dist"} <= loaded.keys():
        if (path / "metrics.jsonl").is_file():
            raise ValueError("config.yaml is not the configuration of a run")
        return None
    return Fields(loaded)


def _tail(path: Path) -> list[dict[str, Any]]:
    """Return the last whole lines of rank 0, as far as they are in the last _TAIL bytes and not damaged."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            text = file.read()
    except OSError:
        return []
    pieces = text.split(b"\n")[:-1]  # what follows the last newline is a line being written
    lines = []
    for piece in pieces[1:] if size > _TAIL else pieces:
        with suppress(ValueError, RecursionError):
            line = json.loads(piece)
            if isinstance(line, dict) and line.get("rank") == 0:
                lines.append(line)
    return lines


def _evaluations(path: Path) -> list[float]:
    """Return the mean return of every evaluation that metrics.jsonl has; few of its lines are parsed for it."""
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
    """Return the last of the evaluations' scores; where there are none, the last training return of the lines."""
    if scores:
        return scores[-1]
    values = (line.get("rollout/return_mean") for line in reversed(lines))
    return next((float(value) for value in values if isinstance(value, (int, float))), math.nan)


def _is_under_way(path: Path, locks: frozenset[int]) -> bool:
    with suppress(OSError):
        if (path / ".lock").stat().st_ino in locks:
            return True
    with suppress(OSError):
        return time.time() - (path / "metrics.jsonl").stat().st_mtime < _FRESH_S
    return False


def _locks() -> frozenset[int]:
    """Return the inodes of files that processes of this machine have locked; trying to lock one could refuse a run."""
    with suppress(OSError, ValueError, IndexError):
        lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
        # "1: FLOCK ADVISORY WRITE <pid> <device>:<inode> 0 EOF"; a second word "->" is a process that still waits.
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
    """Return a path in printable characters, for any bytes that the file system holds."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
