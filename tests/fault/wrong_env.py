"""A task that goes wrong on purpose. Imports no torch: environments' processes import it."""

import os
import signal
import time

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space


class Wrong(gym.Env):
    """Goes wrong in the way that `fault` names at its step `step`, if reset with `seed` or that is None.

    Not if reset with a seed below `from_seed`: 3 spares the trial before training.

    Episodes last 10 steps. With fault=make, none can be made in any process but `owner`.
    """

    action_space = Discrete(2)

    def __init__(self, fault, step=13, seed=None, owner=None, from_seed=0):
        self.fault, self.step_of_fault, self.faulty_seed, self.from_seed = fault, step, seed, from_seed
        self.observation_space = Box(-1, 1, (2,), np.float32)
        self.num_steps = 0
        if fault == "make" and os.getpid() != owner:
            raise OSError("the port is taken")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.num_steps = 0
            self.is_faulty = self.faulty_seed in (None, seed) and seed >= self.from_seed
        if self.fault == "nan in reset" and self.num_steps and self.is_faulty:
            return np.full(2, np.nan, np.float32), {}
        return np.zeros(2, np.float32), self.info(np.ones(2, np.int8))

    def step(self, action):
        self.num_steps += 1
        answer = [
            np.zeros(2, np.float32),
            1.0,
            False,
            self.num_steps % 10 == 0,
            self.info(np.ones(2, np.int8)),
        ]
        if self.num_steps == self.step_of_fault and self.is_faulty:
            match self.fault:
                case "raise":
                    raise ArithmeticError("the wheel came off")
                case "leave":
                    raise SystemExit(0)
                case "die":
                    os._exit(7)
                case "hang":
                    time.sleep(86_400)
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "shape":
                    answer[0] = np.zeros(3, np.float32)
                case "text":
                    answer[0] = "left"
                case "nan":
                    answer[0][1] = np.nan
                case "final nan":
                    answer[0][0], answer[2] = np.nan, True
                case "reward":
                    answer[1] = -np.inf
                case "text reward":
                    answer[1] = "much"
                case "mask":
                    answer[4] = self.info(np.zeros(2, np.int8))
        return tuple(answer)

    def info(self, mask):
        return {"action_mask": mask} if self.fault == "mask" else {}


gym.register("Wrong-v0", Wrong)


class Mapped(gym.Env):
    """Every environment has the same large map, and remembers how many steps it did."""

    observation_space, action_space = Box(0, 1, (2,), np.float32), Discrete(2)

    def __init__(self, megabytes=4):
        self.map = np.random.default_rng(0).random((megabytes, 125_000))
        self.num_steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.num_steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.num_steps += 1
        obs = np.array([self.map[0, self.num_steps], self.np_random.random()], np.float32)
        return obs, float(obs[1]), False, self.num_steps % 7 == 0, {}


gym.register("Mapped-v0", Mapped)


class WrongBatch(gym.vector.VectorEnv):
    """Environments in batch, which go wrong in the way that `fault` names at their step 3."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 (gymnasium declares it so)
    single_observation_space = Box(-1, 1, (2,), np.float32)
    single_action_space = Discrete(2)

    def __init__(self, num_envs, fault):
        self.num_envs, self.fault = num_envs, fault
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        self.num_steps = 0
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, actions):
        self.num_steps += 1
        obs, rewards, no = (
            np.zeros((self.num_envs, 2), np.float32),
            np.ones(self.num_envs),
            np.zeros(self.num_envs, bool),
        )
        if self.num_steps == 3:
            match self.fault:
                case "raise":
                    raise ArithmeticError("the wheel came off")
                case "shape":
                    obs = obs[:, :1]
                case "rewards":
                    rewards = rewards[:, None]
                case "nan":
                    obs[1, 0] = np.nan
        return obs, rewards, no, no, {}


gym.register("WrongBatch-v0", entry_point=Wrong, vector_entry_point=WrongBatch)
