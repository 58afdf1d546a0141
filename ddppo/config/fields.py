"""A setting: a dataclass field with its meaning and its own rule. And whole numbers as people write them, 1e5.

Rules that relate several settings are in rules.py. Imports no torch.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import field, fields, is_dataclass
from decimal import Decimal
from functools import partial
from typing import Any

from ddppo.errors import ConfigError
from ddppo.errors import near as near

_WANTED = {  # OmegaConf's name of a type -> ours
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
    """Return a dataclass field with its meaning and the rule for its value.

    Args:
        default: the default; "???" (omegaconf.MISSING) if the user must give a value.
        meaning: the text of --help.
        factory: makes the default, for lists and dicts.
        choices: the values that are allowed.
        low, above, high: low <= value, above < value, value <= high.
    """
    # help.py reads the meaning, check_fields the rule.
    metadata = {"meaning": meaning, "choices": choices, "low": low, "above": above, "high": high}
    if factory is not NO_DEFAULT:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def check_fields(section: Any, prefix: str = "") -> None:
    """Check each field of a (nested) dataclass by its own rule, then call its methods `check`.

    A method `check` of a base class is called too: each class checks its own fields. Raises ConfigError with key, value
    and rule.
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
    """Return the methods of one name that an object's class and its bases define, the bases' first."""
    classes = [each for each in reversed(type(section).__mro__) if name in vars(each)]
    return [partial(vars(each)[name], section) for each in classes]


def _check_field(key: str, value: Any, rule: Mapping[str, Any]) -> None:
    if rule["choices"] and value not in rule["choices"]:
        hint = near(str(value), rule["choices"])
        if "on" in rule["choices"] and str(value) in ("True", "False"):  # YAML reads on and off as these
            hint = ' (in a YAML file, quote it: "on", "off")'
        raise ConfigError(f"{key}={value}: must be one of {', '.join(rule['choices'])}{hint}")
    # Bounds are for numbers only; bool is an int in Python.
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
    """Return OmegaConf's message about a value of the wrong type in plain words; any other message as it is."""
    # The types of OmegaConf's messages, which it words in two ways.
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


def not_whole(value: str) -> str:
    """Return the message about a value that is no whole number, as in_words gives it."""
    return f"{value} is not {_WANTED['Integer']}"


# -- Whole numbers as people write them: 1e5, 1_000_000, 2.5e3.

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])")
_LARGEST_EXPONENT = 18  # beyond it a number fits no 64-bit integer, and writing it out may fill the memory


def written_out(text: str) -> str:
    """Return `text` with every whole number in digits: 1e5,2e5 becomes 100000,200000.

    Other numbers, such as 1.5 or 1e-3, stay as they are.
    """
    return _NUMBER.sub(_digits, text)


def _digits(found: re.Match[str]) -> str:
    number = Decimal(found[0])  # Decimal accepts underscores
    if number.adjusted() > _LARGEST_EXPONENT or number != number.to_integral_value():
        return found[0]
    return str(int(number))


def setting_types(section: type, prefix: str = "") -> dict[str, Any]:
    """Return the annotation of every setting of a dataclass by its full key."""
    types: dict[str, Any] = {}
    for item in fields(section):
        inner = item.default_factory
        if isinstance(inner, type) and is_dataclass(inner):
            types |= setting_types(inner, f"{prefix}{item.name}.")
        else:
            types[prefix + item.name] = item.type
    return types


def is_truth(text: str) -> bool:
    """Return whether `text` may mean true or false. Numbers but 0 and 1 may not, though OmegaConf accepts them."""
    return text in ("0", "1") or re.fullmatch(r"[-+]?\d+", text) is None


def is_integer(annotation: Any) -> bool:
    """Return whether a setting of this type is an integer, an optional integer, or a list of integers."""
    return annotation in (int, int | None, list[int])
