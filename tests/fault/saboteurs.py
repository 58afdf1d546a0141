"""Tasks and models that go wrong on purpose, on a rank and at a time that the tests choose."""

import os
import signal
import time

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, Text, Tuple

from ddppo.models.actor_critic import MLP

FAULTY_RANK = int(os.environ.get("FAULTY_RANK", "1"))
FAULT_AFTER = int(os.environ.get("FAULT_AFTER", "100"))  # calls
IS_FAULTY = int(os.environ.get("RANK", "0")) == FAULTY_RANK and "LOCAL_WORLD_SIZE" in os.environ


class Raises(gym.Env):
    """A task whose step raises in the faulty rank."""

    observation_space = Box(-1, 1, (3,), np.float32)
    action_space = Discrete(2)
    num_steps = 0
    raises = True

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.num_steps += 1
        if IS_FAULTY and self.raises and self.num_steps > FAULT_AFTER:
            raise ZeroDivisionError("the task of the test broke")
        return np.zeros(3, np.float32), 1.0, False, self.num_steps % 10 == 0, {}


class Hangs(Raises):
    """A task whose step takes an hour, except in the process `owner`."""

    def __init__(self, owner=None):
        self.owner = owner

    def step(self, action):
        if os.getpid() != self.owner:
            time.sleep(3600)
        return super().step(action)


class Spikes(Raises):
    """A task with one reward in the faulty rank that no float32 can hold the square of; again in every later start."""

    raises = False
    num_rewards = 0  # of all environments of the process

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        Spikes.num_rewards += 1
        is_spike = IS_FAULTY and Spikes.num_rewards == FAULT_AFTER + 1
        return obs, 1e30 if is_spike else reward, terminated, truncated, info


class Dies(Raises):
    """A task that kills the faulty rank, whenever it is started."""

    raises = False

    def step(self, action):
        if IS_FAULTY and self.num_steps == FAULT_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class TextObs(Raises):
    observation_space = Tuple([Discrete(2), Text(3)])


class DictActions(Raises):
    action_space = gym.spaces.Dict({"a": Discrete(2)})


gym.register("Raises-v0", Raises)
gym.register("Hangs-v0", Hangs)
gym.register("Spikes-v0", Spikes)
gym.register("Dies-v0", Dies)
gym.register("TextObs-v0", TextObs)
gym.register("DictActions-v0", DictActions)


class NaNModel(MLP):
    """Returns NaN values in the faulty rank from some forward pass on."""

    num_calls = 0

    def forward(self, obs):
        params, values = super().forward(obs)
        self.num_calls += 1
        return params, values * torch.nan if IS_FAULTY and self.num_calls > FAULT_AFTER else values


class ColumnModel(MLP):
    """Returns values [n, 1], which broadcast against [n] to [n, n]."""

    def value(self, obs):
        return super().value(obs).unsqueeze(-1)


class NormedModel(MLP):
    """Normalises observations by the batch they come in."""

    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.policy_trunk.insert(0, torch.nn.BatchNorm1d(spec.obs_size))


class DriftingModel(MLP):
    """Its parameters move by themselves in the faulty rank at some forward pass."""

    num_calls = 0

    def forward(self, obs):
        self.num_calls += 1
        if IS_FAULTY and self.num_calls == FAULT_AFTER:
            with torch.no_grad():
                next(self.parameters()).view(-1)[0].add_(1e-6)
        return super().forward(obs)
