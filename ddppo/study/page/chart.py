"""How is a chart drawn? As SVG with real text, numbers under the mouse pointer, and colours for light and dark pages.

    chart = Chart("speedup", "Speedup S(W)", workers(sizes), Axis("S (1)", "log2"))
    chart.line(sizes, speedups, "blue", "measured")
    page += chart.svg()

Marks are kept in the units of the data until all are known; `svg` then chooses the ranges of the axes and places them.
Colours are names in chart.css.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files

_WIDTH, _HEIGHT = (
    400,
    246,
)  # of the picture without its legend; about its size on a page, so that texts are legible
_TOP, _LEFT, _RIGHT, _BOTTOM = 26, 54, 390, 208  # edges of the plot
_LETTER, _ROW = 6.2, 17  # width of a letter and height of a line in the legend
_BAR = 0.35  # half the width of a bar, in units of the data

Values = Sequence[float]


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis."""

    label: str
    scale: str = "linear"  # linear, log2 or log10
    ticks: dict[float, str] | None = None  # {value: text}; None: chosen from the data
    shows: tuple[
        float, ...
    ] = ()  # values that are always in view; an axis that begins at a shown 0 has no margin there


def workers(world_sizes: Iterable[int]) -> Axis:
    """Return the axis of W, with a tick at each W."""
    return Axis("workers W", "log2", {float(w): str(w) for w in sorted(set(world_sizes))})


def named(labels: Sequence[str], label: str = "workers W") -> Axis:
    """Return an axis of places 0, 1, 2, ... with names; if there are many, some of the names are left out."""
    every = max(1, len(labels) // 16)
    return Axis(label, "linear", {float(i): text for i, text in enumerate(labels) if i % every == 0})


def unit_of(seconds: float) -> tuple[float, str]:
    """Return the factor and the name of the unit in which an axis shows such durations."""
    return (1.0, "s") if seconds >= 1 else (1e3, "ms")


class _Place:
    """Maps values of one axis to positions between `start` and `end`."""

    def __init__(self, axis: Axis, values: Iterable[float], start: float, end: float) -> None:
        self._log = axis.scale != "linear"
        # The range: all finite values, ticks and shown values, with a margin.
        known = [self._on(v) for v in values if math.isfinite(v) and not (self._log and v <= 0)]
        known += [self._on(v) for v in (*(axis.ticks or ()), *axis.shows)]
        self.low, self.high = (min(known), max(known)) if known else (0.0, 1.0)
        if self.high - self.low < 1e-9 * max(abs(self.high), 1e-9):
            self.low, self.high = self.low - 0.5, self.high + 0.5
        margin = 0.05 * (self.high - self.low)
        self.low -= 0.0 if 0 in axis.shows and self.low == 0 else margin
        self.high += margin
        self._start, self._end = start, end
        self.ticks = self._ticks(axis.scale) if axis.ticks is None else axis.ticks

    def _on(self, value: float) -> float:
        return math.log2(value) if self._log else value

    def __call__(self, value: float) -> float:
        at = self.low if self._log and value <= 0 else min(max(self._on(value), self.low), self.high)
        return round(self._start + (at - self.low) / (self.high - self.low) * (self._end - self._start), 1)

    def _ticks(self, scale: str) -> dict[float, str]:
        """Return about six round numbers in view."""
        low, high = self.low, self.high
        # Whole powers of 2; 1, 2 and 5 times powers of 10; or 1, 2, 2.5 and 5 times a power of 10.
        found: list[float]
        if scale == "log2":
            every = max(1, round((high - low) / 8))
            found = [2.0**k for k in range(math.ceil(low), math.floor(high) + 1, every)]
            return {value: _short(value) if value >= 0.25 else f"1/{1 / value:g}" for value in found}
        elif scale == "log10":
            low, high = 2.0**low, 2.0**high
            factors = (1, 2, 5) if high < 1000 * low else (1,)
            powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            found = [f * 10.0**k for k in powers for f in factors if low <= f * 10.0**k <= high]
        else:
            rough = (high - low) / 7
            power = 10.0 ** math.floor(math.log10(rough))
            step = next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= rough * 0.999)
            found = [round(k * step, 12) for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
        return {value: _short(value) for value in found}


@dataclass(slots=True)
class Chart:
    """One plot."""

    name: str  # of its file
    title: str
    x: Axis
    y: Axis
    caption: str = ""  # a sentence or two
    # Marks: their x and y values, for the range, and the function that draws them.
    _marks: list[tuple[Values, Values, Callable[[_Place, _Place], str]]] = field(default_factory=list)
    _legend: dict[str, str] = field(default_factory=dict)  # label -> its mark, drawn around (0, 0)

    def line(
        self,
        xs: Values,
        ys: Values,
        colour: str,
        label: str = "",
        *,
        dashed: bool = False,
        thin: bool = False,
        text: str = "",
    ) -> None:
        """Connect the points; a value that is not finite breaks the line. `text` is that under the mouse pointer."""
        kind = f'class="line {colour}{" dashed" if dashed else ""}{" thin" if thin else ""}"'

        def draw(x: _Place, y: _Place) -> str:
            known = [f"{x(a)} {y(b)}" if math.isfinite(b) else "" for a, b in zip(xs, ys, strict=True)]
            # A point after a gap begins a new line (M), any other continues it (L).
            starts = ["L" if before else "M" for before in ["", *known]]
            path = "".join(s + at for s, at in zip(starts, known, strict=False) if at)
            return (
                f'<path {kind} d="{path}">{_tooltip(text)}</path>' if text else f'<path {kind} d="{path}"/>'
            )

        self._add(xs, ys, draw, label, f'<path {kind} d="M-9 0H9"/>')

    def dots(self, xs: Values, ys: Values, colour: str, texts: Sequence[str], label: str = "") -> None:
        """Draw points; `texts` are those under the mouse pointer."""
        self._points("dot", 4, (xs, ys, texts), colour, label)

    def seeds(self, xs: Values, ys: Values, colour: str, texts: Sequence[str], label: str = "") -> None:
        """Draw small points, for single seeds or ranks."""
        self._points("seed", 2.6, (xs, ys, texts), colour, label)

    def _points(
        self,
        kind: str,
        radius: float,
        points: tuple[Values, Values, Sequence[str]],
        colour: str,
        label: str = "",
    ) -> None:
        mark = f'class="{kind} {colour}" r="{radius}"'

        def draw(x: _Place, y: _Place) -> str:
            shown = [(x(a), y(b), text) for a, b, text in zip(*points, strict=True) if math.isfinite(b)]
            return "".join(
                f'<circle {mark} cx="{a}" cy="{b}">{_tooltip(text)}</circle>' for a, b, text in shown
            )

        self._add(points[0], points[1], draw, label, f"<circle {mark}/>")

    def band(
        self,
        xs: Values,
        low: Values,
        high: Values,
        colour: str,
        within: tuple[float, float] = (-math.inf, math.inf),
    ) -> None:
        """Fill the area between two lines; points without both values are left out.

        `within` bounds the values that the axis is stretched for: beyond, the band may end at the frame.
        """
        # A polygon: along the lower line and back along the upper one.
        ends = [p for p in zip(xs, low, high, strict=True) if all(map(math.isfinite, p))]

        def draw(x: _Place, y: _Place) -> str:
            around = [(a, b) for a, b, _ in ends] + [(a, c) for a, _, c in reversed(ends)]
            return (
                f'<polygon class="band {colour}" points="{" ".join(f"{x(a)},{y(b)}" for a, b in around)}"/>'
            )

        shown = [min(max(v, within[0]), within[1]) for p in ends for v in p[1:]]
        self._add([p[0] for p in ends] * 2, shown, draw)

    def whisker(self, at: float, low: float, high: float, colour: str = "ink") -> None:
        """Draw an interval, if both its ends are finite."""

        def draw(x: _Place, y: _Place) -> str:
            left, b, c = x(at) - 3, y(low), y(high)
            return f'<path class="whisker {colour}" d="M{left + 3} {b}V{c}M{left} {b}h6M{left} {c}h6"/>'

        if math.isfinite(low) and math.isfinite(high):
            self._add([at, at], [low, high], draw)

    def bar(self, at: float, low: float, high: float, colour: str, text: str, label: str = "") -> None:
        """Draw a bar from `low` to `high`."""

        def draw(x: _Place, y: _Place) -> str:
            left, top, width = x(at - _BAR), min(y(low), y(high)), x(at + _BAR) - x(at - _BAR)
            size = f'width="{width:.1f}" height="{abs(y(high) - y(low)):.1f}"'
            return f'<rect class="bar {colour}" x="{left}" y="{top}" {size}>{_tooltip(text)}</rect>'

        # In the legend: a small square.
        swatch = f'<rect class="bar {colour}" x="-6" y="-6" width="12" height="12"/>'
        self._add([at - _BAR, at + _BAR], [low, high], draw, label, swatch)

    def note(self, at: float, value: float, text: str, *, below: bool = False) -> None:
        """Write a text beside a point: on its right or, in the right half of the plot, on its left; or below it."""

        def draw(x: _Place, y: _Place) -> str:
            if below:
                at_y = min(y(value) + 15, _BOTTOM - 3)
                return f'<text class="mid note" x="{x(at)}" y="{at_y:.1f}">{escape(text)}</text>'
            left = x(at) > (_LEFT + _RIGHT) / 2
            place = f'class="{"end" if left else "note"}" x="{x(at) + (-7 if left else 7):.1f}" y="{y(value) + 4:.1f}"'
            return f"<text {place}>{escape(text)}</text>"

        if math.isfinite(value):
            self._add([at], [value], draw)

    def _add(
        self, xs: Values, ys: Values, draw: Callable[[_Place, _Place], str], label: str = "", swatch: str = ""
    ) -> None:
        if len(xs):
            self._marks.append((xs, ys, draw))
            self._legend |= {label: swatch} if label else {}

    def svg(self, *, standalone: bool = False) -> str:
        """Return the picture; `standalone` includes the style sheet, for a file of its own."""
        # Now that all marks are known, choose the ranges and draw.
        x = _Place(self.x, (v for xs, _, _ in self._marks for v in xs), _LEFT, _RIGHT)
        y = _Place(self.y, (v for _, ys, _ in self._marks for v in ys), _BOTTOM, _TOP)
        legend, below = self._legend_rows()
        parts = [
            f'<text class="title" x="{_LEFT}" y="15">{escape(self.title)}</text>',
            *self._axes(x, y),
            *(draw(x, y) for _, _, draw in self._marks),
            *legend,
        ]
        alone = ' xmlns="http://www.w3.org/2000/svg"' if standalone else ""
        style = f"<style>{stylesheet('chart.css')}</style>" if standalone else ""
        box = f'viewBox="0 0 {_WIDTH} {_HEIGHT + below}" role="img" aria-label="{escape(self.title)}"'
        return f'<svg{alone} class="chart" {box}>{style}{"".join(parts)}</svg>'

    def _axes(self, x: _Place, y: _Place) -> list[str]:
        parts, last = [], -math.inf
        for value, text in x.ticks.items():
            at = x(value)
            parts.append(f'<path class="grid" d="M{at} {_TOP}V{_BOTTOM}"/>')
            if at - last >= _LETTER * (len(text) + 1):  # it does not overlap the text before it
                parts.append(f'<text class="mid" x="{at}" y="{_BOTTOM + 15}">{escape(text)}</text>')
                last = at
        for value, text in y.ticks.items():
            at = y(value)
            kind = "axis" if value == 0 else "grid"
            parts.append(f'<path class="{kind}" d="M{_LEFT} {at}H{_RIGHT}"/>')
            parts.append(f'<text class="end" x="{_LEFT - 6}" y="{at + 4:.1f}">{escape(text)}</text>')
        # The frame and the labels of the axes.
        centre, middle = (_LEFT + _RIGHT) / 2, (_TOP + _BOTTOM) / 2
        return [
            *parts,
            f'<path class="axis" d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}"/>',
            f'<text class="mid" x="{centre}" y="{_BOTTOM + 32}">{escape(self.x.label)}</text>',
            f'<text class="mid" transform="translate(9 {middle}) rotate(-90)">{escape(self.y.label)}</text>',
        ]

    def _legend_rows(self) -> tuple[list[str], int]:
        """Return the marks and texts of the legend, in rows below the plot, and its height."""
        parts, at, line = [], _LEFT + 10.0, _HEIGHT + 8
        for label, swatch in self._legend.items():
            need = 38 + _LETTER * len(label)
            # Begin a new row if the entry does not fit.
            if at > _LEFT + 10 and at + need > _WIDTH + 10:
                at, line = _LEFT + 10.0, line + _ROW
            parts.append(f'<g transform="translate({at:.0f} {line})">{swatch}</g>')
            parts.append(f'<text x="{at + 15:.0f}" y="{line + 4}">{escape(label)}</text>')
            at += need
        return parts, line + _ROW - 4 - _HEIGHT if parts else 0


def stylesheet(name: str) -> str:
    return (files("ddppo.study.page") / "templates" / name).read_text(encoding="utf-8")


def _short(number: float) -> str:
    """Return the text of a number on an axis: 20k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{letter}"
    return f"{number:.6g}"


def _tooltip(text: str) -> str:
    return f"<title>{escape(text)}</title>"
