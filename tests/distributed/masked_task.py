"""A lock of three wheels, of which some digits are stuck at every step; imported by name."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, MultiDiscrete


class LockEnv(gym.Env):
    """Worth 1 for each wheel turned to its highest free digit. Ends after 7 steps; what is stuck cannot be taken."""

    observation_space = Box(0, 1, (9,), np.float64)
    action_space = MultiDiscrete([2, 4, 3], start=[0, 5, -1])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_steps = 0
        return self._next()

    def step(self, action):
        digits = np.asarray(action) - self.action_space.start
        free = [part[digit] for part, digit in zip(self.parts, digits, strict=True)]
        assert all(free), f"{action} is stuck: {self.parts}"
        highest = [int(np.flatnonzero(part)[-1]) for part in self.parts]
        self.num_steps += 1
        obs, info = self._next()
        return obs, float((digits == highest).sum()), False, self.num_steps == 7, info

    def _next(self):
        mask = self.np_random.random(9) < 0.6
        mask[np.array([0, 2, 6]) + self.np_random.integers([2, 4, 3])] = True
        self.parts = np.split(mask, [2, 6])
        return self.np_random.random(9) * mask, {
            "action_mask": tuple(part.astype(np.int8) for part in self.parts)
        }


gym.register("masked/Lock-v0", LockEnv)
