"""Which runs does the table show, in which order and columns? Filter, sort, and fit to the terminal."""

import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml

from ddppo.config.fields import setting
from ddppo.errors import ConfigError, near
from ddppo.options import whole_numbers
from ddppo.study.columns import duration
from ddppo.study.runs.records import STATUSES, RunRow

_UNITS = {"d": "days", "h": "hours", "m": "minutes", "w": "weeks"}
# Columns that a narrow terminal leaves out, the least important first.
_LEFT_OUT_FIRST = ("best", "topology", "time", "seed", "when", "FPS", "steps")
_LEAST_NAME = 12  # characters of a run's name
_LEFT_ALIGNED = ("run", "task", "topology", "status", "when")
# Column to sort by -> its value, and whether the largest comes first.
_ORDERS: dict[str, tuple[Callable[[RunRow], Any], bool]] = {
    "when": (lambda r: math.nan if r.when is None else r.when.timestamp(), True),
    "run": (lambda r: r.name, False),
    "task": (lambda r: r.task, False),
    "status": (lambda r: r.status, False),
    "W": (lambda r: r.world_size, False),
    "seed": (lambda r: r.seed, False),
    "steps": (lambda r: r.env_steps, True),
    "return": (lambda r: r.final_return, True),
    "best": (lambda r: r.best_return, True),
    "fps": (lambda r: r.fps, True),
    "time": (lambda r: r.wall_s, True),
}


@dataclass(slots=True)
class TableOptions:
    folder: str = setting("outputs", "folder of the runs to list, at any depth; also as the first word")
    env: str | None = setting(
        None, "only tasks with this in their id, or matching this pattern: cartpole, 'Cart*'"
    )
    status: str | None = setting(
        None, f"only runs with this status, or with one of several: {', '.join(STATUSES)}"
    )
    world_size: str | None = setting(None, "only these numbers of workers, e.g. 1,4")
    topology: str | None = setting(None, "only this topology, e.g. ddp")
    seed: int | None = setting(None, "only this seed", low=0)
    since: str | None = setting(None, "only runs that began since a day, 2026-01-31, or within 12h, 3d, 2w")
    sort: str = setting(
        "when",
        "column to sort by; when, steps, return, best, fps and time put the largest first",
        choices=tuple(_ORDERS),
    )
    reverse: bool = setting(False, "reverse the order")
    limit: int = setting(0, "most runs to list; 0 is all", low=0)
    show: list[str] = setting(
        meaning="settings as further columns, e.g. [ppo.gamma,ppo.epochs]", factory=list
    )
    json: bool = setting(False, "print a JSON object per run and line instead of a table")


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Chooses the runs of the table."""

    options: TableOptions
    settings: dict[str, str] = field(default_factory=dict)  # dotted name -> wanted value, as text

    def __post_init__(self) -> None:
        """Raises ConfigError for a status, W or time that does not exist."""
        for status in self._statuses:
            if status not in STATUSES:
                raise ConfigError(
                    f"status={status}: must be one of {', '.join(STATUSES)}{near(status, STATUSES)}"
                )
        whole_numbers("world_size", self.options.world_size)
        self._since()

    @property
    def _statuses(self) -> list[str]:
        return [word.strip() for word in self.options.status.split(",")] if self.options.status else []

    def _since(self) -> datetime | None:
        text = self.options.since
        if text is None:
            return None
        try:
            # A time ago, or a day.
            if text[-1] in _UNITS:
                return datetime.now(UTC) - timedelta(**{_UNITS[text[-1]]: float(text[:-1])})
            return datetime.fromisoformat(text).astimezone(UTC)
        except (ValueError, OverflowError) as e:
            raise ConfigError(f"since={text}: a day, e.g. since=2026-01-31, or a time, e.g. 12h or 3d") from e

    def chosen(self, records: Iterable[RunRow]) -> list[RunRow]:
        """Return the wanted runs in the wanted order; runs without the value to sort by come last."""
        options, since = self.options, self._since()
        sizes = whole_numbers("world_size", options.world_size)
        # All filters hold at once.
        found = [
            record
            for record in records
            if (options.env is None or _is_like(record.task, options.env))
            and (not self._statuses or record.status in self._statuses)
            and (not sizes or record.world_size in sizes)
            and options.topology in (None, record.topology)
            and options.seed in (None, record.seed)
            and (since is None or (record.when is not None and record.when >= since))
            and has_settings(record, self.settings)
        ]
        key, largest_first = _ORDERS[options.sort]
        # Sort the known values; reversing the order leaves unknown ones at the end.
        known = [record for record in found if not _is_unknown(key(record))]
        unknown = [record for record in found if _is_unknown(key(record))]
        known.sort(key=key, reverse=largest_first != options.reverse)
        return (known + unknown)[: options.limit or None]


def _is_like(task: str, wanted: str) -> bool:
    task, wanted = task.lower(), wanted.lower()
    return fnmatch.fnmatchcase(task, wanted) if any(c in wanted for c in "*?[") else wanted in task


def has_settings(record: RunRow, wanted: Mapping[str, str]) -> bool:
    """Return whether a run has all these values of settings, which are as typed."""
    return all(_is_set(record, name, value) for name, value in wanted.items())


def _is_set(record: RunRow, name: str, value: str) -> bool:
    """Return whether a run has this value of a setting: 1e-3 equals .001, but true does not equal 1."""
    settings = record.settings or {}
    if name not in settings:
        return False
    # Numbers compare as numbers, anything else as YAML or as typed.
    has, number = settings[name], _number(value)
    if number is not None and type(has) in (int, float):
        return bool(has == number)
    return shown(has) == value or shown(has) == shown(_yaml(value))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _is_unknown(value: Any) -> bool:
    return value == "" or (isinstance(value, float) and math.isnan(value))


# -- Cells and columns.


def shown(value: Any) -> str:
    """Return the value of a setting as it is typed on a command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(shown, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def setting_of(record: RunRow, name: str) -> str:
    """Return a run's setting as it is typed; a dash if the run has no such setting."""
    settings = record.settings or {}
    return shown(settings[name]) if name in settings else "–"


def number(value: float, form: str = ",.0f") -> str:
    return "–" if math.isnan(value) else format(value, form)


def as_json(record: RunRow) -> dict[str, Any]:
    """Return a run for JSON, with its settings."""
    return {
        "run": str(record.path),
        "task": record.task,
        "world_size": record.world_size,
        "topology": record.topology,
        "seed": record.seed,
        "status": record.status,
        "env_steps": record.env_steps,
        "total_steps": record.total_steps,
        "final_return": record.final_return,
        "best_return": record.best_return,
        "fps": record.fps,
        "wall_s": record.wall_s,
        "when": record.when.isoformat() if record.when else None,
        "git_commit": record.commit,
        "settings": dict(record.settings or {}),
    }


def columns(records: Sequence[RunRow], show: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the cells of the table by column; the topology is left out if all runs use ddp."""
    cells = {
        "run": [record.name for record in records],
        "task": [record.task or "–" for record in records],
        "W": [number(record.world_size) for record in records],
        "topology": [record.topology for record in records],
        "seed": [number(record.seed) for record in records],
        "status": [record.status for record in records],
        "steps": [_steps(record) for record in records],
        "return": [number(record.final_return, ".2f") for record in records],
        "best": [number(record.best_return, ".2f") for record in records],
        "FPS": [number(record.fps) for record in records],
        "time": [duration(record.wall_s) for record in records],
        "when": [f"{r.when.astimezone():%Y-%m-%d %H:%M}" if r.when else "–" for r in records],
    }
    # A column that says ddp everywhere is noise.
    if {record.topology for record in records} <= {"", "ddp"}:
        del cells["topology"]
    for name in show:
        cells[name] = [setting_of(record, name) for record in records]
    return cells


def _steps(record: RunRow) -> str:
    steps = number(record.env_steps)
    if record.env_steps < record.total_steps:
        return f"{steps} ({100 * record.env_steps / record.total_steps:.0f} %)"
    return steps


def lines(cells: dict[str, list[str]], width: int | None) -> list[str]:
    """Return the table in lines of at most `width` characters: columns are left out, then names are cut in front."""
    cells = dict(cells)
    # First leave out columns, then shorten names at the front: their ends differ.
    for name in _LEFT_OUT_FIRST:
        if width is None or _wide(cells) <= width:
            break
        cells.pop(name, None)
    if width is not None and (over := _wide(cells) - width) > 0:
        longest = max(map(len, cells["run"]), default=0)
        room = max(_LEAST_NAME, longest - over)
        cells["run"] = [text if len(text) <= room else f"…{text[1 - room :]}" for text in cells["run"]]
    widths = {name: max(len(name), *map(len, column)) for name, column in cells.items()}
    rows = [list(cells), *zip(*cells.values(), strict=True)]
    padded = (
        [
            text.ljust(widths[name]) if name in _LEFT_ALIGNED else text.rjust(widths[name])
            for name, text in zip(cells, row, strict=True)
        ]
        for row in rows
    )
    return ["  ".join(row).rstrip()[:width] for row in padded]


def _wide(cells: dict[str, list[str]]) -> int:
    return sum(max(len(name), *map(len, column)) + 2 for name, column in cells.items()) - 2
