"""The runs of a scaling study. `run_folders` and `foreign` read them and check every value.

Whoever is handed a `Run` can therefore trust it: types are as declared, numbers finite but for NaN where it says so,
sizes at least 1.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ddppo.distributed.topologies.known import TOPOLOGIES

SLEEPING_TASK = "ddppo/Synthetic-v0"  # its step time is a setting, env.kwargs.step_time_s
PARTS = ("t_rollout", "t_learn", "t_sync", "t_comm", "t_other")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Mean return at one time of a run: environment steps of all ranks, training seconds."""

    env_steps: int
    wall_s: float
    return_mean: float


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that ran ranks; texts are empty and cores 0 where the run does not say."""

    hostname: str = ""
    cpu: str = ""
    gpu: str = ""
    cores: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """Where, when and how a run was made; texts are empty where it does not say, num_hosts is then 0.

    hosts: the host of each rank, none if unknown. machines: those that the run describes, rank 0's
    first. step: what a step of the learner ran as (eager, compiled, native). Times are UTC, ISO 8601.
    """

    started_at: str = ""
    finished_at: str = ""
    command: str = ""
    git_commit: str = ""
    git_dirty: bool = False
    python: str = ""
    torch: str = ""
    hostname: str = ""
    hosts: tuple[str, ...] = ()
    machines: tuple[Machine, ...] = ()
    device: str = "cpu"
    env_backend: str = ""
    collective: str = ""
    grad_sync: str = ""
    step: str = ""
    threads_per_rank: int = 1
    num_nodes: int = 1
    num_hosts: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """One finished run. Arrays leave warm-up iterations out.

    times: "t_iter" and each of PARTS, seconds, `[iterations, W]`, or `[iterations, 1]` where only means over ranks are
    known. steps: environment steps of all ranks per iteration
    `[iterations]`. stability: train/* metrics (approx_kl, clip_fraction, entropy, value_loss, ...) `[iterations]`, NaN
    where one was not finite. config is the resolved configuration as nested dicts. What a foreign table does not tell
    is empty or NaN.

    reached_at_s: seconds until target_return was reached where a table tells them, +inf if it never was; else NaN.

    roles: what each rank is called in the topology, none if unknown. num_stepping: ranks that step environments, or 0.
    rank_means: of each rank, of the metrics that tell topologies apart (time/t_wait_learner, dist/bytes, ...).

    others: {W: iterations} that a resumed run had made with another world size than its last. fps, times, steps and
    stability are without them; env_steps, wall_s and the curves are of the whole run.
    """

    path: str
    env_id: str
    world_size: int
    seed: int
    rule: str
    num_envs: int
    rollout_steps: int
    num_epochs: int
    num_minibatches: int
    num_parameters: int
    cores: int
    env_steps: int
    wall_s: float
    fps: float
    final_return: float
    target_return: float
    times: dict[str, np.ndarray]
    steps: np.ndarray
    evaluations: tuple[Evaluation, ...]
    returns: tuple[Evaluation, ...] = ()
    stability: dict[str, np.ndarray] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    origin: Origin = Origin()
    others: dict[int, int] = field(default_factory=dict)
    reached_at_s: float = math.nan
    topology: str = "ddp"
    roles: tuple[str, ...] = ()
    num_stepping: int = 0
    rank_means: tuple[dict[str, float], ...] = ()

    @property
    def number_bytes(self) -> int:
        """Bytes of a number of the gradient."""
        return 8 if self.config.get("dtype") == "float64" else 4

    @property
    def tells_ranks(self) -> bool:
        """Whether times are of each rank; false where there are none, or only means over ranks."""
        return bool(self.times) and all(t.shape[1] == self.world_size for t in self.times.values())

    @property
    def ranks_are_in_step(self) -> bool:
        """Whether all ranks go through an iteration together, so that their times are parts of it."""
        known = TOPOLOGIES.get(self.topology.partition(" ")[0])
        return known is None or not known.own_pace

    @property
    def ranks_are_alike(self) -> bool:
        """Whether all ranks do the same, so that one may be called slow; a topology may give them roles instead."""
        return self.topology == "ddp"


def by_world_size(runs: Iterable[Run]) -> dict[int, list[Run]]:
    """Return {W: its runs}, W ascending."""
    groups: dict[int, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.world_size):
        groups.setdefault(run.world_size, []).append(run)
    return groups


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A run folder (or row of a table) that the report does without, why, and what to do about it."""

    path: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Reading:
    """What was found: usable runs, what is left out, and remarks that concern the study as a whole."""

    runs: list[Run]
    left_out: list[LeftOut]
    remarks: list[str] = field(default_factory=list)
