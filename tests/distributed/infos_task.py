"""A task whose last info has numbers: the index of the environment's seed decides them."""

import gymnasium as gym
import numpy as np


class Scored(gym.Env):
    """Episodes of 4 steps. Those from an even seed succeed."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.number = 0, int(self.np_random.integers(8))
        return np.zeros(2, np.float32), {"score": -1.0}

    def step(self, action):
        self.steps += 1
        info = {"score": -1.0}
        if self.steps == 4:
            info = {
                "is_success": self.number % 2 == 0,
                "score": np.float32(self.number),
                "bonus": np.array(2),
                "text": "a word",
                "_hidden": 3,
                "list": [1, 2],
                "lost": float("nan"),
                "episode": {"r": 1.0, "l": 4, "t": 0.1, "coins": 3},
            }
        return np.zeros(2, np.float32), 1.0, self.steps == 4, False, info


gym.register("tests/Scored-v0", entry_point=f"{__name__}:Scored")
