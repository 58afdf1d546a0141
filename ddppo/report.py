"""The door `python -m ddppo.report`: from a sweep folder to S(W), E(W), why, and a page with the figures."""

import sys
from dataclasses import fields
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ddppo.config import check_fields, near
from ddppo.errors import ConfigError
from ddppo.scaling.report import ReportOptions, make_report, on_terminal

_USAGE = "python -m ddppo.report <sweep folder, or .csv or .jsonl file> [key=value ...]"


def main() -> None:
    """Run the command line; exit code 0 if a report was made, whatever its verdict, or 2 for a mistake."""
    arguments = sys.argv[1:]
    if not arguments or any(a in ("-h", "--help") for a in arguments):
        print(_help())
        sys.exit(0 if arguments else 2)
    try:
        report, folder = make_report(_parsed(arguments), _announce)
        print(on_terminal(report, folder, None if sys.stdout.isatty() else 160))
    except ConfigError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(2)


def _announce(path: str) -> None:
    """Show on a terminal what is being read: a large sweep takes a while."""
    if sys.stderr.isatty():
        print(f"\rreading {path[-100:]:<100}", end="", file=sys.stderr, flush=True)


def _parsed(arguments: list[str]) -> ReportOptions:
    """Return the options of a command line: one path, the rest key=value."""
    names = [f.name for f in fields(ReportOptions)]
    pairs, path = [], None
    for argument in arguments:
        key, equals, _ = argument.partition("=")
        if equals and key in names:
            pairs.append(argument)
        elif not equals or Path(argument).exists():
            if path is not None:
                raise ConfigError(f"{argument}: a second path; one folder or file is reported at a time")
            path = argument
        else:
            raise ConfigError(
                f"{argument}: not a setting of report{near(key, names)}; there are {', '.join(names)}"
            )
    try:
        given = {} if path is None else {"path": path}
        merged = OmegaConf.merge(OmegaConf.structured(ReportOptions), OmegaConf.from_dotlist(pairs), given)
        if OmegaConf.is_missing(merged, "path"):
            raise ConfigError(f"the sweep folder is missing: {_USAGE}")
        options = OmegaConf.to_object(merged)
    except OmegaConfBaseException as e:
        raise ConfigError(str(e).splitlines()[0]) from e
    assert isinstance(options, ReportOptions)
    check_fields(options)
    return options


def _help() -> str:
    rows = [f"  {f.name:<22}{f.metadata['meaning']}" for f in fields(ReportOptions)]
    return "\n".join([_USAGE, "", *rows])


if __name__ == "__main__":
    main()
