"""The task: a point on a line is pushed until it rests on a target."""

import gymnasium as gym
import numpy as np

from my_project.physics import moved


class Reach(gym.Env):
    """Observations: position, velocity and target, `[3]`. Actions: push left, no push, push right.

    The reward of a step is minus the distance to the target, so the best possible return is 0. Episodes end at the time
    limit in my_project/__init__.py, which is a truncation: the last state is no failure.
    """

    def __init__(self, max_push: float = 0.05, render_mode: str | None = None) -> None:
        self.max_push = max_push
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(-2.0, 2.0, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # draw from self.np_random only: then the seed decides everything
        self.position, self.target = self.np_random.uniform(-1.0, 1.0, 2)
        self.velocity = 0.0
        return self._observation(), {}

    def step(self, action):
        push = self.max_push * (int(action) - 1)
        position, self.velocity = moved(self.position, self.velocity, push)
        self.position = float(np.clip(position, -2.0, 2.0))
        reward = -abs(self.position - self.target)
        return self._observation(), reward, False, False, {}

    def _observation(self):
        return np.array([self.position, self.velocity, self.target], np.float32)
