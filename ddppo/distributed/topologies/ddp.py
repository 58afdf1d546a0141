"""ddp: W equal workers. Each acts in its environments and learns from what it collected; gradients are summed."""

from ddppo.algorithms.task_sampler import TaskSample
from ddppo.distributed.topologies.program import Closeable, Collected, Program, RankContext
from ddppo.ppo.learner import Update
from ddppo.ppo.rollout import RolloutCollector


class Ddp(Program):
    """A rank that acts and learns."""

    collector: RolloutCollector
    env: Closeable

    def __init__(self, kit: RankContext) -> None:
        self._kit = kit
        self.collector = self._acting()
        self.env = self.collector.env
        self.learners = kit.group
        self.sync = kit.sync(kit.group)
        self.learner = kit.learner(kit.group, kit.group.rank, self.sync)

    def _acting(self) -> RolloutCollector:
        """Make the environments that this rank steps, and the collector that acts in them."""
        return self._kit.acting()

    def reset(self, sample: TaskSample) -> None:
        self.collector.reset(*sample.of(self._kit.env_indices))

    def collect(self, iteration: int) -> Collected:
        return self._kit.act(self.collector, self._kit.env_indices, iteration)

    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        assert collected.rollout is not None
        return self.learner.update(collected.rollout, iteration, progress)

    def measured(self) -> dict[str, float]:
        return {**self._kit.restarts(self.env), **self.collector.measured()}

    def close(self) -> None:
        self.env.close()
