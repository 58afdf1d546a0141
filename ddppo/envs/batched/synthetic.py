"""`ddppo/Synthetic-v0` where its steps and resets cost nothing."""

from typing import Any

import numpy as np

from ddppo.envs.batched.dynamics import Dynamics


class Synthetic(Dynamics):
    """The contextual bandit of `ddppo.envs.tasks.synthetic`; its state is what it observes."""

    def __init__(self, num_envs: int, episode_steps: int = 100, obs_size: int = 8, **_: Any) -> None:
        super().__init__(0, num_envs)
        self.max_episode_steps = episode_steps
        self._obs_size = obs_size
        self._never = np.zeros(num_envs, bool)

    def reset(self, i: int) -> np.ndarray:
        return self.generators[i].standard_normal(self._obs_size, dtype=np.float32)

    def step(self, actions: np.ndarray, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rewards = (actions == (obs[:, 0] > 0)).astype(np.float64)
        for row, generator in zip(obs, self.generators, strict=True):
            generator.standard_normal(dtype=np.float32, out=row)
        return rewards, self._never
