"""`python -m ddppo.runs`: which runs are in a folder, and how do some of them differ?"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ddppo.config.fields import setting
from ddppo.config.settings import SECTIONS, Config
from ddppo.errors import ConfigError, RunFolderError, near
from ddppo.files import jsonable, write_text
from ddppo.study.runs.comparison import as_text, compared
from ddppo.study.runs.groups import PICTURES, PlotOptions, as_csv, check_file, grouped
from ddppo.study.runs.groups import table as groups_table
from ddppo.study.runs.records import RunRow, read_records
from ddppo.study.runs.table import RunFilter, TableOptions, as_json, columns, lines


@dataclass(slots=True)
class CompareOptions:
    run: str = setting("", "a run folder; also as the first word")
    others: list[str] = setting(meaning="the runs that it is compared with", factory=list)
    metric: str | None = setting(
        None, "the curve, e.g. train/entropy; evaluations if all have several, else rollout/return_mean"
    )
    plot: str | None = setting(
        None, "a file for the curves: .png, .svg, or .html with the tables and further curves"
    )


def filters_of(
    arguments: Sequence[str], options: type[Any] = TableOptions
) -> tuple[dict[str, str], list[str]]:
    """Split a command line into settings that a listed run must have, and options of the command."""
    # A key is a setting if its section, or its name without one, is in the configuration.
    of_runs = {item.name for item in fields(Config)}
    alone = of_runs - {item.name for item in fields(options)} - SECTIONS.keys()
    filters, others = {}, []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        section, dot, _ = key.partition(".")
        is_setting = section in (of_runs if dot else alone)
        if equals and is_setting and not Path(argument).exists():
            filters[key] = value
        else:
            others.append(argument)
    return filters, others


def compare(options: CompareOptions, width: int | None = None) -> str:
    """Compare runs, write the plot, and return the text to print. Raises ConfigError, StorageError."""
    if options.plot is not None and Path(options.plot).suffix not in PICTURES:
        raise ConfigError(f"plot={options.plot}: a file that ends in .png, .svg or .html")
    found = compared([options.run, *options.others] if options.run else options.others, options.metric)
    text = as_text(found, width)
    if options.plot is not None:
        from ddppo.study.runs.plot import write  # imports Jinja, which takes time

        write(found, Path(options.plot))
        text += f"\n\nplot: {options.plot}"
    return text


def plot(options: PlotOptions, filters: Mapping[str, str]) -> str:
    """Write the picture and the CSV, and return the table. Raises ConfigError, RunFolderError, StorageError."""
    file = Path(options.file)
    check_file(options)
    found = grouped(options, filters)
    from ddppo.study.runs.plot import write_groups  # imports Jinja, which takes time

    write_groups(found, file)
    write_text(file.with_suffix(".csv"), as_csv(found))
    rows = groups_table(found)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    lines = [line.rstrip() for line in lines]
    return "\n".join([*lines, "", *found.notes, f"{file} and {file.with_suffix('.csv')} are written"])


def listed(options: TableOptions, filters: dict[str, str], width: int | None = None) -> str:
    """Return the table of the runs in a folder, as text or JSON lines. Raises ConfigError."""
    folder, wanted = Path(options.folder), RunFilter(options, filters)
    if not folder.is_dir():
        if options.folder == TableOptions().folder:
            return f"no runs yet: there is no folder {options.folder}; give the folder of your runs"
        raise RunFolderError(f"folder={options.folder}: is not a folder")
    # Read all, check the names in filters and show=, then choose.
    found = read_records(folder)
    _check_known(found, [*filters, *options.show])
    chosen = wanted.chosen(found)
    if options.json:
        return "\n".join(json.dumps(jsonable(as_json(record))) for record in chosen)
    # Nothing matches: the tasks in the folder are the best hint.
    if not chosen:
        tasks = ", ".join(sorted({record.task for record in found if record.task}))
        return (
            f"none of the {len(found)} runs in {folder} matches; their tasks: {tasks}"
            if found
            else (f"no runs in {folder}")
        )
    text = [*lines(columns(chosen, options.show), width)]
    if len(chosen) > 1:
        text += ["", f"{len(chosen)} of {len(found)} runs in {folder}: {_counts(chosen)}"]
    text += [f"{record.name} is damaged: {record.why}" for record in chosen if record.why]
    return "\n".join(text)


def _counts(records: Sequence[RunRow]) -> str:
    statuses = [record.status for record in records]
    return ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))


def _check_known(records: Sequence[RunRow], names: Sequence[str]) -> None:
    """Raise ConfigError for a setting that no run has."""
    known = {name for record in records for name in record.settings or ()}
    for name in names:
        if records and name not in known:
            raise ConfigError(f"{name}: no run in the folder has such a setting{near(name, sorted(known))}")
