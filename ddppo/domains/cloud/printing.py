"""Answers as the AWS CLI prints them: JSON, tab-separated text, and tables.

`printed` is the entry. The formats follow the AWS CLI exactly, as tests/domains/cloud/true_cli.py shows.
"""

import json
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

FORMATS = ("json", "text", "table")
TERMINAL = 80  # columns: a wider table has its single rows turned on their side


def printed(answer: Any, output: str, title: str) -> str:
    """Return what is printed of an answer that went through --query. `title` is the operation, over tables."""
    if output == "text":
        return "".join(f"{line}\n" for line in _text(answer))
    if output == "table":
        return _table(answer, title)
    return "" if answer == {} else json.dumps(answer, indent=4, ensure_ascii=False) + "\n"


def _is_nested(value: Any) -> bool:
    return isinstance(value, list | dict)


# -- text: a line a structure, fields separated by tabs, sorted by name; nested values on lines behind it --------------


def _text(value: Any, name: str | None = None, columns: Sequence[str] | None = None) -> Iterator[str]:
    """Yield the lines of a value. `name` is the key it was found at, `columns` the fields of its siblings."""
    if isinstance(value, dict):
        # With columns, a missing field is an empty one, and a field is nested if any sibling's is.
        if columns is None:
            columns = [key for key in sorted(value) if not _is_nested(value[key])]
        fields = [str(value.get(key, "")) for key in columns]
        if fields:
            yield "\t".join([name.upper(), *fields] if name is not None else fields)
        for key in sorted(set(value) - set(columns)):
            yield from _text(value[key], key)
    elif not isinstance(value, list):
        yield str(value)
    elif any(isinstance(one, dict) for one in value):
        shared = sorted(
            {key for one in value for key, inner in one.items() if not _is_nested(inner)}
            if all(isinstance(one, dict) for one in value)
            else _keys_of_all(value)
        )
        for one in value:
            yield from _text(one, name, shared)
    elif value:
        # Scalars first, on one line without a name, or on a line each.
        scalars = [str(one) for one in value if not _is_nested(one)]
        if scalars and name is None:
            yield "\t".join(scalars)
        else:
            yield from (f"{name.upper()}\t{scalar}" for scalar in scalars if name is not None)
        for one in value:
            if _is_nested(one):
                yield from _text(one, name)


def _keys_of_all(values: list[Any]) -> set[str]:
    # The AWS CLI asks every member for its items, so a list of structures and others is an error there.
    odd = next(one for one in values if not isinstance(one, dict))
    raise AttributeError(f"'{type(odd).__name__}' object has no attribute 'items'")


# -- tables: a section a structure or list of structures, nested ones indented by bars ---------------------------------


@dataclass
class _Section:
    title: str | None
    depth: int
    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)

    def add(self, row: Sequence[Any]) -> None:
        known = len(self.rows[0]) if self.rows else len(self.header)
        if known and len(row) != known:
            raise ValueError(f"Row should have {known} elements, instead it has {len(row)}")
        self.rows.append([str(one) for one in row])

    def widest(self) -> list[int]:
        """Return the width of the longest entry of each column."""
        lines = [*([self.header] if self.header else []), *self.rows]
        return [max(map(_width, column)) for column in zip(*lines, strict=False)] if lines else []

    def width(self) -> int:
        around = 2 + 2 * self.depth
        return max(_width(self.title or "") + around, sum(wide + 4 for wide in self.widest()) + around)

    def turned(self) -> "_Section":
        """Return a section with one row as one with a row for each field."""
        if len(self.rows) != 1 or not self.header:
            return self
        return _Section(self.title, self.depth, [], [list(pair) for pair in zip(self.header, self.rows[0])])  # noqa: B905


def _table(answer: Any, title: str) -> str:
    sections: list[_Section] = []
    if not answer:
        return ""
    _build(sections, title, answer, 0)
    width = max(section.width() for section in sections)
    if width > TERMINAL:
        sections = [section.turned() for section in sections]
        width = max(section.width() for section in sections)
    lines = ["-" * width]
    for section in sections:
        bars = "|" * section.depth
        lines += [f"{bars}{line}{bars}" for line in _drawn(section, width - 2 * section.depth)]
    return "".join(f"{line}\n" for line in lines)


def _build(sections: list[_Section], title: str | None, value: Any, depth: int) -> None:
    """Add the sections of a value."""
    if not value:
        return
    if title is not None:
        sections.append(_Section(title, depth))
    if isinstance(value, dict):
        flat, nested = _columns([value])
        if len(flat) == 1:
            sections[-1].add([flat[0], value[flat[0]]])
        elif flat:
            sections[-1].header = flat
            sections[-1].add([value[key] for key in flat])
        for key in nested:
            _build(sections, key, value[key], depth + 1)
    elif isinstance(value, list) and isinstance(value[0], dict):
        flat, nested = _columns(value)
        sections[-1].header = flat
        for at, one in enumerate(value):
            if at and nested:
                sections.append(_Section(title, depth, flat))
            sections[-1].add([one.get(key, "") for key in flat])
            for key in nested:
                if key in one:
                    _build(sections, key, one[key], depth + 1)
    elif isinstance(value, list):
        for one in value:
            if not _is_nested(one):
                sections[-1].add([one])
            elif not any(map(_is_nested, one)):
                sections[-1].add(list(one))
            else:
                _build(sections, None, one, depth)


def _columns(values: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Return the names of fields of structures, sorted: flat ones, and nested ones."""
    flat = {key for one in values for key, inner in one.items() if not _is_nested(inner)}
    nested = {key for one in values for key, inner in one.items() if _is_nested(inner)}
    return sorted(flat), sorted(nested)


def _drawn(section: _Section, width: int) -> Iterator[str]:
    """Yield the lines of a section that is `width` columns wide."""
    if section.title:
        yield _centred(section.title, width, "|")
        if not section.header and not section.rows:
            yield f"+{'-' * (width - 2)}+"
    widths = _scaled([wide + 4 for wide in section.widest()], width)
    edges = ["|", *[""] * len(widths)]  # the first cell has a bar on its left as well
    line = "".join(
        f"{'+' if edge else ''}{'-' * (wide - len(edge) - 1)}+"
        for edge, wide in zip(edges, widths, strict=False)
    )
    if section.header:
        yield line
        yield "".join(map(_centred, section.header, widths, edges))
    if section.rows and widths:
        yield line
        for row in section.rows:
            yield "".join(map(_left, row, widths, edges))
        yield line


def _centred(text: str, length: int, edge: str) -> str:
    """Return a cell of `length` columns with its text in the middle, a bar on its right, and `edge` on its left."""
    before = length // 2 - _width(text) // 2 - 1
    after = length - 1 - len(edge) - before - _width(text)
    return f"{edge}{' ' * before}{text}{' ' * after}|"


def _left(text: str, length: int, edge: str) -> str:
    """Return a cell with its text on the left, two columns in if there is room."""
    before = 2 if length - _width(text) - len(edge) - 3 >= 0 else 0
    after = length - 1 - len(edge) - before - _width(text)
    return f"{edge}{' ' * before}{text}{' ' * after}|"


def _scaled(widths: list[int], width: int) -> list[int]:
    """Return widths in the same proportions that sum to `width`; the first give way, the last take what is left."""
    if not widths:
        return []
    found = [round(one * (width / float(sum(widths)))) for one in widths]
    while (over := sum(found) - width) != 0:
        for at in range(len(found)) if over > 0 else reversed(range(len(found))):
            found[at] -= 1 if over > 0 else -1
            if sum(found) == width:
                break
    return found


def _width(text: str) -> int:
    """Return how many columns a text takes: wide and ambiguous characters take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WFA" else 1 for char in text)
