"""A rank of a run: its parts (`RankContext`) and its tasks in every iteration (`Topology`).

Read `RankContext` first. Its fields, in the order in which `ddppo.loop.build` makes them, are the map of a rank. Its
methods follow in the order in which a topology calls them: environments and collector, gradient sync, learner, then
`act` once an iteration. `Topology` is the contract that the loop calls; `ddp.py` beside this file is the shortest one.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np
import torch

from ddppo.algorithms.contract import Algorithm
from ddppo.algorithms.grpo import EpisodeCollector
from ddppo.algorithms.task_sampler import TaskSample, TaskSampler, hands_over
from ddppo.collectives.group import Group
from ddppo.config.settings import Config, EnvConfig
from ddppo.distributed.gradient_sync import (
    FlatParameters,
    GradientSync,
    OrderedSync,
    make_gradient_sync,
)
from ddppo.distributed.topologies.contract import Layout, OwnPaceReport, Role
from ddppo.distributed.topologies.messages import RolloutMessage
from ddppo.distributed.topologies.settings import AsyncActorsSettings
from ddppo.envs.guard import STEPPED, guarded
from ddppo.envs.make import make_vec_env
from ddppo.envs.vec_env import EnvNames, VecEnv
from ddppo.models.actor_critic import ActorCritic
from ddppo.plugins import imported
from ddppo.ppo.acting import ShardedActing
from ddppo.ppo.collector import Collector
from ddppo.ppo.learner import Learner, Normalizers, Update
from ddppo.ppo.losses import STATISTICS
from ddppo.ppo.nonfinite import NonFiniteGuard
from ddppo.ppo.normalization import ObsNormalizer, RewardNormalizer
from ddppo.ppo.rollout import FinishedEpisode, RolloutCollector
from ddppo.processes.signals import StopRequest
from ddppo.scaling import BatchShape
from ddppo.seeding import action_noise, derived_seed
from ddppo.spaces import EnvSpec

__all__ = ["NO_UPDATE", "Collected", "OwnPaceReport", "RankContext", "Topology"]


if TYPE_CHECKING:
    from ddppo.ppo.device_collector import DeviceCollector

# -- The parts of a rank.


@dataclass(frozen=True, slots=True)
class RankContext:
    """Everything that one rank holds of a run, built once, before the first iteration."""

    # Where this rank is, and what the run asks for.
    config: Config  # as in the run folder; equal on all ranks
    group: Group  # all ranks of the run; every collective goes through a group
    device: torch.device  # this rank computes here
    shape: BatchShape  # sizes of one iteration, over all ranks
    layout: Layout  # which ranks step environments, act and learn
    # The task. Every rank has probed it, also a rank that steps no environments.
    spec: EnvSpec  # observations and actions of the task
    env_config: EnvConfig  # config.env, with the backend that steps this rank's environments
    cores: int  # CPU cores that this rank has for itself
    # The policy. All ranks begin with the parameters of rank 0.
    model: ActorCritic
    parameters: FlatParameters  # the model's parameters and gradients as two vectors
    obs_normalizer: ObsNormalizer | None  # None with normalize_obs=false
    # The seeds and reset options of episodes; every rank has one, and all stay equal.
    sampler: TaskSampler
    algorithm: Algorithm  # acts and learns
    # Made from all of the above. `build` returns a context with these; the one that a topology keeps is without them.
    topology: "Topology" = cast("Topology", None)
    eval_ranks: tuple[int, ...] = ()  # ranks that run evaluation episodes: they hold the current parameters
    derived: dict[str, Any] = field(default_factory=dict)  # values that summary.json reports

    # -- The share of this rank.

    @property
    def role(self) -> Role:
        return self.layout.role(self.group.rank)

    @property
    def env_indices(self) -> range:
        """Global indices of the environments that this rank steps; empty if it steps none."""
        return self.envs_of(self.group.rank)

    def envs_of(self, rank: int) -> range:
        """Return the global indices of the environments that a rank steps."""
        stepping = self.layout.stepping
        return self.shape.env_indices(stepping.index(rank)) if rank in stepping else range(0)

    @property
    def synchronised(self) -> tuple[str, ...]:
        """Prefixes of the parameters that acting needs."""
        return self.algorithm.synchronised

    @property
    def has_whole_episodes(self) -> bool:
        """Whether a rollout is one whole episode of each environment, cut after T steps."""
        return hands_over(self.config, self.spec) != "steps"

    @property
    def rollouts_vary(self) -> bool:
        """Whether rollouts of one rank differ in size from iteration to iteration; else their messages are equal."""
        return self.has_whole_episodes or self.algorithm.needs_successors

    @property
    def max_restarts(self) -> int:
        """Number of environment processes of this rank that may be lost and replaced."""
        return self.config.dist.allowed_restarts

    @property
    def env_timeout_s(self) -> float:
        """Seconds that an environment process of this rank may take to answer.

        If a lost process is replaced, it is half of dist.timeout_s. Otherwise the other ranks, which wait for this one
        at the barrier for dist.timeout_s, would give up before the replacement could start.
        """
        dist = self.config.dist
        return dist.timeout_s / 2 if self.max_restarts and dist.world_size > 1 else dist.timeout_s

    # -- Factory methods, in the order in which `Topology.__init__` calls them.

    def subgroup(self, ranks: Sequence[int]) -> Group | None:
        """Return a group of some ranks, given in ascending order; the first one is its root. None on other ranks.

        All ranks call it in the same order. The topology declares subgroups=True.
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

    def own_collector(self) -> RolloutCollector:
        """Make this rank's environments and the collector that acts in them; `collector.env` holds the environments."""
        # A model may bring its own collector, such as one for text, together with its own environments.
        if self.model.collector_class is not None:
            made: RolloutCollector = imported(self.model.collector_class).make(self)
            return made
        if self.env_config.backend == "device":
            return self._device_collector()
        return self.collector(self.envs(), self.env_indices.start)

    def _device_collector(self) -> "DeviceCollector":
        """Make this rank's environments on its device, and the collector that acts there."""
        from ddppo.envs.backends.device import make_device_envs  # few runs need them
        from ddppo.ppo.device_collector import DeviceCollector

        first_env = self.env_indices.start
        names = EnvNames(self.env_indices, self.group.rank)
        env = make_device_envs(
            self.env_config, names, self.device, derived_seed(self.config.seed, "env", first_env)
        )
        kind: type[DeviceCollector] = DeviceCollector
        if self.has_whole_episodes:
            kind = imported("ddppo.algorithms.device_episodes:DeviceEpisodes")
        return kind(
            env,
            self.model,
            self.obs_normalizer,
            rollout_steps=self.shape.rollout_steps,
            first_env=first_env,
            dtype=getattr(torch, self.config.dtype),
            sequence_length=self.config.training.sequence_length,
            learns_by_ratio=self.algorithm.learner_class is not None,
        )

    def collector(self, env: VecEnv, first_env: int, kind: type[Collector] | None = None) -> Collector:
        """Make a collector that acts in `env`; its first environment has the global index `first_env`.

        kind: by default `Collector`, or `EpisodeCollector` for an algorithm that learns from whole episodes.
        """
        if kind is None:
            kind = EpisodeCollector if self.has_whole_episodes else Collector
        collector = kind(
            env=env,
            model=self.model,
            normalizer=self.obs_normalizer,
            rollout_steps=self.shape.rollout_steps,
            first_env=first_env,
            device=self.device,
            dtype=getattr(torch, self.config.dtype),
            sequence_length=self.config.training.sequence_length,
        )
        if self.algorithm.learner_class is None:
            collector.use_algorithm(self.algorithm)
        elif self.shape.num_shards:  # dist.reduction=ordered
            collector.acting = ShardedActing(collector, self.shape.local_num_shards)
        return collector

    def rollout_message(self) -> RolloutMessage:
        """Make the message in which rollouts travel from a rank that acts to one that learns."""
        return RolloutMessage(
            with_raw_obs=self.obs_normalizer is not None,
            episode_rows=self.shape.rollout_steps if self.has_whole_episodes else None,
        )

    def sync(self, group: Group) -> GradientSync:
        """Make the gradient sum over the ranks of `group`: by dist.reduction, then by dist.grad_sync."""
        dist, shape = self.config.dist, self.shape
        if shape.num_shards:
            return OrderedSync(self.model, self.parameters, group, num_shards=shape.local_num_shards)
        # torch's DistributedDataParallel sums the gradients of one loss; another algorithm may have several.
        is_ppo = self.algorithm.learner_class is not None
        kind = dist.grad_sync if group.world_size > 1 and is_ppo else "flat"
        return make_gradient_sync(kind, self.model, self.parameters, group, bucket_cap_mb=dist.bucket_cap_mb)

    def learner(self, group: Group, sync: GradientSync) -> Any:
        """Make the learner of this rank among those of `group`, which learn from (nearly) equal shares of the batch."""
        config, training, shape = self.config, self.config.training, self.shape.over(group.world_size)
        normalizers = Normalizers(self.obs_normalizer)
        if training.normalize_rewards:
            num_envs = len(shape.env_indices(group.rank))
            normalizers.rewards = RewardNormalizer(
                num_envs, training.gamma, self.device, shape.local_num_shards
            )
        if (own_class := self.algorithm.learner_class) is None:
            # Only here: a run of PPO does not import it.
            learner: Any = imported("ddppo.algorithms.learner:AlgorithmLearner")(
                self.algorithm, training, shape, sync, group, normalizers, config.seed
            )
        else:
            learner = own_class(training, shape, self.model, sync, group, normalizers, config.seed)
        if own_class is not None and isinstance(config.dist, AsyncActorsSettings):
            learner.estimator.correction = config.dist.correction
        learner.guard = NonFiniteGuard(
            config.on_nonfinite, config.on_nonfinite_max, config.on_nonfinite_factor
        )
        return learner

    # -- Calls of every iteration.

    def guarded(self) -> AbstractContextManager[None]:
        """Return a context for blocks that run a task's own code.

        A task may change this process, for example its working directory, torch's threads or signal handlers; the
        context undoes that (envs/guard.py). It does nothing if the environments are stepped in other processes.
        """
        env = self.env_config
        is_elsewhere = env.backend not in ("auto", "sync", "gym_vector", "device") or not self.role.steps
        return nullcontext() if is_elsewhere else guarded(env.id, STEPPED, is_quick=True)

    def act(self, collector: RolloutCollector, env_indices: range, iteration: int) -> "Collected":
        """Collect a rollout of these environments, with the action noise of these environments in this iteration."""
        if self.env_config.backend == "device":
            return self._act_on_device(cast("DeviceCollector", collector), env_indices, iteration)
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
        # An episode with a pseudo-step as its last row was cut with its process: its return is unknown.
        episodes = [e for e in episodes if is_valid[e.step, e.env_index - first]]
        return Collected(int(is_valid.sum()), episodes, rollout)

    def _act_on_device(self, collector: "DeviceCollector", env_indices: range, iteration: int) -> "Collected":
        from ddppo import device_random

        noise = device_random.action_noise(
            self.config.seed,
            iteration,
            env_indices,
            self.shape.rollout_steps,
            self.model.num_noise,
            normal=self.spec.action.kind == "box",
            dtype=getattr(torch, self.config.dtype),
            device=self.device,
        )
        with self.model.unchanged(), self.guarded():
            rollout, episodes = collector.collect(noise)
        return Collected(collector.num_steps, episodes, rollout, collector.env_metrics)

    def restarts(self, env: Any) -> dict[str, float]:
        """Return the metrics of replaced environment processes and lost episodes so far, for `Topology.measured`."""
        if not self.max_restarts:
            return {}
        num_restarts = getattr(env, "num_restarts", 0)
        return {
            "dist/restarts": float(num_restarts),
            "rollout/env_restarts": float(getattr(env, "num_env_restarts", num_restarts)),
            "dist/lost_episodes": float(getattr(env, "num_lost_episodes", 0)),
        }

    # -- Access for a task sampler (`ddppo.algorithms.task_sampler.RunAccess`), which may exchange policies.

    def policy_snapshot(self) -> list[torch.Tensor]:
        """Return copies of the parameters and of Adam's step counts and moments."""
        return [x.clone() for x in self._policy()]

    def put_policy_(self, snapshot: Sequence[torch.Tensor]) -> None:
        """Replace the parameters and Adam's step counts and moments by those of a snapshot."""
        for x, kept in zip(self._policy(), snapshot, strict=True):
            x.copy_(kept)

    def _policy(self) -> list[torch.Tensor]:
        vector = self.parameters.vector
        return [vector.detach(), *self.topology.learner.carried()]

    def number_of_rank_0(self, number: int) -> int:
        """Return rank 0's number; all ranks call it."""
        return int(self.group.gather(torch.tensor([number]))[0].item())

    # -- Checkpoints: everything that this rank has learned. The loop saves its counters beside it.

    def state(self) -> dict[str, Any]:
        """Return tensors and plain values for a checkpoint."""
        state = {"model": self.model.state_dict(), **self.topology.learner.state()}
        if self.obs_normalizer is not None:
            state["obs_moments"] = self.obs_normalizer.state
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the value of `state`."""
        self.model.load_state_dict(state["model"])
        self.topology.learner.load(state)
        if self.obs_normalizer is not None:
            self.obs_normalizer.load(state["obs_moments"])


# -- Values that a rank hands to the loop in every iteration.


NO_UPDATE = Update(  # of a rank that does not learn
    local_sums=torch.zeros(len(STATISTICS), dtype=torch.float64),
    num_samples=1,
    steps=0,
    epochs=0,
    grad_norm=math.nan,
    learning_rate=math.nan,
    explained_variance=math.nan,
)


class Collected(NamedTuple):
    """The result of `Topology.collect`. Every environment step is counted by exactly one rank."""

    num_steps: int  # environment steps that this rank counts
    episodes: list[FinishedEpisode]  # episodes that this rank reports
    rollout: Any  # Transitions, or PPO's Rollout; None on a rank that has nothing to learn from or to send
    # What simulators on a device logged: (sum over steps, number of steps), by name.
    env_metrics: Mapping[str, tuple[float, float]] = MappingProxyType({})


class Closeable(Protocol):
    """Environments of a rank: a ddppo.envs.vec_env.VecEnv, or the environments of a model's own collector."""

    def close(self) -> None: ...


# -- The tasks of a rank.


class Topology(ABC):
    """The tasks of one rank, by its role. The loop calls, on every rank and in every iteration:

        topology.reset(sample)                            # in the first iteration; GRPO and text: in every one
        collected = topology.collect(iteration)
        group.barrier()                                   # the slowest rollout ends this wait
        update = topology.learn(collected, iteration, progress)
        ... = topology.measured()

    All ranks of a group call its collectives in the same order, so a branch around a collective depends only on values
    that all of them share.

    A topology at its own pace (`TopologySpec.own_pace`) has two kinds of ranks. Ranks that learn run this loop, in step
    with one another. The other ranks run `serve` until the learners finish.
    """

    collector: RolloutCollector | None  # None on a rank that does not act
    # On every rank, also on one that does not learn: it holds the parameters that the rank acts with.
    learner: Learner
    sync: GradientSync  # sums gradients over the ranks of `learners`
    learners: Group
    groups: tuple[Group, ...] = ()  # subgroups that this rank takes part in; the loop times their collectives
    env: Closeable | None = None  # the environments that this rank steps, here or in processes of its own

    @abstractmethod
    def reset(self, sample: TaskSample) -> None:
        """Start a new episode in every environment, with the seed and options that the sample gives it."""

    @abstractmethod
    def collect(self, iteration: int) -> Collected:
        """Step environments and act, as far as this rank's role does."""

    @abstractmethod
    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        """Improve the parameters; afterwards all ranks that act have them.

        progress: share of total_steps that is done, in [0, 1). A rank that does not learn returns NO_UPDATE.
        """

    def measured(self) -> dict[str, float]:
        """Return this rank's own metrics of the iteration; ddppo.records.metrics.TOPOLOGY_METRICS lists the names."""
        return {}

    # -- Checkpoints, for a topology that has a state beside the parameters.

    def state(self) -> dict[str, Any] | None:
        """Return tensors and plain values for a checkpoint; None for nothing."""
        return None

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the value of `state`."""
        raise NotImplementedError

    # -- An evaluation in the environments of training, while they are idle (tasks of text).

    def assist(self) -> None:  # noqa: B027 (in most topologies a rank that acts has its own environments)
        """Step environments for the ranks that evaluate in them, until these call `release`."""

    def release(self) -> None:  # noqa: B027
        """End the evaluation for the ranks that assist this one, also after a fault."""

    # -- Own pace: learners call the first three, actors run `serve`.

    def own_pace_reports(self) -> tuple[OwnPaceReport, ...]:
        """Return the activity of every serving rank since the last call, in rank order."""
        return ()

    def is_asked_to_stop(self) -> bool:
        """Return whether a serving rank received a stop signal."""
        return False

    def rest(self) -> None:  # noqa: B027 (most topologies have no serving ranks)
        """Block until all serving ranks are idle, so that evaluation time is not charged to training."""

    def serve(self, stop: StopRequest) -> None:
        """Act for the learners until they finish."""
        raise NotImplementedError

    # -- The end of a run.

    def finish(self) -> None:  # noqa: B027 (most topologies have no serving ranks)
        """Tell serving ranks that the run is complete. Not called after a fault."""

    @abstractmethod
    def close(self) -> None:
        """Close environments and connections, also after a fault."""
