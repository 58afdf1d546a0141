"""Is this value in a file what its name says? Values are read by name, with a type and a range.

Anybody may have written or damaged a file. A value that passes here is finite, of its type, and no larger than in any
run; the rest of the package relies on that and does not check again.
"""

import json
import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LARGEST = 1e15  # return, throughput or count of steps; its square and sums of it are still finite
LARGEST_SECONDS = 1e9
SMALLEST = 1e-9  # value that must be above 0; 1 / SMALLEST is still finite
MOST_WORKERS = 1 << 16
MOST_PARAMETERS = 10**13
_MAX_DEPTH = 30  # sections within sections
_LONGEST_TEXT = 200
_SHOWN = 80  # characters of a value in a message
_REQUIRED: Any = object()

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = _SHOWN // 2
_short.maxlevel = 2


class FieldError(ValueError):
    """A value of the wrong type or range. The message is one line and quotes at most a part of the value."""


def quoted(value: Any) -> str:
    """Return a value as in JSON, in one line of at most 80 printable characters."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return one_line(_short.repr(value), _SHOWN)


def one_line(text: Any, most: int = 120) -> str:
    """Return text in one line of at most `most` printable characters."""
    # Blanks and line breaks become one blank; characters that cannot be printed are escaped.
    words = " ".join(str(text)[: 4 * most].split())
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)
    return line if len(line) <= most else line[: most - 3] + "..."


def parsed(text: str) -> "Fields":
    """Parse a JSON object. Raises FieldError if `text` is anything else."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise FieldError("it is nested too deeply") from None
    except ValueError as e:
        raise FieldError(f"it is not JSON: {one_line(e)}") from None
    if not isinstance(value, dict):
        raise FieldError(f"it is not a JSON object but {quoted(value)}")
    return Fields(value)


# -- One value.


def as_whole(name: str, value: Any, *, low: int = 0, high: float = LARGEST) -> int:
    """Return a whole number from `low` to `high`; 2.0 is whole, true is not a number. Raises FieldError."""
    number = value if type(value) in (int, float) else math.nan
    # NaN fails every comparison, so a wrong type ends here too.
    if not number >= low or (isinstance(number, float) and not number.is_integer() and number != math.inf):
        raise FieldError(f"{name}={quoted(value)} is not a whole number of at least {low}")
    if number > high:
        raise FieldError(f"{name}={quoted(value)} is above {high:g}, more than any run has")
    return int(number)


def as_number(
    name: str, value: Any, *, low: float | None = None, above: float | None = None, high: float = LARGEST
) -> float:
    """Return a finite number x with low <= x <= high, or above < x <= high; true is no number. Raises FieldError."""
    number = value if type(value) in (int, float) else math.nan
    if above is not None:
        # Each rule is also the text of its error.
        rule, inside = f"a number above {above:g}", number > above
    elif low is not None:
        rule, inside = f"a number of at least {low:g}", number >= low
    else:
        rule, inside = "a number", number > -math.inf
    if not inside or number == math.inf:
        raise FieldError(f"{name}={quoted(value)} is not {rule}")
    if abs(number) > high:
        raise FieldError(f"{name}={quoted(value)} is beyond {high:g}, which no run reaches")
    if above is not None and number < above + SMALLEST:
        raise FieldError(f"{name}={quoted(value)} is below {above + SMALLEST:g}, less than any run has")
    return float(number)


def as_text(name: str, value: Any, *, choices: tuple[str, ...] = ()) -> str:
    """Return a line of 1 to 200 printable characters. Raises FieldError."""
    if choices and value not in choices:
        raise FieldError(f"{name}={quoted(value)} is none of {', '.join(choices)}")
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _LONGEST_TEXT:
        raise FieldError(f"{name}={quoted(value)} is not a line of 1 to {_LONGEST_TEXT} characters")
    return value


def as_list(name: str, value: Any) -> list[Any]:
    """Return a list of any values. Raises FieldError."""
    if not isinstance(value, list):
        raise FieldError(f"{name}={quoted(value)} is not a list")
    return value


# -- An object of many values.


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object, with methods that read a value by its name.

    `default` replaces a value that is missing or null. A method raises FieldError, which gives the dotted name, for a
    value of the wrong type or range.
    """

    values: Mapping[str, Any]
    prefix: str = ""  # dotted name of this object in its file, with a dot at the end

    def section(self, name: str, *, default: Mapping[str, Any] = _REQUIRED) -> "Fields":
        value = self._get(name, default)
        if not isinstance(value, Mapping):
            raise FieldError(f"{self.prefix}{name}={quoted(value)} is not a section of names and values")
        return Fields(value, f"{self.prefix}{name}.")

    def whole(self, name: str, *, low: int = 0, high: float = LARGEST, default: int = _REQUIRED) -> int:
        return as_whole(self.prefix + name, self._get(name, default), low=low, high=high)

    def number(
        self,
        name: str,
        *,
        low: float | None = None,
        above: float | None = None,
        high: float = LARGEST,
        default: float = _REQUIRED,
    ) -> float:
        """Return a number; a default of NaN means unknown."""
        value, full = self._get(name, default), self.prefix + name
        return value if value is default else as_number(full, value, low=low, above=above, high=high)

    def text(self, name: str, *, choices: tuple[str, ...] = (), default: str = _REQUIRED) -> str:
        value = self._get(name, default)
        return value if value == default else as_text(self.prefix + name, value, choices=choices)

    def flag(self, name: str, *, default: bool = _REQUIRED) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise FieldError(f"{self.prefix}{name}={quoted(value)} is neither true nor false")
        return value

    def tree(self) -> dict[str, Any]:
        """Return the object as nested dicts. Raises FieldError if it is nested too deeply for recursive functions."""
        # Go down one layer at a time, until nothing is left or the limit is reached.
        values = dict(self.values)
        layer: list[Any] = [values]
        for _ in range(_MAX_DEPTH):
            inner = [each for o in layer for each in (o.values() if isinstance(o, dict) else o)]
            layer = [each for each in inner if isinstance(each, (dict, list))]
        if layer:
            raise FieldError(f"{self.prefix.rstrip('.')} is nested too deeply")
        return values

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is not _REQUIRED:
            return default
        missing = "is missing" if name not in self.values else "is null"
        raise FieldError(f"{self.prefix}{name} {missing}")


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings under dotted names. An empty mapping stays a value."""
    result: dict[str, Any] = {}
    for key, value in config.items():
        nested = isinstance(value, dict) and value
        result |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return result
