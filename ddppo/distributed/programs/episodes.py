"""Groups of whole episodes, for grpo and tasks of text: ddp whose iterations begin and end with episodes.

N environments of all ranks are K groups of G: environment i plays for group i // G, and those of a group begin alike. A
rank may hold a part of a group.
"""

import math
from dataclasses import replace

import torch

from ddppo.config import Config
from ddppo.config.rules.algorithms import check_groups
from ddppo.curriculum import Rounds, curriculum_for
from ddppo.distributed.programs.kit import Collected, Kit
from ddppo.distributed.programs.workers import Worker
from ddppo.errors import ConfigError, TrainingError
from ddppo.ppo.learning.learner import Update
from ddppo.scaling import BatchShape
from ddppo.spaces import EnvSpec


def worker(kit: Kit) -> Worker:
    """Return what a rank of ddp runs."""
    if kit.config.search.name is not None:
        from ddppo.distributed.programs.searching import SearchWorker  # most runs search nothing

        return SearchWorker(kit)
    return EpisodeWorker(kit) if plays_whole_episodes(kit.config, kit.spec) else Worker(kit)


def plays_whole_episodes(config: Config, spec: EnvSpec) -> bool:
    return config.ppo.algorithm == "grpo" or spec.is_text


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
    if spec.is_text and shape.num_minibatches > shape.num_envs:
        raise ConfigError(
            f"ppo.num_minibatches={shape.num_minibatches} exceeds the {shape.num_envs} episodes of an iteration, of "
            f"which minibatches are made with {name}, of text: use at most {shape.num_envs}"
        )
    if spec.journal is not None:
        raise ConfigError(
            f"ppo.algorithm=grpo with {name}: its environments tell one another what they found and go on from there, "
            "so that no group can begin alike: use ppo.algorithm=ppo"
        )


class EpisodeWorker(Worker):
    """A rank that acts, and learns from one episode of each of its environments."""

    rounds: Rounds

    def __init__(self, kit: Kit) -> None:
        super().__init__(kit)
        config = kit.config
        self._group_size = config.ppo.group_size
        curriculum = curriculum_for(config.curriculum, config.env.id, kit.spec)
        self.rounds = Rounds(config.seed, kit.shape.num_envs // self._group_size, curriculum)
        self._was_told = False  # of any rollout, whether it achieved its task

    def reset(self, iteration: int) -> None:
        """Nothing goes on from one iteration to the next."""

    def collect(self, iteration: int) -> Collected:
        rounds = self.rounds.begin(iteration)
        mine = [rounds[i // self._group_size] for i in self._kit.env_indices]
        self.collector.reset([r.seed for r in mine], [r.options for r in mine])
        return super().collect(iteration)

    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        update = super().learn(collected, iteration, progress)
        rollout = collected.rollout
        assert rollout is not None
        if rollout.achieved is None:
            return update
        of_mine = torch.stack([rollout.achieved.double(), rollout.valid.any(0).double()]).cpu()
        of_all, was_played = self._kit.group.gather(of_mine).transpose(0, 1).flatten(1)  # [W, 2, E] -> [2, N]
        known = of_all[~of_all.isnan()]
        self._was_told |= len(known) > 0
        if self.rounds.curriculum is not None and not self._was_told and was_played.any():
            raise TrainingError(
                f"curriculum.name={self._kit.config.curriculum.name}: {self._kit.config.env.id} told of no episode of "
                f'iteration {iteration} whether it achieved its task: set info["is_success"] in reset and step, or '
                "curriculum.name=null"
            )
        self.rounds.end(rates(of_all, self._group_size))
        if len(known) == 0:
            return update
        return replace(update, metrics={**update.metrics, "rollout/success_rate": known.mean().item()})


def rates(achieved: torch.Tensor, group_size: int) -> list[float | None]:
    """Return for each group the share of its rollouts that achieved; None where that is known of none.

    achieved `[N]`: 1 or 0, NaN where a rollout failed or its environment does not tell.
    """
    of_groups = achieved.view(-1, group_size).nanmean(dim=1).tolist()
    return [None if math.isnan(rate) else rate for rate in of_groups]
