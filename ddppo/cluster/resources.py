"""The resources of a job: the settings of hydra/launcher=slurm, and the placement of ranks on nodes."""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ddppo.config.fields import setting
from ddppo.config.rank_rules import layout
from ddppo.config.settings import Config
from ddppo.errors import ConfigError

_Need = TypeVar("_Need")
_Job = TypeVar("_Job")
# Options of sbatch that the launcher and submitit set, and that a user must not change.
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
# Least time between the start of a job and its signal to save: SLURM may send it up to a minute early, and an iteration
# and a checkpoint take time, too.
_NOTICE_S = 120
_START_TIMEOUT_S = 300  # for SLURM to start the ranks of a running job


@dataclass(slots=True)
class SlurmLauncherConfig:
    """Settings of hydra/launcher=slurm; resolved for each job, so that a value may follow ${dist.world_size}."""

    _target_: str = setting("hydra_plugins.ddppo_slurm.SlurmLauncher", "")
    ranks_per_node: int = setting(8, "most ranks on one node; nodes = W / ranks_per_node, rounded up", low=1)
    cpus_per_rank: int = setting(1, "CPUs of one rank", low=1)
    gpus_per_rank: int = setting(0, "GPUs of one rank", low=0)
    learner_gpus: int | None = setting(
        None,
        "GPUs of rank 0, if it learns or acts for all others (distributed=env_workers, sync_actors, ...);"
        " with any learner_* rank 0 is a component of its own in a heterogeneous job",
        low=0,
    )
    learner_cpus: int | None = setting(None, "CPUs of rank 0, as learner_gpus; null is cpus_per_rank", low=1)
    learner_partition: str | None = setting(None, "partition of rank 0, as learner_gpus; null is partition")
    mem_gb_per_rank: float | None = setting(
        None, "memory of one rank in GB; null is the partition's default", above=0
    )
    timeout_min: int = setting(
        60, "time limit in minutes; a run that needs longer saves, requeues and continues", low=1
    )
    signal_s: int = setting(
        120, "seconds before the time limit at which all ranks save and the job requeues", low=1
    )
    max_num_timeout: int = setting(50, "how often a job may requeue at its time limit", low=0)
    partition: str | None = setting(None, "sbatch --partition")
    account: str | None = setting(None, "sbatch --account")
    qos: str | None = setting(None, "sbatch --qos")
    constraint: str | None = setting(None, "sbatch --constraint")
    exclusive: bool = setting(False, "share nodes with no other job, as a measurement needs")
    setup: list[str] = setting(meaning="shell lines before the run, e.g. ['module load gcc']", factory=list)
    additional_parameters: dict[str, Any] = setting(meaning="any other options of sbatch", factory=dict)
    array_parallelism: int = setting(256, "most jobs of one array that run at once", low=1)
    one_at_a_time: bool = setting(
        False, "run the jobs of the sweep one after another, so that measurements do not disturb each other"
    )
    interface: str | None = setting(
        None, "network interface of Gloo and NCCL, e.g. ib0; null is their own choice"
    )
    local_cluster: bool = setting(False, "use the fake-node cluster that `make slurm-up` started")
    wait: bool = setting(
        True, "wait until all jobs have ended; false returns at once, and `ddppo.jobs` shows them later"
    )
    poll_s: float = setting(3.0, "seconds between two queries of the queue", above=0)


# -- the placement of ranks, as options of sbatch and srun -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankLayout:
    """The placement of the ranks of a run on nodes."""

    world_size: int
    num_nodes: int
    ranks_per_node: int  # the last node may have fewer
    cpus_per_rank: int
    gpus_per_node: int = 0
    interface: str | None = (
        None  # network interface of collectives, such as ib0; None: chosen by Gloo and NCCL
    )
    # Of rank 0, if it is the first component of a heterogeneous job; the other ranks are the second component.
    # https://slurm.schedmd.com/heterogeneous_jobs.html
    learner: "RankLayout | None" = None

    def __post_init__(self) -> None:
        if (
            not (self.num_nodes - 1) * self.ranks_per_node
            < self.world_size
            <= self.num_nodes * self.ranks_per_node
        ):
            raise ConfigError(
                f"{self.num_nodes} nodes with {self.ranks_per_node} ranks each do not hold world_size="
                f"{self.world_size}, or leave a node idle"
            )

    @property
    def components(self) -> "list[RankLayout]":
        return [self] if self.learner is None else [self.learner, self]

    def sbatch(self, signal_delay_s: int) -> dict[str, Any]:
        """Return the options of sbatch for the first component of the job, as additional_parameters of submitit.

        They are not submitit's own parameters, because submitit would expect a result from every rank. The signal goes
        to the batch script alone (B:), `signal_delay_s` seconds before the end of the job.
        """
        return self.components[0].resources() | {"signal": f"B:USR2@{signal_delay_s}", "requeue": True}

    def resources(self) -> dict[str, Any]:
        """Return the options of sbatch and srun for this component alone."""
        options = {
            "nodes": self.num_nodes,
            "ntasks": self.world_size,
            "ntasks-per-node": self.ranks_per_node,
            "cpus-per-task": self.cpus_per_rank,
        }
        return options | ({"gpus-per-node": self.gpus_per_node} if self.gpus_per_node else {})

    def srun(self, program: Sequence[str] = ()) -> list[str]:
        """Return the command that starts `program` as every rank of the job, in one step over all components."""
        # Components are separated by a colon: srun <options> <program> : <options> <program>
        parts = []
        for number, component in enumerate(self.components):
            options = component.resources() | {
                "kill-on-bad-exit": 1,
                "immediate": _START_TIMEOUT_S,
                "input": "none",
            }
            if self.learner is not None:
                options["het-group"] = number
            parts += [":", *(f"--{name}={value}" for name, value in options.items()), *program]
        return ["srun", *parts[1:]]


# -- the options of a job --------------------------------------------------------------------------------------------


def rank_layout(world_size: int, launcher: SlurmLauncherConfig) -> RankLayout:
    """Return a layout with the fewest nodes that hold `world_size` ranks, spread evenly.

    If the settings learner_* give rank 0 its own resources, it has a node for itself, and the others share the rest.
    """
    learner = None
    if _gives_learner(launcher):
        cpus, world_size = launcher.learner_cpus or launcher.cpus_per_rank, world_size - 1
        learner = RankLayout(1, 1, 1, cpus, launcher.learner_gpus or 0)
    # As few nodes as possible, then as few ranks per node as these nodes need: 10 ranks at 8 per node are 5 + 5.
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
    """Raise ConfigError if rank 0 has its own resources, but the same role as other ranks."""
    is_alone = config.dist.world_size > 1 and layout(config).role(0).ranks == (0,)
    if _gives_learner(launcher) and not is_alone:
        raise ConfigError(
            f"hydra.launcher.learner_* with distributed={config.dist.topology} and dist.world_size="
            f"{config.dist.world_size}: rank 0 is no learner among ranks of other roles; use distributed=env_workers "
            "or sync_actors with at least 2 ranks, or leave them out"
        )


def _gives_learner(launcher: SlurmLauncherConfig) -> bool:
    return (launcher.learner_gpus, launcher.learner_cpus, launcher.learner_partition) != (None, None, None)


def job_name(sweep_dir: Path) -> str:
    """Return the name of a sweep's jobs. It is unique, because one_at_a_time serialises jobs of the same name."""
    digest = hashlib.sha256(str(sweep_dir.resolve()).encode()).hexdigest()[:6]
    return f"ddppo-{sweep_dir.name}-{digest}"


def sbatch_parameters(layout: RankLayout, launcher: SlurmLauncherConfig, name: str) -> dict[str, Any]:
    """Return the options of a job by submitit's names.

    Raises ConfigError for settings of hydra.launcher that exclude one another.
    """
    _check(launcher)
    # Options that submitit passes on to sbatch without reading them (see RankLayout.sbatch).
    options, first = layout.sbatch(launcher.signal_s), layout.components[0]
    if launcher.mem_gb_per_rank is not None:
        options["mem"] = _memory(launcher.mem_gb_per_rank, first)
    more = {key.replace("_", "-"): value for key, value in launcher.additional_parameters.items()}
    if launcher.one_at_a_time:  # singleton: a job waits for earlier jobs of the same name
        options["dependency"] = ",".join(["singleton", *filter(None, [more.pop("dependency", None)])])
    parameters = {
        "job_name": name,
        "time": launcher.timeout_min,
        "partition": launcher.learner_partition or launcher.partition,
        "account": launcher.account,
        "qos": launcher.qos,
        "constraint": launcher.constraint,
        "exclusive": launcher.exclusive or None,
        # Without the trap, a signal to save would end the job before Python handles it.
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
    """Return the #SBATCH lines of the second component, with all ranks except the learner; [] without a learner.

    sbatch reads such lines up to the first command of the script, so they may follow the lines that submitit writes.
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
    """Raise ConfigError for a time limit that is too short, and for options of sbatch that the launcher sets."""
    if 60 * launcher.timeout_min < launcher.signal_s + _NOTICE_S:
        raise ConfigError(
            f"hydra.launcher.timeout_min={launcher.timeout_min} leaves a job no time to train before it saves, "
            f"hydra.launcher.signal_s={launcher.signal_s} and up to {_NOTICE_S} s before its end: use at least "
            f"{math.ceil((launcher.signal_s + _NOTICE_S) / 60)} minutes, or a smaller signal_s"
        )
    for key, value in launcher.additional_parameters.items():
        if key.replace("_", "-") in _OWN:
            raise ConfigError(
                f"hydra.launcher.additional_parameters.{key}={value} is set by the launcher, from dist.world_size and "
                "the other settings of hydra.launcher: leave it out"
            )


def in_arrays(jobs: Iterable[tuple[_Need, _Job]], max_array_size: int) -> list[tuple[_Need, list[_Job]]]:
    """Group jobs with equal needs, in order of appearance, into arrays of at most `max_array_size` (0: no arrays)."""
    groups: dict[str, tuple[_Need, list[_Job]]] = {}
    for need, job in jobs:
        groups.setdefault(repr(need), (need, []))[1].append(job)
    size = max(1, max_array_size)
    return [
        (need, members[start : start + size])
        for need, members in groups.values()
        for start in range(0, len(members), size)
    ]
