"""What a setting is: a dataclass field with its meaning and its own rule. The rules across settings: rules."""

import math
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import field, fields, is_dataclass
from typing import Any

from ddppo.errors import ConfigError, near

__all__ = ["check_fields", "near", "setting"]


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
    """Check every single-field rule of a (nested) dataclass. Raises ConfigError with key, value and rule."""
    for item in fields(section):
        value = getattr(section, item.name)
        key = prefix + item.name
        if is_dataclass(value):
            check_fields(value, {"dist": "dist."}.get(item.name, f"{item.name}."))
            continue
        rule = item.metadata
        if value is None or not rule:
            continue
        if rule["choices"] and value not in rule["choices"]:
            hint = near(str(value), rule["choices"])
            if "on" in rule["choices"] and str(value) in ("True", "False"):  # what YAML makes of on and off
                hint = ' (in a YAML file, quote it: "on", "off")'
            raise ConfigError(f"{key}={value}: must be one of {', '.join(rule['choices'])}{hint}")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
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
