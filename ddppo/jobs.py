"""The command `python -m ddppo.jobs`: list the SLURM jobs of a sweep, show a log, wait, cancel."""

import sys

from ddppo.cluster.command import JobsConfig, look
from ddppo.options import door, parse

_USAGE = """python -m ddppo.jobs <sweep folder> [key=value ...]

Shows the jobs of a sweep that hydra/launcher=slurm submitted: state, node, progress, and why a job failed.
Exit code 0, 1 if a job failed, or 2 for a mistake in the command."""


@door(interrupted="the jobs continue; cancel=true ends them")
def main() -> None:
    """Run the command line."""
    options = parse(JobsConfig, sys.argv[1:], path="folder", usage=_USAGE)
    sys.exit(1 if look(options) else 0)


if __name__ == "__main__":
    main()
