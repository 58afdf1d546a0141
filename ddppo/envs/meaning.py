"""Whether a task is the one that a policy was trained on: its spaces in plain values, which checkpoints hold.

The same parameters fit many tasks: MultiDiscrete([2, 3]) and MultiDiscrete([3, 2]) need as many logits, and a Discrete
that counts from 1 as many as one that counts from 0. So a checkpoint and an export store what observations and actions
are, and that is compared wherever a policy meets a task.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text

from ddppo.envs.encoding.gym_spaces import MASK, path_name, space_leaves

Plain = dict[
    str, Any
]  # None, numbers, words, lists and dicts by word: JSON holds it, and so does a checkpoint
_UNBOUNDED = 1e9  # a bound beyond stands for none, as the largest float32 does
_MOST_BOUNDS = 4096  # that are listed one by one: the least and the largest stand for more
_MOST_WORDS = 160  # characters of a value in a message


def spaces_described(observation: gym.Space, action: gym.Space, *, has_mask: bool, task: Any = None) -> Plain:
    """Return what a task observes and takes; with `task`, also the names of its actions, where it says them."""
    if isinstance(observation, Dict):
        observation = Dict([(key, part) for key, part in observation.spaces.items() if key != MASK])
    return {
        "observations": {path_name(path): _plain(leaf) for path, leaf in space_leaves(observation)},
        "actions": _plain(action),
        "action_names": None if task is None else _action_names(task),
        "action_mask": has_mask,
    }


def _plain(space: gym.Space) -> Plain:
    said: Plain = {"space": type(space).__name__}
    match space:
        case Box():
            said |= {"shape": list(space.shape), "dtype": str(space.dtype)}
            said |= {"low": _bounds(space.low), "high": _bounds(space.high)}
        case Discrete():
            said |= {"n": int(space.n), "start": int(space.start)}
            if (sentences := getattr(space, "sentences", None)) is not None:  # which missions the numbers are
                said["meanings"] = list(sentences)
        case MultiDiscrete():
            said |= {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        case MultiBinary():
            said |= {"shape": list(space.shape)}
        case Text():
            said |= {"max_length": int(space.max_length)}
    return said


def _bounds(bounds: np.ndarray) -> float | list[float | None] | None:
    """Return the bounds of a box, one for all where they are alike; None is no bound."""
    flat = np.asarray(bounds, np.float64).ravel()
    if len(flat) > _MOST_BOUNDS:
        flat = np.array([flat.min(), flat.max()])
    numbers = [x if abs(x) < _UNBOUNDED else None for x in flat.tolist()]
    return numbers[0] if numbers and all(x == numbers[0] for x in numbers) else numbers


def _action_names(task: Any) -> list[str] | None:
    """Return the names of the actions: get_action_meanings(), as Atari's games have it, or `action_meanings`.

    The latter is an attribute, or in `metadata`. None where there are none, or they are no words.
    """
    inner = getattr(task, "unwrapped", task)
    try:
        if callable(told := getattr(inner, "get_action_meanings", None)):
            names = told()
        else:
            names = getattr(inner, "action_meanings", None) or (inner.metadata or {}).get("action_meanings")
        return None if names is None or isinstance(names, str) else [str(name) for name in names]
    except Exception:  # a method of a task's own, which may be for something else
        return None


def differences(stored: Plain | None, found: Plain | None) -> list[str]:
    """Return the differences between a stored description and a task, a sentence each; [] if either is unknown.

    Of actions everything counts, except float32 against float64. Of observations these count: names and their order,
    spaces, shapes, numbers of choices and where they start, whether they are pixels, and bounds that both tasks have (a
    wider sensor is another scale). Types of numbers do not count, because all are cast to the model's, nor does a bound
    that only one task has, because nothing reads it.
    """
    if stored is None or found is None:
        return []
    said = []
    was, now = stored["observations"], found["observations"]
    if list(was) != list(now):
        said.append(f"it observed {_names(was)} and observes {_names(now)}")
    else:
        for name, leaf in was.items():
            of = f"observations {name!r}" if name else "observations"
            said += _of_leaf(of, leaf, now[name], is_action=False)
    said += _of_leaf("actions", stored["actions"], found["actions"], is_action=True)
    names = stored.get("action_names"), found.get("action_names")
    if None not in names and names[0] != names[1]:
        said.append(f"its actions were named {_short(names[0])} and are {_short(names[1])}")
    if stored["action_mask"] != found["action_mask"]:
        had, has = ("with an action mask" if x["action_mask"] else "without" for x in (stored, found))
        said.append(f"its actions came {had} and come {has}")
    return said


def plain_of(value: Any) -> Plain | None:
    """Return a description that a server tells, None where it is none."""
    try:
        differences(value, value)
        return value if isinstance(value, dict) else None
    except (KeyError, TypeError, AttributeError, ValueError):
        return None


def _names(observations: Mapping[str, Any]) -> str:
    return _short(list(observations)) if list(observations) != [""] else "one array"


def _of_leaf(of: str, was: Plain, now: Plain, *, is_action: bool) -> list[str]:
    if was["space"] != now["space"]:
        return [f"its {of} were {_said(was)} and are {_said(now)}"]
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
    """Return whether two boxes of one shape have other bounds, by more than a cast to float32 makes of one."""
    old, new = (x[key] if isinstance(x[key], list) else [x[key]] for x in (was, now))
    if not (old and new):
        return old != new
    most = max(len(old), len(new))
    for x, y in zip(old * (most // len(old)), new * (most // len(new)), strict=False):
        if x is None or y is None:
            if is_action and x is not y:
                return True
        elif not math.isclose(x, y, rel_tol=1e-6, abs_tol=1e-9):
            return True
    return False


def _said(leaf: Plain) -> str:
    inner = ", ".join(f"{key} {_short(value)}" for key, value in leaf.items() if key != "space")
    return f"{leaf['space']}({inner})"


def _short(value: Any) -> str:
    said = str(value)
    if isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(x, str) for x in value):
        said = ", ".join(value)
    if value is None:
        said = "none"
    return said if len(said) <= _MOST_WORDS else f"{said[: _MOST_WORDS - 3]}..."
