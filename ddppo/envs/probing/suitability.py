"""Warnings about a task before training: parts that learn statistics of their own, and spaces that suit no policy."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from gymnasium.wrappers import vector as of_batches

from ddppo.config.model_settings import LayerSettings, ModelSettings
from ddppo.envs.meaning import Plain
from ddppo.errors import ConfigError

# Gymnasium's wrappers that learn, and the names of attributes by which others are recognised.
_OF_OBS = (NormalizeObservation, of_batches.NormalizeObservation)
_OF_REWARDS = (NormalizeReward, of_batches.NormalizeReward)
_SPREADS = ("var", "std", "variance", "M2")
_COUNTS = ("count", "n", "num")
_STATISTIC = re.compile(r"(^|[_.])(mean|avg|average|var|variance|std|rms|m2)($|[_.\d])", re.IGNORECASE)
_CUT = 3.0  # nearly all draws of a Gaussian are within so many standard deviations
_LEAST_SHARE = (
    0.1  # of the bounds that a new policy should reach, and of its draws that should be within them
)
_LEAST_SIDE = 8  # pixels of a picture's smaller side
_WITHIN = ("env", "_env")  # attributes in which wrappers hold the wrapped task
_DEEPEST = 100  # wrappers around a task


# -- Parts that learn. ------------------------------------------------------------------------------------------------


def check_wrappers(task: Any) -> None:
    """Raise ConfigError if a part of the task learns."""
    if sentences := learning_wrappers(task):
        raise ConfigError(sentences[0])


def learning_wrappers(task: Any) -> list[str]:
    """Return a sentence for each part of a task (wrapper, task or batch) that learns running statistics.

    Such statistics belong to the policy, but no checkpoint keeps them. They differ between environments, so results
    depend on the number of workers; an evaluation starts without them, so the policy observes other numbers there than
    in training. Gymnasium's wrappers and objects with a mean, a variance and a count are recognised. A part with
    update_running_mean=False or training=False is frozen and learns nothing.
    """
    sentences = []
    for part in _parts(task):
        # A frozen part learns nothing.
        if any(getattr(part, name, True) is False for name in ("update_running_mean", "training")):
            continue
        # Either the part holds an object with running statistics, or it has them itself.
        held = [name for name, value in vars(part).items() if name not in _WITHIN and _is_running(value)]
        known = isinstance(part, (*_OF_OBS, *_OF_REWARDS))
        if not (held or known or _is_running(part)):
            continue
        # Name the setting of ours that does the same: for observations, rewards, or both.
        remedies = ["ppo.normalize_obs=true"] if not isinstance(part, _OF_REWARDS) else []
        remedies += ["ppo.normalize_rewards=true"] if not isinstance(part, _OF_OBS) else []
        frozen = "" if known else ", or freeze it and say so by an attribute training=False"
        what = f"its {'wrapper' if isinstance(part, _WRAPPERS) else 'class'} {type(part).__name__}"
        sentences.append(
            f"{what} learns running statistics{f' ({held[0]})' if held else ''} of its own in each environment, which "
            "depend on the number of workers and are missing in evaluation: remove it and use "
            f"{' or '.join(remedies)}{frozen}"
        )
    return sentences


_WRAPPERS = (gym.Wrapper, gym.vector.VectorWrapper)


def statistics(task: Any) -> dict[str, np.ndarray]:
    """Return copies of all numbers in a task's parts that have a name like mean, variance or deviation, by name."""
    found = {}
    for part in _parts(task):
        for name, value in vars(part).items():
            inner = (
                vars(value).items() if _is_running(value) and hasattr(value, "__dict__") else [("", value)]
            )
            for key, x in inner:
                path = f"{type(part).__name__}.{name}{f'.{key}' if key else ''}"
                if _STATISTIC.search(path) and (numbers := _numbers(x)) is not None:
                    found[path] = numbers
    return found


def kept_over_resets(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> str | None:
    """Return a warning about statistics that steps changed and a reset with the same seed did not restore, or None.

    before, after: `statistics` after a reset, and after some steps and another reset with the same seed. It is no
    error, because a task may count events without showing the count.
    """
    changed = [name for name in before if name in after and not np.array_equal(before[name], after[name])]
    if not changed:
        return None
    return (
        f"{' and '.join(changed[:3])} of the task changed over an episode, and a reset with the same seed did not "
        "restore it: if observations or rewards depend on it, evaluation differs from "
        "training, and results depend on the number of workers: use ppo.normalize_obs=true or "
        "ppo.normalize_rewards=true instead"
    )


def _parts(task: Any) -> Iterator[Any]:
    """Yield a task's wrappers from outside in, then the task itself; for a batch also its first environment."""
    for _ in range(_DEEPEST):
        if not hasattr(task, "__dict__"):
            return
        yield task
        held = vars(task)
        # The next part is the wrapped task, or the first environment of a batch.
        within = next((held[name] for name in _WITHIN if held.get(name) is not None), None)
        if within is None and isinstance(held.get("envs"), (list, tuple)) and held["envs"]:
            within = held["envs"][0]
        task = within


def _is_running(value: Any) -> bool:
    """Return whether an object has attributes for a mean, a spread and a count (an array has methods for them)."""
    if (
        isinstance(value, (np.ndarray, np.generic, gym.Space, int, float, str, dict, list, tuple))
        or value is None
    ):
        return False

    def has(names: tuple[str, ...]) -> bool:
        try:
            return any(
                not callable(getattr(value, n))
                for name in names
                for n in (name, f"_{name}")
                if hasattr(value, n)
            )
        except Exception:  # a property of a user's class may raise anything
            return False

    return has(("mean",)) and has(_SPREADS) and has(_COUNTS)


def _numbers(x: Any) -> np.ndarray | None:
    if isinstance(x, (bool, str)) or not (isinstance(x, (int, float, np.ndarray, np.generic))):
        return None
    numbers = np.array(x)
    return numbers if numbers.dtype.kind in "iuf" and numbers.size else None


# -- Spaces that a policy cannot use well. ----------------------------------------------------------------------------


def on_spaces(spaces: Plain | None, model: ModelSettings) -> list[str]:
    """Return a sentence for each space that a new policy cannot use well.

    spaces: from `spaces_described`. A user's own model may scale observations and actions, so it gets no warning.
    """
    if spaces is None or ":" in model.name:
        return []
    on_obs = [
        sentence
        for name, leaf in spaces["observations"].items()
        if (sentence := on_observations(leaf, name)) is not None
    ]
    if not isinstance(model, LayerSettings):
        return on_obs
    is_bounded = model.squash == "tanh" or model.distribution == "beta"
    on_action = on_actions(spaces["actions"], is_bounded=is_bounded, std=math.exp(model.log_std_init))
    return on_obs if on_action is None else [*on_obs, on_action]


def on_actions(space: Plain, *, is_bounded: bool = False, std: float = 1.0) -> str | None:
    """Return a warning if a new policy reaches only a small part of a Box of actions, or nearly always exceeds it.

    Actions of a new Gaussian policy lie around 0 with standard deviation `std`, and are clipped to the bounds;
    is_bounded: squash=tanh or distribution=beta spreads them over the bounds instead.
    """
    if space["space"] != "Box" or is_bounded or not math.prod(space["shape"]):
        return None
    lows, highs = (x if isinstance(x, list) else [x] for x in (space["low"], space["high"]))
    num = max(len(lows), len(highs))
    for i in range(num):
        low, high = (x[i] if len(x) == num else x[0] for x in (lows, highs))  # one bound may be for all
        at = f"dimension {i} of its actions" if num > 1 else "its actions"
        # Without bounds nothing is clipped.
        if low is None and high is None:
            continue
        if low is None or high is None:
            bound = f"at least {low:g}" if high is None else f"at most {high:g}"
            if (low is not None and low > -std) or (high is not None and high < std):
                return (
                    f"{at} must be {bound}, with no bound on the other side: a new policy draws them around 0 with "
                    f"deviation {std:g}, and they are clipped: give both bounds, or a mean of 0, by "
                    "gymnasium.wrappers.TransformAction"
                )
            continue
        # The part of the interval within 3 standard deviations, and the probability of a draw inside it.
        reached = max(0.0, min(high, _CUT * std) - max(low, -_CUT * std))
        inside = (math.erf(high / (std * 2**0.5)) - math.erf(low / (std * 2**0.5))) / 2
        if reached < _LEAST_SHARE * (high - low) or inside < _LEAST_SHARE:
            return (
                f"{at} go from {low:g} to {high:g}, and a new policy draws them around 0 with deviation {std:g}, then "
                "clips them: it reaches a small part of the bounds: use model.squash=tanh, which spreads them over the "
                "bounds, or gymnasium.wrappers.RescaleAction(task, -1, 1)"
            )
    return None


def on_observations(space: Plain, name: str = "") -> str | None:
    """Return a warning for a Box from 0 to 255 with the shape of a picture that is not of uint8."""
    if space["space"] != "Box" or (space["low"], space["high"]) != (0, 255) or space["dtype"] == "uint8":
        return None
    # Two or three dimensions with sides of at least 8 look like a picture.
    shape = space["shape"]
    sides = sorted(shape)[-2:]
    if len(shape) not in (2, 3) or sides[0] < _LEAST_SIDE:
        return None
    return (
        f"its observations {f'{name!r} ' if name else ''}are a Box of {space['dtype']} from 0 to 255 and "
        f"{' x '.join(map(str, shape))}, like a picture, but only uint8 counts as pixels: numbers up to 255 go "
        "into the model unscaled, and take four times the memory: make the dtype of the space uint8"
    )
