"""The door `python -m ddppo.report`: from a sweep folder to S(W), E(W), why, and a page with the figures."""

import sys

from ddppo.options import door, parse
from ddppo.study.page.files import make_report, on_terminal
from ddppo.study.report import ReportOptions

_USAGE = "python -m ddppo.report <sweep folder, or .csv or .jsonl file> [more sweep folders] [key=value ...]"


@door()
def main() -> None:
    """Run the command line; exit code 0 if a report was made, whatever its verdict, 1 if not, 2 for a mistake."""
    options = parse(ReportOptions, sys.argv[1:], path="path", more="others", usage=_USAGE)
    if options.watch:
        from ddppo.watch.live import watch  # imports Hydra

        report, folder = watch(options, lambda text: print(text, flush=True))
    else:
        report, folder = make_report(options, _announce)
    print(on_terminal(report, folder, None if sys.stdout.isatty() else 160))


def _announce(path: str) -> None:
    """Show on a terminal what is being read: a large sweep takes a while."""
    if sys.stderr.isatty():
        print(f"\rreading {path[-100:]:<100}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
