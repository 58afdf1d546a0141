"""What a rank runs: the contract of a program, and what it hands over in every iteration."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch

from ddppo.algorithms.task_sampler import TaskSample
from ddppo.collectives import Group
from ddppo.distributed.gradient_sync import GradientSync
from ddppo.ppo.acting.rollout import Episode, Rollout, RolloutCollector
from ddppo.ppo.learning.learner import Learner, Update
from ddppo.ppo.learning.step import STATISTICS
from ddppo.processes.signals import StopRequest

# Of a rank that does not learn.
NO_UPDATE = Update(
    local_sums=torch.zeros(len(STATISTICS), dtype=torch.float64),
    num_samples=1,
    steps=0,
    epochs=0,
    grad_norm=math.nan,
    learning_rate=math.nan,
    explained_variance=math.nan,
)


class Collected(NamedTuple):
    """What a rank has of an iteration when all have collected: steps that it counts, episodes, and what it acted.

    Every environment step is counted by one rank. At their own pace, a rank that learns has what others acted.
    """

    num_steps: int
    episodes: list[Episode]
    rollout: Rollout | None


class News(NamedTuple):
    """What a rank at its own pace did of late; t_* as in docs/metrics.md, waited by the role that it waited for.

    num_restarts: of processes of its environments, so far; 0 without news.
    """

    num_steps: int = 0
    t_iter: float = 0.0
    t_rollout: float = 0.0
    t_comm: float = 0.0
    waited: Mapping[str, float] = {}
    num_messages: int = 0
    num_bytes: int = 0
    num_restarts: int = 0


class Closeable(Protocol):
    """Environments of a rank: a ddppo.envs.VecEnv, or what a collector of a model's own steps."""

    def close(self) -> None: ...


class Program(ABC):
    """What a rank does in every iteration; between `collect` and `learn` there is a barrier of all ranks.

    All ranks come to the same collectives in the same order. collector: of a rank that acts. learner: on every rank,
    though only some learn by it; its parameters are those that a rank acts with. sync: how its gradients are summed,
    over the ranks of `learners`. groups: besides that of all ranks, those whose collectives this rank takes part in.
    env: the environments that this rank steps, itself or in processes of its own; None if it steps none.

    Under a topology at its own pace the ranks that learn do so in step, each in a loop of its own, and the others serve
    them.
    """

    collector: RolloutCollector | None
    learner: Learner
    sync: GradientSync
    learners: Group
    groups: tuple[Group, ...] = ()
    env: Closeable | None = None

    @abstractmethod
    def reset(self, sample: TaskSample) -> None:
        """Start all environments anew, each with its seed and options of the sample."""

    @abstractmethod
    def collect(self, iteration: int) -> Collected:
        """Step and act as this rank's role does."""

    @abstractmethod
    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        """Improve the parameters; `progress` in [0, 1) is the share of total_steps done. All who act leave with them.

        A rank that does not learn returns NO_UPDATE.
        """

    def state(self) -> dict[str, Any] | None:
        """Return what it knows besides what is learned, for a checkpoint: tensors and plain values."""
        return None

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        raise NotImplementedError

    def measured(self) -> dict[str, float]:
        """Return what this rank measured in the iteration just done, by names of OF_TOPOLOGIES in its metrics."""
        return {}

    def news(self) -> tuple[News, ...]:
        """Return what every rank that serves did in the iteration just done, in their order."""
        return ()

    def rest(self) -> None:  # noqa: B027 (most have nobody who goes on by itself)
        """Wait until no rank that serves acts: an evaluation, which begins then, is on a clock of its own."""

    def is_asked_to_stop(self) -> bool:
        """Return whether a rank that serves was told to stop."""
        return False

    def serve(self, stop: StopRequest) -> None:
        """Do what ranks that learn ask for, until they have finished; of a rank that goes at its own pace."""
        raise NotImplementedError

    def finish(self) -> None:  # noqa: B027 (most have nobody to tell)
        """Tell those that serve that the run has ended in good order."""

    @abstractmethod
    def close(self) -> None:
        """Close the environments, and leave those that serve."""
