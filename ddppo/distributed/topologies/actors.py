"""sync_actors and multi_learner: every learner learns from the rollouts of its actors, who act in step with it.

A learner and its actors are a group, of which it is the root; learners are another, over which gradients are summed.
What is learned is what ddp learns with as many workers as there are learners, and one process from the same
environments: every environment keeps its seeds and noise, a learner sees those of its actors side by side, in order.
"""

from itertools import pairwise

import torch

from ddppo.algorithms.task_sampler import TaskSample
from ddppo.collectives.group import Group
from ddppo.collectives.peers import in_words
from ddppo.distributed.topologies.base import NO_UPDATE, Collected, RankContext, Topology
from ddppo.distributed.topologies.messages import ParameterMessage, RolloutMessage
from ddppo.errors import NonFiniteError
from ddppo.ppo.collector import Collector
from ddppo.ppo.learner import Update


class SyncActors(Topology):
    """A learner, or one of its actors."""

    def __init__(self, context: RankContext) -> None:
        self._context = context
        self._is_learner = context.role.learns
        self.env = context.envs() if context.role.acts else None
        self.collector: Collector | None = None
        if self.env is not None:
            self.collector = context.collector(self.env, context.env_indices.start)
        self.learners, self._feeding = self._meet()
        self.groups = tuple(
            g for g in (self.learners, self._feeding) if 1 < g.world_size < context.group.world_size
        )
        self._learning = in_words(context.layout.learning)
        self.sync = context.sync(self.learners)
        self.learner = context.learner(self.learners, self.learners.rank, self.sync)
        dtype = getattr(torch, context.config.dtype)
        self._rollouts = RolloutMessage(
            context.spec, context.shape.rollout_steps, context.shape.local_num_envs, dtype,
            with_raw_obs=context.obs_normalizer is not None, state_size=context.state_size,
        )  # fmt: skip
        self._parameters = ParameterMessage(context.parameters, context.obs_normalizer)

    def _meet(self) -> tuple[Group, Group]:
        """Return the group of the learners, a rank alone if it is none, and that of a learner with its actors."""
        context = self._context
        learning, feeding = context.layout.learning, Group()
        learners = context.subgroup(learning) or Group()
        for first, end in pairwise((*learning, context.group.world_size)):
            feeding = context.subgroup(range(first, end)) or feeding
        return learners, feeding

    def reset(self, sample: TaskSample) -> None:
        if self.collector is not None:
            self.collector.reset(*sample.of(self._context.env_indices))

    def collect(self, iteration: int) -> Collected:
        if self.collector is None:
            return Collected(0, [], None)
        return self._context.act(self.collector, self._context.env_indices, iteration)

    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        group, update = self._feeding, NO_UPDATE
        parts = group.gather_at_root(self._rollouts.pack(collected.rollout))
        if self._is_learner:
            assert parts is not None
            rollout = self._rollouts.unpack(parts[1:], self._context.device)
            try:
                update = self.learner.update(rollout, iteration, progress)
            except NonFiniteError as e:
                if self.learners.world_size == 1:
                    raise
                raise NonFiniteError(f"{e}. Its ranks are places among the learners, {self._learning}") from e
        self._parameters.broadcast(group)
        return update

    def measured(self) -> dict[str, float]:
        return self._context.restarts(self.env) if self.env is not None else {}

    def close(self) -> None:
        if self.env is not None:
            self.env.close()
