"""Settings of single topologies: each class has the keys of the section `dist` that only its topology knows.

`TopologySpec.settings` names the class. The values' meanings appear in `--help`, and `check` refuses what cannot work.
"""

import math
from dataclasses import dataclass

from ddppo.config.fields import setting
from ddppo.config.settings import Config, DistSettings
from ddppo.errors import ConfigError
from ddppo.scaling import BatchShape


@dataclass(slots=True)
class MultiLearnerSettings(DistSettings):
    topology: str = setting("multi_learner", "the name of this topology")
    num_learners: int | None = setting(
        None,
        "data-parallel learners L, each with W / L - 1 actors, the first ones with one more if L does not divide W. "
        "null: the most with which all have as many, W / 2 if W is even",
        low=1,
    )


@dataclass(slots=True)
class EnvWorkersSettings(DistSettings):
    topology: str = setting("env_workers", "the name of this topology")
    env_shares: list[int] = setting(
        meaning="environments of rank 1, 2, ..., env.num_envs in all; [] or, in older runs, [0]: nearly equal shares, "
        "one more for the first ranks if the number does not divide",
        factory=list,
    )


@dataclass(slots=True)
class CentralInferenceSettings(DistSettings):
    topology: str = setting("central_inference", "the name of this topology")
    observers: int | None = setting(
        None,
        "processes that step an agent's environments, each nearly as many; null: env.num_workers",
        low=1,
    )
    max_wait_ms: float | None = setting(
        None,
        "how long a forward pass waits for further observers after the first one; null: for all",
        low=0,
        high=60_000,
    )

    def check_run(self, config: Config, shape: BatchShape) -> None:
        observers, num_workers, fewest = self.observers, config.env.num_workers, shape.fewest_envs
        if observers is None:
            return
        if num_workers not in (None, observers):
            raise ConfigError(
                f"dist.observers={observers} and env.num_workers={num_workers} set the same number of "
                f"distributed={self.topology} to different values: leave one of them out"
            )
        if observers > fewest:
            raise ConfigError(
                f"dist.observers={observers} exceeds the {fewest} environments of an agent: use at most {fewest}"
            )


@dataclass(slots=True)
class AsyncActorsSettings(DistSettings):
    topology: str = setting("async_actors", "the name of this topology")
    max_lag: int | None = setting(
        None,
        "largest number of updates between the parameters that acted and the parameters that learn; older "
        "rollouts are refused. 0: in step. null: the least number with which no actor waits for an update",
        low=0,
    )
    correction: str = setting(
        "clip",
        "correction of rollouts from older parameters: clip (truncated importance ratios in the advantages), "
        "vtrace (also in the value targets), none (only PPO's own clipping)",
        choices=("clip", "vtrace", "none"),
    )


@dataclass(slots=True)
class PreemptSettings(DistSettings):
    topology: str = setting("ddp_preempt", "the name of this topology")
    preempt_rule: str = setting(
        "fraction",
        "how many ranks must finish before the others end their rollouts early: fraction (sync_frac of them), "
        "throughput (the number with the most steps per second of rollout and learning in the last iterations)",
        choices=("fraction", "throughput"),
    )
    sync_frac: float = setting(
        0.6,
        "share of the ranks that must finish their rollouts before the others end theirs",
        above=0,
        high=1,
    )
    min_frac: float = setting(
        0.25,
        "least share of its steps that a rank takes before it ends a rollout early",
        low=0,
        high=1,
    )
    rollout_time_cap_s: float | None = setting(
        None,
        "seconds after which a rank with min_frac of its steps ends its rollout in any case; null: no limit",
        above=0,
        high=2_000_000,
    )

    @property
    def awaited_ranks(self) -> int:
        """Number of ranks that must have finished their rollouts before others may end theirs early."""
        # Rounded up; the 1e-9 keeps .6 * 5 = 3.0000000000000004 at 3.
        return max(1, math.ceil(self.sync_frac * self.world_size - 1e-9))

    def check(self) -> None:
        if self.min_frac == 1:
            raise ConfigError(
                "dist.min_frac=1 asks for all steps of every rollout, so no rollout could end early: use less than 1, "
                "or distributed=ddp"
            )
        if self.preempt_rule == "throughput" and self.sync_frac != 0.6:
            raise ConfigError(
                f"dist.sync_frac={self.sync_frac} has no effect with dist.preempt_rule=throughput, which chooses for "
                "how many ranks to wait: use dist.preempt_rule=fraction, or leave it out"
            )

    @property
    def warning(self) -> str | None:
        """A warning if no rollout of this run can end early, else None."""
        if self.preempt_rule != "fraction" or self.rollout_time_cap_s is not None:
            return None
        if self.awaited_ranks < self.world_size:
            return None
        if self.world_size == 1:
            return "distributed=ddp_preempt with dist.world_size=1: no other rank waits, so no rollout ends early"
        return (
            f"dist.sync_frac={self.sync_frac:g} of dist.world_size={self.world_size} ranks are all of them, so no "
            f"rollout ends early: use at most {(self.world_size - 1) / self.world_size:.3g}, or more ranks"
        )
