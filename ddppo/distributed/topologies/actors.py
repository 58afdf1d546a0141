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
from ddppo.distributed.topologies.messages import ParameterMessage, RolloutMessage
from ddppo.distributed.topologies.program import NO_UPDATE, Collected, Program, RankContext
from ddppo.errors import NonFiniteError
from ddppo.ppo.collector import Collector
from ddppo.ppo.learner import Update


class SyncActors(Program):
    """A learner, or one of its actors."""

    def __init__(self, kit: RankContext) -> None:
        self._kit = kit
        self._is_learner = kit.role.learns
        self.env = kit.envs() if kit.role.acts else None
        self.collector: Collector | None = None
        if self.env is not None:
            self.collector = kit.collector(self.env, kit.env_indices.start)
        self.learners, self._feeding = self._meet()
        self.groups = tuple(
            g for g in (self.learners, self._feeding) if 1 < g.world_size < kit.group.world_size
        )
        self._learning = in_words(kit.layout.learning)
        self.sync = kit.sync(self.learners)
        self.learner = kit.learner(self.learners, self.learners.rank, self.sync)
        dtype = getattr(torch, kit.config.dtype)
        self._rollouts = RolloutMessage(
            kit.spec, kit.shape.rollout_steps, kit.shape.local_num_envs, dtype,
            with_raw_obs=kit.obs_normalizer is not None, state_size=kit.state_size,
        )  # fmt: skip
        self._parameters = ParameterMessage(kit.parameters, kit.obs_normalizer)

    def _meet(self) -> tuple[Group, Group]:
        """Return the group of the learners, a rank alone if it is none, and that of a learner with its actors."""
        kit = self._kit
        learning, feeding = kit.layout.learning, Group()
        learners = kit.subgroup(learning) or Group()
        for first, end in pairwise((*learning, kit.group.world_size)):
            feeding = kit.subgroup(range(first, end)) or feeding
        return learners, feeding

    def reset(self, sample: TaskSample) -> None:
        if self.collector is not None:
            self.collector.reset(*sample.of(self._kit.env_indices))

    def collect(self, iteration: int) -> Collected:
        if self.collector is None:
            return Collected(0, [], None)
        return self._kit.act(self.collector, self._kit.env_indices, iteration)

    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        group, update = self._feeding, NO_UPDATE
        parts = group.gather_at_root(self._rollouts.pack(collected.rollout))
        if self._is_learner:
            assert parts is not None
            rollout = self._rollouts.unpack(parts[1:], self._kit.device)
            try:
                update = self.learner.update(rollout, iteration, progress)
            except NonFiniteError as e:
                if self.learners.world_size == 1:
                    raise
                raise NonFiniteError(f"{e}. Its ranks are places among the learners, {self._learning}") from e
        self._parameters.broadcast(group)
        return update

    def measured(self) -> dict[str, float]:
        return self._kit.restarts(self.env) if self.env is not None else {}

    def close(self) -> None:
        if self.env is not None:
            self.env.close()
