"""Tables of text for a terminal."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """Return a line per row, cells right-aligned in columns of at least these widths and at least two blanks apart."""
    widths = [max(w, *(2 + len(row[i]) for row in rows)) for i, w in enumerate(widths)]
    return ["".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]


def whole(x: float) -> str:
    """Return a number without decimals, a small one with three digits."""
    return f"{x:,.0f}" if abs(x) >= 10 or x == 0 else f"{x:.3g}"


def duration(seconds: float) -> str:
    """Return seconds in a unit that fits, e.g. "7.2 s", "12 min", "3.4 h"; "never" for infinity."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= 2 * size or (unit == "s" and seconds >= 1):
            return "never" if seconds == float("inf") else f"{seconds / size:.3g} {unit}"
    return f"{1e3 * seconds:.3g} ms"
