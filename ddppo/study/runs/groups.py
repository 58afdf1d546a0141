"""How do groups of runs learn? A mean or an interquartile mean over seeds, with 95 % bands, for each group.

    python -m ddppo.runs plot outputs/sweeps group=model,dist.world_size metric=eval/return_mean file=curves.png

Runs are ours or folders of TensorBoard's event files (../read/event_files.py). The definitions are those of rliable
(arXiv:2108.13264): a statistic over the runs of one task at each point, and percentile-bootstrap intervals over runs.
"""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddppo.config.fields import setting
from ddppo.errors import ConfigError, RunFolderError, near
from ddppo.statistics import LEAST_SEEDS, bootstrap, iqms, means_of
from ddppo.study.read.event_files import EventFolder, event_folders
from ddppo.study.runs.records import NOTHING, Curve, RunRow, is_run, read_curves, read_records
from ddppo.study.runs.table import has_settings, shown

PICTURES = (".png", ".svg", ".html")
_MAX_GROUPS = 8  # colours that can be told apart
_PLACES = ("run", "name", "folder")  # keys that are no settings
_STATISTICS = {"mean": means_of, "iqm": iqms}
_RETURNS = ("eval/return_mean", "rollout/return_mean", "charts/episodic_return", "rollout/ep_rew_mean")
# Settings that differ between the runs of a group by their nature.
_OF_A_RUN = re.compile(r"seed|resume|sweep|init_from|log\..*|run_name|exp_name|stamp")
_NUMBERS_AT_END = re.compile(r"([_-]+\d+)+$")


@dataclass(slots=True)
class PlotOptions:
    folder: str = setting("outputs", "folder of the runs, at any depth; also as the first word")
    others: list[str] = setting(meaning="further folders", factory=list)
    group: str = setting(
        "",
        "a curve for each value of these: settings such as model,dist.world_size; name is a folder's name without the "
        "numbers at its end, folder is the folder around it",
    )
    metric: str | None = setting(
        None, "the curve, or several of which each run's first counts, e.g. eval/return_mean,eval/mean_reward"
    )
    x: str = setting("steps", "the x-axis", choices=("steps", "hours"))
    statistic: str = setting(
        "mean", "over seeds; iqm is the mean of the middle half", choices=("mean", "iqm")
    )
    window: int = setting(1, "each point is the mean of this many points of its run up to it", low=1)
    file: str = setting(
        "curves.svg", "the picture: .png, .svg, or .html with its table; the curves as .csv stand beside it"
    )


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A run with the curve."""

    name: str
    path: Path
    settings: Mapping[str, Any]
    metric: str
    curve: Curve


@dataclass(frozen=True, slots=True)
class GroupCurve:
    """One curve of the picture."""

    label: str
    values: tuple[str, ...]  # of the keys
    members: list[GroupMember]
    grid: list[float]  # steps or hours
    middle: list[float]
    low: list[float]  # NaN with fewer than 3 runs
    high: list[float]


class Grouped(NamedTuple):
    """The groups of runs, and sentences about them."""

    options: PlotOptions
    keys: list[str]
    metric: str
    groups: list[GroupCurve]
    notes: list[str]


def check_file(options: PlotOptions) -> None:
    """Raise ConfigError if options.file cannot be a picture."""
    file = Path(options.file)
    if file.suffix not in PICTURES:
        raise ConfigError(f"file={options.file}: a file that ends in .png, .svg or .html")
    if not file.parent.is_dir():
        raise ConfigError(f"file={options.file}: there is no folder {file.parent}")


def grouped(options: PlotOptions, filters: Mapping[str, str]) -> Grouped:
    """Read the runs and group them. Raises ConfigError, RunFolderError."""
    keys = [key.strip() for key in options.group.split(",") if key.strip()]
    wanted = [name.strip() for name in (options.metric or "").split(",") if name.strip()]
    members, notes = _members(options, filters, wanted)
    for key in keys:
        _check_key(key, members)
    # 1. The runs of each group.
    found: dict[tuple[str, ...], list[GroupMember]] = {}
    for member in members:
        found.setdefault(tuple(_value(member, key) for key in keys), []).append(member)
    if len(found) > _MAX_GROUPS:
        raise ConfigError(
            f"group={options.group}: {len(found)} groups, and a picture has at most {_MAX_GROUPS}: use fewer keys, or "
            f"a filter such as {keys[0]}={next(iter(found))[0]}"
        )
    # 2. Their curves.
    groups = []
    for values, runs in sorted(found.items(), key=lambda item: [_order(v) for v in item[0]]):
        label = ", ".join(v if k in _PLACES else f"{k}={v}" for k, v in zip(keys, values, strict=True))
        groups.append(_curve_of(label or "all runs", values, runs, options))
        notes += _notes(groups[-1], options)
    for i, group in enumerate(groups):  # the later one hides the other
        same = [each.label for each in groups[:i] if _are_the_same(each, group)]
        notes += [f"{label} and {group.label}: the same curve" for label in same[:1]]
    names = list(dict.fromkeys(member.metric for member in members))
    return Grouped(options, keys, " or ".join(names), groups, list(dict.fromkeys(notes)))


# -- Reading.


def _members(
    options: PlotOptions, filters: Mapping[str, str], wanted: Sequence[str]
) -> tuple[list[GroupMember], list[str]]:
    """Return the runs that match the filters and have the metric, and notes on those without it."""
    found: list[tuple[RunRow, Mapping[str, Curve]]] = []
    for name in [options.folder, *options.others]:
        folder = Path(name)
        if not folder.is_dir():
            raise RunFolderError(f"folder={name}: is not a folder")
        ours = {row.path: row for row in read_records(folder)}
        chosen = [row for row in ours.values() if not row.why and has_settings(row, filters)]
        found += [(row, read_curves(row.path / "metrics.jsonl")[0]) for row in chosen]
        inside = dict.fromkeys(ours) | ({folder: None} if is_run(folder) and not ours else {})
        for path in event_folders(folder, inside):
            events = EventFolder(path)
            label = str(path.relative_to(folder)) if path != folder else path.resolve().name
            row = RunRow(path, label, "completed", settings=events.settings())
            if has_settings(row, filters):
                read = set(wanted or _RETURNS)
                found.append(
                    (row, {tag: Curve(*events.curve(tag)) if tag in read else NOTHING for tag in events.tags})
                )
    if not found:
        of = f" with {' '.join(f'{k}={v}' for k, v in filters.items())}" if filters else ""
        raise ConfigError(
            f"folder={options.folder}: no run{of}; a run has metrics.jsonl, or event files of TensorBoard"
        )
    # A metric that was not chosen is the first of the usual ones that all runs have, or else each run's first.
    counts = {name: [len(curves.get(name, NOTHING)) for _, curves in found] for name in _RETURNS}
    of_all = [name for name in _RETURNS if min(counts[name]) > 1]
    names = wanted or of_all[:1] or [name for name in _RETURNS if max(counts[name]) > 1]
    known = sorted({name for _, curves in found for name in curves})
    members: list[GroupMember] = []
    without: list[str] = []
    for row, curves in found:
        has = [name for name in names if len(curves.get(name, NOTHING))]
        if not has:
            without.append(row.name)
            continue
        curve = _smoothed(curves[has[0]], options.window)
        members.append(GroupMember(row.name, row.path, row.settings or {}, has[0], curve))
    if not members:
        said = f"metric={options.metric}" if wanted else "no metric is given, and"
        raise ConfigError(
            f"{said}: none of the {len(found)} runs has {'it' if wanted else 'a curve of returns'}"
            f"{near(wanted[0], known) if wanted else ''}; "
            + (
                f"they have {', '.join(known[:12])}{', ...' if len(known) > 12 else ''}"
                if known
                else "they are empty"
            )
        )
    listed = ", ".join(without[:4]) + (", ..." if len(without) > 4 else "")
    notes = [f"{len(without)} of {len(found)} runs have no such metric: {listed}"] if without else []
    return members, notes


def _smoothed(curve: Curve, window: int) -> Curve:
    """Return the curve of means of the last `window` points; fewer at its beginning."""
    if window == 1:
        return curve
    sums = np.concatenate([[0.0], np.cumsum(curve.values)])
    ends = np.arange(1, len(curve) + 1)
    begins = np.maximum(ends - window, 0)
    return Curve(curve.env_steps, curve.wall_s, (sums[ends] - sums[begins]) / (ends - begins))


def _check_key(key: str, members: Sequence[GroupMember]) -> None:
    known = sorted({*_PLACES, *(name for member in members for name in member.settings)})
    if not any(_value(member, key) != "–" for member in members):
        raise ConfigError(f"group={key}: none of the runs has such a setting{near(key, known)}")


def _value(member: GroupMember, key: str) -> str:
    """Return a run's value of a key; a dash without one. `model` stands for model.name, `env` for env.id."""
    if key == "run":
        return member.name
    if key == "name":
        name = member.path.resolve().name
        return _NUMBERS_AT_END.sub("", name) or name
    if key == "folder":
        return member.path.resolve().parent.name
    for name in (key, f"{key}.name", f"{key}.id", f"{key}.topology"):
        if name in member.settings:
            return shown(member.settings[name])
    return "–"


def _order(value: str) -> tuple[int, float, str]:
    """Return the place of a value: numbers by size, then words."""
    try:
        return 0, float(value), ""
    except ValueError:
        return 1, 0.0, value


# -- Statistics.


def _curve_of(
    label: str, values: tuple[str, ...], members: list[GroupMember], options: PlotOptions
) -> GroupCurve:
    """Return the curve of a group. Raises ConfigError if its runs are of several tasks."""
    from ddppo.study.page.curves import on_one_grid

    tasks = sorted(
        {str(m.settings[key]) for m in members for key in ("env.id", "env_id") if key in m.settings}
    )
    if len(tasks) > 1:
        raise ConfigError(
            f"group={options.group}: {label} has runs of {', '.join(tasks)}, whose mean says nothing: add env.id to "
            f"group=, or keep one task, e.g. env.id={tasks[0]}"
        )
    curves = [member.curve for member in members]
    xs = [curve.env_steps if options.x == "steps" else curve.wall_s / 3600 for curve in curves]
    grid, held = on_one_grid(xs, [curve.values for curve in curves])
    statistic = _STATISTICS[options.statistic]
    ends = [bootstrap(statistic, column) for column in held.T] if len(members) >= LEAST_SEEDS else []
    nothing = [math.nan] * len(grid)
    low, high = ([end[i] for end in ends] if ends else nothing for i in (0, 1))
    return GroupCurve(label, values, members, grid, statistic(held.T).tolist(), low, high)


def _are_the_same(one: GroupCurve, other: GroupCurve) -> bool:
    """Return whether two curves are equal, up to the order in which their runs were added."""
    return one.grid == other.grid and bool(np.allclose(one.middle, other.middle, rtol=1e-9, atol=0))


def _notes(group: GroupCurve, options: PlotOptions) -> list[str]:
    """Return sentences on what a reader of the curve must know."""
    notes, members = [], group.members
    if len(members) < LEAST_SEEDS:
        few = "a single run" if len(members) == 1 else f"{len(members)} runs"
        notes.append(f"{group.label}: {few}, too few for a band ({LEAST_SEEDS})")
    names = dict.fromkeys(name for member in members for name in member.settings)
    differ = [
        name
        for name in names
        if not _OF_A_RUN.fullmatch(name) and len({shown(m.settings.get(name)) for m in members}) > 1
    ]
    if differ:
        notes.append(
            f"{group.label}: its runs differ in {', '.join(differ[:6])}{', ...' if len(differ) > 6 else ''}, "
            "not in their seeds only"
        )
    # A curve ends where the shortest of its runs does.
    ends = [m.curve.env_steps[-1] if options.x == "steps" else m.curve.wall_s[-1] / 3600 for m in members]
    if min(ends) < 0.9 * max(ends):
        first = members[int(np.argmin(ends))]
        notes.append(
            f"{group.label}: ends at {min(ends):,.4g} {options.x}, with {first.name}; others go to {max(ends):,.4g}"
        )
    return notes


# -- Tables.


def table(found: Grouped) -> list[list[str]]:
    """Return a row for each group: runs, and the statistic halfway and at the end with its interval."""
    head = ["group", "runs", found.options.x, f"{found.options.statistic} halfway", "at the end", "95 %"]
    rows = []
    for group in found.groups:
        half = int(np.searchsorted(group.grid, (group.grid[0] + group.grid[-1]) / 2, side="right")) - 1
        end = group.grid[-1]
        rows.append(
            [
                group.label,
                str(len(group.members)),
                f"{end:,.0f}" if found.options.x == "steps" else f"{end:.3g}",
                f"{group.middle[half]:.4g}",
                f"{group.middle[-1]:.4g}",
                "–" if math.isnan(group.low[-1]) else f"{group.low[-1]:.4g} to {group.high[-1]:.4g}",
            ]
        )
    return [head, *rows]


def as_csv(found: Grouped) -> str:
    """Return a line for each point of each curve."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [*(found.keys or ["group"]), "runs", found.options.x, found.options.statistic, "low", "high"]
    )
    for group in found.groups:
        for point in zip(group.grid, group.middle, group.low, group.high, strict=True):
            numbers = ["" if math.isnan(number) else f"{number:.10g}" for number in point]
            writer.writerow([*(group.values or ["all runs"]), len(group.members), *numbers])
    return text.getvalue()
