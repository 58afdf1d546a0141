"""Charts as SVG: text stays text, a pointer that rests on a mark is told its numbers, colours follow light and dark.

    chart = Chart("speedup", "Speedup S(W)", Axis("workers W", "log2"), Axis("S (1)", "log2"))
    chart.line(sizes, speedups, "blue", "measured")
    page += chart.svg()

Marks are kept in units of the data and placed when all are known. Colours are the names in chart.css.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

COLOURS = ("blue", "orange", "green", "red", "purple", "sky", "grey", "ink")
_TOP, _LEFT, _RIGHT, _BELOW = 28, 54, 12, 40  # room around the plot, in units of the picture
_LETTER, _ROW = 6.2, 17  # of the legend: width of a letter, height of a line


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction. scale: linear, log2 or log10. ticks: {value: text}, else chosen from the data.

    shows: values that are always in view; an axis that begins at a shown 0 stands on it.
    """

    label: str
    scale: str = "linear"
    ticks: dict[float, str] | None = None
    shows: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class _Mark:
    """What is drawn over these values, by a function of two places: x and y in the data to those in the picture."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    draw: Callable[["_Place", "_Place"], str]


class _Place:
    """From values of one axis to positions between `start` and `end`."""

    def __init__(self, axis: Axis, values: Iterable[float], start: float, end: float) -> None:
        self._log = axis.scale != "linear"
        known = [self._on(v) for v in values if math.isfinite(v) and not (self._log and v <= 0)]
        known += [self._on(v) for v in (*(axis.ticks or ()), *axis.shows)]
        self.low, self.high = (min(known), max(known)) if known else (0.0, 1.0)
        if self.high - self.low < 1e-9 * max(abs(self.high), 1e-9):
            self.low, self.high = self.low - 0.5, self.high + 0.5
        margin = 0.05 * (self.high - self.low)
        self.low -= 0.0 if 0 in axis.shows and self.low == 0 else margin
        self.high += margin
        self._start, self._end = start, end
        self.ticks = self._ticks(axis)

    def _on(self, value: float) -> float:
        return math.log2(value) if self._log else value

    def __call__(self, value: float) -> float:
        at = self.low if self._log and value <= 0 else min(max(self._on(value), self.low), self.high)
        return self._start + (at - self.low) / (self.high - self.low) * (self._end - self._start)

    def _ticks(self, axis: Axis) -> dict[float, str]:
        if axis.ticks is not None:
            return axis.ticks
        if axis.scale == "linear":
            found = _round_numbers(self.low, self.high)
        elif axis.scale == "log2":
            every = max(1, round((self.high - self.low) / 8))
            found = [2.0**k for k in range(math.ceil(self.low), math.floor(self.high) + 1, every)]
        else:
            low, high = (k * math.log10(2) for k in (self.low, self.high))
            factors = (1, 2, 5) if high - low < 3 else (1,)
            powers = range(math.floor(low), math.ceil(high) + 1)
            found = [f * 10.0**k for k in powers for f in factors]
            found = [v for v in found if low <= math.log10(v) <= high]
        return {v: short(v) for v in found}


class Chart:
    """One plot with a name, a title and a caption of a sentence or two."""

    def __init__(
        self,
        name: str,
        title: str,
        x: Axis,
        y: Axis,
        *,
        caption: str = "",
        size: tuple[int, int] = (460, 300),
    ) -> None:
        self.name, self.title, self.caption = name, title, caption
        self._x, self._y, self._size = x, y, size
        self._marks: list[_Mark] = []
        self._legend: dict[str, str] = {}  # label: its mark, around (0, 0)

    @property
    def ticks(self) -> list[float]:
        """The values of x that have a tick by name."""
        return list(self._x.ticks or ())

    def line(
        self, xs: Sequence[float], ys: Sequence[float], colour: str, label: str = "", *, dashed: bool = False
    ) -> None:
        """Connect the points; it is broken where one is not finite."""
        kind = f"line {colour}{' dashed' if dashed else ''}"

        def draw(x: _Place, y: _Place) -> str:
            runs: list[list[str]] = [[]]
            for a, b in zip(xs, ys, strict=True):
                if math.isfinite(a) and math.isfinite(b):
                    runs[-1].append(f"{x(a):.1f},{y(b):.1f}")
                elif runs[-1]:
                    runs.append([])
            return "".join(f'<polyline class="{kind}" points="{" ".join(run)}"/>' for run in runs if run)

        self._add(xs, ys, draw, label, f'<path class="{kind}" d="M-9 0H9"/>')

    def dots(
        self, xs: Sequence[float], ys: Sequence[float], colour: str, said: Sequence[str], label: str = "",
        *, kind: str = "dot",
    ) -> None:  # fmt: skip
        """Draw a point each, of which a pointer is told `said`. kind: dot (a median) or seed (one run of several)."""
        radius = {"dot": 4, "seed": 2.6}[kind]

        def draw(x: _Place, y: _Place) -> str:
            shown = [p for p in zip(xs, ys, said, strict=True) if math.isfinite(p[1])]
            return "".join(
                f'<circle class="{kind} {colour}" cx="{x(a):.1f}" cy="{y(b):.1f}" r="{radius}">{_said(text)}</circle>'
                for a, b, text in shown
            )

        self._add(xs, ys, draw, label, f'<circle class="{kind} {colour}" r="{radius}"/>')

    def band(
        self, xs: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str, label: str = ""
    ) -> None:
        """Fill between two lines; points without both ends are left out."""
        ends = [p for p in zip(xs, low, high, strict=True) if all(map(math.isfinite, p))]
        if not ends:
            return

        def draw(x: _Place, y: _Place) -> str:
            there = [f"{x(a):.1f},{y(b):.1f}" for a, b, _ in ends]
            back = [f"{x(a):.1f},{y(c):.1f}" for a, _, c in reversed(ends)]
            return f'<polygon class="band {colour}" points="{" ".join(there + back)}"/>'

        swatch = f'<rect class="band {colour}" x="-9" y="-5" width="18" height="10"/>'
        self._add([p[0] for p in ends] * 2, [v for p in ends for v in p[1:]], draw, label, swatch)

    def whisker(self, at: float, low: float, high: float, colour: str = "ink") -> None:
        """Draw an interval, if it is one."""
        if not (math.isfinite(low) and math.isfinite(high)):
            return

        def draw(x: _Place, y: _Place) -> str:
            a, b, c = x(at), y(low), y(high)
            ends = f"M{a:.1f} {b:.1f}V{c:.1f}M{a - 3:.1f} {b:.1f}h6M{a - 3:.1f} {c:.1f}h6"
            return f'<path class="whisker {colour}" d="{ends}"/>'

        self._add([at], [low, high], draw)

    def bar(
        self, at: float, low: float, high: float, colour: str, said: str, label: str = "", width: float = 0.7
    ) -> None:
        """Draw a bar from `low` to `high`, `width` units of x wide."""

        def draw(x: _Place, y: _Place) -> str:
            left, top = x(at - width / 2), min(y(low), y(high))
            size = f'width="{x(at + width / 2) - left:.1f}" height="{abs(y(high) - y(low)):.1f}"'
            return f'<rect class="bar {colour}" x="{left:.1f}" y="{top:.1f}" {size}>{_said(said)}</rect>'

        swatch = f'<rect class="bar {colour}" x="-6" y="-6" width="12" height="12"/>'
        self._add([at - width / 2, at + width / 2], [low, high], draw, label, swatch)

    def _add(
        self, xs: Sequence[float], ys: Sequence[float], draw: Callable[[_Place, _Place], str], label: str = "",
        swatch: str = "",
    ) -> None:  # fmt: skip
        self._marks.append(_Mark(tuple(xs), tuple(ys), draw))
        if label and xs:
            self._legend.setdefault(label, swatch)

    def svg(self, *, standalone: bool = False) -> str:
        """Return the picture; `standalone` with its own style, for a file of its own."""
        width, height = self._size
        x = _Place(self._x, (v for m in self._marks for v in m.xs), _LEFT, width - _RIGHT)
        y = _Place(self._y, (v for m in self._marks for v in m.ys), height - _BELOW, _TOP)
        legend, below = self._legend_rows(height)
        parts = [
            f'<text class="title" x="{_LEFT}" y="15">{escape(self.title)}</text>',
            *self._axes(x, y),
            *(mark.draw(x, y) for mark in self._marks),
            *legend,
        ]
        style = f"<style>{stylesheet('chart.css')}</style>" if standalone else ""
        namespace = ' xmlns="http://www.w3.org/2000/svg"' if standalone else ""
        box = f'viewBox="0 0 {width} {height + below:g}"'
        title = escape(f"{self.title}. {self.caption}", quote=True)
        return f'<svg{namespace} class="chart" {box} role="img" aria-label="{title}">{style}{"".join(parts)}</svg>'

    def _axes(self, x: _Place, y: _Place) -> list[str]:
        width, height = self._size
        bottom, right = height - _BELOW, width - _RIGHT
        parts, last = [], -math.inf
        for value, text in x.ticks.items():
            at = x(value)
            parts.append(f'<path class="grid" d="M{at:.1f} {_TOP}V{bottom}"/>')
            if at - last >= _LETTER * (len(text) + 1):  # else it would run into its neighbour
                parts.append(f'<text class="mid" x="{at:.1f}" y="{bottom + 15}">{escape(text)}</text>')
                last = at
        for value, text in y.ticks.items():
            at = y(value)
            parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{right}"/>')
            parts.append(f'<text class="end" x="{_LEFT - 6}" y="{at + 4:.1f}">{escape(text)}</text>')
        if y.low < 0 < y.high and self._y.scale == "linear":
            parts.append(f'<path class="axis" d="M{_LEFT} {y(0):.1f}H{right}"/>')
        parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>')
        middle = (_TOP + bottom) / 2
        parts.append(
            f'<text class="mid" x="{(_LEFT + right) / 2}" y="{bottom + 32}">{escape(self._x.label)}</text>'
        )
        turned = f'transform="translate(12 {middle}) rotate(-90)"'
        parts.append(f'<text class="mid" {turned}>{escape(self._y.label)}</text>')
        return parts

    def _legend_rows(self, top: float) -> tuple[list[str], float]:
        """Return the legend's parts, in rows below `top`, and its height."""
        parts, at, row = [], float(_LEFT), 0
        for label, swatch in self._legend.items():
            need = 26 + _LETTER * len(label) + 12
            if at > _LEFT and at + need > self._size[0]:
                at, row = float(_LEFT), row + 1
            line = top + 8 + _ROW * row
            parts.append(f'<g transform="translate({at + 10:.0f} {line})">{swatch}</g>')
            parts.append(f'<text x="{at + 25:.0f}" y="{line + 4}">{escape(label)}</text>')
            at += need
        return parts, (row + 1) * _ROW + 4 if parts else 0


def stylesheet(name: str) -> str:
    return (files("ddppo.study.page") / "templates" / name).read_text(encoding="utf-8")


def short(number: float) -> str:
    """Return a number for an axis: 20k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{letter}"
    return f"{number:.6g}"


def workers(world_sizes: Sequence[int], label: str = "workers W") -> Axis:
    """Return the axis of W, with a tick at each."""
    return Axis(label, "log2", {float(w): str(w) for w in world_sizes})


def named(labels: Sequence[str], label: str) -> Axis:
    """Return an axis of places 0, 1, 2, ... that have names."""
    return Axis(label, "linear", {float(i): text for i, text in enumerate(labels)})


def _said(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""


def _round_numbers(low: float, high: float) -> list[float]:
    """Return about six round numbers from `low` to `high`."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= rough * 0.999)
    return [
        round(k * step, 12) for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]
