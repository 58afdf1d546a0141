"""What one rank collected in one iteration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from ddppo.models import Obs


@dataclass(frozen=True, slots=True)
class Rollout:
    """T steps of E environments, time-major `[T, E, ...]`; tensors are reused by the next rollout.

    obs are what the policy saw (normalised, if observations are), raw_obs what was observed (float64 stays so if it is
    normalised); where the two are the same they share memory, as pixels do. next_values are V of the true successor,
    which is the final observation where an episode ended. valid is False on autoreset pseudo-steps, which are never
    trained on or counted. episode_start marks the first step of an episode.

    ratios are pi(a) / mu(a) where another policy mu acted than the one, pi, that logprobs and values are of; None where
    the same did. rewards are float64 where whole episodes are collected, and else of the type of values.

    Of tasks of text, obs and actions are tokens, row l of the one that follows token l, and valid those that the policy
    typed; next_values are of its next token, wherever that is. has_gaps: rows that are not valid lie between an
    episode's own. achieved `[E]`: of whole episodes, 1 or 0, NaN where it failed or nobody knows; None where nobody
    ever does.

    state `[C, E, S]`: what a model with memory knew before row 0, or before each of C rows at equal distances;
    episode_start says where it forgets. None of others.
    """

    obs: Obs
    actions: torch.Tensor
    logprobs: torch.Tensor
    values: torch.Tensor
    next_values: torch.Tensor
    rewards: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    valid: torch.Tensor
    episode_start: torch.Tensor
    action_mask: torch.Tensor | None
    raw_obs: Obs
    ratios: torch.Tensor | None = None
    achieved: torch.Tensor | None = None
    state: torch.Tensor | None = None
    has_gaps: bool = False


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished training episode: when and where it ended, its undiscounted return and its length in steps."""

    step: int
    env_index: int
    episode_return: float
    length: int


class RolloutCollector(Protocol):
    """What acts in the environments of a rank, and what `ActorCritic.collector_class` names.

    Such a class has besides `make(kit)`, which returns the collector of a rank with a
    ddppo.distributed.programs.kit.RankContext, and makes its environments; and `check(config, shape)`, which raises
    ConfigError before a run begins. env: these environments; it has `close()`. first_env: the global index of the first
    of them. whole_episodes: every rollout is one episode of each environment, and `reset` comes before each; else
    before the first.
    """

    whole_episodes: bool
    first_env: int

    @property
    def env(self) -> Any: ...

    def reset(self, seeds: Sequence[int], options: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Start an episode in every environment, each from its own seed and with its own options, if any."""
        ...

    def collect(self, noise: np.ndarray) -> tuple[Rollout, list[Episode]]:
        """Act with noise `[T, E, num_noise]`; return the rollout and the episodes that ended in it. Raises EnvError."""
        ...

    def measured(self) -> dict[str, float]:
        """Return what the last `collect` measured, by names of OF_TOPOLOGIES in the metrics."""
        ...
