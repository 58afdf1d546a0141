"""Tables of text for a terminal."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """Return a line per row, cells right-aligned in columns of at least these widths and at least two blanks apart."""
    widths = [max(w, *(2 + len(row[i]) for row in rows)) for i, w in enumerate(widths)]
    return ["".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]


def whole(x: float) -> str:
    """Return a number without decimals, a small one with three digits."""
    return f"{x:,.0f}" if abs(x) >= 10 or x == 0 else f"{x:.3g}"
