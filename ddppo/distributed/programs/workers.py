"""ddp: W equal workers. Each acts in its environments and learns from what it collected; gradients are summed."""

from ddppo.distributed.programs.kit import Collected, Kit, Program
from ddppo.domains.text.acting import TextCollector
from ddppo.domains.text.turns.local import Turns
from ddppo.envs.vec_env import VecEnv
from ddppo.ppo.acting.collector import Collector
from ddppo.ppo.learning.learner import Update


class Worker(Program):
    """A rank that acts and learns."""

    collector: Collector | TextCollector
    env: VecEnv | Turns

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self.env, self.collector = self._acting()
        self.learners = kit.group
        self.sync = kit.sync(kit.group)
        self.learner = kit.learner(kit.group, kit.group.rank, self.sync)

    def _acting(self) -> tuple[VecEnv | Turns, Collector | TextCollector]:
        """Return the environments that this rank steps, and who acts in them."""
        env = self._kit.envs()
        return env, self._kit.collector(env, self._kit.env_indices.start)

    def reset(self, iteration: int) -> None:
        assert isinstance(self.collector, Collector)
        self.collector.reset(self._kit.seeds(self._kit.env_indices, iteration))

    def collect(self, iteration: int) -> Collected:
        return self._kit.act(self.collector, self._kit.env_indices, iteration)

    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        assert collected.rollout is not None
        return self.learner.update(collected.rollout, iteration, progress)

    def measured(self) -> dict[str, float]:
        return self._kit.restarts(self.env)

    def close(self) -> None:
        self.env.close()
