"""Tasks that return what a test names, also in processes of environments: this imports no torch by itself."""

import importlib
import math
from collections import UserDict
from types import MappingProxyType

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

PAIR = np.float32([0.5, -0.5])


# What a task may be told by name to return, also in another process.
VALUES = {
    "list": [False], "empty list": [], "tuple": (False,), "str": "False", "dict": {"__all__": False},
    "None": None, "half": 0.5,
    "two": np.array([True, False]), "number": 2, "nan": math.nan, "complex": 1j, "text number": "1.5", "bytes": b"1",
    "rewards": np.array([1.0, 2.0]), "reward list": [1.0], "text array": np.array("1.5"), "huge": 10**400,
    "masked": np.ma.masked_array([1.0], [True]), "object": np.array(None), "time": np.timedelta64(5, "ns"),
}  # fmt: skip


class ReturningEnv(gym.Env):
    """Returns VALUES[value], or what `call` names, as its `field` in its step `at` (0: its first reset)."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, field="", value="", at=0):
        self.field, self.value, self.at = field, value, at
        self.num_steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.num_steps = 0
        told = {"observation": PAIR.copy(), "info": {}}
        if self.at == self.num_steps and self.field in told:
            told[self.field] = VALUES[self.value]
        return tuple(told.values())

    def step(self, action):
        self.num_steps += 1
        told = {
            "observation": PAIR.copy(),
            "reward": 1.0,
            "terminated": False,
            "truncated": False,
            "info": {},
        }
        if self.num_steps == self.at:
            told[self.field] = VALUES[self.value]
        return tuple(told.values())


class GivenEnv(gym.Env):
    """Returns what a test hands over: spaces, a reset's answer and a step's; a method action_masks where `masks` is."""

    def __init__(self, given):
        for name, value in given.items():
            setattr(self, name, value)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.on_reset

    def step(self, action):
        return self.on_step


class MaskedEnv(gym.Env):
    """Actions 0 to 4, of which 1 and step + 1 are allowed; remembers what it was given. `how` masks are handed over."""

    taken: list = []  # noqa: RUF012 (of all, for the test)

    def __init__(self, how="info", limit=4, blind_at=None):
        self.how, self.limit, self.blind_at = how, limit, blind_at
        position = Box(-9, 9, (1,), np.float32)
        self.action_space = MultiDiscrete([2, 3]) if "multi" in how else Discrete(5)
        self.observation_space = Dict(x=position, action_mask=MultiBinary(5)) if "obs" in how else position
        if how == "method":
            self.action_masks = self.allowed

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_steps = 0
        self.is_over = False
        return self.seen()

    def step(self, action):
        allowed = self.allowed()
        if self.how.startswith("multi"):
            assert allowed[action[0]]
            assert allowed[2 + action[1]]
        else:
            assert allowed[action] or self.how == "late", f"{action} is forbidden"
        self.num_steps += 1
        self.is_over = self.num_steps == self.limit
        obs, info = self.seen()
        return obs, 0.0, False, self.is_over, info

    def allowed(self):
        assert self.how != "method" or not self.is_over, "asked where the episode is over"
        mask = np.zeros(5, np.int8)
        if self.num_steps != self.blind_at:
            mask[[1, 1 + self.num_steps % 4]] = 1
            mask[3] |= "multi" in self.how
        return mask

    def seen(self):
        position = np.float32([self.num_steps])
        if self.how in ("method", "wrapper", "property") or (self.how == "late" and self.num_steps < 2):
            return position, {}
        mask = self.allowed()
        as_form = {
            "list": mask.tolist, "bool": lambda: mask.astype(bool), "float": lambda: mask.astype(np.float64),
            "multi tuple": lambda: (mask[:2], mask[2:]), "multi list": lambda: [mask[:2], mask[2:]],
            "tensor": lambda: importlib.import_module("torch").tensor(mask),
        }.get(self.how)  # fmt: skip
        mask = mask if as_form is None else as_form()
        if self.how == "obs mapping":
            return UserDict({"x": position, "action_mask": mask}), {}
        if self.how == "obs proxy":
            return MappingProxyType({"x": position, "action_mask": mask}), {}
        if self.how == "obs":
            return {"x": position, "action_mask": mask}, {}
        return position, UserDict(action_mask=mask) if self.how == "info mapping" else {"action_mask": mask}


class PropertyEnv(MaskedEnv):
    @property
    def action_masks(self):
        return self.allowed()


class ActionMasker(gym.Wrapper):
    """As that of sb3-contrib."""

    def action_masks(self):
        return self.env.unwrapped.allowed()


class BatchEnv(gym.vector.VectorEnv):
    """Environments in batch that return VALUES[value] as their `field` in step 2; `masks`: by infos or by method."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 (gymnasium declares it so)
    single_action_space = Discrete(3)

    def __init__(self, num_envs, field="", value="", masks="", space="float32"):
        self.num_envs, self.field, self.value, self.masks = num_envs, field, value, masks
        self.single_observation_space = BATCH_SPACES[space]
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        if masks == "method":
            self.action_masks = lambda: self.allowed()

    def allowed(self):
        return np.tile(np.arange(3) == self.num_steps % 3, (self.num_envs, 1))

    def seen(self):
        obs = np.zeros((self.num_envs, 2), np.float32)
        if self.masks == "obs":
            return {"x": obs, "action_mask": self.allowed().astype(np.int8)}, {}
        return obs, {}

    def reset(self, *, seed=None, options=None):
        self.num_steps = 0
        return self.seen()

    def step(self, actions):
        self.num_steps += 1
        obs, infos = self.seen()
        no = np.zeros(self.num_envs, bool)
        told = {
            "observation": obs,
            "reward": np.ones(self.num_envs),
            "terminated": no,
            "truncated": no,
            "info": infos,
        }
        if self.num_steps == 2 and self.field:
            told[self.field] = BATCHES[self.value]
        return tuple(told.values())


BATCH_SPACES = {
    "float32": Box(-1, 1, (2,), np.float32),
    "whole": Box(-1, 1, (2,), np.int32),
    "obs": Dict(x=Box(-1, 1, (2,), np.float32), action_mask=Box(0, 1, (3,), np.int8)),
}
BATCHES = {
    "lists": [[False], [False]], "texts": np.array(["False", "True"]), "twos": np.array([2, 0]), "one": False,
    "None": None,
    "text rewards": np.array(["1.5", "2"]), "complex": np.array([1j, 0]), "text obs": np.full((2, 2), "1"),
    "halves": np.full((2, 2), 0.5), "huge": np.full((2, 2), 1e300), "whole rewards": np.array([1, 2]),
    "ones": np.array([1, 0]),
}  # fmt: skip


class OneTextEnv(gym.Env):
    """A task of text that returns VALUES[value] as its `field` in step 2."""

    observation_space = Text(9, min_length=0)
    action_space = Text(9, min_length=0)

    def __init__(self, field="", value=""):
        self.field, self.value = field, value

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_steps = 0
        return "say a", {}

    def step(self, action):
        self.num_steps += 1
        told = {"observation": "again", "reward": 1.0, "terminated": False, "truncated": False, "info": {}}
        if self.num_steps == 2 and self.field:
            told[self.field] = VALUES[self.value]
        return tuple(told.values())


gym.register("returns/Returning-v0", ReturningEnv)
gym.register("returns/Given-v0", GivenEnv)
gym.register("returns/Masked-v0", MaskedEnv)
gym.register("returns/Masker-v0", lambda **kwargs: ActionMasker(MaskedEnv(**kwargs)), max_episode_steps=9)
gym.register("returns/Property-v0", PropertyEnv)
gym.register("returns/Batch-v0", entry_point=ReturningEnv, vector_entry_point=BatchEnv)
gym.register("returns/Text-v0", OneTextEnv)
