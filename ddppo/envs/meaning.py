"""Checks that a policy meets a task with the same observations and actions as in training.

The shapes of parameters do not show this: MultiDiscrete([2, 3]) and MultiDiscrete([3, 2]) need the same number of
logits, and so do a Discrete that counts from 0 and one that counts from 1. So checkpoints and exports store a
description of the spaces in plain values (`spaces_described`), which is compared with that of the task (`differences`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text

from ddppo.envs.encoding.gym_spaces import MASK, path_name, space_leaves

Plain = dict[str, Any]  # of values that JSON can hold
_UNBOUNDED = 1e9  # a larger bound, such as the largest float32, means "no bound"
_MOST_BOUNDS = 4096  # longer lists of bounds are stored as [smallest, largest]
_MOST_WORDS = 160  # characters of a value in a message


def spaces_described(observation: gym.Space, action: gym.Space, *, has_mask: bool, task: Any = None) -> Plain:
    """Describe observations and actions of a task; with `task` given, also the names of its actions if it has any."""
    if isinstance(observation, Dict):
        observation = Dict([(key, part) for key, part in observation.spaces.items() if key != MASK])
    return {
        "observations": {path_name(path): _plain(leaf) for path, leaf in space_leaves(observation)},
        "actions": _plain(action),
        "action_names": None if task is None else _action_names(task),
        "action_mask": has_mask,
    }


def _plain(space: gym.Space) -> Plain:
    described: Plain = {"space": type(space).__name__}
    match space:
        case Box():
            described |= {"shape": list(space.shape), "dtype": str(space.dtype)}
            described |= {"low": _bounds(space.low), "high": _bounds(space.high)}
        case Discrete():
            described |= {"n": int(space.n), "start": int(space.start)}
            if (
                sentences := getattr(space, "sentences", None)
            ) is not None:  # the missions that the numbers mean
                described["meanings"] = list(sentences)
        case MultiDiscrete():
            described |= {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        case MultiBinary():
            described |= {"shape": list(space.shape)}
        case Text():
            described |= {"max_length": int(space.max_length)}
    return described


def _bounds(bounds: np.ndarray) -> float | list[float | None] | None:
    """Return the bounds of a box: one number if all are equal, else a list; None = no bound."""
    flat = np.asarray(bounds, np.float64).ravel()
    # A picture has thousands of equal bounds.
    if len(flat) > _MOST_BOUNDS:
        flat = np.array([flat.min(), flat.max()])
    numbers = [x if abs(x) < _UNBOUNDED else None for x in flat.tolist()]
    return numbers[0] if numbers and all(x == numbers[0] for x in numbers) else numbers


def _action_names(task: Any) -> list[str] | None:
    """Return the names of the actions, or None.

    They come from get_action_meanings(), as for Atari's games, or from `action_meanings`, an attribute of the task or
    an entry of its `metadata`.
    """
    # Names are for messages and for comparison, so any exception of the task means "no names".
    inner = getattr(task, "unwrapped", task)
    try:
        if callable(method := getattr(inner, "get_action_meanings", None)):
            names = method()
        else:
            names = getattr(inner, "action_meanings", None) or (inner.metadata or {}).get("action_meanings")
        return None if names is None or isinstance(names, str) else [str(name) for name in names]
    except Exception:  # a user's method of this name may do anything
        return None


def differences(stored: Plain | None, found: Plain | None) -> list[str]:
    """Return a sentence for each difference between a stored description and a task; [] if either is unknown.

    Actions must be equal except for float32 against float64. Observations must have equal names in the same order,
    spaces, shapes, numbers of choices and their start, be pixels or not, and have equal bounds if both tasks have
    bounds (a wider sensor has another scale). Other dtypes may differ, because all numbers are cast to the model's
    type, and so may a bound that only one task has.
    """
    if stored is None or found is None:
        return []
    sentences = []
    # Observations: names first, then each array.
    was, now = stored["observations"], found["observations"]
    if list(was) != list(now):
        sentences.append(f"it observed {_names(was)} and observes {_names(now)}")
    else:
        for name, leaf in was.items():
            of = f"observations {name!r}" if name else "observations"
            sentences += _of_leaf(of, leaf, now[name], is_action=False)
    # Actions: the spaces, the names if both are known, and whether there are masks.
    sentences += _of_leaf("actions", stored["actions"], found["actions"], is_action=True)
    names = stored.get("action_names"), found.get("action_names")
    if None not in names and names[0] != names[1]:
        sentences.append(f"its actions were named {_short(names[0])} and are {_short(names[1])}")
    if stored["action_mask"] != found["action_mask"]:
        had, has = ("with an action mask" if x["action_mask"] else "without" for x in (stored, found))
        sentences.append(f"its actions came {had} and come {has}")
    return sentences


def plain_of(value: Any) -> Plain | None:
    """Return `value` if it is a description, as a server sends it, else None."""
    try:
        differences(value, value)
        return value if isinstance(value, dict) else None
    except (KeyError, TypeError, AttributeError, ValueError):
        return None


def _names(observations: Mapping[str, Any]) -> str:
    return _short(list(observations)) if list(observations) != [""] else "one array"


def _of_leaf(of: str, was: Plain, now: Plain, *, is_action: bool) -> list[str]:
    if was["space"] != now["space"]:
        return [f"its {of} were {_in_words(was)} and are {_in_words(now)}"]
    # Keys that always count; bounds and dtype are compared below.
    differing = [key for key in was if key not in ("low", "high", "dtype") and was[key] != now.get(key)]
    if not differing and was["space"] == "Box":
        if is_action or _is_pixels(was) != _is_pixels(now):
            kinds = [np.dtype(x["dtype"]) for x in (was, now)]
            is_same = kinds[0] == kinds[1] or (is_action and all(kind.kind == "f" for kind in kinds))
            differing += [] if is_same else ["dtype"]
        differing += [key for key in ("low", "high") if _apart(was, now, key, is_action=is_action)]
    return [f"{key} of its {of} was {_short(was[key])} and is {_short(now.get(key))}" for key in differing]


def _is_pixels(leaf: Plain) -> bool:
    return (leaf["dtype"], leaf["low"], leaf["high"]) == ("uint8", 0, 255)


def _apart(was: Plain, now: Plain, key: str, *, is_action: bool) -> bool:
    """Return whether two boxes of one shape have different bounds, by more than a cast to float32 changes them."""
    old, new = (x[key] if isinstance(x[key], list) else [x[key]] for x in (was, now))
    if not (old and new):
        return old != new
    # One number may stand for the bounds of all entries: repeat it.
    most = max(len(old), len(new))
    for x, y in zip(old * (most // len(old)), new * (most // len(new)), strict=False):
        if x is None or y is None:
            if is_action and x is not y:
                return True
        elif not math.isclose(x, y, rel_tol=1e-6, abs_tol=1e-9):
            return True
    return False


def _in_words(leaf: Plain) -> str:
    inner = ", ".join(f"{key} {_short(value)}" for key, value in leaf.items() if key != "space")
    return f"{leaf['space']}({inner})"


def _short(value: Any) -> str:
    text = str(value)
    if isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(x, str) for x in value):
        text = ", ".join(value)
    if value is None:
        text = "none"
    return text if len(text) <= _MOST_WORDS else f"{text[: _MOST_WORDS - 3]}..."
