"""Tasks of every kind of action, and run folders of theirs, as a run that learned nothing would leave them."""

import os

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.wrappers import NormalizeObservation
from gymnasium.wrappers.vector import NormalizeObservation as BatchNormalizeObservation

from ddppo.config.settings import Config, EnvConfig
from ddppo.config.stored import to_yaml
from ddppo.config.variants import settings_of
from ddppo.envs.probing.probe import probe
from ddppo.models.build import build_model
from ddppo.records import checkpoint
from ddppo.spaces import leaves


class AnyEnv(gym.Env):
    """Observes and takes whatever its spaces say; the reward counts the steps. Ends after 5."""

    observation_space = Box(-1, 1, (3,), np.float32)
    action_space = Discrete(3)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.num_steps = 0
        return self.observation_space.sample(), self.info()

    def step(self, action):
        assert self.action_space.contains(action), action
        self.num_steps += 1
        return self.observation_space.sample(), float(self.num_steps), self.num_steps == 5, False, self.info()

    def info(self):
        return {}

    def render(self):
        return np.full((16, 16, 3), 40 * self.num_steps, np.uint8)


class ChosenEnv(AnyEnv):
    """Several choices with masks in its infos, by two numbers that begin elsewhere than at 0."""

    observation_space = Tuple([Discrete(4, start=2), MultiDiscrete([2, 3], start=[1, -1])])
    action_space = MultiDiscrete([2, 3], start=[0, 5])

    def info(self):
        return {"action_mask": np.array([1, self.num_steps % 2, 0, 1, 1], bool)}


class MaskedEnv(AnyEnv):
    """A choice that begins at -1, with the mask in its observations."""

    observation_space = Dict({"state": Box(-9, 9, (2, 2), np.float64), "action_mask": MultiBinary(3)})
    action_space = Discrete(3, start=-1)

    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        return obs | {"action_mask": np.array([0, 1, 1], np.int8)}, info

    def step(self, action):
        obs, *others = super().step(action)
        return obs | {"action_mask": np.array([1, 0, 1], np.int8)}, *others


class PrintedEnv(AnyEnv):
    """Prints itself in render_mode=human."""

    metadata = {"render_modes": ["human", "ansi", "rgb_array"], "render_fps": 10}  # noqa: RUF012


class BitsEnv(AnyEnv):
    action_space = MultiBinary((2, 2))


class BoundedEnv(AnyEnv):
    """A continuous action that is nearly always outside of its bounds."""

    action_space = Box(np.array([[-0.001, 0.0]], np.float32), np.array([[0.001, np.inf]], np.float32))


class WholeEnv(AnyEnv):
    action_space = Box(-2, 5, (2,), np.int32)


class FarEnv(AnyEnv):
    """Observations about a number, beside which float32 sees no difference between them."""

    observation_space = Box(1e8 - 1, 1e8 + 1, (3,), np.float64)


class PixelsEnv(AnyEnv):
    observation_space = Box(0, 255, (2, 16, 16), np.uint8)


class ShiftingEnv(gym.ActionWrapper):
    """As a task is that was changed since: its choices start where the environment variable says."""

    def __init__(self, render_mode=None):
        super().__init__(CartPoleEnv(render_mode=render_mode))
        self.action_space = Discrete(2, start=int(os.environ.get("DDPPO_TEST_START", "0")))

    def action(self, action):
        return int(action - self.action_space.start)


class DrawnEnv(AnyEnv):
    """Draws as `how` says: one of the tests' ways, or raises in the step of that number."""

    metadata = {"render_modes": ["rgb_array", "rgb_array_list"], "render_fps": "fast"}  # noqa: RUF012

    def __init__(self, how="rgb", render_mode=None):
        super().__init__(render_mode)
        self.how, self.canvas = how, np.zeros((7, 5, 3), np.uint8)

    def render(self):
        self.canvas[:] = 40 * self.num_steps  # the same array each time
        match self.how:
            case "raises":
                if self.num_steps == 3:
                    raise ArithmeticError("the brush broke")
            case "leaves":
                if self.num_steps == 3:
                    raise SystemExit(0)
            case "interrupted":
                if self.num_steps == 3:
                    raise KeyboardInterrupt
            case "none later":
                return None if self.num_steps == 3 else self.canvas
            case "none":
                return None
            case "text":
                return "a picture"
            case "list":
                return [self.canvas + np.uint8(i) for i in range(self.num_steps)]
            case "grows":
                return np.full((6 + self.num_steps, 5, 3), 40 * self.num_steps, np.uint8)
        return self.canvas


for task in (
    FarEnv,
    AnyEnv,
    ShiftingEnv,
    ChosenEnv,
    MaskedEnv,
    PrintedEnv,
    BitsEnv,
    BoundedEnv,
    WholeEnv,
    PixelsEnv,
    DrawnEnv,
):
    gym.register(f"policies/{task.__name__}-v0", task)
gym.register(
    "policies/ScaledEnv-v0",
    lambda render_mode=None: NormalizeObservation(CartPoleEnv()),
    vector_entry_point=lambda num_envs: BatchNormalizeObservation(CartPoleVectorEnv(num_envs)),
)


class Batch(CartPoleVectorEnv):
    """A batch that takes one choice more than its single environments do."""

    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.single_action_space = Discrete(3)
        self.action_space = MultiDiscrete([3] * num_envs)


gym.register("policies/TwiceEnv-v0", lambda render_mode=None: CartPoleEnv(), vector_entry_point=Batch)


def run_folder(path, task, *, normalized=True, mean=0.0, dtype="float32", kwargs=None, **model):
    """Write a run's settings and one checkpoint into `path`; task: a class of here, or an id. mean: of observations, if
    they are normalised. Returns `path`."""
    env_id = task if "-v" in task else f"tests.unit.policy_tasks:policies/{task}-v0"
    config = Config(
        env=EnvConfig(id=env_id, kwargs=kwargs or {}), model=settings_of("model", **model), dtype=dtype
    )
    spec = probe(config.env)
    built = build_model(spec, config.model, 0, getattr(torch, dtype))
    state = {"config": to_yaml(config), "model": built.state_dict(), "iteration": 3, "env_steps": 300}
    state["spaces"] = spec.spaces
    if normalized:
        size = sum(leaf.size for leaf in leaves(spec.obs) if leaf.is_float)
        moments = torch.rand(2, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        count = torch.full((1, size), 10.0, dtype=torch.float64)
        moments[0] += mean
        state["obs_moments"] = torch.cat([count, moments])
    checkpoint.save_iteration(path / "checkpoints", 3, state, keep=1)
    (path / "config.yaml").write_text(to_yaml(config))
    return path
