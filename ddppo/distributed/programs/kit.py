"""What a program is made of: a kit builds environments, collectors and learners for the rank that asks.

For a topology of one's own, the contract's names are here too.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ddppo.algorithms.task_sampler import TaskSampler
from ddppo.collectives import Group
from ddppo.config import Config
from ddppo.distributed.gradient_sync import GradientSync, OrderedSync, make_gradient_sync
from ddppo.distributed.parameters import FlatParameters, step_scale
from ddppo.distributed.programs.contract import NO_UPDATE, Collected, News, Program
from ddppo.envs import make_vec_env
from ddppo.envs.guard import STEPPED, guarded
from ddppo.envs.vec_env import VecEnv
from ddppo.models import ActorCritic, At
from ddppo.plugins import imported
from ddppo.ppo.acting.collector import Collector
from ddppo.ppo.acting.episodes import EpisodeCollector
from ddppo.ppo.acting.rollout import RolloutCollector
from ddppo.ppo.acting.sharded import ShardedCollector
from ddppo.ppo.advantages.estimators import Estimator, Gae, GroupRelative
from ddppo.ppo.learning.learner import Learner
from ddppo.ppo.learning.nonfinite import Tolerance
from ddppo.ppo.losses.reference import Reference
from ddppo.ppo.normalization import ObsNormalizer, RewardNormalizer
from ddppo.scaling import BatchShape
from ddppo.seeding import action_noise
from ddppo.spaces import EnvSpec
from ddppo.topologies import Layout, Role

__all__ = ["NO_UPDATE", "Collected", "Kit", "News", "Program"]


@dataclass(frozen=True, slots=True)
class Replica:
    """What one rank holds of a run. shape: of the batch of all ranks. sampler: what episodes begin with."""

    config: Config
    group: Group
    device: torch.device
    shape: BatchShape
    layout: Layout
    spec: EnvSpec
    model: ActorCritic
    parameters: FlatParameters
    obs_normalizer: ObsNormalizer | None
    sampler: TaskSampler


@dataclass(frozen=True, slots=True)
class Kit(Replica):
    """One rank's kit. cores: that the rank has to itself."""

    cores: int

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
        """Make the learner at `place` among those of `group`, who learn from equal shares of the batch."""
        ppo, shape, model = self.config.ppo, self.shape.over(group.world_size), self.model
        num_shards = shape.local_num_shards
        normalizer = RewardNormalizer(shape.local_num_envs, ppo.gamma, self.device, num_shards)
        estimator: Estimator = Gae(
            ppo, getattr(self.config.dist, "correction", "clip"), num_shards=num_shards
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
            minibatch_class=imported(model.minibatch_class) if model.minibatch_class else None,
            remembers=model.state_size > 0,
            reference=reference,
            tolerance=Tolerance(
                self.config.on_nonfinite, self.config.on_nonfinite_max, self.config.on_nonfinite_factor
            ),
        )

    def guarded(self) -> AbstractContextManager[None]:
        """Return a block for code of the task, which it may change this process in: where it is stepped here."""
        env = self.config.env
        is_elsewhere = env.backend not in ("auto", "sync", "native") or not self.role.steps
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
