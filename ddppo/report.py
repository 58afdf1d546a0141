"""The command `python -m ddppo.report`: speedup S(W) and efficiency E(W) of a sweep, the causes, and figures.

A plugin may bring a report of its own for a run folder, as the search over orders does (ddppo.plugins).
"""

import sys
from pathlib import Path

from ddppo.options import door, parse
from ddppo.study.page.files import make_report, on_terminal
from ddppo.study.report import ReportOptions, report_of_plugin

_USAGE = """python -m ddppo.report <sweep folder, or .csv or .jsonl file> [more sweep folders] [key=value ...]
python -m ddppo.report <run folder with a report of its own, such as a search over orders> [out=<folder>]"""


@door()
def main() -> None:
    """Run the command line; exit code 0 if a report was made, with any verdict, 1 if not, 2 for a mistake."""
    options = parse(ReportOptions, sys.argv[1:], path="path", more="others", usage=_USAGE)
    width = None if sys.stdout.isatty() else 160
    if (of_plugin := report_of_plugin(Path(options.path))) is not None:
        print(of_plugin(options, width))
        return
    if options.watch:
        from ddppo.study.watch import watch  # imports Hydra

        report, folder = watch(options, lambda text: print(text, flush=True))
    else:
        report, folder = make_report(options, _announce)
    print(on_terminal(report, folder, width))


def _announce(path: str) -> None:
    """Show the file that is read, on a terminal: a large sweep takes a while."""
    if sys.stderr.isatty():
        print(f"\rreading {path[-100:]:<100}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
