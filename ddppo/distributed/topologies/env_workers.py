"""env_workers: rank 0 acts and learns, the other ranks step its environments.

Each step takes two messages (step_messages.py): all actions are broadcast from rank 0, and the results gathered there.
If an iteration is whole episodes, rank 0 says with a last broadcast that all of them are over. On rank 0 the
environments of all ranks look like any other batch, so collector and learner are those of one process, and results are
equal to the bit.
"""

from typing import Any, Protocol

from ddppo.algorithms.task_sampler import TaskSample
from ddppo.collectives.group import Group
from ddppo.distributed.topologies.base import NO_UPDATE, Collected, RankContext, Topology
from ddppo.distributed.topologies.step_messages import RankEnvs, StepMessages
from ddppo.envs.vec_env import EnvNames, VecEnv
from ddppo.plugins import imported
from ddppo.ppo.collector import Collector
from ddppo.ppo.learner import Update
from ddppo.ppo.rollout import RolloutCollector


def make(context: RankContext) -> Topology:
    """Return the topology of this rank. A model with a collector of its own brings its own messages too."""
    return EnvWorkers(context) if context.model.collector_class is None else OwnEnvWorkers(context)


class LearnerWithWorkers(Topology):
    """What rank 0, which acts and learns, and the ranks that step its environments have in common."""

    collector: RolloutCollector | None = None  # on rank 0

    def __init__(self, context: RankContext) -> None:
        self._context = context
        self.learners = Group()  # of one rank: gradients do not travel
        self.sync = context.sync(self.learners)
        self.learner = context.learner(self.learners, self.sync)

    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        if collected.rollout is None:
            return NO_UPDATE
        return self.learner.update(collected.rollout, iteration, progress)

    def measured(self) -> dict[str, float]:
        if self.collector is not None:
            return self.collector.measured()
        return self._context.restarts(self.env)

    def close(self) -> None:
        if self.env is not None:
            self.env.close()


class EnvWorkers(LearnerWithWorkers):
    """A rank of tasks that step together, with arrays."""

    env: VecEnv | None = None
    collector: Collector | None = None

    def __init__(self, context: RankContext) -> None:
        super().__init__(context)
        shape = context.shape
        env_ranges = {rank: shape.env_indices(place) for place, rank in enumerate(context.layout.stepping)}
        self._messages = StepMessages(
            context.group,
            context.spec,
            env_ranges,
            context.config.dtype,
            ends_early=context.has_whole_episodes,
        )
        if context.role.steps:
            self.env = context.envs()
        else:
            names = EnvNames(range(shape.num_envs), context.group.rank)
            self.collector = context.collector(RankEnvs(self._messages, context.spec, names), 0)

    def reset(self, sample: TaskSample) -> None:
        if self.collector is not None:
            self.collector.reset(*sample.of(range(self._context.shape.num_envs)))
        else:
            assert self.env is not None
            seeds, options = sample.of(self._context.env_indices)
            self._messages.send_reset(*self.env.reset(seeds, options if options and any(options) else None))

    def collect(self, iteration: int) -> Collected:
        if self.collector is not None:
            collected = self._context.act(self.collector, range(self._context.shape.num_envs), iteration)
            self._messages.send_end()
            return collected
        # A stepping rank answers as often as rank 0 asks: once for each step of its rollout.
        assert self.env is not None
        own = slice(self._context.env_indices.start, self._context.env_indices.stop)
        with self._context.guarded():
            for actions in self._messages.actions_of(self._context.shape.rollout_steps):
                self._messages.send_step(self.env.step(actions[own]))
        return Collected(0, [], None)


class OwnEnvWorkers(LearnerWithWorkers):
    """A rank of a model with a collector of its own, such as one for text."""

    def __init__(self, context: RankContext) -> None:
        super().__init__(context)
        self._server: EnvServer | None = None
        made = imported(context.model.collector_class or "").over_ranks(context)
        if context.role.steps:
            self._server = made
            self.env = made.env
        else:
            self.collector = made

    def reset(self, sample: TaskSample) -> None:
        if self.collector is not None:
            self.collector.reset(*sample.of(range(self._context.shape.num_envs)))

    def collect(self, iteration: int) -> Collected:
        if self.collector is not None:
            return self._context.act(self.collector, range(self._context.shape.num_envs), iteration)
        assert self._server is not None
        with self._context.guarded():
            self._server.serve()
        return Collected(0, [], None)

    def assist(self) -> None:
        if self._server is not None:
            with self._context.guarded():
                self._server.assist()

    def release(self) -> None:
        if self.collector is not None:
            self.collector.env.release()


class EnvServer(Protocol):
    """What steps environments for rank 0, of a model with a collector of its own."""

    @property
    def env(self) -> Any:
        """The environments; they have `close()`."""

    def serve(self) -> None:
        """Step them as rank 0 asks, for one rollout."""
        ...

    def assist(self) -> None:
        """Step them as rank 0 asks, for one evaluation."""
        ...
