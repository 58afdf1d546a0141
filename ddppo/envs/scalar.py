"""One environment: made from its settings, and wrapped to speak rows or to speak the model's language."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from ddppo.config import EnvConfig
from ddppo.envs.codec import MASK, RowEncoder, decode_actions
from ddppo.spaces import EnvSpec


def make_task(env: EnvConfig, render_mode: str | None = None) -> gym.Env:
    """Make the task as Gymnasium registers it, with its time limit, without Gymnasium's checker."""
    rendering = {} if render_mode is None else {"render_mode": render_mode}
    return gym.make(
        env.id, max_episode_steps=env.max_episode_steps, disable_env_checker=True, **rendering, **env.kwargs
    )


class RowEnv(gym.Wrapper):
    """A task that hands over rows `[obs | mask]` and no infos; it takes actions of its own space.

    Infos stay behind because a vector environment would gather every key of them at every step.
    """

    def __init__(self, task: gym.Env, spec: EnvSpec) -> None:
        super().__init__(task)
        self._encode = RowEncoder(task.observation_space, spec)
        self.observation_space = Box(-np.inf, np.inf, (self._encode.row_size,), self._encode.dtype.type)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        return self._encode(obs, info), {}

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._encode(obs, info), reward, terminated, truncated, {}


class FlatEnv(gym.Wrapper):
    """A task that takes a model's action `[*spec.action.shape]` and hands over obs `[obs_size]`.

    `info["action_mask"]` is a bool vector `[mask_size]` where the task has masks. It encodes and decodes with
    the same code as a batch does, and can render.
    """

    def __init__(self, task: gym.Env, spec: EnvSpec) -> None:
        super().__init__(task)
        self._encode = RowEncoder(task.observation_space, spec)
        self._obs_size = spec.obs_size
        self.observation_space = Box(-np.inf, np.inf, (spec.obs_size,), self._encode.dtype.type)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        return self._split(self._encode(obs, info), info)

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        decoded = decode_actions(self.env.action_space, np.asarray(action))
        obs, reward, terminated, truncated, info = self.env.step(decoded)
        flat_obs, info = self._split(self._encode(obs, info), info)
        return flat_obs, reward, terminated, truncated, info

    def _split(self, row: np.ndarray, info: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
        if row.size > self._obs_size:
            info = {**info, MASK: row[self._obs_size :] != 0}
        return row[: self._obs_size], info
