"""Small tasks for the tests of ddppo.envs; environment processes import this module by name."""

import os
import time

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from ddppo.config.settings import EnvConfig


def task(name, **settings):
    return EnvConfig(id=f"{__name__}:test/{name}-v0", **settings)


class CountingEnv(gym.Env):
    """Observes the number of steps since reset, from 0; ends after `length`; writes into one buffer."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, length=3):
        self.length = length
        self.buffer = np.zeros(1, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.buffer[0] = 0
        return self.buffer, {}

    def step(self, action):
        self.buffer[0] += 1
        return self.buffer, 1.0, bool(self.buffer[0] >= self.length), False, {}


ACTION_SPACES = {
    "box": Box(np.float32([[-1, -np.inf], [0, -2]]), np.float32([[1, np.inf], [0.5, 2]])),
    "integers": Box(0, 255, (2,), np.uint8),
    "discrete": Discrete(3, start=-1),
    "multi_discrete": MultiDiscrete([2, 3], start=[10, 20]),
    "multi_binary": MultiBinary([2, 2]),
    "grid": MultiDiscrete([[2, 3], [2, 2]]),
    "text": Text(4),
}


class EchoEnv(gym.Env):
    """Observes the action it was given, as it was given."""

    def __init__(self, kind):
        self.action_space = ACTION_SPACES[kind]
        self.observation_space = Box(-np.inf, np.inf, self.action_space.shape or (), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape), {}

    def step(self, action):
        assert self.action_space.contains(action), (action, self.action_space)
        obs = np.array(action, np.float64)
        if isinstance(action, np.ndarray):
            action[...] = 0  # a task may scribble on what it was given
        return obs, 0.0, False, False, {}


OBSERVATION_SPACES = {
    "scalar": Box(0, 9, (), np.float32),
    "image": Box(0, 255, (2, 3), np.uint8),
    "bits": Box(0, 1, (2, 2), np.uint8),
    "camera": Dict({"camera": Box(0, 255, (1, 2, 2), np.uint8), "speed": Box(-9, 9, (1,), np.int16)}),
    "double": Box(-1, 1, (2,), np.float64),
    "discrete": Discrete(4, start=2),
    "multi_discrete": MultiDiscrete([2, 3]),
    "dict": Dict({"card": Discrete(3), "position": Box(-1, 1, (2,), np.float64)}),
    "graph": Graph(Discrete(2), None),
    "tuple": Tuple([Discrete(3), Box(-1, 1, (2,), np.float64)]),
    "nested": Dict(
        {"b": Tuple([Dict({"x": Discrete(2)}), MultiBinary(2)]), "a": MultiDiscrete([2, 3], start=[1, 5])}
    ),
    "inner text": Dict({"inner": Dict({"x": Text(2)})}),
    "inner empty": Dict({"inner": Tuple([]), "x": Discrete(2)}),
    "empty": Dict({"action_mask": MultiBinary(2)}),
}


OBSERVATIONS = {
    "scalar": np.float32(7),
    "image": np.array([[0, 1, 2], [3, 4, 255]], np.uint8),
    "bits": np.array([[0, 1], [1, 1]], np.uint8),
    "camera": {"camera": np.array([[[0, 9], [8, 255]]], np.uint8), "speed": np.array([-2], np.int16)},
    "double": np.array([1 / 3, -1 / 3]),
    "discrete": 3,
    "multi_discrete": np.array([1, 2]),
    "dict": {"position": np.array([0.5, -0.5]), "card": 2},
    "tuple": (2, np.array([0.5, -0.5])),
    "nested": {"a": np.array([2, 7]), "b": ({"x": 1}, np.array([1, 0], np.int8))},
}


class ObserveEnv(gym.Env):
    """Observes `sample` of a named space."""

    action_space = Discrete(2)

    def __init__(self, kind):
        self.observation_space = OBSERVATION_SPACES[kind]
        self.obs = OBSERVATIONS.get(kind)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.obs, {}

    def step(self, action):
        return self.obs, 0.0, False, False, {}


class MaskEnv(gym.Env):
    """Three choices; after k steps only choice k is allowed, and after 2 steps no mask is given at all.

    Episodes last 4 steps. `where` the mask stands: info, dict, late (in infos of steps, not of resets).
    """

    def __init__(self, where="info", mask_size=3, action="discrete"):
        self.where = where
        self.mask_size = mask_size
        self.action_space = {
            "discrete": Discrete(3),
            "multi_discrete": MultiDiscrete([1, 2]),
            "box": Box(-1, 1, (3,)),
        }[action]
        position = Box(-9, 9, (1,), np.float32)
        self.observation_space = position
        if where == "dict":
            self.observation_space = Dict({"action_mask": MultiBinary(mask_size), "position": position})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_steps = 0
        obs, info = self.observe()
        return obs, {} if self.where == "late" else info

    def step(self, action):
        self.num_steps += 1
        obs, info = self.observe()
        return obs, 0.0, False, self.num_steps == 4, info

    def observe(self):
        position = np.array([self.num_steps], np.float32)
        mask = np.zeros(self.mask_size, np.int8)
        mask[self.num_steps % self.mask_size] = 1
        if self.where == "dict":
            return {"action_mask": mask, "position": position}, {}
        given = mask
        if isinstance(
            self.action_space, MultiDiscrete
        ):  # of whose second component the step's parity is allowed
            given = (np.ones(1, np.int8), np.eye(2, dtype=np.int8)[self.num_steps % 2])
        return position, {} if self.num_steps == 2 else {"action_mask": given}


class FaultyEnv(CountingEnv):
    """Exits, raises or hangs at its second step, if it was reset with seed 1."""

    def __init__(self, fault):
        super().__init__(length=100)
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        self.is_faulty = seed == 1
        return super().reset(seed=seed)

    def step(self, action):
        if self.is_faulty and self.buffer[0] == 1:
            if self.fault == "exit":
                os._exit(7)
            if self.fault == "hang":
                time.sleep(3600)
            raise ArithmeticError("the wheel came off")
        return super().step(action)


class KeepingEnv(CountingEnv):
    """Observes the action of the step before, which it kept as it was given."""

    action_space = Box(-9, 9, (1,), np.float32)
    kept = np.zeros(1, np.float32)

    def step(self, action):
        before, self.kept = self.kept, action
        return before.copy(), 0.0, False, False, {}


class ClosingEnv(CountingEnv):
    """Leaves a file in `folder` when it is closed."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def close(self):
        with open(os.path.join(self.folder, f"{os.getpid()}-{id(self)}"), "x"):
            pass


class RefusingEnv(CountingEnv):
    def __init__(self):
        raise ValueError("no licence")


class NeedyEnv(CountingEnv):
    def __init__(self):
        raise gym.error.DependencyNotInstalled("run `pip install needy`")


class NativeCountingEnv(gym.vector.VectorEnv):
    """CountingEnv in batch: environment i ends after 2 + i steps. The mask allows action (steps mod 2)."""

    def __init__(self, num_envs, mode, obeys_reset_mask=True, masks=True):
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": mode if mode == "none" else AutoresetMode[mode]}
        self.single_observation_space = Box(0, np.inf, (1,), np.float64)
        self.single_action_space = Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.obeys_reset_mask = obeys_reset_mask
        self.masks = masks
        self.steps = np.zeros((num_envs, 1))

    def reset(self, *, seed=None, options=None):
        rows = (options or {}).get("reset_mask", slice(None)) if self.obeys_reset_mask else slice(None)
        self.steps[rows] = 0
        return self.steps, self.infos()

    def step(self, actions):
        self.steps += 1
        ended = self.steps[:, 0] >= 2 + np.arange(self.num_envs)
        infos = {}
        if self.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP:
            infos["final_obs"] = np.where(ended[:, None], self.steps, -77.0)
            self.steps[ended] = 0
        return self.steps, np.ones(self.num_envs), ended, np.zeros(self.num_envs, bool), infos | self.infos()

    def infos(self):
        return (
            {"action_mask": np.eye(2, dtype=np.int8)[self.steps[:, 0].astype(int) % 2]} if self.masks else {}
        )


class NativeImageless(NativeCountingEnv):
    def __init__(self, num_envs):
        super().__init__(num_envs, "SAME_STEP")
        self.single_observation_space = Discrete(3)


for environment in (
    CountingEnv, EchoEnv, ObserveEnv, MaskEnv, FaultyEnv, KeepingEnv, ClosingEnv, RefusingEnv, NeedyEnv
):  # fmt: skip
    gym.register(f"test/{environment.__name__.removesuffix('Env')}-v0", entry_point=environment)
gym.register("test/Native-v0", vector_entry_point=NativeCountingEnv)
gym.register("test/NativeDiscrete-v0", vector_entry_point=NativeImageless)
