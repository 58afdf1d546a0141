"""What a rank knows and holds of a run, from which it makes its environments, collectors and learners.

For a topology of one's own, the contract's names are here too.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch

from ddppo.algorithms.grpo import EpisodeCollector, GrpoLearner
from ddppo.algorithms.task_sampler import TaskSample, TaskSampler
from ddppo.collectives.group import Group
from ddppo.config.algorithm_settings import GrpoSettings
from ddppo.config.settings import Config, EnvConfig
from ddppo.distributed.gradient_sync import (
    FlatParameters,
    GradientSync,
    OrderedSync,
    make_gradient_sync,
)
from ddppo.distributed.topologies.contract import Layout, Role
from ddppo.envs.guard import STEPPED, guarded
from ddppo.envs.make import make_vec_env
from ddppo.envs.vec_env import VecEnv
from ddppo.models.actor_critic import ActorCritic
from ddppo.plugins import imported
from ddppo.ppo.collector import Collector, ShardedCollector
from ddppo.ppo.learner import Learner, Normalizers, Update
from ddppo.ppo.losses import STATISTICS
from ddppo.ppo.nonfinite import NonFiniteGuard
from ddppo.ppo.normalization import ObsNormalizer, RewardNormalizer
from ddppo.ppo.rollout import FinishedEpisode, Rollout, RolloutCollector
from ddppo.processes.signals import StopRequest
from ddppo.scaling import BatchShape
from ddppo.seeding import action_noise
from ddppo.spaces import EnvSpec

__all__ = ["NO_UPDATE", "Collected", "OwnPaceReport", "RankContext", "Topology"]


# -- What a rank runs: the contract of a topology, and what it hands over in every iteration.


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
    episodes: list[FinishedEpisode]
    rollout: Rollout | None


class OwnPaceReport(NamedTuple):
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
    """Environments of a rank: a ddppo.envs.vec_env.VecEnv, or what a collector of a model's own steps."""

    def close(self) -> None: ...


class Topology(ABC):
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
        """Return what this rank measured in the iteration just done, by names of TOPOLOGY_METRICS in its metrics."""
        return {}

    def own_pace_reports(self) -> tuple[OwnPaceReport, ...]:
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


@dataclass(frozen=True, slots=True)
class RankContext:
    """What one rank knows and holds of a run, in the order in which `ddppo.loop.build.build` makes it.

    A topology is made from it, by the methods that make environments, collectors and learners for this rank.
    """

    config: Config  # as the run folder has it, the same on all ranks
    group: Group  # all ranks
    device: torch.device  # where this rank computes
    shape: BatchShape  # sizes of an iteration, of all ranks together
    layout: Layout  # which ranks step environments, act and learn
    spec: EnvSpec  # what the task observes and takes
    env_config: EnvConfig  # config.env with the backend that steps this rank's environments
    cores: int  # that this rank has to itself
    model: ActorCritic
    parameters: FlatParameters  # the model's, as one vector; equal on all ranks
    obs_normalizer: ObsNormalizer | None
    sampler: TaskSampler  # what episodes begin with
    # Made from all of the above, so not there while the topology is being made.
    topology: Topology = cast("Topology", None)
    players: tuple[int, ...] = ()  # ranks that play evaluations: all that hold the parameters and go in step
    derived: dict[str, Any] = field(default_factory=dict)  # for summary.json

    @property
    def role(self) -> Role:
        return self.layout.role(self.group.rank)

    @property
    def state_size(self) -> tuple[int, int]:
        """C and S of `Rollout.state`: how often a rollout holds what the model remembers, and how many numbers."""
        steps = self.shape.rollout_steps
        return steps // (self.config.ppo.sequence_length or steps), self.model.state_size

    @property
    def env_indices(self) -> range:
        """Global indices of the environments that this rank steps, none if it steps none."""
        if not self.role.steps:
            return range(0)
        return self.shape.env_indices(self.layout.stepping.index(self.group.rank))

    def subgroup(self, ranks: Sequence[int]) -> Group | None:
        """Return the group of some ranks, ascending, the first its root; None on a rank outside.

        All ranks call it, in the same order; the topology declares subgroups=True.
        """
        return self.group.subgroup(ranks)

    def envs(self) -> VecEnv:
        """Make the environments that this rank steps."""
        return make_vec_env(
            self.env_config,
            self.env_indices,
            self.group.rank,
            self.cores,
            self.env_timeout_s,
            self.max_restarts,
        )

    @property
    def max_restarts(self) -> int:
        """How many processes of this rank's environments may be lost and started again."""
        return self.config.dist.allowed_restarts

    @property
    def env_timeout_s(self) -> float:
        """How long a process of this rank's environments may take to answer.

        Where another may take its place, half of what other ranks wait for this one: else they would give up first.
        """
        dist = self.config.dist
        return dist.timeout_s / 2 if self.max_restarts and dist.world_size > 1 else dist.timeout_s

    def restarts(self, env: Any) -> dict[str, float]:
        """Return how many of them were, and the episodes that this cost, so far, as a Topology's `measured`."""
        if not self.max_restarts:
            return {}
        num_restarts = getattr(env, "num_restarts", 0)
        return {
            "dist/restarts": float(num_restarts),
            "rollout/env_restarts": float(getattr(env, "num_env_restarts", num_restarts)),
            "dist/lost_episodes": float(getattr(env, "num_lost_episodes", 0)),
        }

    def acting(self) -> RolloutCollector:
        """Make the environments that this rank steps, and the collector that acts in them: its `env`."""
        if self.model.collector_class is not None:
            made: RolloutCollector = imported(self.model.collector_class).make(self)
            return made
        env, first_env = self.envs(), self.env_indices.start
        if self.config.ppo.algorithm == "grpo":
            return EpisodeCollector(**self.of_collector(env, first_env))
        return self.collector(env, first_env)

    def collector(self, env: VecEnv, first_env: int) -> Collector:
        if not self.shape.num_shards:
            return Collector(**self.of_collector(env, first_env))
        return ShardedCollector(self.shape.local_num_shards, **self.of_collector(env, first_env))

    def of_collector(self, env: VecEnv, first_env: int) -> dict[str, Any]:
        """Return what a collector of these environments, the first of which has this global index, is made of."""
        return {
            "env": env,
            "model": self.model,
            "normalizer": self.obs_normalizer,
            "rollout_steps": self.shape.rollout_steps,
            "first_env": first_env,
            "device": self.device,
            "dtype": getattr(torch, self.config.dtype),
            "sequence_length": self.config.ppo.sequence_length,
        }

    def sync(self, group: Group) -> GradientSync:
        dist, shape = self.config.dist, self.shape
        if shape.num_shards:
            return OrderedSync(self.model, self.parameters, group, num_shards=shape.local_num_shards)
        kind = dist.grad_sync if group.world_size > 1 else "flat"
        return make_gradient_sync(kind, self.model, self.parameters, group, bucket_cap_mb=dist.bucket_cap_mb)

    def learner(self, group: Group, place: int, sync: GradientSync) -> Learner:
        """Make the learner of this rank among those of `group`, which learn from equal shares of the batch."""
        assert place == group.rank, (place, group.rank)
        config, ppo = self.config, self.config.ppo
        shape = self.shape.over(group.world_size)
        normalizers = Normalizers(self.obs_normalizer)
        if ppo.normalize_rewards:
            normalizers.rewards = RewardNormalizer(
                shape.local_num_envs, ppo.gamma, self.device, shape.local_num_shards
            )
        learner: Learner
        if isinstance(ppo, GrpoSettings):
            learner = GrpoLearner(ppo, shape, self.model, sync, group, normalizers, config.seed)
        else:
            learner = Learner(ppo, shape, self.model, sync, group, normalizers, config.seed)
            learner.estimator.correction = getattr(config.dist, "correction", "clip")
        learner.guard = NonFiniteGuard(
            config.on_nonfinite, config.on_nonfinite_max, config.on_nonfinite_factor
        )
        return learner

    def guarded(self) -> AbstractContextManager[None]:
        """Return a block for code of the task, which it may change this process in: where it is stepped here."""
        env = self.env_config
        is_elsewhere = env.backend not in ("auto", "sync", "gym_vector") or not self.role.steps
        return nullcontext() if is_elsewhere else guarded(env.id, STEPPED, is_quick=True)

    def act(self, collector: RolloutCollector, env_indices: range, iteration: int) -> Collected:
        """Collect a rollout of these environments with the noise that is theirs in this iteration."""
        noise: np.ndarray = action_noise(
            self.config.seed,
            iteration,
            env_indices,
            self.shape.rollout_steps,
            self.model.num_noise,
            normal=self.spec.action.kind == "box",
        )
        with self.model.unchanged(), self.guarded():
            rollout, episodes = collector.collect(noise)
        is_valid, first = rollout.valid.cpu().numpy(), collector.first_env
        # An episode whose last row is a pseudo-step was cut: nobody saw its return.
        episodes = [e for e in episodes if is_valid[e.step, e.env_index - first]]
        return Collected(int(is_valid.sum()), episodes, rollout)

    def policy_snapshot(self) -> list[torch.Tensor]:
        """Return copies of the parameters, and of Adam's steps and moments: what a task sampler may swap."""
        return [x.clone() for x in self._policy()]

    def put_policy_(self, snapshot: Sequence[torch.Tensor]) -> None:
        """Go on with a snapshot's parameters, and Adam's steps and moments."""
        for x, kept in zip(self._policy(), snapshot, strict=True):
            x.copy_(kept)

    def _policy(self) -> list[torch.Tensor]:
        vector = self.parameters.vector
        return [vector.detach(), *self.topology.learner.adam_state()]

    def number_of_rank_0(self, number: int) -> int:
        """Return rank 0's number; all ranks call it."""
        return int(self.group.gather(torch.tensor([number]))[0].item())

    def state(self) -> dict[str, Any]:
        """Return what the rank has learned, for a checkpoint."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.topology.learner.optimizer.state_dict(),
            "learning_rate": self.topology.learner.learning_rate,
            "nonfinite": self.topology.learner.guard.state(),
        }
        if self.obs_normalizer is not None:
            state["obs_moments"] = self.obs_normalizer.state
        if self.topology.learner.reward_normalizer is not None:
            state["return_moments"] = self.topology.learner.reward_normalizer.state
        if self.topology.learner.reference is not None:
            state["reference"] = self.topology.learner.reference.vector
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self.model.load_state_dict(state["model"])
        self.topology.learner.optimizer.load_state_dict(state["optimizer"])
        self.topology.learner.learning_rate = state["learning_rate"]
        self.topology.learner.guard.load(state.get("nonfinite", [0, 0, 0]))
        if self.obs_normalizer is not None:
            self.obs_normalizer.load(state["obs_moments"])
        if self.topology.learner.reward_normalizer is not None:
            self.topology.learner.reward_normalizer.state = state["return_moments"]
        if self.topology.learner.reference is not None:
            self.topology.learner.reference.vector.copy_(state["reference"])
