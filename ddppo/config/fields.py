"""What a setting is: a dataclass field with its meaning and its own rule. The rules across settings: rules."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import field, fields, is_dataclass
from functools import partial
from typing import Any

from ddppo.errors import ConfigError, near

__all__ = ["check_fields", "in_words", "near", "own_methods", "setting"]


_WANTED = {  # what OmegaConf calls the types of settings
    "Integer": "a whole number, e.g. 1000 or 1e3",
    "Float": "a number",
    "Boolean": "true or false",
    "Bool": "true or false",
}


def setting(
    default: Any = NO_DEFAULT,
    meaning: str = "",
    *,
    factory: Any = NO_DEFAULT,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
) -> Any:
    """Return a dataclass field with its meaning and its single-field rule (low <= x, above < x, x <= high)."""
    metadata = {"meaning": meaning, "choices": choices, "low": low, "above": above, "high": high}
    if factory is not NO_DEFAULT:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def check_fields(section: Any, prefix: str = "") -> None:
    """Check every rule of a (nested) dataclass that needs none of the others: the fields', and its methods `check`.

    Each class that it derives from checks its own fields. Raises ConfigError with key, value and rule.
    """
    for item in fields(section):
        value = getattr(section, item.name)
        if is_dataclass(value):
            check_fields(value, f"{prefix}{item.name}.")
        elif value is not None and item.metadata:
            _check_field(prefix + item.name, value, item.metadata)
    for check in own_methods(section, "check"):
        check()


def own_methods(section: Any, name: str) -> list[Callable[..., None]]:
    """Return the methods of a name that an object's classes define, the base's first: all of them are called."""
    classes = [each for each in reversed(type(section).__mro__) if name in vars(each)]
    return [partial(vars(each)[name], section) for each in classes]


def _check_field(key: str, value: Any, rule: Mapping[str, Any]) -> None:
    if rule["choices"] and value not in rule["choices"]:
        hint = near(str(value), rule["choices"])
        if "on" in rule["choices"] and str(value) in ("True", "False"):  # what YAML makes of on and off
            hint = ' (in a YAML file, quote it: "on", "off")'
        raise ConfigError(f"{key}={value}: must be one of {', '.join(rule['choices'])}{hint}")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    if not math.isfinite(value):
        raise ConfigError(f"{key}={value}: must be a finite number")
    for name, broken, words in (
        ("low", lambda v, b: not v >= b, "at least"),
        ("above", lambda v, b: not v > b, "greater than"),
        ("high", lambda v, b: not v <= b, "at most"),
    ):
        bound = rule[name]
        if bound is not None and broken(value, bound):
            raise ConfigError(f"{key}={value}: must be {words} {bound}")


def in_words(complaint: str) -> str:
    """Return OmegaConf's complaint about a value in words of ours, or as it is where it is about something else."""
    found = re.match(r"Value '(.*)' of type '\w+' could not be converted to (\w+)$", complaint, re.DOTALL)
    if found and (wanted := _WANTED.get(found[2])):
        return f"{found[1]} is not {wanted}"
    found = re.match(r"Value '(.*)' is not a valid (\w+) \(type \w+\)$", complaint, re.DOTALL)
    if found and (wanted := _WANTED.get(found[2].capitalize())):
        return f"{found[1]} is not {wanted}"
    if complaint.endswith("is not a ListConfig, list or tuple."):
        return "must be a list, in brackets, as [a,b]"
    if re.match(r"Cannot assign \w+ to Dict\[", complaint):
        return "must be names and values, in braces, as {a:1,b:2}"
    return complaint
