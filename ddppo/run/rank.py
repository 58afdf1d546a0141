"""What the launcher starts for every rank: `python -m ddppo.run.rank <run folder> <the launcher's process id>`.

torch takes a second to import. Before that, the process sees to it that it ends with its launcher, and silently when it
is told to stop.
"""

import signal
import sys
from pathlib import Path

from ddppo.signals import die_with_parent, stop_signals_kill


def main() -> None:
    """Train as the rank that the environment variables say this process is; never returns."""
    die_with_parent(int(sys.argv[2]))
    stop_signals_kill(signal.SIGINT)
    from ddppo.run.worker import run_launched_rank

    run_launched_rank(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
