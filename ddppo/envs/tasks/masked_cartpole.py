"""`ddppo/MaskedCartPole-v0`: CartPole-v1 without its speeds, which have to be remembered from one step to the next."""

from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.spaces import Box

from ddppo.envs.backends.classic import CartPole


class MaskedCartPoleEnv(CartPoleEnv):
    """Gymnasium's CartPole, observed by the cart's position and the pole's angle alone: float32 `[2]`.

    The task of Wierstra et al. 2007, "Solving Deep Memory POMDPs with Recurrent Policy Gradients", section 5.1.
    """

    def __init__(self, sutton_barto_reward: bool = False, render_mode: str | None = None) -> None:
        super().__init__(sutton_barto_reward=sutton_barto_reward, render_mode=render_mode)
        whole = self.observation_space
        assert isinstance(whole, Box)
        self.observation_space = Box(whole.low[::2], whole.high[::2], dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        return obs[::2], info

    def step(self, action: int | np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs[::2], float(reward), terminated, truncated, info


class MaskedCartPole(CartPole):
    """All environments of a batch at once."""

    def __init__(self, num_envs: int, sutton_barto_reward: bool = False) -> None:
        super().__init__(num_envs, sutton_barto_reward)
        self._whole = np.zeros((num_envs, 4), np.float32)

    def reset(self, i: int) -> np.ndarray:
        return super().reset(i)[::2]

    def step(self, actions: np.ndarray, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rewards, terminated = super().step(actions, self._whole)
        obs[:] = self._whole[:, ::2]
        return rewards, terminated
