"""What is known about a run? The dataclasses that the whole package works on.

`run_folders` and `foreign` make a `Run` and check every value, so all other code relies on it: types are as declared,
numbers are finite (NaN only if the field says so), sizes are at least 1.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ddppo.distributed.topologies.known import TOPOLOGIES
from ddppo.scaling import nearly_equal

SLEEPING_TASK = "ddppo/Synthetic-v0"  # a task with a step time that is a setting, env.kwargs.step_time_s
PARTS = ("t_rollout", "t_learn", "t_sync", "t_comm", "t_other")  # exclusive; they sum to t_iter


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A mean return at one time of a run."""

    env_steps: int  # of all ranks so far
    wall_s: float  # training seconds so far
    return_mean: float


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that ran ranks. A text is "" and cores 0 if unknown."""

    hostname: str = ""
    cpu: str = ""
    gpu: str = ""
    cores: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """Where, when and how a run was made. A text is "" if unknown."""

    started_at: str = ""  # UTC, ISO 8601
    finished_at: str = ""
    command: str = ""
    git_commit: str = ""
    git_dirty: bool = False
    python: str = ""  # version
    torch: str = ""  # version
    hostname: str = ""  # of rank 0
    hosts: tuple[str, ...] = ()  # the hostname of each rank; empty if unknown
    machines: tuple[Machine, ...] = ()  # rank 0's first
    device: str = "cpu"
    env_backend: str = ""
    collective: str = ""
    grad_sync: str = ""
    step: str = ""  # the learner's step: eager, compiled, or native (C++)
    threads_per_rank: int = 1
    num_nodes: int = 1
    num_hosts: int = 0  # 0 if unknown


@dataclass(frozen=True, slots=True)
class Run:
    """One finished run. Arrays leave out warm-up iterations. Unknown values of a foreign table are empty or NaN.

    A run that was resumed with another world size has iterations of several W. fps, times, steps and stability are
    those of its last W; env_steps, wall_s and the curves are of the whole run.
    """

    path: str  # of the folder, or of the table and line
    env_id: str
    world_size: int  # the last one, if the run was resumed with another
    seed: int
    rule: str  # strong or weak scaling
    # Sizes.
    num_envs: int  # of all ranks
    rollout_steps: int
    num_epochs: int
    num_minibatches: int
    num_parameters: int
    cores: int  # of all machines; 0 if unknown
    # Results.
    env_steps: int
    wall_s: float
    fps: float
    final_return: float  # of the final evaluation, or the last training return; NaN if there is none
    target_return: float  # NaN if none was set
    # Seconds, "t_iter" and each of PARTS: [iterations, W], or [iterations, 1] if only means over ranks are known.
    times: dict[str, np.ndarray]
    steps: np.ndarray  # [iterations], environment steps of all ranks in each
    # Curves.
    evaluations: tuple[Evaluation, ...]
    returns: tuple[Evaluation, ...] = ()  # training returns
    # train/* metrics without the prefix (approx_kl, entropy, ...), [iterations]; NaN where a value was not finite.
    stability: dict[str, np.ndarray] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)  # resolved settings, nested
    origin: Origin = Origin()
    eval_s: float = 0.0  # seconds of evaluations, which are in no time above
    others: dict[int, int] = field(default_factory=dict)  # {W: iterations} of world sizes before the last
    # Time to target_return from a table; +inf: never reached; NaN: the table does not say.
    reached_at_s: float = math.nan
    # The topology, and its ranks.
    topology: str = "ddp"
    roles: tuple[str, ...] = ()  # of each rank; empty if unknown
    num_stepping: int = 0  # ranks that step environments; 0 if unknown
    whole_episodes: bool = False  # an iteration is one episode of each environment, of at most rollout_steps
    rank_means: tuple[dict[str, float], ...] = ()  # of each rank: time/t_wait_learner, dist/bytes, ...

    @property
    def number_bytes(self) -> int:
        """Bytes of one number of the gradient."""
        return 8 if self.config.get("dtype") == "float64" else 4

    @property
    def tells_ranks(self) -> bool:
        """Whether `times` has a column for each rank, rather than means over ranks or nothing."""
        return bool(self.times) and all(t.shape[1] == self.world_size for t in self.times.values())

    @property
    def ranks_are_in_step(self) -> bool:
        """Whether all ranks take part in every iteration, so that their times are parts of it."""
        # A variant of a topology is named "<topology> <setting>=<value>".
        known = TOPOLOGIES.get(self.topology.partition(" ")[0])
        return known is None or not known.own_pace

    @property
    def shares(self) -> tuple[int, ...]:
        """Environments of each rank, if every rank steps some: nearly equal numbers."""
        return nearly_equal(max(self.num_envs, self.world_size), self.world_size)

    @property
    def ranks_are_alike(self) -> bool:
        """Whether all ranks have the same role, so that one of them can be called slow."""
        return self.topology == "ddp"


def by_world_size(runs: Iterable[Run]) -> dict[int, list[Run]]:
    """Return {W: its runs}, W ascending."""
    groups: dict[int, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.world_size):
        groups.setdefault(run.world_size, []).append(run)
    return groups


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A run folder, or row of a table, that is not used."""

    path: str
    reason: str  # it is not used
    remedy: str  # for the user to do

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading a folder or table."""

    runs: list[Run]
    left_out: list[LeftOut]
    remarks: list[str] = field(default_factory=list)  # for the report, about all runs together
