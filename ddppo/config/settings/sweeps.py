"""Of sweeps: jobs of SLURM, and the search over settings."""

from dataclasses import dataclass
from typing import Any

from ddppo.config.fields import setting


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
        60, "time limit in minutes; a run that needs longer saves, requeues and goes on", low=1
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
    setup: list[str] = setting(meaning="shell lines before the run, e.g. ['module load cuda']", factory=list)
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
    poll_s: float = setting(3.0, "seconds between two looks at the queue", above=0)


@dataclass(slots=True)
class GpUcbSweeperConfig:
    """Settings of hydra/sweeper=gp_ucb, named as Optuna's where these mean the same."""

    _target_: str = setting("hydra_plugins.ddppo_gp_ucb.GpUcbSweeper", "")
    direction: str = setting(
        "maximize",
        "of the objective; use minimize with objective=time_to_target",
        choices=("maximize", "minimize"),
    )
    n_trials: int = setting(20, "runs in all; fewer if no other values are left", low=1)
    n_jobs: int = setting(
        1, "runs at once, if the launcher can; the search learns from all of them together", low=1
    )
    beta: float = setting(
        2.0,
        "standard deviations that are added to the mean when a point is judged: a larger number explores "
        "more",
        low=0,
    )
    num_random: int = setting(4, "runs with random values, before values are chosen", low=1)
    seed: int = setting(0, "seed of the random values and of ties; not the seed of the runs", low=0)
    params: dict[str, Any] | None = setting(
        None, "settings to search, {key: interval(...), ...}, in addition to those of the command line"
    )
