"""The command `python -m ddppo.predict`: FPS, speedup and efficiency at W without runs.

The prediction is made from the runs of a sweep, or from one published point.
"""

import sys

from ddppo.errors import ConfigError
from ddppo.options import door, parse_all
from ddppo.study.predict.command import PredictConfig, predict
from ddppo.study.predict.model import WhatIf

_USAGE = "python -m ddppo.predict <sweep folder> [world_sizes=1,2,...] [change=value] ..."


@door()
def main() -> None:
    """Run the command line; exit code 0, or 2 for a mistake in the command."""
    options, what_if = _parsed(sys.argv[1:])
    print(predict(options, what_if))


def _parsed(arguments: list[str]) -> tuple[PredictConfig, WhatIf]:
    options, what_if = parse_all((PredictConfig, WhatIf), arguments, path="folder", usage=_USAGE)
    if (options.folder is None) == (options.published is None):
        raise ConfigError(
            "give a sweep folder or a published point, one of them: python -m ddppo.predict <sweep folder>, or "
            '"published={world_size: 128, speedup: 107}"'
        )
    if options.fit_on is not None and what_if.changes:
        changed = ", ".join(what_if.changes)
        raise ConfigError(f"fit_on={options.fit_on} compares with measurements: leave {changed} out")
    if options.published is not None and len(arguments) > 1:
        raise ConfigError(
            "published= excludes other settings: a point has no parts that they could change; give a sweep folder"
        )
    return options, what_if


if __name__ == "__main__":
    main()
