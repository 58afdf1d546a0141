"""The command `python -m ddppo.advise`: the number of workers and the settings to use, and their cost.

It measures short probes of the user's configuration on this machine, each a run of ddppo.train.
"""

import os
import sys
import time

from ddppo.options import door, parse, parted
from ddppo.processes.signals import stop_signals_raise
from ddppo.study.advise.command import AdviseConfig, advise

_USAGE = """python -m ddppo.advise [settings of ddppo.train] [key=value ...]
python -m ddppo.advise env=lunarlander                                  which W, and with which settings
python -m ddppo.advise env=lunarlander dist.world_size=1,2,8            of these W
python -m ddppo.advise env=lunarlander env.backend=sync                 with this backend
python -m ddppo.advise env=lunarlander steps_to_target=outputs/sweeps/mine

A setting that is given is fixed; one with several values is tried at each. Ctrl-C prints what is known so far.
Exit code 0, 1 if nothing could be measured, or 2 for a mistake in the command."""


@door("stopped")
@stop_signals_raise()
def main() -> None:
    """Run the command line; the exit code is that of the usage."""
    began = time.monotonic()
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as ddppo.train does, before torch is imported
    arguments, overrides = parted(AdviseConfig, sys.argv[1:])
    advise(parse(AdviseConfig, arguments, usage=_USAGE), overrides, began)


if __name__ == "__main__":
    main()
