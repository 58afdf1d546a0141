"""From Gymnasium's spaces to the specs that a model is built from, and from a model's actions to those of the task.

`obs_spec` and `action_spec` describe spaces, or raise ConfigError with the remedy. `decode_actions` and `sample_action`
make actions of the task. Observations are encoded in observations.py.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.spaces.utils import flatdim

from ddppo.envs.encoding.step_values import MASK, described
from ddppo.errors import ConfigError
from ddppo.spaces import ActionSpec, ArraySpec

_UNBOUNDED = 1e9  # a larger bound, such as the largest float32, means "no bound"
_BASIC = (Box, Discrete, MultiDiscrete, MultiBinary)
_MOST_CHOICES = 2**20  # entries of a one-hot vector, or logits
_MOST_BYTES = 2**28  # of one observation
_FLOAT16_RANGE = float(np.finfo(np.float16).min), float(np.finfo(np.float16).max)
_EXACT = 2**24  # a float32 holds every whole number up to this


def check_is_space(space: Any, which: str) -> None:
    """Raise ConfigError unless a task's `which` (observation_space, action_space) is a space of Gymnasium."""
    if isinstance(space, gym.Space):
        return
    # Name the usual mistakes: a class in place of an instance, the old package gym, a plain dict.
    kind = type(space)
    if isinstance(space, type):
        text = f"is the class {space.__name__}, not a space: write {space.__name__}(...)"
    elif kind.__module__.partition(".")[0] == "gym":
        text = (
            f"is a {kind.__name__} of the old package gym: write `from gymnasium import spaces`, and gymnasium in "
            "place of gym elsewhere in the task"
        )
    elif isinstance(space, (dict, tuple, list)):
        text = (
            f"is a {kind.__name__}: make it gymnasium.spaces.{'Dict' if isinstance(space, dict) else 'Tuple'}"
        )
    else:
        text = f"is {described(space)}: set it to a space of gymnasium.spaces in __init__"
    raise ConfigError(f"its {which} {text}")


def action_spec(space: gym.Space) -> ActionSpec:
    """Describe an action space. Raises ConfigError if no action distribution fits it."""
    check_is_space(space, "action_space")
    spec = _action_spec(space)
    if spec.kind != "text" and (size := sum(spec.sizes)) > _MOST_CHOICES:
        raise ConfigError(
            f"action space {_short(space)} has {size} choices, and a policy computes a number for each: at most "
            f"{_MOST_CHOICES} are possible; split the action into a MultiDiscrete of fewer, or scale a Box"
        )
    return spec


def _short(space: gym.Space) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= 200 else f"{text[:197]}..."


def _action_spec(space: gym.Space) -> ActionSpec:
    match space:
        # One component with n choices.
        case Discrete():
            return ActionSpec("discrete", (int(space.n),))
        case MultiDiscrete() if space.nvec.ndim == 1 and space.nvec.size:
            return ActionSpec("multi_discrete", tuple(int(n) for n in space.nvec))
        # One bit per entry.
        case MultiBinary():
            return ActionSpec("multi_binary", (int(np.prod(space.shape)),))
        case Box() if np.prod(space.shape) > 0:
            return ActionSpec("box", (int(np.prod(space.shape)),), *_bounds(space))
        case Text():
            return ActionSpec("text", (space.max_length,))
    raise ConfigError(
        f"action space {space} is not supported: use Discrete, MultiDiscrete with a one-dimensional nvec, "
        "MultiBinary, Box or Text, or wrap the task so that it has one of them"
    )


def _bounds(space: Box) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the flattened lower and upper bounds; two empty tuples unless all are finite and low < high."""
    low, high = (np.ravel(bound).astype(np.float64) for bound in (space.low, space.high))
    if not ((np.abs(low) < _UNBOUNDED) & (np.abs(high) < _UNBOUNDED) & (low < high)).all():
        return (), ()
    return tuple(low.tolist()), tuple(high.tolist())


def without_mask(space: gym.Space) -> gym.Space:
    """Return the space without the key `action_mask` of a Dict. Raises ConfigError for an unsupported space."""
    check_is_space(space, "observation_space")
    if isinstance(space, Dict):
        space = Dict({key: part for key, part in space.spaces.items() if key != MASK})
    # Graph, Sequence and Text spaces have no fixed shape, so no row could hold them.
    unsupported = [leaf for _, leaf in space_leaves(space) if not isinstance(leaf, _BASIC)]
    if unsupported or flatdim(space) == 0:
        raise ConfigError(
            f"observation space {unsupported[0] if unsupported else space} is not supported: use Box, Discrete, "
            "MultiDiscrete, MultiBinary, or Dict and Tuple of these, or wrap the task, e.g. in "
            "gymnasium.wrappers.FlattenObservation"
        )
    return space


Path = tuple[Any, ...]


def space_leaves(space: gym.Space, path: Path = ()) -> list[tuple[Path, gym.Space]]:
    """Return (path of keys, space) of every leaf in nested Dicts and Tuples; an empty Dict or Tuple is a leaf."""
    match space:
        case Dict() | Tuple() if len(space.spaces):
            return [leaf for key, part in space_parts(space) for leaf in space_leaves(part, (*path, key))]
    return [(path, space)]


def space_parts(space: Dict | Tuple) -> list[tuple[Any, gym.Space]]:
    """Return the keys and spaces of a Dict or Tuple."""
    return list(space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces))


def obs_spec(space: gym.Space) -> ArraySpec | dict[str, ArraySpec]:
    """Describe observations of `space` as arrays: one, or for a Dict or Tuple several by their paths.

    Raises ConfigError if the space is not supported.
    """
    # Text is passed as str; the spec only records its length.
    if isinstance(space, Text):
        return ArraySpec((space.max_length,), "text")
    parts = space_leaves(without_mask(space))
    names = [path_name(path) for path, _ in parts]
    twice = [name for k, name in enumerate(names) if name in names[:k]]
    if twice:
        raise ConfigError(f"two parts of the observations have the path {twice[0]}: rename one")
    # In the order of the space, which is the order of a flattened observation.
    specs = {name: _array_spec(part) for name, (_, part) in zip(names, parts, strict=True)}
    # Refuse huge observations here: a rollout would run out of memory much later.
    size = sum(spec.size * np.dtype(spec.dtype).itemsize for spec in specs.values())
    if size > _MOST_BYTES:
        raise ConfigError(
            f"one observation of {_short(space)} takes {size / 2**20:.0f} MiB, and a rollout keeps thousands: at most "
            f"{_MOST_BYTES >> 20} MiB are possible; wrap the task so that it observes less"
        )
    return specs if parts[0][0] else specs[names[0]]


def path_name(path: Path) -> str:
    return ".".join(str(key) for key in path)


def _array_spec(space: gym.Space) -> ArraySpec:
    """Describe one leaf: boxes of uint8 from 0 to 255 are pixels; Discrete and MultiDiscrete become one-hot vectors."""
    if isinstance(space, (Discrete, MultiDiscrete)):
        size = int(space.n) if isinstance(space, Discrete) else sum(space.nvec.reshape(-1).tolist())
        if size > _MOST_CHOICES:
            raise ConfigError(
                f"observation space {_short(space)} becomes a vector of {size} entries, one for each choice: at most "
                f"{_MOST_CHOICES} are possible; observe the number itself, scaled, in a Box, or its digits in a "
                "MultiDiscrete"
            )
        return ArraySpec((size,))
    assert space.shape is not None, space
    assert space.dtype is not None, space
    shape = tuple(int(n) for n in space.shape)
    if not isinstance(space, Box):
        return ArraySpec(shape)
    low, high = (bound.tolist() for bound in (space.low.min(initial=0), space.high.max(initial=0)))
    is_whole = space.dtype.kind in "iu"
    if space.dtype == np.uint8 and (space.low == 0).all() and (space.high == 255).all():
        return ArraySpec(shape, "uint8")
    # Whole numbers beyond the range of a float32 need a float64.
    is_double = space.dtype == np.float64 or (is_whole and max(-low, high) > _EXACT)
    # The largest whole number, for models that embed numbers.
    largest = int(high) if is_whole and space.bounded_above.all() else None
    return ArraySpec(shape, "float64" if is_double else "float32", largest)


def checked_mask_size(size: int, action: ActionSpec) -> int:
    """Return the length of a task's masks. Raises ConfigError if it does not fit the actions."""
    if action.kind not in ("discrete", "multi_discrete"):
        # A MultiBinary can be rewritten as MultiDiscrete, which has masks.
        remedy = ""
        if action.kind == "multi_binary":
            remedy = (
                f"use MultiDiscrete([2] * {action.sizes[0]}), whose masks allow 0 and 1 of every bit, or "
            )
        raise ConfigError(
            f"the task returns an action mask, but its actions are {action.kind}: only Discrete and "
            f"MultiDiscrete actions can be masked; {remedy}remove action_mask from "
            "its observations and infos"
        )
    if size != sum(action.sizes):
        raise ConfigError(
            f"the task's action_mask has {size} entries, but its actions {action.sizes} need "
            f"{sum(action.sizes)}, one per choice of every component"
        )
    return size


def decode_actions(space: gym.Space, actions: np.ndarray) -> np.ndarray:
    """Turn a model's actions `[..., *spec.action.shape]` into the task's `[..., *space.shape]`.

    Discrete choices are counted from `start`. Box actions are clipped to the bounds, and rounded if the box holds
    integers. The result is a new array, because a task may keep or change it.
    """
    match space:
        case Discrete() | MultiDiscrete():
            # Compute in the space's own dtype, such as uint8: it holds every choice.
            return np.add(actions, space.start, dtype=space.dtype, casting="unsafe")
        case MultiBinary():
            return actions.reshape(actions.shape[:-1] + space.shape).astype(space.dtype)
        case Box():
            shaped = actions.reshape(actions.shape[:-1] + space.shape)
            if space.dtype.kind in "iu" and space.dtype.itemsize == 8:
                return _whole_actions(space, shaped)
            clipped = np.clip(shaped, space.low, space.high)
            if space.dtype == np.float16:  # an unbounded box ends at the largest float16, not at infinity
                clipped = np.clip(clipped, *_FLOAT16_RANGE)
            chosen = np.rint(clipped) if space.dtype.kind in "biu" else clipped
            return chosen.astype(space.dtype, copy=False)
    raise AssertionError(f"{space} passed action_spec() but cannot be decoded")


def _whole_actions(space: Box, actions: np.ndarray) -> np.ndarray:
    """Round and clip actions of 64-bit integers. No float holds their bounds exactly, so integers are clipped."""
    # float64 holds neither 2**63 - 1 nor 2**64 - 1: clip below, then set the top numbers as integers.
    most = 2.0 ** (63 if space.dtype.kind == "i" else 64)
    rounded = np.rint(np.asarray(actions, np.float64))
    least = -most if space.dtype.kind == "i" else 0.0
    held = np.clip(rounded, least, np.nextafter(most, 0)).astype(space.dtype)
    return np.clip(np.where(rounded >= most, int(most) - 1, held), space.low, space.high)


def sample_action(space: gym.Space, mask: np.ndarray | None) -> Any:
    """Draw an action of the task's own space that `mask` `[mask_size]` allows."""
    if isinstance(space, Box):
        bounds = np.abs([space.low.astype(np.float64), space.high.astype(np.float64)])
        if (np.isfinite(bounds) & (bounds > _UNBOUNDED)).any():
            # space.sample() overflows for some of these bounds.
            drawn = 100 * space.np_random.standard_normal(space.shape)
            return decode_actions(space, drawn.reshape(-1))
    if mask is None:
        return space.sample()
    # Gymnasium wants masks of int8, for MultiDiscrete one per component.
    allowed = (mask != 0).astype(np.int8)
    if isinstance(space, MultiDiscrete):
        return space.sample(mask=tuple(np.split(allowed, np.cumsum(space.nvec)[:-1])))
    return space.sample(mask=allowed)
