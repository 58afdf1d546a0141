"""Groups of whole episodes, for grpo and tasks of text: ddp whose iterations begin and end with episodes.

N environments of all ranks are K groups of G: environment i plays for group i // G, and those of a group begin alike. A
rank may hold a part of a group.
"""

import math

import torch

from ddppo.config import Config
from ddppo.config.algorithms import check_groups
from ddppo.curriculum import Rounds, curriculum_for
from ddppo.distributed.programs.kit import Collected, Kit
from ddppo.distributed.programs.workers import Worker
from ddppo.envs.vec_env import VecEnv
from ddppo.errors import ConfigError
from ddppo.ppo.episodes import EpisodeCollector
from ddppo.ppo.learner import Update
from ddppo.scaling import BatchShape
from ddppo.spaces import EnvSpec


def worker(kit: Kit) -> Worker:
    """Return what a rank of ddp runs."""
    return EpisodeWorker(kit) if plays_whole_episodes(kit.config, kit.spec) else Worker(kit)


def plays_whole_episodes(config: Config, spec: EnvSpec) -> bool:
    return config.ppo.algorithm == "grpo" or spec.action.kind == "text"


def check(config: Config, shape: BatchShape, spec: EnvSpec) -> None:
    """Raise ConfigError where the task, or what it asks for, does not go with how iterations are made."""
    name, group_size = config.env.id, config.ppo.group_size
    if not plays_whole_episodes(config, spec):
        if group_size != type(config.ppo)().group_size:
            raise ConfigError(
                f"ppo.group_size={group_size} has no effect with ppo.algorithm=ppo and {name}, which is no task of "
                "text: use ppo=grpo, or leave it out"
            )
        return
    check_groups(
        config, shape, "ppo.algorithm=grpo" if config.ppo.algorithm == "grpo" else f"{name}, of text"
    )
    if spec.journal is not None:
        raise ConfigError(
            f"ppo.algorithm=grpo with {name}: its environments tell one another what they found and go on from there, "
            "so that no group can begin alike: use ppo.algorithm=ppo"
        )


class EpisodeWorker(Worker):
    """A rank that acts, and learns from one episode of each of its environments."""

    collector: EpisodeCollector
    rounds: Rounds

    def __init__(self, kit: Kit) -> None:
        config = kit.config
        curriculum = curriculum_for(config.curriculum, config.env.id, kit.spec)
        self.rounds = Rounds(config.seed, kit.shape.num_envs // config.ppo.group_size, curriculum)
        super().__init__(kit)

    def _acting(self) -> tuple[VecEnv, EpisodeCollector]:
        env = self._kit.envs()
        return env, EpisodeCollector(**self._kit.of_collector(env, self._kit.env_indices.start))

    def reset(self, iteration: int) -> None:
        """Nothing goes on from one iteration to the next."""

    def collect(self, iteration: int) -> Collected:
        rounds = self.rounds.begin(iteration)
        mine = [rounds[i // self._kit.config.ppo.group_size] for i in self._kit.env_indices]
        self.collector.begin([r.seed for r in mine], [r.options for r in mine])
        return super().collect(iteration)

    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        update = super().learn(collected, iteration, progress)
        assert collected.rollout is not None
        if collected.rollout.achieved is not None:
            self.rounds.end(self.rates(collected.rollout.achieved))
        return update

    def rates(self, achieved: torch.Tensor) -> list[float | None]:
        """Return for each group of all ranks the share of its rollouts that achieved; None where all failed.

        achieved `[E]`: 1 or 0, NaN where the rollout failed, or nobody knows.
        """
        of_all = self._kit.group.gather(achieved.double().cpu()).view(-1, self._kit.config.ppo.group_size)
        return [None if math.isnan(rate) else rate for rate in of_all.nanmean(dim=1).tolist()]
