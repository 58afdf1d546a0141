"""Between a task's own spaces and what a model knows: observations become flat rows, actions go back.

A row is `[obs | mask]`: the flattened observation and, where the task has action masks, 1 for every allowed
choice. One row per step carries both through shared memory, and a mask always belongs to the observation
beside it.
"""

import operator
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.spaces.utils import flatdim

from ddppo.errors import ConfigError
from ddppo.spaces import ActionSpec, EnvSpec

MASK = "action_mask"
_BASIC = (Box, Discrete, MultiDiscrete, MultiBinary)


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
    if isinstance(space, Dict):
        space = Dict({key: part for key, part in space.spaces.items() if key != MASK})
    unsupported = [leaf for leaf in _leaves(space) if not isinstance(leaf, _BASIC)]
    if unsupported or flatdim(space) == 0:
        raise ConfigError(
            f"observation space {unsupported[0] if unsupported else space} is not supported: use Box, Discrete, "
            "MultiDiscrete, MultiBinary, or Dict and Tuple of these, or wrap the task, e.g. in "
            "gymnasium.wrappers.FlattenObservation"
        )
    return space


def _leaves(space: gym.Space) -> list[gym.Space]:
    """Return the spaces in nested Dicts and Tuples, in the order of a row; an empty one stands for itself."""
    match space:
        case Dict() | Tuple() if len(space.spaces):
            parts = space.spaces.values() if isinstance(space, Dict) else space.spaces
            return [leaf for part in parts for leaf in _leaves(part)]
    return [space]


def obs_dtype(space: gym.Space) -> np.dtype:
    """float64 where the task observes in nothing but float64, else float32."""
    parts = _leaves(without_mask(space))
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


class WrongOutput(ValueError):
    """An environment returned `found`, against `wanted`: two halves of a sentence."""

    def __init__(self, found: str, wanted: str) -> None:
        super().__init__(f"returned {found}, {wanted}")
        self.found = found
        self.wanted = wanted


Write = Callable[[Any, np.ndarray], None]  # an observation into its entries of a row, zero before


class RowEncoder:
    """Turns observations and infos of one environment into rows `[obs_size + mask_size]`, always new arrays.

    New, because many tasks write their next observation into the array they handed over before, and a final
    observation must outlive the reset that follows in the same step. An observation is flattened as
    `gymnasium.spaces.flatten` does it, and raises WrongOutput where its space does not describe it.
    """

    def __init__(self, space: gym.Space, spec: EnvSpec) -> None:
        self.space = without_mask(space)
        self.dtype = obs_dtype(space)
        self.obs_size = spec.obs_size
        self.row_size = spec.obs_size + (spec.mask_size or 0)
        self._is_plain_box = isinstance(space, Box) and spec.mask_size is None
        self._shape = space.shape
        self._write = _writer(self.space, "")
        self._blank = np.zeros(self.row_size, self.dtype)
        self._blank[self.obs_size :] = 1  # all is allowed where a task hands over no mask

    def __call__(self, obs: Any, info: dict[str, Any]) -> np.ndarray:
        if self._is_plain_box:
            try:
                row = np.array(obs, self.dtype)
                if row.shape == self._shape:
                    return row.reshape(-1)
            except (TypeError, ValueError):
                pass  # said below
            return _as_array(obs, self.dtype, self._shape, "").reshape(-1)
        row = self._blank.copy()
        self._write(obs, row[: self.obs_size])
        mask = obs.get(MASK) if isinstance(obs, dict) else None
        mask = info.get(MASK) if mask is None else mask
        if mask is not None and self.row_size > self.obs_size:
            mask = flat_mask(mask)
            if mask.size != self.row_size - self.obs_size:
                raise WrongOutput(
                    f"an action_mask of {mask.size} entries", f"its first had {self.row_size - self.obs_size}"
                )
            row[self.obs_size :] = mask
        return row


def as_number(reward: Any) -> float:
    """Return a reward as a number; arrays of one entry are. Raises WrongOutput."""
    try:
        return float(reward.item() if isinstance(reward, (np.ndarray, np.generic)) else reward)
    except (TypeError, ValueError) as e:
        shape = f" and shape {reward.shape}" if isinstance(reward, np.ndarray) else ""
        raise WrongOutput(f"a reward of type {type(reward).__name__}{shape}", "a reward is one number") from e


def _called(label: str) -> str:
    return f"observation{label}" if label else "an observation"


def _as_array(value: Any, dtype: np.dtype, shape: tuple[int, ...] | None, label: str) -> np.ndarray:
    """Return a new array of an observation. Raises WrongOutput unless it holds numbers in that shape."""
    try:
        array = np.array(value, dtype)
    except (TypeError, ValueError) as e:
        raise WrongOutput(
            f"{_called(label)} of type {type(value).__name__}", f"its space says numbers of shape {shape}"
        ) from e
    if array.shape != shape:
        raise WrongOutput(f"{_called(label)} of shape {array.shape}", f"its space says {shape}")
    return array


def _writer(space: gym.Space, label: str) -> Write:
    """Return what writes observations of `space` into rows; `label` is the way to them, e.g. ['cards'][0]."""
    match space:
        case Dict():
            return _dict_writer(space, label)
        case Tuple():
            return _tuple_writer(space, label)
        case Discrete():
            return _discrete_writer(space, label)
        case MultiDiscrete():
            return _multi_discrete_writer(space, label)

    def write(value: Any, out: np.ndarray) -> None:
        out[:] = _as_array(value, out.dtype, space.shape, label).reshape(-1)

    return write


def _parts_of(parts: Iterable[tuple[Any, gym.Space]], label: str) -> list[tuple[Any, Write, slice]]:
    found, start = [], 0
    for key, part in parts:
        end = start + flatdim(part)
        found.append((key, _writer(part, f"{label}[{key!r}]"), slice(start, end)))
        start = end
    return found


def _dict_writer(space: Dict, label: str) -> Write:
    parts = _parts_of(space.spaces.items(), label)

    def write(value: Any, out: np.ndarray) -> None:
        for key, write_part, entries in parts:
            try:
                part = value[key]
            except (KeyError, TypeError, IndexError) as e:
                has = (
                    f"with keys {list(value)}"
                    if isinstance(value, dict)
                    else f"of type {type(value).__name__}"
                )
                raise WrongOutput(
                    f"{_called(label)} {has}", f"its space says a dict with keys {list(space.spaces)}"
                ) from e
            write_part(part, out[entries])

    return write


def _tuple_writer(space: Tuple, label: str) -> Write:
    parts = _parts_of(enumerate(space.spaces), label)

    def write(value: Any, out: np.ndarray) -> None:
        has = len(value) if isinstance(value, (tuple, list, np.ndarray)) else None
        if has != len(parts):
            found = f"of type {type(value).__name__}" if has is None else f"of {has} parts"
            raise WrongOutput(f"{_called(label)} {found}", f"its space says a tuple of {len(parts)} parts")
        for key, write_part, entries in parts:
            write_part(value[key], out[entries])

    return write


def _discrete_writer(space: Discrete, label: str) -> Write:
    start, n = int(space.start), int(space.n)

    def write(value: Any, out: np.ndarray) -> None:
        try:
            choice = (
                operator.index(value.item() if isinstance(value, (np.generic, np.ndarray)) else value) - start
            )
        except (TypeError, ValueError) as e:
            raise WrongOutput(
                f"{_called(label)} of type {type(value).__name__}", f"its space says {space}"
            ) from e
        if not 0 <= choice < n:  # a negative one would count from the end
            raise WrongOutput(f"{choice + start} as {_called(label)}", f"its space says {space}")
        out[choice] = 1

    return write


def _multi_discrete_writer(space: MultiDiscrete, label: str) -> Write:
    nvec, start = space.nvec.reshape(-1), space.start.reshape(-1)
    offsets = np.cumsum(nvec) - nvec

    def write(value: Any, out: np.ndarray) -> None:
        choices = _as_array(value, np.dtype(np.int64), space.shape, label).reshape(-1) - start
        if ((choices < 0) | (choices >= nvec)).any():  # it would fall into another component's entries
            raise WrongOutput(f"{value} as {_called(label)}", f"its space says {space}")
        out[offsets + choices] = 1

    return write


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
