"""What the launcher starts for every rank: `python -m ddppo.launch.rank <run folder>`, in a fork that has loaded torch.

Until its loop can stop in good order, the process ends silently when it is told to stop.
"""

import signal
import sys
from pathlib import Path

from ddppo.processes.signals import stop_signals_kill


def main() -> None:
    """Train as the rank that the environment variables say this process is; never returns."""
    stop_signals_kill(signal.SIGINT)
    from ddppo.loop.rank import run_launched_rank

    run_launched_rank(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
