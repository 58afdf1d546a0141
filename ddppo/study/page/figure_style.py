"""How figures look and what they are drawn on: W on a log2 axis, units on axes, colours that all eyes tell apart.

Colours: Okabe and Ito 2008, https://jfly.uni-koeln.de/color/.
"""

import io
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from ddppo.statistics import Estimate

BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#999999",
)
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "svg.fonttype": "path",
    "text.parse_math": False,  # a task may have any name, also one with two $
    "svg.hashsalt": "ddppo",
}


@dataclass(frozen=True)
class Plot:
    """A figure with the name of its files and what it shows in one sentence."""

    name: str
    caption: str
    figure: Figure

    @cached_property
    def svg(self) -> bytes:
        return self._drawn(format="svg", metadata={"Date": None, "Creator": None})

    @cached_property
    def png(self) -> bytes:
        return self._drawn(format="png", dpi=150, metadata={"Software": None})

    def _drawn(self, **options: Any) -> bytes:
        buffer = io.BytesIO()
        with style():
            if self.figure.get_layout_engine() is not None:
                # Laid out once for both formats; without an engine positions stay as they are.
                self.figure.draw_without_rendering()
                self.figure.set_layout_engine(None)
            self.figure.savefig(buffer, **options)
        return buffer.getvalue()


def style() -> AbstractContextManager[None]:
    return matplotlib.rc_context(_STYLE)


def panel(width: float = 5.4, height: float = 3.7) -> tuple[Figure, Axes]:
    """Return a figure of one panel, in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def workers_axis(axes: Axes, world_sizes: Sequence[int]) -> None:
    """Put W on a log2 axis with a tick at every world size."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(world_sizes, [str(w) for w in world_sizes])
    axes.set_xticks([], minor=True)
    axes.set_xlim(min(world_sizes) / 2**0.4, max(world_sizes) * 2**0.4)
    axes.set_xlabel("workers W")


def estimates(
    axes: Axes, world_sizes: Sequence[int], values: Sequence[Estimate], colour: str, label: str
) -> None:
    """Draw medians over seeds as a line, with 95 % intervals where there are several seeds."""
    middle = np.array([e.median for e in values])
    low = np.array([0.0 if math.isnan(e.low) else max(e.median - e.low, 0.0) for e in values])
    high = np.array([e.high - e.median if math.isfinite(e.high) else 0.0 for e in values]).clip(min=0)
    axes.errorbar(world_sizes, middle, [low, high], color=colour, marker="o", capsize=3, label=label)


def from_zero(axes: Axes) -> None:
    axes.set_ylim(bottom=0)


def log_scale(axes: Axes) -> None:
    """Make y logarithmic, with labels at 1, 2 and 5 times the powers of ten."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda y, _: short(y))


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.24 * math.ceil(len(labels) / columns))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def short(number: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{letter}"
    return f"{number:g}"


def draw(name: str, caption: str, paint: Callable[[Axes], Any]) -> Plot:
    """Draw one further figure in the same style, painted by its owner."""
    with style():
        figure, axes = panel()
        paint(axes)
    return Plot(name, caption, figure)
