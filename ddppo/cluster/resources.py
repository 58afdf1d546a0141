"""What a run asks of SLURM, from its own world size."""

import hashlib
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from ddppo.cluster.layout import RankLayout
from ddppo.config import Config, SlurmLauncherConfig, layout
from ddppo.errors import ConfigError

_Need = TypeVar("_Need")
_Job = TypeVar("_Job")
# Options of sbatch that the launcher and submitit set, and would work no more with another value.
_OWN = frozenset(
    {
        *(
            "array",
            "clusters",
            "cpus-per-task",
            "error",
            "gpus-per-node",
            "job-name",
            "no-requeue",
            "nodes",
            "ntasks",
        ),
        *("ntasks-per-node", "open-mode", "output", "requeue", "signal", "time", "wait", "wrap"),
    }
)
_NOTICE_S = (
    120  # SLURM may give notice up to a minute early, and an iteration and a checkpoint take their time
)


def rank_layout(world_size: int, launcher: SlurmLauncherConfig) -> RankLayout:
    """Return the fewest nodes that hold `world_size` ranks, with the ranks spread evenly over them.

    Where the launcher gives rank 0 resources of its own, it has a node of its own, and the nodes are of the others.
    """
    learner = None
    if _gives_learner(launcher):
        cpus, world_size = launcher.learner_cpus or launcher.cpus_per_rank, world_size - 1
        learner = RankLayout(1, 1, 1, cpus, launcher.learner_gpus or 0)
    num_nodes = math.ceil(world_size / launcher.ranks_per_node)
    ranks_per_node = math.ceil(world_size / num_nodes)
    return RankLayout(
        world_size=world_size,
        num_nodes=num_nodes,
        ranks_per_node=ranks_per_node,
        cpus_per_rank=launcher.cpus_per_rank,
        gpus_per_node=launcher.gpus_per_rank * ranks_per_node,
        interface=launcher.interface,
        learner=learner,
    )


def check_learner(config: Config, launcher: SlurmLauncherConfig) -> None:
    """Raise ConfigError where rank 0 is given resources of its own, and does the same as other ranks."""
    is_alone = config.dist.world_size > 1 and layout(config).role(0).ranks == (0,)
    if _gives_learner(launcher) and not is_alone:
        raise ConfigError(
            f"hydra.launcher.learner_* with distributed={config.dist.topology} and dist.world_size="
            f"{config.dist.world_size}: rank 0 is no learner among ranks of other roles; use distributed=env_workers, "
            "env_workers_hetero or sync_actors with at least 2 ranks, or leave them out"
        )


def _gives_learner(launcher: SlurmLauncherConfig) -> bool:
    return (launcher.learner_gpus, launcher.learner_cpus, launcher.learner_partition) != (None, None, None)


def job_name(sweep_dir: Path) -> str:
    """Return the name of a sweep's jobs, by which one_at_a_time knows them: another sweep's is another."""
    digest = hashlib.sha256(str(sweep_dir.resolve()).encode()).hexdigest()[:6]
    return f"ddppo-{sweep_dir.name}-{digest}"


def sbatch_parameters(layout: RankLayout, launcher: SlurmLauncherConfig, name: str) -> dict[str, Any]:
    """Return a job's options under submitit's names; the layout's own go past submitit (see RankLayout.sbatch).

    Raises ConfigError for settings of hydra.launcher that exclude one another.
    """
    _check(launcher)
    options, first = layout.sbatch(launcher.signal_s), layout.components[0]
    if launcher.mem_gb_per_rank is not None:
        options["mem"] = _memory(launcher.mem_gb_per_rank, first)
    more = {key.replace("_", "-"): value for key, value in launcher.additional_parameters.items()}
    if launcher.one_at_a_time:  # of jobs with the same name
        options["dependency"] = ",".join(["singleton", *filter(None, [more.pop("dependency", None)])])
    parameters = {
        "job_name": name,
        "time": launcher.timeout_min,
        "partition": launcher.learner_partition or launcher.partition,
        "account": launcher.account,
        "qos": launcher.qos,
        "constraint": launcher.constraint,
        "exclusive": launcher.exclusive or None,
        # Until Python listens, the signal to save would end the job.
        "setup": [*_second_component(layout, launcher), "trap '' USR2", *launcher.setup],
        "array_parallelism": 1 if launcher.one_at_a_time else launcher.array_parallelism,
        "stderr_to_stdout": True,
        "use_srun": False,  # the driver is the batch script itself, and calls srun for the ranks
        "additional_parameters": options | more,
    }
    return {name: value for name, value in parameters.items() if value is not None}


def _memory(gb_per_rank: float, component: RankLayout) -> str:
    return f"{math.ceil(1024 * gb_per_rank * component.ranks_per_node)}M"


def _second_component(layout: RankLayout, launcher: SlurmLauncherConfig) -> list[str]:
    """Return the lines of a batch script that ask for the ranks besides the learner, none without such a one.

    sbatch reads them up to the script's first command, so that they may follow what submitit writes of the first.
    """
    if layout.learner is None:
        return []
    options = layout.resources() | {
        "time": launcher.timeout_min,
        "partition": launcher.partition,
        "account": launcher.account,
        "qos": launcher.qos,
        "constraint": launcher.constraint,
        "mem": launcher.mem_gb_per_rank and _memory(launcher.mem_gb_per_rank, layout),
    }
    given = [f"#SBATCH --{name}={value}" for name, value in options.items() if value is not None]
    return ["#SBATCH hetjob", *given, *(["#SBATCH --exclusive"] if launcher.exclusive else [])]


def _check(launcher: SlurmLauncherConfig) -> None:
    if 60 * launcher.timeout_min < launcher.signal_s + _NOTICE_S:
        raise ConfigError(
            f"hydra.launcher.timeout_min={launcher.timeout_min} leaves a job no time to train before it saves, "
            f"hydra.launcher.signal_s={launcher.signal_s} and up to {_NOTICE_S} s before its end: use at least "
            f"{math.ceil((launcher.signal_s + _NOTICE_S) / 60)} minutes, or a smaller signal_s"
        )
    for key, value in launcher.additional_parameters.items():
        if key.replace("_", "-") in _OWN:
            raise ConfigError(
                f"hydra.launcher.additional_parameters.{key}={value} is the launcher's own: it follows from "
                "dist.world_size and the other settings of hydra.launcher"
            )


def in_arrays(jobs: Iterable[tuple[_Need, _Job]], max_array_size: int) -> list[tuple[_Need, list[_Job]]]:
    """Group jobs of equal needs, in order of appearance, in arrays of at most `max_array_size` (0: no arrays)."""
    groups: dict[str, tuple[_Need, list[_Job]]] = {}
    for need, job in jobs:
        groups.setdefault(repr(need), (need, []))[1].append(job)
    size = max(1, max_array_size)
    return [
        (need, members[start : start + size])
        for need, members in groups.values()
        for start in range(0, len(members), size)
    ]
