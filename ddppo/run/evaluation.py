"""Deterministic evaluation: the mode of the policy, frozen normalisers, fixed-seed environments of their own.

Episode j starts from seed (seed, "eval", j) whoever plays it, so scores do not depend on W, nor on what training did.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ddppo.config import Config
from ddppo.distributed.launch import resolve_device
from ddppo.envs import ObsArrays, VecEnv, probe
from ddppo.errors import RunFolderError, TrainingError
from ddppo.models import ActionDistribution, ActorCritic, build_model, tensor_dtype
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.seeding import derived_seed
from ddppo.spaces import ArraySpec, EnvSpec, each

_LONGEST_EPISODE = 300_000  # steps; a policy that never ends its task would be evaluated for ever


@dataclass(frozen=True, slots=True)
class Scores:
    """Undiscounted returns and lengths (steps; tokens typed, of text) of episodes, in the order of their numbers.

    Of tasks of text also whether each achieved what was asked, 1 or 0, NaN where the environment does not tell, and the
    tier of its task, "" where it has none.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    achieved: tuple[float, ...] = ()
    tiers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """A model with its observation normaliser."""

    model: ActorCritic
    normalizer: ObsNormalizer | None
    spec: EnvSpec

    @torch.inference_mode()
    def act(self, obs: ObsArrays, mask: np.ndarray | None) -> np.ndarray:
        """Return the mode of the policy for obs `[E, *shape]` as actions `[E, *action.shape]`."""
        return self.distribution(self.params(obs), mask).mode().cpu().numpy()

    @torch.inference_mode()
    def sample(self, obs: ObsArrays, mask: np.ndarray | None, noise: np.ndarray) -> np.ndarray:
        """Return actions drawn by noise `[E, model.num_noise]`, of the law that `ActionDistribution.sample` names."""
        return self.distribution(self.params(obs), mask).sample(torch.from_numpy(noise)).numpy()

    @torch.inference_mode()
    def params(self, obs: ObsArrays) -> torch.Tensor:
        """Return the action parameters `[E, P]` for obs `[E, *shape]`."""
        parameter = next(self.model.parameters())

        def tensor(leaf: ArraySpec, array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(parameter.device, tensor_dtype(leaf, parameter.dtype))

        x = each(tensor, self.spec.obs, obs)
        return self.model.action_params(x if self.normalizer is None else self.normalizer(x))

    def distribution(self, params: torch.Tensor, mask: np.ndarray | None) -> ActionDistribution:
        """Return the distribution that action parameters `[E, P]` describe, of what `mask` `[E, mask_size]` allows."""
        allowed = None if mask is None else torch.from_numpy(mask).to(params.device)
        return self.model.distribution(params, allowed)


def load_policy(config: Config, state: dict[str, Any]) -> Policy:
    """Return the policy of a checkpoint's `state` for the task and model that `config` names.

    Raises RunFolderError if its parameters are those of another model or task.
    """
    spec, device, dtype = probe(config.env), resolve_device(config.device), getattr(torch, config.dtype)
    model = build_model(spec, config.model, config.seed, dtype).to(device)
    try:
        model.load_state_dict(state["model"])
    except RuntimeError as e:  # names every parameter, on as many lines
        raise RunFolderError(
            f"the checkpoint of iteration {state['iteration']} does not fit {config.env.id} and model.name="
            f"{config.model.name} as config.yaml of this run describes them: it is another run's"
        ) from e
    normalizer = None
    if "obs_moments" in state:
        normalizer = ObsNormalizer(spec.obs, device, dtype)
        normalizer.load(state["obs_moments"])
    return Policy(model, normalizer, spec)


def play_episodes(
    policy: Policy, env: VecEnv, episodes: Sequence[int], seed: int, options: dict[str, Any] | None = None
) -> Scores:
    """Play the episodes of these numbers, as many side by side as `env` has environments.

    options: that each begins with, if any.
    """
    of_all = None if options is None else [options] * env.num_envs
    returns = np.zeros(len(episodes))
    lengths = np.zeros(len(episodes), dtype=np.int64)
    for first in range(0, len(episodes), env.num_envs):
        wave = episodes[first : first + env.num_envs]
        numbers = [
            wave[i % len(wave)] for i in range(env.num_envs)
        ]  # a short last wave repeats episodes, unread
        obs, mask = env.reset([derived_seed(seed, "eval", j) for j in numbers], of_all)
        playing = np.arange(env.num_envs) < len(wave)
        steps = 0
        while playing.any():
            steps += 1
            if steps > _LONGEST_EPISODE:
                raise TrainingError(
                    f"evaluation episode {wave[int(np.flatnonzero(playing)[0])]} has not ended after "
                    f"{_LONGEST_EPISODE:,} steps: set env.max_episode_steps for a task without a limit of its own"
                )
            step = env.step(policy.act(obs, mask))
            counted = playing & step.valid
            index = first + np.flatnonzero(counted)
            returns[index] += step.rewards[counted]
            lengths[index] += 1
            playing[step.ended] = False
            obs, mask = step.obs, step.action_mask
    return Scores(tuple(returns.tolist()), tuple(int(n) for n in lengths))
