"""The door `python -m ddppo.runs`: the runs of a folder as a table, and how some of them differ."""

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from ddppo.config import SECTIONS, Config, setting
from ddppo.errors import ConfigError, RunFolderError, near
from ddppo.files import jsonable
from ddppo.options import door, parse
from ddppo.study.runs.comparison import compared, in_words
from ddppo.study.runs.records import RunRow, read_records
from ddppo.study.runs.table import RunFilter, TableOptions, as_json, columns, lines

_USAGE = """python -m ddppo.runs [folder] [key=value ...]              the runs of a folder, outputs if none is given
python -m ddppo.runs compare <run> <run> [key=value ...]   how runs differ in settings and in curves

A setting as a filter keeps the runs that have it: ppo.gamma=0.99 dist.topology=ddp
`python -m ddppo.runs compare --help` lists the settings of compare."""
_USAGE_OF_COMPARE = "python -m ddppo.runs compare <run folder> <run folder> [more] [key=value ...]"
_PLOTS = (".svg", ".html")


@dataclass(slots=True)
class CompareOptions:
    run: str = setting("", "a run folder; also as the first word")
    others: list[str] = setting(meaning="those that it is compared with", factory=list)
    metric: str | None = setting(
        None, "the curve, e.g. train/entropy; evaluations if all have several, else rollout/return_mean"
    )
    plot: str | None = setting(
        None, "a file for the curves: .svg, or .html with the tables and further curves"
    )


@door()
def main() -> None:
    """Run the command line; exit code 0, or 2 for a mistake in the command."""
    if sys.argv[1:2] == ["compare"]:
        options = parse(CompareOptions, sys.argv[2:], path="run", more="others", usage=_USAGE_OF_COMPARE)
        print(compare(options, _width()))
    else:
        filters, arguments = _parted(sys.argv[1:])
        print(listed(parse(TableOptions, arguments, path="folder", usage=_USAGE), filters, _width()))


def _parted(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the settings that runs are to have, and what is left, which are options of the door."""
    settings = {item.name for item in fields(Config)} - {item.name for item in fields(TableOptions)}
    filters, others = {}, []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        section, dot, _ = key.partition(".")
        is_setting = section in (SECTIONS if dot else settings.difference(SECTIONS))
        if equals and is_setting and not Path(argument).exists():
            filters[key] = value
        else:
            others.append(argument)
    return filters, others


def _width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def compare(options: CompareOptions, width: int | None = None) -> str:
    """Return what to print of how runs differ, having written the plot. Raises ConfigError, StorageError."""
    if options.plot is not None and Path(options.plot).suffix not in _PLOTS:
        raise ConfigError(f"plot={options.plot}: a file that ends in {' or '.join(_PLOTS)}")
    found = compared([options.run, *options.others] if options.run else options.others, options.metric)
    said = in_words(found, width)
    if options.plot is not None:
        from ddppo.study.runs.plot import write  # Jinja, and all that a page is made of

        write(found, Path(options.plot))
        said += f"\n\nplot: {options.plot}"
    return said


def listed(options: TableOptions, filters: dict[str, str], width: int | None = None) -> str:
    """Return what to print of the runs of a folder. Raises ConfigError."""
    folder, wanted = Path(options.folder), RunFilter(options, filters)
    if not folder.is_dir():
        if options.folder == TableOptions().folder:
            return f"no runs yet: there is no folder {options.folder}; name the one that they are in"
        raise RunFolderError(f"folder={options.folder}: is not a folder")
    found = read_records(folder)
    _check_known(found, [*filters, *options.show])
    chosen = wanted.chosen(found)
    if options.json:
        return "\n".join(json.dumps(jsonable(as_json(record))) for record in chosen)
    if not chosen:
        tasks = ", ".join(sorted({record.task for record in found if record.task}))
        return (
            f"none of the {len(found)} runs in {folder} is so; their tasks: {tasks}"
            if found
            else (f"no runs in {folder}")
        )
    said = [*lines(columns(chosen, options.show), width)]
    if len(chosen) > 1:
        said += ["", f"{len(chosen)} of {len(found)} runs in {folder}: {_counts(chosen)}"]
    said += [f"{record.name} is damaged: {record.why}" for record in chosen if record.why]
    return "\n".join(said)


def _counts(records: Sequence[RunRow]) -> str:
    statuses = [record.status for record in records]
    return ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))


def _check_known(records: Sequence[RunRow], names: Sequence[str]) -> None:
    """Refuse settings that no run has."""
    known = {name for record in records for name in record.settings or ()}
    for name in names:
        if records and name not in known:
            raise ConfigError(f"{name}: no run in the folder has such a setting{near(name, sorted(known))}")


if __name__ == "__main__":
    main()
