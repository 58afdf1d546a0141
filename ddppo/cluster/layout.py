"""Where the ranks of a job go, as sbatch and srun are told."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddppo.errors import ConfigError

_START_TIMEOUT_S = 300  # how long SLURM may take to start the ranks once the job runs


@dataclass(frozen=True, slots=True)
class RankLayout:
    """Where the ranks of a run go: ranks_per_node on each of num_nodes; the last node may have fewer.

    interface: the network that ranks speak over, e.g. ib0; None leaves the choice to Gloo and NCCL. learner: of rank
    0, if it is the first component of a heterogeneous job; the other ranks are the second.
    https://slurm.schedmd.com/heterogeneous_jobs.html
    """

    world_size: int
    num_nodes: int
    ranks_per_node: int
    cpus_per_rank: int
    gpus_per_node: int = 0
    interface: str | None = None
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
        """Return sbatch's options for the first component of a job of this layout, for additional_parameters.

        Not as parameters of submitit's own, which would take every rank for a task that returns a result. The signal
        goes to the batch script alone (B:), `signal_delay_s` before the job's end.
        """
        return self.components[0].resources() | {"signal": f"B:USR2@{signal_delay_s}", "requeue": True}

    def resources(self) -> dict[str, Any]:
        """Return what sbatch and srun are told of this component alone."""
        options = {
            "nodes": self.num_nodes,
            "ntasks": self.world_size,
            "ntasks-per-node": self.ranks_per_node,
            "cpus-per-task": self.cpus_per_rank,
        }
        return options | ({"gpus-per-node": self.gpus_per_node} if self.gpus_per_node else {})

    def srun(self, program: Sequence[str] = ()) -> list[str]:
        """Return the command that starts `program` as every rank inside the job: one step, whatever the components."""
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
