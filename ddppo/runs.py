"""The command `python -m ddppo.runs`: the runs of a folder as a table, and the differences between runs."""

import shutil
import sys

from ddppo.options import door, parse
from ddppo.study.runs.command import CompareOptions, compare, filters_of, listed
from ddppo.study.runs.table import TableOptions

_USAGE = """python -m ddppo.runs [folder] [key=value ...]              the runs of a folder, outputs if none is given
python -m ddppo.runs compare <run> <run> [key=value ...]   how runs differ in settings and in curves

A setting as a filter keeps the runs that have it: ppo.gamma=0.99 dist.topology=ddp
`python -m ddppo.runs compare --help` lists the settings of compare."""
_USAGE_OF_COMPARE = "python -m ddppo.runs compare <run folder> <run folder> [more] [key=value ...]"


@door()
def main() -> None:
    """Run the command line; exit code 0, or 2 for a mistake in the command."""
    if sys.argv[1:2] == ["compare"]:
        options = parse(CompareOptions, sys.argv[2:], path="run", more="others", usage=_USAGE_OF_COMPARE)
        print(compare(options, _width()))
    else:
        filters, arguments = filters_of(sys.argv[1:])
        print(listed(parse(TableOptions, arguments, path="folder", usage=_USAGE), filters, _width()))


def _width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


if __name__ == "__main__":
    main()
