"""What is said of a task before training: its parts that learn by themselves, and spaces that suit no policy."""

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

_OF_OBS = (NormalizeObservation, of_batches.NormalizeObservation)
_OF_REWARDS = (NormalizeReward, of_batches.NormalizeReward)
_SPREADS = ("var", "std", "variance", "M2")
_COUNTS = ("count", "n", "num")
_STATISTIC = re.compile(r"(^|[_.])(mean|avg|average|var|variance|std|rms|m2)($|[_.\d])", re.IGNORECASE)
_CUT = 3.0  # deviations of a Gaussian, within which nearly all of its draws are
_LEAST_SHARE = 0.1  # of the bounds that a new policy is to reach, and of its draws that are to be within
_LEAST_SIDE = 8  # of a picture
_WITHIN = ("env", "_env")  # where wrappers hold what they wrap
_DEEPEST = 100  # wrappers around a task


# -- parts that learn ------------------------------------------------------------------------------------------------


def check_wrappers(task: Any) -> None:
    """Raise ConfigError where a part of the task learns."""
    if said := learning_wrappers(task):
        raise ConfigError(said[0])


def learning_wrappers(task: Any) -> list[str]:
    """Return a sentence for each part of a task that learns running statistics by itself: wrapper, task, or batch.

    Such statistics belong to the policy, and nobody keeps them: they differ between environments, so results depend on
    the number of workers; an evaluation begins without them, so it means something else than training did. Recognised
    are Gymnasium's wrappers and objects with a mean, a variance and a count. What says update_running_mean=False or
    training=False has been frozen, and learns nothing.
    """
    said = []
    for part in _parts(task):
        if any(getattr(part, name, True) is False for name in ("update_running_mean", "training")):
            continue
        held = [name for name, value in vars(part).items() if name not in _WITHIN and _is_running(value)]
        known = isinstance(part, (*_OF_OBS, *_OF_REWARDS))
        if not (held or known or _is_running(part)):
            continue
        remedies = ["ppo.normalize_obs=true"] if not isinstance(part, _OF_REWARDS) else []
        remedies += ["ppo.normalize_rewards=true"] if not isinstance(part, _OF_OBS) else []
        frozen = "" if known else ", or freeze it and say so by an attribute training=False"
        what = f"its {'wrapper' if isinstance(part, _WRAPPERS) else 'class'} {type(part).__name__}"
        said.append(
            f"{what} learns running statistics{f' ({held[0]})' if held else ''} of its own in each environment, which "
            "depend on the number of workers and are not there in evaluation: take it out and use "
            f"{' or '.join(remedies)}{frozen}"
        )
    return said


_WRAPPERS = (gym.Wrapper, gym.vector.VectorWrapper)


def statistics(task: Any) -> dict[str, np.ndarray]:
    """Return copies of all numbers in a task's parts with a name like mean, variance or deviation, by that name."""
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
    """Return a warning of statistics that steps changed and a reset with the same seed did not bring back.

    before, after: what `statistics` found after a reset, and after steps and another reset with its seed. It is a
    warning and no error: a task may count what it does without showing it.
    """
    changed = [name for name in before if name in after and not np.array_equal(before[name], after[name])]
    if not changed:
        return None
    return (
        f"{' and '.join(changed[:3])} of the task changed over an episode, and a reset with the same seed did not "
        "bring back what it was: if observations or rewards follow from it, evaluation means something else than "
        "training, and results depend on the number of workers: use ppo.normalize_obs=true or "
        "ppo.normalize_rewards=true instead"
    )


def _parts(task: Any) -> Iterator[Any]:
    """Return a task's wrappers from outside in, and the task itself; of a batch also the first of its environments."""
    for _ in range(_DEEPEST):
        if not hasattr(task, "__dict__"):
            return
        yield task
        held = vars(task)
        within = next((held[name] for name in _WITHIN if held.get(name) is not None), None)
        if within is None and isinstance(held.get("envs"), (list, tuple)) and held["envs"]:
            within = held["envs"][0]
        task = within


def _is_running(value: Any) -> bool:
    """Return whether an object has a mean, a spread and a count, none of which is a method as an array's are."""
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
        except Exception:  # a property of a task's own
            return False

    return has(("mean",)) and has(_SPREADS) and has(_COUNTS)


def _numbers(x: Any) -> np.ndarray | None:
    if isinstance(x, (bool, str)) or not (isinstance(x, (int, float, np.ndarray, np.generic))):
        return None
    numbers = np.array(x)
    return numbers if numbers.dtype.kind in "iuf" and numbers.size else None


# -- spaces that a policy cannot use well ----------------------------------------------------------------------------


def on_spaces(spaces: Plain | None, model: ModelSettings) -> list[str]:
    """Return a sentence for each space that a new policy cannot use well, [] where there is none.

    spaces: as `spaces_described` has them. model: a user's own may scale what it is given and what it does, so nothing
    is said of it.
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
    said = on_actions(spaces["actions"], squash=model.squash, std=math.exp(model.log_std_init))
    return on_obs if said is None else [*on_obs, said]


def on_actions(space: Plain, *, squash: str = "none", std: float = 1.0) -> str | None:
    """Return what is said of a Box of actions that a new policy reaches a small part of, or nearly always exceeds.

    Actions of a Gaussian policy begin about 0, with deviation `std`, and are cut to the bounds; squash=tanh spreads
    them over the bounds instead.
    """
    if space["space"] != "Box" or squash == "tanh" or not math.prod(space["shape"]):
        return None
    lows, highs = (x if isinstance(x, list) else [x] for x in (space["low"], space["high"]))
    num = max(len(lows), len(highs))
    for i in range(num):
        low, high = (x[i] if len(x) == num else x[0] for x in (lows, highs))  # one bound may be for all
        at = f"dimension {i} of its actions" if num > 1 else "its actions"
        if low is None and high is None:
            continue
        if low is None or high is None:
            bound = f"at least {low:g}" if high is None else f"at most {high:g}"
            if (low is not None and low > -std) or (high is not None and high < std):
                return (
                    f"{at} must be {bound}, with no bound on the other side: a new policy draws them about 0 with "
                    f"deviation {std:g}, and what is beyond is cut: give both bounds, or a mean of 0, by "
                    "gymnasium.wrappers.TransformAction"
                )
            continue
        reached = max(0.0, min(high, _CUT * std) - max(low, -_CUT * std))
        inside = (math.erf(high / (std * 2**0.5)) - math.erf(low / (std * 2**0.5))) / 2
        if reached < _LEAST_SHARE * (high - low) or inside < _LEAST_SHARE:
            return (
                f"{at} go from {low:g} to {high:g}, and a new policy draws them about 0 with deviation {std:g}, cut to "
                "these bounds: it reaches a small part of them: use model.squash=tanh, which spreads them over the "
                "bounds, or gymnasium.wrappers.RescaleAction(task, -1, 1)"
            )
    return None


def on_observations(space: Plain, name: str = "") -> str | None:
    """Return what is said of a Box from 0 to 255 in the shape of a picture, but not of uint8."""
    if space["space"] != "Box" or (space["low"], space["high"]) != (0, 255) or space["dtype"] == "uint8":
        return None
    shape = space["shape"]
    sides = sorted(shape)[-2:]
    if len(shape) not in (2, 3) or sides[0] < _LEAST_SIDE:
        return None
    return (
        f"its observations {f'{name!r} ' if name else ''}are a Box of {space['dtype']} from 0 to 255 and "
        f"{' x '.join(map(str, shape))}, as a picture is, but only uint8 is taken for pixels: numbers up to 255 go "
        "into the model as they are, and take four times the memory: make the dtype of the space uint8"
    )
