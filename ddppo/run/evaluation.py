"""Deterministic evaluation: the mode of the policy, frozen normalisers, fixed-seed environments of their own.

Episode j starts from seed (seed, "eval", j) whoever plays it, so scores do not depend on W, nor on what training did.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ddppo.envs.vec_env import VecEnv
from ddppo.models import action_distribution
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.seeding import derived_seed


@dataclass(frozen=True, slots=True)
class Scores:
    """Undiscounted returns and lengths (steps) of episodes, in the order of their numbers."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]


@torch.inference_mode()
def greedy_actions(
    model: nn.Module, normalizer: ObsNormalizer | None, env: VecEnv, obs: np.ndarray, mask: np.ndarray | None
) -> np.ndarray:
    """Return the mode of the policy for obs `[E, obs_size]` as actions `[E, *action.shape]`."""
    parameter = next(model.parameters())
    x = torch.from_numpy(obs).to(parameter)
    if normalizer is not None:
        x = normalizer(x)
    allowed = None if mask is None else torch.from_numpy(mask).to(parameter.device)
    return action_distribution(env.spec.action, model.action_params(x), allowed).mode().cpu().numpy()


def play_episodes(
    model: nn.Module, normalizer: ObsNormalizer | None, env: VecEnv, episodes: Sequence[int], seed: int
) -> Scores:
    """Play the episodes of these numbers, as many side by side as `env` has environments."""
    returns = np.zeros(len(episodes))
    lengths = np.zeros(len(episodes), dtype=np.int64)
    for first in range(0, len(episodes), env.num_envs):
        wave = episodes[first : first + env.num_envs]
        numbers = [wave[i % len(wave)] for i in range(env.num_envs)]  # a short last wave repeats episodes, unread
        obs, mask = env.reset([derived_seed(seed, "eval", j) for j in numbers])
        playing = np.arange(env.num_envs) < len(wave)
        while playing.any():
            step = env.step(greedy_actions(model, normalizer, env, obs, mask))
            counted = playing & step.valid
            index = first + np.flatnonzero(counted)
            returns[index] += step.rewards[counted]
            lengths[index] += 1
            playing[step.ended] = False
            obs, mask = step.obs, step.action_mask
    return Scores(tuple(returns.tolist()), tuple(int(n) for n in lengths))
