"""A task whose state nobody can hand over."""

import itertools

import gymnasium as gym
import numpy as np


class Forgetful(gym.Env):
    """A task whose rewards follow from what no attribute and no replay tells: how often any of its kind was stepped."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    steps = itertools.count()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), float(next(Forgetful.steps)), False, False, {}


gym.register("tests/Forgetful-v0", Forgetful, max_episode_steps=50)
