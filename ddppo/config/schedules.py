"""Schedules: the value of a coefficient as a function of the share of total_steps that is done.

    linear                                     from the setting's value to 0 at total_steps
    cosine                                     the same along half a cosine
    {shape: cosine, to: 1e-5, until: 0.8, warmup: 0.05}      to another value, earlier, after a linear rise from 0
    [[0, 3e-4], [0.5, 3e-4], [0.5, 1e-4]]      points [share done, value] with straight lines between; here a jump
    my_pkg.schedules:sqrt                      a function of the share done, in [0, 1), and of the setting's value
    {path: my_pkg.schedules:sqrt, power: 2}    the same with arguments

A value depends on the share alone, so a resumed run has the bits of a run that was not interrupted. Imports no torch.
"""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from ddppo.config.fields import near
from ddppo.errors import ConfigError, TrainingError, in_one_line
from ddppo.plugins import imported

SHAPES = ("none", "linear", "cosine")
MEANING = (
    "none, linear or cosine (to 0 at total_steps), {shape: cosine, to: ..., until: ..., warmup: ...}, points "
    "[[share of total_steps, value], ...], or my_pkg.schedules:function (docs/callbacks.md)"
)
_KEYS = ("shape", "to", "until", "warmup")


def check_schedule(key: str, given: Any, value: float | None, *more: str) -> None:
    """Raise ConfigError if `given` is no schedule, or has no effect on the setting's value.

    key: the setting, for messages. more: words that are no schedules, and which this setting takes besides.
    """
    if isinstance(given, str) and ":" not in given:
        words = (*SHAPES, *more)
        if given not in words:
            raise ConfigError(
                f"{key}={given}: must be one of {', '.join(words)}{near(given, words)}; or points "
                "[[0, 3e-4], [1, 1e-4]], {shape: cosine, to: 1e-5}, or an import path my_pkg.schedules:sqrt"
            )
    elif isinstance(given, list):
        _check_points(key, given)
    elif isinstance(given, Mapping):
        _check_mapping(key, given)
    elif not isinstance(given, str):
        raise ConfigError(f"{key}={given}: a schedule is {MEANING}")
    if given != "none" and value is None:
        raise ConfigError(
            f"{key}={given} has no effect without the setting that it schedules: give that a value"
        )
    is_shape = given in SHAPES or (isinstance(given, Mapping) and "shape" in given and not given.get("to"))
    if given != "none" and value == 0 and is_shape:
        raise ConfigError(
            f"{key}={given} has no effect, for the setting that it schedules is 0: give that a value"
        )


def _check_points(key: str, points: list[Any]) -> None:
    rule = "points are [share of total_steps, value] with shares that rise from 0 to 1, as [[0, 3e-4], [0.5, 1e-4]]"
    for point in points:
        if not (isinstance(point, list) and len(point) == 2 and all(_is_number(x) for x in point)):
            raise ConfigError(f"{key}={points}: {rule}")
    shares = [share for share, _ in points]
    if not points or not all(0 <= share <= 1 for share in shares) or any(a > b for a, b in pairwise(shares)):
        raise ConfigError(f"{key}={points}: {rule}")
    if any(value < 0 for _, value in points):
        raise ConfigError(f"{key}={points}: values must be at least 0")


def _check_mapping(key: str, given: Mapping[Any, Any]) -> None:
    if "path" in given:
        if not (isinstance(given["path"], str) and ":" in given["path"]):
            raise ConfigError(f"{key}={given}: path must be an import path like my_pkg.schedules:sqrt")
        return
    if wrong := [str(name) for name in given if name not in _KEYS]:
        raise ConfigError(
            f"{key}={given}: there is no {wrong[0]}{near(wrong[0], _KEYS)}: keys are {', '.join(_KEYS)}"
        )
    if (shape := given.get("shape", "linear")) not in SHAPES:
        raise ConfigError(
            f"{key}={given}: shape must be one of {', '.join(SHAPES)}{near(str(shape), SHAPES)}"
        )
    for name, high in (("to", math.inf), ("until", 1), ("warmup", 1)):
        if name in given and not (_is_number(given[name]) and 0 <= given[name] <= high):
            bounds = "at least 0" if name == "to" else "a share of total_steps, from 0 to 1"
            raise ConfigError(f"{key}={given}: {name} must be {bounds}")
    if given.get("warmup", 0) >= given.get("until", 1):
        raise ConfigError(f"{key}={given}: warmup must end before until")


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)


class Schedule:
    """A schedule of one coefficient.

    Args:
        key: the setting of the schedule, for messages.
        given: its value, which `check_schedule` has checked.
        start: the value of the setting that it schedules.
        scale: factor of every value: of learning rates under weak scaling.

    Raises ConfigError if its function cannot be imported.
    """

    def __init__(self, key: str, given: Any, start: float, scale: float = 1.0) -> None:
        self._key = key
        self._given = given
        self._start, self._scale = start, scale
        self._function: Callable[..., Any] | None = None
        path = given.get("path") if isinstance(given, Mapping) else given
        if isinstance(path, str) and ":" in path:
            try:
                self._function = imported(path)
            except (Exception, SystemExit) as e:  # a user's module may raise anything
                raise ConfigError(f"{key}={path}: cannot be imported: {in_one_line(e)}") from e
            self._arguments = (
                {k: x for k, x in given.items() if k != "path"} if isinstance(given, Mapping) else {}
            )

    def at(self, done: float) -> float:
        """Return the value after the share `done` of total_steps. Raises TrainingError if a function fails."""
        start, given = self._start * self._scale, self._given
        if self._function is not None:
            return self._called(done) * self._scale
        if isinstance(given, list):
            return _between(given, done) * self._scale
        if isinstance(given, Mapping):
            return self._shaped(done, **given) * self._scale
        if given == "linear":
            return start * (1.0 - done)
        return start * _cosine(done) if given == "cosine" else start

    def _shaped(
        self, done: float, shape: str = "linear", to: float = 0.0, until: float = 1.0, warmup: float = 0.0
    ) -> float:
        if done < warmup:
            return self._start * done / warmup
        x = min(1.0, (done - warmup) / (until - warmup))
        left = {"none": 1.0, "linear": 1.0 - x, "cosine": _cosine(x)}[shape]
        return to + (self._start - to) * left

    def _called(self, done: float) -> float:
        assert self._function is not None
        try:
            value = float(self._function(done, self._start, **self._arguments))
        except Exception as e:  # a user's function may raise anything
            raise TrainingError(f"{self._key}={self._given} raised {in_one_line(e)}") from e
        if not 0 <= value < math.inf:
            raise TrainingError(
                f"{self._key}={self._given} returned {value:g} for the share {done:g}: it must be a finite number, at "
                "least 0"
            )
        return value


def _cosine(x: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * x))


def _between(points: list[list[float]], done: float) -> float:
    """Return the value at `done` on the line through the points; outside of them that of the first or the last."""
    at = sum(share <= done for share, _ in points)
    if at in (0, len(points)):
        return points[max(0, at - 1)][1]
    (left, low), (right, high) = points[at - 1 : at + 1]
    return low + (high - low) * (done - left) / (right - left)


class Coefficient:
    """A coefficient that an algorithm reads in every iteration: by its schedule, until a callback sets a value."""

    def __init__(self, schedule: Schedule, scale: float = 1.0, *, is_scheduled: bool = True) -> None:
        self._schedule = schedule
        self._scale = scale
        self.is_reported = is_scheduled  # whether the value may differ from the setting's, and is recorded
        self.set_to: float | None = None  # by a callback, in place of the schedule

    def at(self, done: float) -> float:
        return self._schedule.at(done) if self.set_to is None else self.set_to * self._scale

    def set(self, value: float) -> None:
        self.set_to, self.is_reported = value, True
