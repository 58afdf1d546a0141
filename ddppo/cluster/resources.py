"""What a run asks of SLURM, from its own world size."""

import math
from collections.abc import Iterable
from typing import Any, TypeVar

from ddppo.cluster.driver import RankLayout
from ddppo.config import SlurmLauncherConfig

_Job = TypeVar("_Job")


def rank_layout(world_size: int, launcher: SlurmLauncherConfig) -> RankLayout:
    """Return the fewest nodes that hold `world_size` ranks, with the ranks spread evenly over them."""
    num_nodes = math.ceil(world_size / launcher.ranks_per_node)
    ranks_per_node = math.ceil(world_size / num_nodes)
    return RankLayout(
        world_size=world_size,
        num_nodes=num_nodes,
        ranks_per_node=ranks_per_node,
        cpus_per_rank=launcher.cpus_per_rank,
        gpus_per_node=launcher.gpus_per_rank * ranks_per_node,
        interface=launcher.interface,
    )


def sbatch_parameters(layout: RankLayout, launcher: SlurmLauncherConfig, job_name: str) -> dict[str, Any]:
    """Return a job's options under submitit's names; the layout's own go past submitit (see RankLayout.sbatch)."""
    options = layout.sbatch(launcher.signal_s)
    if launcher.mem_gb_per_rank is not None:
        options["mem"] = f"{math.ceil(1024 * launcher.mem_gb_per_rank * layout.ranks_per_node)}M"
    if launcher.one_at_a_time:
        options["dependency"] = "singleton"  # of jobs with the same name
    parameters = {
        "job_name": job_name,
        "time": launcher.timeout_min,
        "partition": launcher.partition,
        "account": launcher.account,
        "qos": launcher.qos,
        "constraint": launcher.constraint,
        "exclusive": launcher.exclusive or None,
        # Until Python listens, the signal to save would end the job.
        "setup": ["trap '' USR2", *launcher.setup],
        "array_parallelism": 1 if launcher.one_at_a_time else launcher.array_parallelism,
        "stderr_to_stdout": True,
        "use_srun": False,  # the driver is the batch script itself, and calls srun for the ranks
        "additional_parameters": options | dict(launcher.additional_parameters),
    }
    return {name: value for name, value in parameters.items() if value is not None}


def in_arrays(
    jobs: Iterable[tuple[dict[str, Any], _Job]], max_array_size: int
) -> list[tuple[dict[str, Any], list[_Job]]]:
    """Group jobs of equal parameters, in order of appearance, in arrays of at most `max_array_size`."""
    groups: dict[str, tuple[dict[str, Any], list[_Job]]] = {}
    for parameters, job in jobs:
        groups.setdefault(repr(parameters), (parameters, []))[1].append(job)
    return [
        (parameters, members[start : start + max_array_size])
        for parameters, members in groups.values()
        for start in range(0, len(members), max_array_size)
    ]
