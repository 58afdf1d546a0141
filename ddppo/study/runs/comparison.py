"""How do runs differ? In settings, results, curves, and mean metrics: one table for each."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import NamedTuple

import numpy as np

from ddppo.errors import ConfigError, RunFolderError, near
from ddppo.study.columns import duration
from ddppo.study.runs.records import NOTHING, Curve, RunRow, is_run, read_curves, read_record
from ddppo.study.runs.table import number, setting_of

_MAX_RUNS = 8  # colours, and columns that fit
_IGNORED = ("resume", "sweep")  # settings with the place of a run only
_PARTS = (0.1, 0.25, 0.5, 0.75, 1.0)  # of the steps that all runs have done
_LAST = 0.25  # part of a run's iterations with means that are compared
_DIFFERENT = 0.05  # relative difference between such means that is worth a row


class Compared(NamedTuple):
    """One of the runs."""

    letter: str  # its name in the tables
    record: RunRow
    curves: Mapping[str, Curve]  # by metric
    unread: int  # damaged lines of metrics.jsonl


class Table(NamedTuple):
    """One table of a comparison."""

    title: str
    rows: list[list[str]]  # a name, and a cell for each run
    notes: Sequence[str] = ()  # sentences below


class Comparison(NamedTuple):
    """A comparison of runs."""

    runs: list[Compared]
    metric: str  # of the curves
    tables: list[Table]


def as_text(found: Comparison, width: int | None = None) -> str:
    """Return the tables of a comparison for the terminal."""
    lines = [f"{run.letter}  {run.record.path}" for run in found.runs]
    for table in found.tables:
        lines += ["", *_lines(table, [run.letter for run in found.runs], width)]
    return "\n".join(lines)


def compared(paths: Sequence[str], metric: str | None = None) -> Comparison:
    """Read and compare runs. Raises ConfigError for fewer than two, a folder without a run, or an unknown metric."""
    if not 2 <= len(paths) <= _MAX_RUNS:
        raise ConfigError(f"compare takes 2 to {_MAX_RUNS} run folders, and {len(paths)} are given")
    runs = []
    # Read every run; each needs settings to be compared.
    for letter, path in zip(ascii_uppercase, paths, strict=False):
        record = read_record(Path(path)) if is_run(Path(path)) else None
        if record is None:
            raise RunFolderError(f"{path}: not a run folder, it has no config.yaml or summary.json of a run")
        if record.settings is None:
            raise RunFolderError(f"{path}: {record.why}")
        runs.append(Compared(letter, record, *read_curves(Path(path) / "metrics.jsonl")))
    # Four tables; empty ones are left out.
    metric = _metric(runs, metric)
    tables = [_settings(runs), _outcomes(runs), _along(runs, metric), _means(runs)]
    return Comparison(runs, metric, [table for table in tables if table.rows or table.notes])


def _metric(runs: Sequence[Compared], wanted: str | None) -> str:
    """Return the metric of the curves: the wanted one, or evaluations if all runs have several, or training returns."""
    if wanted is None:
        several = all(len(run.curves.get("eval/return_mean", NOTHING)) > 1 for run in runs)
        return "eval/return_mean" if several else "rollout/return_mean"
    known = sorted({name for run in runs for name in run.curves})
    if wanted not in known:
        raise ConfigError(
            f"metric={wanted}: none of the runs has it{near(wanted, known)}; docs/metrics.md lists all metrics"
        )
    return wanted


def _settings(runs: Sequence[Compared]) -> Table:
    """Return the settings that differ between runs; a dash for a run without the setting."""
    names = list(dict.fromkeys(name for run in runs for name in run.record.settings or {}))
    names = [name for name in names if name not in _IGNORED]
    rows = []
    for name in names:
        cells = [setting_of(run.record, name) for run in runs]
        if len(set(cells)) > 1:
            rows.append([name, *cells])
    same = f"{len(names) - len(rows)} settings are the same"
    return Table("Settings", rows, (f"{same}.",) if rows else (f"All {len(names)} settings are the same.",))


def _outcomes(runs: Sequence[Compared]) -> Table:
    """Return status, results and origin of each run."""
    records = [run.record for run in runs]
    rows = [
        ["status", *(r.status for r in records)],
        ["steps", *(number(r.env_steps) for r in records)],
        ["return", *(number(r.final_return, ".2f") for r in records)],
        ["best return", *(number(r.best_return, ".2f") for r in records)],
        ["steps/s", *(number(r.fps) for r in records)],
        ["training", *(duration(r.wall_s) for r in records)],
        ["begun", *(f"{r.when.astimezone():%Y-%m-%d %H:%M}" if r.when else "–" for r in records)],
        ["commit", *(r.commit[:10] or "–" for r in records)],
    ]
    notes = [f"{run.letter}: {run.unread} lines of metrics.jsonl are damaged" for run in runs if run.unread]
    return Table("Outcome", rows, notes)


def _along(runs: Sequence[Compared], metric: str) -> Table:
    """Return values of the curve at parts of the steps that all runs have done, and the time to a common level."""
    curves = [run.curves.get(metric, NOTHING) for run in runs]
    title = f"Curve of {metric}"
    if not all(map(len, curves)):
        without = ", ".join(run.letter for run, curve in zip(runs, curves, strict=True) if not len(curve))
        return Table(title, [], (f"{without} has no such metric.",))
    # Values at parts of the steps that all runs have done.
    end = min(curve.env_steps[-1] for curve in curves)
    rows = [
        [f"at {whole:,} steps", *(number(curve.at(whole), ".4g") for curve in curves)]
        for whole in dict.fromkeys(round(part * end) for part in _PARTS)
    ]
    # For returns also the time to the highest level that every run reached.
    notes = [_sameness(curves)]
    if "return" in metric or "success" in metric:
        level = min(float(curve.values.max()) for curve in curves)
        reached = [curve.reached(level) for curve in curves]
        rows.append([f"steps to {level:.4g}", *(number(steps) for steps, _ in reached)])
        rows.append([f"time to {level:.4g}", *(duration(seconds) for _, seconds in reached)])
        notes.append(f"{level:.4g} is the highest value that all of them reach.")
    return Table(title, rows, notes)


def _sameness(curves: Sequence[Curve]) -> str:
    """Return a sentence on the distance between the curves, at the steps at which all have points."""
    # Steps at which all runs have a value.
    shared = curves[0].env_steps
    for curve in curves[1:]:
        shared = np.intersect1d(shared, curve.env_steps)
    if not len(shared):
        return "They have no steps in common."
    values = np.array([c.values[np.isin(c.env_steps, shared)] for c in curves])
    apart = values.max(axis=0) - values.min(axis=0)
    if not apart.any():
        return f"The curves are the same to the last bit at all {len(shared):,} steps that they share."
    first = int(np.flatnonzero(apart)[0])
    return (
        f"The curves share {len(shared):,} steps. They first differ at {shared[first]:,.0f} steps; they are at most "
        f"{apart.max():.3g} apart, {apart.mean():.3g} on average."
    )


def _means(runs: Sequence[Compared]) -> Table:
    """Return the metrics with different means over the last quarter of the iterations."""
    names = dict.fromkeys(
        name for run in runs for name in run.curves if name.startswith(("train/", "time/", "rollout/fps"))
    )
    rows = []
    for name in names:
        # A row only if the means differ by more than the threshold.
        means = [_late_mean(run.curves.get(name, NOTHING)) for run in runs]
        known = [mean for mean in means if not math.isnan(mean)]
        size = max(map(abs, known), default=0.0)
        if len(known) > 1 and size and max(known) - min(known) > _DIFFERENT * size:
            rows.append([name, *(number(mean, ".4g") for mean in means)])
    title = f"Means over the last {100 * _LAST:.0f} % of the iterations"
    return Table(title, rows, (f"Metrics that are within {100 * _DIFFERENT:.0f} % are left out.",))


def _late_mean(curve: Curve) -> float:
    count = math.ceil(_LAST * len(curve))
    return float(curve.values[-count:].mean()) if count else math.nan


def _lines(table: Table, letters: Sequence[str], width: int | None) -> list[str]:
    """Return a table as lines; a cell that is too wide for the terminal ends in an ellipsis."""
    lines = [table.title]
    if table.rows:
        rows = [["", *letters], *table.rows]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        if width is not None:
            # The first column keeps its width, the others share the rest.
            room = max(8, (width - widths[0] - 4) // len(letters) - 2)
            widths = [widths[0], *(min(room, w) for w in widths[1:])]
        for row in rows:
            cells = [
                text if len(text) <= w else f"{text[: w - 1]}…" for text, w in zip(row, widths, strict=True)
            ]
            padded = [
                cells[0].ljust(widths[0]),
                *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True)),
            ]
            lines.append(f"  {'  '.join(padded)}".rstrip())
    return [*lines, *(f"  {note}" for note in table.notes)]
