"""A task of pixels that is learned in seconds."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

SIZE, STEPS = 12, 16


class WhichSide(gym.Env):
    """A bright square stands in the left or right half of a noisy picture; the action names its side.

    16 steps worth 1 each where the action is right: random play returns 8 of 16 on average.
    """

    observation_space = Box(0, 255, (1, SIZE, SIZE), np.uint8)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.picture(), {}

    def step(self, action):
        reward = float(action == self.side)
        self.steps += 1
        return self.picture(), reward, False, self.steps == STEPS, {}

    def picture(self):
        self.side = int(self.np_random.integers(2))
        row, column = self.np_random.integers(0, SIZE - 3), self.np_random.integers(0, SIZE // 2 - 3)
        picture = self.np_random.integers(0, 128, (1, SIZE, SIZE), dtype=np.uint8)
        column += self.side * SIZE // 2
        picture[0, row : row + 3, column : column + 3] = 255
        return picture


gym.register("WhichSide-v0", WhichSide)
