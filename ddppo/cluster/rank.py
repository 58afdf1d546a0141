"""The program of each rank of a SLURM job: `python -m ddppo.cluster.rank <run folder>`, started by srun.

It translates SLURM's environment variables to those of torchrun, and runs the rank as any other launcher does.
"""

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from ddppo.launch.mpi import tasks_per_node


def main() -> None:
    """Train as the rank that SLURM has started here; never returns."""
    # SLURM's signal to stop may come at any time, and also reaches the processes of environments. It must not kill
    # before the loop over iterations handles it, nor in processes that a rank starts. The driver sends SIGUSR2. SLURM
    # itself sends SIGTERM when it takes the nodes of a job without notice to the batch script.
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.environ.update(torchrun_variables(os.environ))
    from ddppo.loop.rank import run_rank

    run_rank(Path(sys.argv[1]))


def torchrun_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's variables RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and GROUP_WORLD_SIZE (nodes).

    Also our own DDPPO_CORES_PER_RANK. SLURM's variables:
    https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
    """
    per_node = tasks_per_node(environ["SLURM_STEP_TASKS_PER_NODE"])
    return {
        "RANK": environ["SLURM_PROCID"],
        "LOCAL_RANK": environ["SLURM_LOCALID"],
        "WORLD_SIZE": environ["SLURM_NTASKS"],
        "LOCAL_WORLD_SIZE": str(per_node[int(environ["SLURM_NODEID"])]),
        "GROUP_WORLD_SIZE": str(len(per_node)),
        "DDPPO_CORES_PER_RANK": environ["SLURM_CPUS_PER_TASK"],
    }


if __name__ == "__main__":
    main()
