"""Models with memory of a user's own, and a task that cannot be done without one."""

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

from ddppo.models.distributions import num_action_params
from ddppo.models.recurrent import Recurrent

LENGTH = 5


class Recall(gym.Env):
    """A number, -1 or 1, is seen in the first of 5 steps; the last is worth 1 if its action names it, else -1."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, length=LENGTH):
        self._length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._step = 0
        self._shown = int(self.np_random.integers(2))
        return self._seen(), {}

    def step(self, action):
        self._step += 1
        over = self._step == self._length
        reward = (1.0 if int(action) == self._shown else -1.0) if over else 0.0
        return self._seen(), reward, over, False, {}

    def _seen(self):
        shown = 2 * self._shown - 1 if self._step == 0 else 0
        return np.array([shown, self._step == self._length - 1], np.float32)


gym.register("tests/Recall-v0", entry_point=Recall)


class Counter(Recurrent):
    """Remembers how many steps ago the episode began, and the sum of what it observed since."""

    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.state_size = 1 + spec.obs_size
        self.layer = nn.Linear(self.state_size, num_action_params(spec.action) + 1)

    def step(self, obs, state):
        after = state + torch.cat([torch.ones_like(obs[:, :1]), obs], dim=-1)
        return *self.said(after), after

    def unroll(self, obs, state, starts):
        rows = []
        for row, start in zip(obs, starts, strict=True):
            _, _, state = self.step(row, state * ~start.unsqueeze(-1))
            rows.append(state)
        return self.said(torch.stack(rows))

    def said(self, state):
        out = self.layer(state / 10)
        return out[..., 1:], out[..., 0]


class Forgetful(Counter):
    """Goes on where an episode starts, as if it were the last one's."""

    def unroll(self, obs, state, starts):
        return super().unroll(obs, state, torch.zeros_like(starts))


class Sizeless(Counter):
    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.state_size = 0


class InPlace(Counter):
    def step(self, obs, state):
        params, values, after = super().step(obs, state)
        return params, values, state.copy_(after)


class Two(Counter):
    def step(self, obs, state):
        return super().step(obs, state)[:2]


class Narrow(Counter):
    def step(self, obs, state):
        params, values, after = super().step(obs, state)
        return params, values, after[:, :1]


class Flat(Counter):
    def unroll(self, obs, state, starts):
        return tuple(x.flatten(0, 1) for x in super().unroll(obs, state, starts))
