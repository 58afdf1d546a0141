"""Tasks that observe pictures and several things at once, and a model of them; processes import it by name."""

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

from ddppo.models.actor_critic import ActorCritic
from ddppo.models.distributions import num_action_params


class PictureEnv(gym.Env):
    """A picture whose left or right half is lit: action 0 or 1 is worth 1. Ends after `length` steps, by truncation."""

    observation_space = Box(0, 255, (1, 8, 8), np.uint8)
    action_space = Discrete(2)
    lit = 0

    def __init__(self, length=7):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_steps = 0
        return self.observe(), {}

    def step(self, action):
        self.num_steps += 1
        reward = float(action == self.lit)
        return self.observe(), reward, False, self.num_steps == self.length, {}

    def observe(self):
        self.lit = int(self.np_random.integers(2))
        picture = self.np_random.integers(0, 100, (1, 8, 8), np.uint8)
        picture[..., 4 * self.lit : 4 * self.lit + 4] += 150
        return picture


class MixedEnv(PictureEnv):
    """The same beside a state and a hand of cards, or without the cards. The task that draws nothing counts steps."""

    def __init__(self, length=7, cards=True, draws=True):
        super().__init__(length)
        self.draws = draws
        parts = {"camera": self.observation_space, "state": Box(-np.inf, np.inf, (2, 2), np.float64)}
        if cards:
            parts["cards"] = Tuple([Discrete(3), Box(-9, 9, (1,), np.int16)])
        self.observation_space = Dict(parts)

    def observe(self):
        n = self.num_steps
        picture = super().observe() if self.draws else np.full((1, 8, 8), n, np.uint8)
        obs = {"camera": picture, "state": np.array([[n, -n], [n / 3, 1]])}
        if "cards" in self.observation_space.spaces:
            obs["cards"] = (n % 3, np.array([n], np.int16))
        return obs


class FlatFloatEnv(gym.wrappers.FlattenObservation):
    """Its numbers in one vector, as Gymnasium flattens them, where nothing is a picture."""

    def __init__(self):
        super().__init__(FloatEnv())


class FloatEnv(MixedEnv):
    def __init__(self):
        super().__init__()
        self.observation_space = Dict({k: x for k, x in self.observation_space.items() if k != "camera"})

    def observe(self):
        obs = super().observe()
        del obs["camera"]
        return obs


def native(num_envs, mode="SAME_STEP", **kwargs):
    return SyncVectorEnv([lambda: MixedEnv(**kwargs)] * num_envs, autoreset_mode=AutoresetMode[mode])


class Looking(ActorCritic):
    """Convolves `camera`, in its own scale, and joins it with all else."""

    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.parts = spec.obs if isinstance(spec.obs, dict) else {"camera": spec.obs}
        others = sum(leaf.size for leaf in self.parts.values() if leaf.is_float)
        self.convolution = nn.Conv2d(1, 4, 4, stride=4)
        self.head = nn.Linear(16 + others, num_action_params(spec.action) + 1)

    def forward(self, obs):
        given = obs if isinstance(obs, dict) else {"camera": obs}
        assert list(given) == list(self.parts)
        camera = given["camera"]
        assert camera.dtype == torch.uint8
        others = [x.flatten(-len(self.parts[k].shape)) for k, x in given.items() if k != "camera"]
        assert all(x.dtype == self.head.weight.dtype for x in others)
        seen = self.convolution(camera.to(self.head.weight.dtype) / 255).relu().flatten(1)
        out = self.head(torch.cat([seen, *others], dim=-1))
        return out[..., 1:], out[..., 0]

    def action_params(self, obs):
        return self(obs)[0]

    def value(self, obs):
        return self(obs)[1]


gym.register("seen/Picture-v0", PictureEnv)
gym.register("seen/Mixed-v0", MixedEnv, vector_entry_point=native)
gym.register("seen/Float-v0", FloatEnv)
gym.register("seen/FlatFloat-v0", FlatFloatEnv)
