"""The command `python -m ddppo.bench`: speed, its causes, the machine's limits, and comparison with other versions.

Every run is started by ddppo.train, as a user would start it.
"""

import sys

from ddppo.options import door, parse, parted
from ddppo.processes.signals import stop_signals_raise
from ddppo.study.bench.command import BenchConfig, bench

_USAGE = """python -m ddppo.bench [workloads=W1,W2,W4] [world_sizes=1,2] [key=value ...] [settings of ddppo.train ...]
python -m ddppo.bench env=pendulum env.num_envs=16                 only your own settings, if they choose a task
python -m ddppo.bench against=HEAD~1                               this code and a commit's in paired rounds
python -m ddppo.bench compare=old.json,new.json                    two results that out= wrote; nothing is run
python -m ddppo.bench compare=old.json workloads=W1 world_sizes=1  measure now, and compare with a result
python -m ddppo.bench profile=true workloads=W1                    a trace, and a page: where the time goes

Exit code 0, 1 if something is slower than allowed or a run failed, or 2 for a mistake in the command."""


@door("stopped; nothing was written")
@stop_signals_raise()
def main() -> None:
    """Run the command line; the exit code is that of the usage."""
    arguments, overrides = parted(BenchConfig, sys.argv[1:])
    sys.exit(1 if bench(parse(BenchConfig, arguments, usage=_USAGE), overrides) else 0)


if __name__ == "__main__":
    main()
