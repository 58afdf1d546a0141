"""What a program is made of: a kit builds environments, collectors and learners for the rank that asks."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ddppo.collectives import Group
from ddppo.config import Config
from ddppo.curriculum import Rounds
from ddppo.distributed.gradient_sync import GradientSync, OrderedSync, make_gradient_sync
from ddppo.distributed.parameters import FlatParameters, step_scale
from ddppo.envs import make_vec_env
from ddppo.envs.turns import Turns
from ddppo.envs.vec_env import VecEnv
from ddppo.models import ActorCritic, At
from ddppo.ppo.advantages import Estimator, Gae, GroupRelative
from ddppo.ppo.collector import Collector
from ddppo.ppo.learner import Learner, Update
from ddppo.ppo.nonfinite import Tolerance
from ddppo.ppo.normalization import ObsNormalizer, RewardNormalizer
from ddppo.ppo.reference import Reference
from ddppo.ppo.rollout import Episode, Rollout
from ddppo.ppo.sharded import ShardedCollector
from ddppo.ppo.step import STATISTICS
from ddppo.ppo.text import TextCollector
from ddppo.scaling import BatchShape
from ddppo.seeding import action_noise, derived_seed
from ddppo.signals import StopRequest
from ddppo.spaces import EnvSpec
from ddppo.topologies import Layout, Role

if TYPE_CHECKING:
    from ddppo.search.campaign import Campaign

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

    Every environment step is counted by one rank.
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


class Program(ABC):
    """What a rank does in every iteration; between `collect` and `learn` there is a barrier of all ranks.

    All ranks come to the same collectives in the same order. collector: of a rank that acts. learner: on every rank,
    though only some learn by it; its parameters are those that a rank acts with. sync: how its gradients are summed,
    over the ranks of `learners`. groups: besides that of all ranks, those whose collectives this rank takes part in.
    env: the environments that this rank steps, itself or in processes of its own; None if it steps none.
    rounds: what groups of rollouts play, where an iteration plays whole episodes; equal on all ranks.
    campaign: which order is tried, where a search goes on while the run trains; equal on all ranks.

    Under a topology at its own pace the ranks that learn do so in step, each in a loop of its own, and the others serve
    them.
    """

    collector: Collector | TextCollector | None
    learner: Learner
    sync: GradientSync
    learners: Group
    groups: tuple[Group, ...] = ()
    env: VecEnv | Turns | None = None
    rounds: Rounds | None = None
    campaign: "Campaign | None" = None

    @abstractmethod
    def reset(self, iteration: int) -> None:
        """Start all environments anew; `iteration` are done."""

    @abstractmethod
    def collect(self, iteration: int) -> Collected:
        """Step and act as this rank's role does."""

    @abstractmethod
    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        """Improve the parameters; `progress` in [0, 1) is the share of total_steps done. All who act leave with them.

        A rank that does not learn returns NO_UPDATE.
        """

    def hear(self, news: Sequence[bytes]) -> None:  # noqa: B027 (environments' own, for most)
        """Hear what all environments published in the iteration just done."""

    def conclude(self) -> None:  # noqa: B027 (most end with what they learned last)
        """Choose what the run ends with, after its last iteration."""

    def options(self) -> dict[str, Any] | None:
        """Return what episodes of an evaluation are to begin with, as a reset's options."""
        return None

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


@dataclass(frozen=True, slots=True)
class Kit:
    """One rank's kit. shape: of the batch of all ranks. cores: that the rank has to itself."""

    config: Config
    group: Group
    device: torch.device
    shape: BatchShape
    layout: Layout
    spec: EnvSpec
    model: ActorCritic
    parameters: FlatParameters
    obs_normalizer: ObsNormalizer | None
    cores: int

    @property
    def role(self) -> Role:
        return self.layout.role(self.group.rank)

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
        config = self.config
        return make_vec_env(
            config.env,
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
        """Return how many of them were, and the episodes that this cost, so far, as a Program's `measured`."""
        if not self.max_restarts:
            return {}
        num_restarts = getattr(env, "num_restarts", 0)
        return {
            "dist/restarts": float(num_restarts),
            "rollout/env_restarts": float(getattr(env, "num_env_restarts", num_restarts)),
            "dist/lost_episodes": float(getattr(env, "num_lost_episodes", 0)),
        }

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
        }

    def sync(self, group: Group) -> GradientSync:
        dist, shape = self.config.dist, self.shape
        if shape.num_shards:
            return OrderedSync(self.model, self.parameters, group, num_shards=shape.local_num_shards)
        kind = dist.grad_sync if group.world_size > 1 else "flat"
        return make_gradient_sync(kind, self.model, self.parameters, group, bucket_cap_mb=dist.bucket_cap_mb)

    def learner(self, group: Group, place: int, sync: GradientSync) -> Learner:
        """Make the learner at `place` among those of `group`, who learn from equal shares of the batch."""
        ppo, shape, model = self.config.ppo, self.shape.over(group.world_size), self.model
        num_shards = shape.local_num_shards
        normalizer = RewardNormalizer(shape.local_num_envs, ppo.gamma, self.device, num_shards)
        estimator: Estimator = Gae(
            ppo, self.config.dist.correction, of_tokens=model.takes_sequences, num_shards=num_shards
        )
        reference = None
        if ppo.algorithm == "grpo":
            estimator = GroupRelative(ppo, shape.num_envs, place * shape.local_num_envs, group.gather)
            if ppo.kl_coef:
                reference = Reference(self.parameters.vector, model.distribution, At(model))
        return Learner(
            ppo,
            shape,
            model.distribution,
            self.parameters.vector,
            at=sync.at,
            backward_=sync.backward_,
            gather=group.gather,
            scale=step_scale(model, ppo),
            rank=place,
            seed=self.config.seed,
            obs_normalizer=self.obs_normalizer,
            reward_normalizer=normalizer if ppo.normalize_rewards else None,
            estimator=estimator,
            takes_sequences=model.takes_sequences,
            reference=reference,
            tolerance=Tolerance(
                self.config.on_nonfinite, self.config.on_nonfinite_max, self.config.on_nonfinite_factor
            ),
        )

    def seeds(self, env_indices: range, iteration: int) -> list[int]:
        return [derived_seed(self.config.seed, "env", i, iteration) for i in env_indices]

    def act(self, collector: Collector | TextCollector, env_indices: range, iteration: int) -> Collected:
        """Collect a rollout of these environments with the noise that is theirs in this iteration."""
        noise: np.ndarray = action_noise(
            self.config.seed,
            iteration,
            env_indices,
            self.shape.rollout_steps,
            self.model.num_noise,
            normal=self.spec.action.kind == "box",
        )
        with self.model.unchanged():
            rollout, episodes = collector.collect(noise)
        is_valid, first = rollout.valid.cpu().numpy(), collector.first_env
        # An episode whose last row is a pseudo-step was cut: nobody saw its return.
        episodes = [e for e in episodes if is_valid[e.step, e.env_index - first]]
        return Collected(int(is_valid.sum()), episodes, rollout)
