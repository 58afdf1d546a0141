"""Reads the values that reset and step return besides observations: rewards, ends, infos and masks.

A user's task may return anything, for example [False] as `terminated`, a list that is true. A value with one clear
meaning is converted to one type; any other raises WrongOutput. The hot path calls these functions only if a value does
not have the plain type already (`x is not False`, `type(x) is not float`).
"""

import linecache
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete

MASK = "action_mask"
PARTS = "reward_parts"  # of an info: the named parts of a step's reward
_METHOD = "action_masks"  # the method that MaskablePPO of sb3-contrib calls
# Types that float() converts exactly.
_NUMBERS = {float, int, bool, np.float64, np.float32, np.int64, np.int32, np.bool_}
_FIVE = "(observation, reward, terminated, truncated, info)"
REMEDY_OF_GYM = (
    "for an environment of the package gym, register what gymnasium.make('GymV21Environment-v0', env=...) of "
    "shimmy[gym-v21] makes"
)


class WrongOutput(ValueError):
    """An environment returned a wrong value: "{verb} {found}, {wanted}" is the rest of a sentence about it."""

    def __init__(self, found: str, wanted: str, verb: str = "returned") -> None:
        super().__init__(f"{verb} {found}, {wanted}")
        self.found = found
        self.wanted = wanted
        self.verb = verb


def described(value: Any) -> str:
    """Return a value and its type in a few words, e.g. "[False] of type list"."""
    if value is None:
        return "None"
    kind, shape = type(value).__name__, getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape != ():
        return f"a value of type {kind} and shape {tuple(shape)}"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a user's __repr__ may raise anything
        return f"a value of type {kind}"
    return f"{text if len(text) <= 60 else text[:57] + '...'} of type {kind}"


def _item(value: Any) -> Any:
    """Return the number in an array or tensor of one entry, or in a NumPy scalar; any other value unchanged."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.getmaskarray(value).any():
        return value  # item() would return the number under the mask
    # NumPy scalars and arrays of one entry.
    if isinstance(value, (np.generic, np.ndarray)):
        is_number = value.size == 1 and value.dtype.kind in "biuf"
        return value.item() if is_number else value
    if not isinstance(value, (int, float)) and hasattr(value, "item"):  # tensors of torch, JAX
        try:
            return value.item()
        except Exception:  # of more than one entry, or on a device that is gone
            return value
    return value


def as_flag(value: Any, name: str) -> bool:
    """Return `terminated` or `truncated` (`name`) as a bool. Raises WrongOutput.

    Accepts 0 and 1 of Python, of NumPy, and in arrays and tensors of one entry. Rejects lists and strings: their truth
    value only says whether they are empty.
    """
    # The fast path: plain bools.
    if value is True or type(value) is np.bool_:
        return bool(value)
    item = _item(value)
    if isinstance(item, (bool, int, float)) and (item == 0 or item == 1):
        return bool(item)
    raise WrongOutput(f"{described(value)} as {name}", "it must be True or False")


def as_number(reward: Any) -> float:
    """Return a reward as a float; an array of one entry is a number. Raises WrongOutput."""
    try:
        if type(reward) in _NUMBERS:
            return float(reward)
        # Anything else that float() takes, except text, which float() would parse, and arrays.
        item = _item(reward)
        is_other = isinstance(item, (str, bytes, bytearray, np.ndarray, np.generic))
        if not is_other or isinstance(item, np.longdouble):
            return float(item)  # works for a Fraction, fails for complex
    except Exception as e:  # OverflowError, or what a __float__ raises
        raise _no_number(reward) from e
    raise _no_number(reward)


def _no_number(reward: Any) -> WrongOutput:
    return WrongOutput(f"{described(reward)} as the reward", "it must be one number")


def as_parts(parts: Any) -> dict[str, float]:
    """Return info["reward_parts"], a map of names to numbers, as a dict of floats. Raises WrongOutput."""
    try:
        if isinstance(parts, Mapping) and all(type(name) is str and name for name in parts):
            return {name: as_number(value) for name, value in parts.items()}
    except WrongOutput:
        pass
    raise WrongOutput(f'{described(parts)} as info["{PARTS}"]', "it must be a dict of numbers by their names")


def weighted(parts: Mapping[str, float] | None, weights: Mapping[str, float]) -> float:
    """Return the sum of weight x part, the reward of a step with env.reward_weights, in the order of `weights`.

    Raises WrongOutput unless the step has reported the parts that have a weight, and no others.
    """
    if parts is None:
        raise WrongOutput(
            f'no info["{PARTS}"]',
            "and env.reward_weights weighs the parts of a reward: let each step report them, or leave the weights out",
        )
    if parts.keys() != weights.keys():
        raise WrongOutput(
            f"the parts {', '.join(parts)} of its reward",
            f"and env.reward_weights names {', '.join(weights)}: give each part a weight, 0 to leave it out",
        )
    return sum(weight * parts[name] for name, weight in weights.items())


def as_info(info: Any) -> Mapping[Any, Any]:
    """Return an info, {} for None. Raises WrongOutput for anything but a Mapping."""
    if isinstance(info, Mapping):
        return info
    if info is None:
        return {}
    raise WrongOutput(f"{described(info)} as info", "it must be a dict, {} for nothing")


def as_pair(answer: Any) -> tuple[Any, Mapping[Any, Any]]:
    """Return observation and info of a reset. Raises WrongOutput, for example for the bare observation of old Gym."""
    # The fast path: the form that Gymnasium asks for.
    if type(answer) is tuple and len(answer) == 2 and type(answer[1]) is dict:
        return answer
    if not (isinstance(answer, (tuple, list)) and len(answer) == 2):
        raise _no_pair(described(answer) if not isinstance(answer, tuple) else f"{len(answer)} values")
    obs, info = answer
    if not (info is None or isinstance(info, Mapping)):
        raise _no_pair(f"a pair with {described(info)} as info")
    return obs, as_info(info)


def _no_pair(found: str) -> WrongOutput:
    return WrongOutput(
        f"{found} from reset()",
        f"it must return (observation, info), with {{}} for no info; {REMEDY_OF_GYM}",
    )


def as_five(answer: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Return the five values of a step unchanged. Raises WrongOutput for another number of values."""
    if isinstance(answer, (tuple, list)) and len(answer) == 5:
        return tuple(answer)
    found = f"{len(answer)} values" if isinstance(answer, (tuple, list)) else described(answer)
    raise _no_five(found)


def _no_five(found: str) -> WrongOutput:
    wanted = f"it must return {_FIVE}"
    if found == "4 values":
        wanted += f": the done of an old Gym task is terminated (an end) or truncated (a cut by time); {REMEDY_OF_GYM}"
    return WrongOutput(f"{found} from step()", wanted)


def translated(error: BaseException) -> BaseException:
    """Return a WrongOutput in place of an exception that means "this task has the API of the old Gym".

    Wrappers unpack the values of a task and pass a seed on. Such a line of a wrapper then raises, although the mistake
    is in the task.
    """
    text = str(error)
    # reset() without the keywords seed and options.
    if isinstance(error, TypeError) and (
        keyword := re.search(r"reset\(\) got an unexpected keyword argument '(seed|options)'", text)
    ):
        return WrongOutput(
            "TypeError",
            f"its reset() takes no {keyword[1]}: write def reset(self, *, seed=None, options=None), begin it with "
            f"super().reset(seed=seed), and return (observation, info); {REMEDY_OF_GYM}",
            verb="raised",
        )
    # A wrong number of values: look whether the line that raised unpacks the result of step() or reset().
    if isinstance(error, (ValueError, TypeError)) and "unpack" in text:
        # Go to the innermost frame, the line that raised.
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        if trace is None:
            return error
        code = trace.tb_frame.f_code
        line = linecache.getline(code.co_filename, trace.tb_lineno)
        got = re.search(r"got (\d+)", text)
        other = re.search(r"non-iterable (\S+) object", text)
        found = f"{got[1]} values" if got else f"a {other[1]}" if other else "too many values"
        if code.co_name == "step" and ".step(" in line:
            return _no_five(found)
        if code.co_name == "reset" and ".reset(" in line:
            return _no_pair(found)
    return error


def masks_by_method(task: gym.Env) -> Callable[[], Any] | None:
    """Return a function that calls the method (or reads the property) action_masks of a task or of its wrappers.

    None if there is none. The function returns None if the method is an unimplemented one of a base class.
    """
    # Look for the outermost wrapper that has the method: it may change the mask of the task.
    holder = task
    while _METHOD not in getattr(holder, "__dict__", ()) and not hasattr(type(holder), _METHOD):
        if not isinstance(holder, gym.Wrapper):
            return None
        holder = holder.env

    def masks() -> Any:
        found = getattr(holder, _METHOD)
        try:
            return found() if callable(found) else found
        except NotImplementedError:
            return None

    return masks


def mask_of(obs: Any, info: Any, method: Callable[[], Any] | None = None) -> Any:
    """Return the mask in an observation, else in its info, else from a method; None if there is none."""
    mask = obs.get(MASK) if isinstance(obs, Mapping) else None
    if mask is None and isinstance(info, Mapping):
        mask = info.get(MASK)
    return method() if mask is None and method is not None else mask


def late_mask() -> WrongOutput:
    """Return the error for a mask of a task that seemed to have no masks."""
    return WrongOutput(
        "an action_mask",
        "but none in its first reset and step, so forbidden actions were sent: always return one",
    )


def flat_mask(mask: Any) -> np.ndarray:
    """Return a mask as one vector of 0 and 1, or of bool. Raises WrongOutput.

    Masks of MultiDiscrete may be tuples or lists of one vector per component, as in Gymnasium.
    """
    try:
        # One vector per component, or one vector of all.
        if isinstance(mask, (tuple, list)) and mask and np.ndim(mask[0]):
            flat = np.concatenate([np.ravel(part) for part in mask])
        else:
            flat = np.ravel(mask)
    except Exception as e:
        raise WrongOutput(f"{described(mask)} as the action_mask", "it must be a vector of 0 and 1") from e
    if flat.dtype == bool:
        return flat
    # Bytes of 0 and 1: removing both from the ends must leave nothing.
    if flat.itemsize == 1 and flat.dtype.kind in "iu":  # the usual case, checked in a tenth of the time
        is_mask = not flat.tobytes().strip(b"\0\1")
    else:
        is_mask = flat.dtype.kind in "iuf" and bool(((flat == 0) | (flat == 1)).all())
    if not is_mask:
        found = described(mask)
        if flat.dtype.kind in "iuf":
            found = f"{flat[(flat != 0) & (flat != 1)][0]:g} in {found}"
        raise WrongOutput(
            f"{found} as the action_mask", "it must hold 1 or True for an allowed choice, else 0"
        )
    return flat


class PlainAnswers(gym.Wrapper):
    """A task with its own spaces, and with values read by this module: ends are bool, the mask is in the info.

    For code that plays a single task; a `RowEnv` reads these values itself. Raises WrongOutput.
    """

    def __init__(self, task: gym.Env) -> None:
        super().__init__(task)
        is_maskable = isinstance(task.action_space, (Discrete, MultiDiscrete))
        self._masks = masks_by_method(task) if is_maskable else None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        obs, info = as_pair(self.env.reset(seed=seed, options=options))
        return obs, self._with_mask(obs, info, is_over=False)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = as_five(self.env.step(action))
        ends = as_flag(terminated, "terminated"), as_flag(truncated, "truncated")
        return obs, as_number(reward), *ends, self._with_mask(obs, as_info(info), is_over=any(ends))

    def _with_mask(self, obs: Any, info: Mapping[Any, Any], *, is_over: bool) -> dict[str, Any]:
        mask = mask_of(obs, info, None if is_over else self._masks)
        return dict(info) if mask is None else {**info, MASK: mask}


# -- Numbers in the info of an episode's last step, which training and evaluation average (env/<name> in the records).

_INFO_NAME = re.compile(r"[A-Za-z][\w.\-]*")
_EPISODE = "episode"  # Gymnasium's RecordEpisodeStatistics, and Stable-Baselines3's Monitor
_RECORDED_ANYWAY = ("r", "l", "t")  # there: return, length, time
_MOST_NUMBERS = 64  # of one info


def numbers_in(info: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite scalars in an info by name, those of info["episode"] included, at most 64.

    True is 1. Names that begin with "_" or hold other characters than letters, digits, _ . and - are left out.
    """
    found: dict[str, float] = {}
    extras = info.get(_EPISODE)
    own = (
        {k: x for k, x in extras.items() if k not in _RECORDED_ANYWAY} if isinstance(extras, Mapping) else {}
    )
    for name, x in (*info.items(), *own.items()):
        if isinstance(x, np.ndarray | np.generic) and x.ndim == 0:
            x = x.item()
        if not isinstance(x, bool | int | float) or not isinstance(name, str):
            continue
        if len(found) < _MOST_NUMBERS and _INFO_NAME.fullmatch(name) and math.isfinite(x):
            found[name] = float(x)
    return found
