"""The settings of algorithms that replay: DQN and SAC. Imports no torch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddppo.config.algorithm_settings import AlgorithmSettings
from ddppo.config.fields import setting
from ddppo.errors import ConfigError
from ddppo.scaling import BatchShape

if TYPE_CHECKING:
    from ddppo.config.settings import Config

_LARGEST = 100_000_000  # rows


@dataclass
class ReplaySettings(AlgorithmSettings):
    """The settings of an algorithm that learns from a replay buffer."""

    rollout_steps: int = setting(
        32,
        "steps T per environment between updates; an iteration makes updates_per_step * T * N of them",
        low=1,
    )
    learning_rate: float = setting(1e-3, "step size of Adam at the start", above=0, high=1)
    gamma: float = setting(0.99, "discount per step", low=0, high=1)
    batch_size: int = setting(128, "rows of an update, over all ranks", low=1, high=_LARGEST)
    capacity: int = setting(
        100_000,
        "rows that the replay buffer holds, over all environments; the oldest go first",
        low=1,
        high=_LARGEST,
    )
    learning_starts: int = setting(
        1_000,
        "no update before the replay buffer holds so many rows; they owe no updates later",
        low=1,
        high=_LARGEST,
    )
    updates_per_step: float = setting(
        0.25, "replay ratio: updates per environment step of all ranks, kept exactly", above=0, high=1_000
    )
    n_step: int = setting(
        1, "rewards of so many steps are summed before the value of what follows is added", low=1, high=1_000
    )

    def check(self) -> None:
        if self.normalize_obs:
            raise ConfigError(
                "algorithm.normalize_obs=true: the replay buffer would hold observations that older moments "
                "normalised: leave it out, or scale observations in the task"
            )
        if self.learning_starts > self.capacity:
            raise ConfigError(
                f"algorithm.learning_starts={self.learning_starts} is more than algorithm.capacity={self.capacity} "
                "rows: learning would never start"
            )

    def check_run(self, config: "Config", shape: BatchShape) -> None:
        # Every environment has a ring of equal size.
        num_rows = self.capacity // shape.num_envs * shape.num_envs
        if num_rows < self.learning_starts <= self.capacity:
            raise ConfigError(
                f"algorithm.learning_starts={self.learning_starts} is more than the {num_rows} rows that "
                f"algorithm.capacity={self.capacity} holds of env.num_envs={shape.num_envs}: learning would never start"
            )
        if self.capacity < shape.num_envs * shape.rollout_steps:
            raise ConfigError(
                f"algorithm.capacity={self.capacity} holds less than one iteration of {shape.num_envs} envs * "
                f"{shape.rollout_steps} steps: use at least {shape.num_envs * shape.rollout_steps}"
            )


@dataclass
class DqnSettings(ReplaySettings):
    name: str = setting("dqn", "this algorithm's")
    learning_rate_end: float = setting(
        0.0,
        "step size of Adam at the end of the run; it changes linearly from learning_rate",
        low=0,
        high=1,
    )
    double: bool = setting(
        True, "the online network chooses the action that the target network values (double DQN)"
    )
    target_period_updates: int = setting(
        200, "updates between copies of the online network into the target network", low=1
    )
    epsilon_start: float = setting(1.0, "share of uniform actions at the start of the run", low=0, high=1)
    epsilon_end: float = setting(0.05, "share of uniform actions once it has fallen", low=0, high=1)
    epsilon_fraction: float = setting(
        0.3,
        "share of total_steps in which epsilon falls linearly from epsilon_start to epsilon_end",
        low=0,
        high=1,
    )
    max_grad_norm: float = setting(10.0, "gradients are scaled down to at most this norm", above=0)


@dataclass
class SacSettings(ReplaySettings):
    name: str = setting("sac", "this algorithm's")
    rollout_steps: int = setting(
        8,
        "steps T per environment between updates; an iteration makes updates_per_step * T * N of them",
        low=1,
    )
    updates_per_step: float = setting(
        1.0, "replay ratio: updates per environment step of all ranks, kept exactly", above=0, high=1_000
    )
    critic_learning_rate: float = setting(1e-3, "step size of Adam for the two critics", above=0, high=1)
    temperature_learning_rate: float = setting(1e-3, "step size of Adam for the temperature", above=0, high=1)
    tau: float = setting(
        0.005, "share by which target critics move to the critics at each update", above=0, high=1
    )
    uniform_steps: int = setting(
        1_000, "environment steps of all ranks with uniform actions at the start of the run", low=0
    )
    target_entropy: float | None = setting(
        None,
        "entropy of the policy in nats that the temperature aims at; null is -1 per dimension of the action",
    )
