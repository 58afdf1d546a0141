"""sync_actors: rank 0 learns from the rollouts of all others, who act in step with it.

What is learned is what one process learns from the same environments: every environment keeps its seeds and noise,
the learner sees them side by side in their order.
"""

import torch

from ddppo.collectives import Group
from ddppo.distributed.programs.kit import NO_UPDATE, Collected, Kit, Program
from ddppo.distributed.programs.messages import ParameterMessage, RolloutMessage
from ddppo.ppo.learner import Update


class SyncActors(Program):
    """Rank 0, the learner, or one of the actors."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._is_learner = kit.role.learns
        self._env = kit.envs() if kit.role.acts else None
        self.collector = None
        if self._env is not None:
            self.collector = kit.collector(self._env, kit.env_indices.start)
        self.learners = Group()  # of one
        self.sync = kit.sync(self.learners)
        self.learner = kit.learner(self.learners, 0, self.sync)
        dtype = getattr(torch, kit.config.dtype)
        self._rollouts = RolloutMessage(
            kit.spec, kit.shape.rollout_steps, kit.shape.local_num_envs, dtype,
            with_raw_obs=kit.obs_normalizer is not None,
        )  # fmt: skip
        self._parameters = ParameterMessage(kit.parameters, kit.obs_normalizer)

    def reset(self, iteration: int) -> None:
        if self.collector is not None:
            self.collector.reset(self._kit.seeds(self._kit.env_indices, iteration))

    def collect(self, iteration: int) -> Collected:
        if self.collector is None:
            return Collected(0, [], None)
        return self._kit.act(self.collector, self._kit.env_indices, iteration)

    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        group, update = self._kit.group, NO_UPDATE
        parts = group.gather_at_root(self._rollouts.pack(collected.rollout))
        if self._is_learner:
            assert parts is not None
            rollout = self._rollouts.unpack(parts[list(self._kit.layout.stepping)], self._kit.device)
            update = self.learner.update(rollout, iteration, progress)
        self._parameters.broadcast(group)
        return update

    def measured(self) -> dict[str, float]:
        return self._kit.restarts(self._env) if self._env is not None else {}

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
