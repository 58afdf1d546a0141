"""The command `python -m ddppo.device_check`: what runs on this machine's devices, with what numbers, and how fast."""

import sys

from ddppo.options import door, parse
from ddppo.study.device_check import DeviceCheckConfig, device_check

_USAGE = """python -m ddppo.device_check [device=auto] [key=value ...]
It takes about three minutes, and prints tables to paste into an issue.

Exit code 0, 1 if a path fails or learns something else than on the CPU, or 2 for a mistake in the command."""


@door("stopped")
def main() -> None:
    """Run the command line; the exit code is that of the usage."""
    sys.exit(0 if device_check(parse(DeviceCheckConfig, sys.argv[1:], usage=_USAGE)) else 1)


if __name__ == "__main__":
    main()
