"""Whole numbers as people write them: 1e5, 1_000_000, 2.5e3. Imports no torch."""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from decimal import Decimal
from typing import Any

from ddppo.config.variants import SECTIONS_BY_NAME, known

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])")
_LARGEST_EXPONENT = 18  # beyond it a number fits no 64-bit integer, and writing it out may fill the memory


def written_out(text: str) -> str:
    """Return `text` with every whole number in it in digits alone: 1e5,2e5 becomes 100000,200000.

    What is no whole number, such as 1.5 or 1e-3, stays as it is.
    """
    return _NUMBER.sub(_digits, text)


def _digits(found: re.Match[str]) -> str:
    number = Decimal(found[0])  # which knows underscores
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


def type_of(key: str, types: Mapping[str, Any]) -> Any:
    """Return the annotation of a setting by its full key, one of `types` or of some variant; None if there is none."""
    section, _, name = key.partition(".")
    if key in types or section not in SECTIONS_BY_NAME:
        return types.get(key)
    return next(
        (item.type for kind in known(section).values() for item in fields(kind) if item.name == name), None
    )


def is_truth(text: str) -> bool:
    """Return whether `text` may stand for true or false: OmegaConf takes any number for one."""
    return text in ("0", "1") or re.fullmatch(r"[-+]?\d+", text) is None


def is_integer(annotation: Any) -> bool:
    """Return whether a setting of this type holds an integer, an integer or nothing, or a list of integers."""
    return annotation in (int, int | None, list[int])
