"""The door `python -m ddppo.predict`: FPS, speedup and efficiency at W that nobody has run.

From the runs of a sweep, or from one published point.
"""

import sys

from ddppo.options import door
from ddppo.study.predict.command import parsed, predict


@door()
def main() -> None:
    """Run the command line; exit code 0, or 2 for a mistake in the command."""
    options, what_if = parsed(sys.argv[1:])
    print(predict(options, what_if))


if __name__ == "__main__":
    main()
