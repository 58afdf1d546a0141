"""Between a task's own spaces and what a model knows: observations become flat rows, actions go back.

A row is `[obs | mask]`: the flattened observation and, where the task has action masks, 1 for every allowed
choice. One row per step carries both through shared memory, and a mask always belongs to the observation
beside it.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.spaces.utils import flatdim, flatten

from ddppo.errors import ConfigError
from ddppo.spaces import ActionSpec, EnvSpec

MASK = "action_mask"


def action_spec(space: gym.Space) -> ActionSpec:
    """Describe an action space. Raises ConfigError where no action distribution fits it."""
    match space:
        case Discrete():
            return ActionSpec("discrete", (int(space.n),))
        case MultiDiscrete() if space.nvec.ndim == 1:
            return ActionSpec("multi_discrete", tuple(int(n) for n in space.nvec))
        case MultiBinary():
            return ActionSpec("multi_binary", (int(np.prod(space.shape)),))
        case Box() if np.prod(space.shape) > 0:
            return ActionSpec("box", (int(np.prod(space.shape)),))
    raise ConfigError(
        f"action space {space} is not supported: use Discrete, MultiDiscrete with a one-dimensional nvec, "
        "MultiBinary or Box, or wrap the task so that it has one of them"
    )


def without_mask(space: gym.Space) -> gym.Space:
    """Take the key `action_mask` out of a Dict space; others stay. Raises ConfigError if unsupported."""
    parts = [space]
    if isinstance(space, Dict):
        space = Dict({key: part for key, part in space.spaces.items() if key != MASK})
        parts = list(space.spaces.values())
    unsupported = [
        part for part in parts if not isinstance(part, (Box, Discrete, MultiDiscrete, MultiBinary))
    ]
    if unsupported or flatdim(space) == 0:
        raise ConfigError(
            f"observation space {unsupported[0] if unsupported else space} is not supported: use Box, "
            "Discrete, MultiDiscrete, MultiBinary or a flat Dict of these, or wrap the task, e.g. in "
            "gymnasium.wrappers.FlattenObservation"
        )
    return space


def obs_dtype(space: gym.Space) -> np.dtype:
    """float64 where the task observes in nothing but float64, else float32."""
    space = without_mask(space)
    parts = space.spaces.values() if isinstance(space, Dict) else [space]
    double = all(isinstance(part, Box) and part.dtype == np.float64 for part in parts)
    return np.dtype(np.float64 if double else np.float32)


def flat_mask(mask: Any) -> np.ndarray:
    """Return a mask as one vector; Gymnasium's masks of MultiDiscrete are tuples of vectors."""
    return np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, tuple) else np.ravel(mask)


def checked_mask_size(size: int, action: ActionSpec) -> int:
    """Return the length of a task's masks. Raises ConfigError where it does not fit the actions."""
    if action.kind not in ("discrete", "multi_discrete"):
        raise ConfigError(
            f"the task hands over an action mask, but its actions are {action.kind}: only Discrete and "
            "MultiDiscrete actions can be masked; remove action_mask from its observations and infos"
        )
    if size != sum(action.sizes):
        raise ConfigError(
            f"the task's action_mask has {size} entries, but its actions {action.sizes} need "
            f"{sum(action.sizes)}, one per choice of every component"
        )
    return size


class RowEncoder:
    """Turns observations and infos of one environment into rows `[obs_size + mask_size]`, always new arrays.

    New, because many tasks write their next observation into the array they handed over before, and a final
    observation must outlive the reset that follows in the same step.
    """

    def __init__(self, space: gym.Space, spec: EnvSpec) -> None:
        self.space = without_mask(space)
        self.dtype = obs_dtype(space)
        self.obs_size = spec.obs_size
        self.row_size = spec.obs_size + (spec.mask_size or 0)
        self._is_plain_box = isinstance(space, Box) and spec.mask_size is None

    def __call__(self, obs: Any, info: dict[str, Any]) -> np.ndarray:
        if self._is_plain_box:
            return np.array(obs, self.dtype).reshape(-1)
        row = np.ones(self.row_size, self.dtype)
        row[: self.obs_size] = flatten(self.space, obs)
        mask = obs.get(MASK) if isinstance(obs, dict) else None
        mask = info.get(MASK) if mask is None else mask
        if mask is not None and self.row_size > self.obs_size:
            row[self.obs_size :] = flat_mask(mask)
        return row


def decode_actions(space: gym.Space, actions: np.ndarray) -> np.ndarray:
    """Turn a model's actions `[..., *spec.action.shape]` into the task's `[..., *space.shape]`.

    Discrete choices are counted from `start`; Box actions are clipped to its bounds (and rounded, if it holds
    integers). The result is a new array: a task may keep or change what it is given.
    """
    match space:
        case Discrete() | MultiDiscrete():
            return np.add(actions, space.start, dtype=space.dtype)
        case MultiBinary():
            return actions.reshape(actions.shape[:-1] + space.shape).astype(space.dtype)
        case Box():
            shaped = actions.reshape(actions.shape[:-1] + space.shape)
            clipped = np.clip(shaped, space.low, space.high)
            return (np.rint(clipped) if space.dtype.kind in "iu" else clipped).astype(space.dtype, copy=False)
    raise AssertionError(f"{space} passed action_spec() but cannot be decoded")


def sample_action(space: gym.Space, mask: np.ndarray | None) -> Any:
    """Draw an action of the task's own space that `mask` `[mask_size]` allows."""
    if mask is None:
        return space.sample()
    allowed = (mask != 0).astype(np.int8)
    if isinstance(space, MultiDiscrete):
        return space.sample(mask=tuple(np.split(allowed, np.cumsum(space.nvec)[:-1])))
    return space.sample(mask=allowed)
