"""The command `python -m ddppo.runs`: the runs of a folder as a table, runs compared, and curves of groups of runs."""

import shutil
import sys

from ddppo.options import door, parse
from ddppo.study.runs.command import CompareOptions, compare, filters_of, listed, plot
from ddppo.study.runs.groups import PlotOptions
from ddppo.study.runs.table import TableOptions

_USAGE = """python -m ddppo.runs [folder] [key=value ...]              the runs of a folder, outputs if none is given
python -m ddppo.runs compare <run> <run> [key=value ...]   how runs differ in settings and in curves
python -m ddppo.runs plot [folder] group=<keys> [key=value ...]   curves of groups, with 95 % bands over seeds

A setting as a filter keeps the runs that have it: ppo.gamma=0.99 dist.topology=ddp
`python -m ddppo.runs compare --help` and `plot --help` list theirs."""
_USAGE_OF_COMPARE = "python -m ddppo.runs compare <run folder> <run folder> [more] [key=value ...]"
_USAGE_OF_PLOT = """python -m ddppo.runs plot [folder] [more] group=<keys> [key=value ...]

A setting as a filter keeps the runs that have it: env.id=CartPole-v1"""


@door()
def main() -> None:
    """Run the command line; exit code 0, or 2 for a mistake in the command."""
    if sys.argv[1:2] == ["compare"]:
        options = parse(CompareOptions, sys.argv[2:], path="run", more="others", usage=_USAGE_OF_COMPARE)
        print(compare(options, _width()))
    elif sys.argv[1:2] == ["plot"]:
        filters, arguments = filters_of(sys.argv[2:], PlotOptions)
        print(
            plot(parse(PlotOptions, arguments, path="folder", more="others", usage=_USAGE_OF_PLOT), filters)
        )
    else:
        filters, arguments = filters_of(sys.argv[1:])
        print(listed(parse(TableOptions, arguments, path="folder", usage=_USAGE), filters, _width()))


def _width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


if __name__ == "__main__":
    main()
