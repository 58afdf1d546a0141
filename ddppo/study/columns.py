"""How do numbers and tables look in texts? Formatting that all commands of this package share."""

from collections.abc import Sequence
from math import isinf, isnan


def aligned(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """Return a line per row: cells are right-aligned, in columns of at least `widths`, at least two blanks apart."""
    # A column is as wide as its widest cell, and two blanks.
    widths = [max(w, *(2 + len(row[i]) for row in rows)) for i, w in enumerate(widths)]
    return ["".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]


def whole(x: float) -> str:
    """Return a number without decimals, or with three digits if it is below 10."""
    return f"{x:,.0f}" if abs(x) >= 10 or x == 0 else f"{x:.3g}"


def duration(seconds: float) -> str:
    """Return seconds with three digits in a fitting unit: "7.2 s", "12 min". Infinity is "not reached", NaN a dash."""
    if isnan(seconds) or isinf(seconds):
        return "–" if isnan(seconds) else "not reached"
    # Minutes, hours and days begin at two of them: 90 s is more readable than 1.5 min.
    for unit, size, least in (("d", 86400, 2), ("h", 3600, 2), ("min", 60, 2), ("s", 1, 1), ("ms", 1e-3, 1)):
        if abs(seconds) >= least * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{1e6 * seconds:.3g} µs" if seconds else "0 s"


def percent(fraction: float) -> str:
    """Return a fraction as "44 %", or "4.4 %" if it is small. NaN is a dash, infinity is "unbounded"."""
    if isnan(fraction) or isinf(fraction):
        return "–" if isnan(fraction) else "unbounded"
    # Below 0.05 % the decimal would be 0; from 9.95 % on it would read 10.0 %.
    small = 0.0005 <= abs(fraction) < 0.0995
    return (f"{100 * fraction:.1f} %" if small else f"{100 * fraction:.0f} %").replace("-0 %", "0 %")
