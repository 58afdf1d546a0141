"""ddp: W equal workers. Each acts in its environments and learns from what it collected; gradients are summed."""

from ddppo.algorithms.task_sampler import TaskSample
from ddppo.distributed.topologies.base import Closeable, Collected, RankContext, Topology
from ddppo.ppo.learner import Update
from ddppo.ppo.rollout import RolloutCollector


class Ddp(Topology):
    """A rank that acts and learns."""

    collector: RolloutCollector
    env: Closeable

    def __init__(self, context: RankContext) -> None:
        self._context = context
        self.collector = self._acting()
        self.env = self.collector.env
        self.learners = context.group
        self.sync = context.sync(context.group)
        self.learner = context.learner(context.group, context.group.rank, self.sync)

    def _acting(self) -> RolloutCollector:
        """Make the environments that this rank steps, and the collector that acts in them."""
        return self._context.acting()

    def reset(self, sample: TaskSample) -> None:
        self.collector.reset(*sample.of(self._context.env_indices))

    def collect(self, iteration: int) -> Collected:
        return self._context.act(self.collector, self._context.env_indices, iteration)

    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        assert collected.rollout is not None
        return self.learner.update(collected.rollout, iteration, progress)

    def measured(self) -> dict[str, float]:
        return {**self._context.restarts(self.env), **self.collector.measured()}

    def close(self) -> None:
        self.env.close()
