"""How does a chart become a PNG? Pillow, which TensorBoard needs too, draws the few shapes that Chart.svg writes.

The chart is drawn at several times its size and then made smaller, so that edges are smooth. Colours are those of
chart.css for light pages.
"""

import io
import itertools
import math
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any
from xml.etree import ElementTree

from ddppo.errors import ConfigError
from ddppo.study.page.chart import Chart, stylesheet

_SCALE = 3  # pixels of the picture for a unit of the SVG
_FINER = 2  # the drawing is larger than the picture by this factor
_BAND, _SEED = 0.16, 0.35  # opacities, as in chart.css
_DASH = (5.0, 4.0)  # units drawn and left out
_SIZES = {"title": 13}  # of letters; 11 elsewhere
_ANCHORS = {"mid": "ms", "end": "rs"}  # Pillow's names of middle and right, on the baseline

# Letters that Pillow's font lacks.
_LETTERS = str.maketrans(
    {"–": "-", "—": "-", "−": "-", "…": "...", "≥": ">=", "≤": "<=", "²": "^2", "µ": "u", "×": "x"}
)

Point = tuple[float, float]


def png(chart: Chart) -> bytes:
    """Return the picture of a chart as PNG, 1,200 pixels wide. Raises ConfigError if Pillow is not installed."""
    root = ElementTree.fromstring(chart.svg())
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    drawing = _Drawing(width, height)
    for element in root:
        drawing.draw(element, (0.0, 0.0))
    return drawing.bytes()


class _Drawing:
    """A picture on which the shapes of a chart are drawn, in their order."""

    def __init__(self, width: float, height: float) -> None:
        try:
            from PIL import Image
        except ImportError as e:
            raise ConfigError("a PNG needs Pillow: pip install pillow, or write .svg or .html") from e
        self._pil = Image
        self._k = _SCALE * _FINER
        self._image = Image.new(
            "RGBA", (round(width * self._k), round(height * self._k)), self._colour("ground")
        )
        self._fonts: dict[int, Any] = {}

    def bytes(self) -> bytes:
        size = (self._image.width // _FINER, self._image.height // _FINER)
        small = self._image.convert("RGB").resize(size, self._pil.Resampling.LANCZOS)
        file = io.BytesIO()
        small.save(file, "PNG", optimize=True)
        return file.getvalue()

    def draw(self, element: ElementTree.Element, at: Point) -> None:
        """Draw an element and those in it; `at` is the origin of its coordinates."""
        kind, given = element.tag, element.attrib
        classes = given.get("class", "").split()
        moved = re.match(r"translate\((\S+) (\S+)\)", given.get("transform", ""))
        if moved:
            at = (at[0] + float(moved[1]), at[1] + float(moved[2]))
        if kind == "g":
            for inner in element:
                self.draw(inner, at)
        elif kind == "text":
            self._text(element, at, classes)
        elif kind == "path":
            self._path(given["d"], at, classes)
        elif kind == "polygon":
            points = [tuple(map(float, pair.split(","))) for pair in given["points"].split()]
            self._area([(x + at[0], y + at[1]) for x, y in points], self._of(classes), _BAND)
        elif kind == "rect":
            x, y, w, h = (float(given[name]) for name in ("x", "y", "width", "height"))
            box = [(x, y), (x + w, y), (x + w, y + h), (x, y + h)]
            self._area([(a + at[0], b + at[1]) for a, b in box], self._of(classes), 1.0)
        elif kind == "circle":
            centre = (float(given.get("cx", 0)) + at[0], float(given.get("cy", 0)) + at[1])
            self._circle(centre, float(given["r"]), classes)
        else:
            raise AssertionError(f"Chart.svg wrote <{kind}>, which png.py does not draw")

    # -- Colours.

    @cached_property
    def _colours(self) -> dict[str, str]:
        return dict(re.findall(r"--(\w+): (#\w+)", stylesheet("chart.css").split("@media")[0]))

    def _colour(self, name: str) -> tuple[int, int, int, int]:
        from PIL.ImageColor import getrgb

        red, green, blue = getrgb(self._colours[name])[:3]
        return red, green, blue, 255

    def _of(self, classes: list[str]) -> tuple[int, int, int, int]:
        name = next((name for name in classes if name in self._colours), "ink")
        return self._colour("soft" if "axis" in classes or "note" in classes else name)

    # -- Shapes.

    def _pixels(self, points: list[Point]) -> list[Point]:
        return [(x * self._k, y * self._k) for x, y in points]

    def _pen(self) -> Any:
        from PIL import ImageDraw

        return ImageDraw.Draw(self._image)

    def _path(self, path: str, at: Point, classes: list[str]) -> None:
        width = 2.0 if "line" in classes else 1.0
        width = 1.0 if "thin" in classes else 1.5 if "dashed" in classes else width
        colour, pen = self._of(classes), self._pen()
        for line in _polylines(path):
            points = [(x + at[0], y + at[1]) for x, y in line]
            for piece in _dashes(points) if "dashed" in classes else [points]:
                if len(piece) > 1:
                    pen.line(self._pixels(piece), fill=colour, width=round(width * self._k), joint="curve")

    def _area(self, points: list[Point], colour: tuple[int, int, int, int], opacity: float) -> None:
        from PIL import ImageDraw

        if len(points) < 3:
            return
        over = self._pil.new("RGBA", self._image.size, (0, 0, 0, 0))
        ImageDraw.Draw(over).polygon(self._pixels(points), fill=(*colour[:3], round(255 * opacity)))
        self._image.alpha_composite(over)

    def _circle(self, centre: Point, radius: float, classes: list[str]) -> None:
        (x, y), r = self._pixels([centre])[0], radius * self._k
        colour = self._of(classes)
        if "seed" in classes:
            around = [
                (centre[0] + radius * math.cos(a / 8), centre[1] + radius * math.sin(a / 8))
                for a in range(51)
            ]
            self._area(around, colour, _SEED)
            self._pen().ellipse((x - r, y - r, x + r, y + r), outline=colour, width=round(0.7 * self._k))
        else:
            outline = self._colour("ground")
            self._pen().ellipse((x - r, y - r, x + r, y + r), fill=colour, outline=outline, width=self._k)

    def _text(self, element: ElementTree.Element, at: Point, classes: list[str]) -> None:
        from PIL import ImageDraw

        text = (element.text or "").translate(_LETTERS)
        size = next((_SIZES[name] for name in classes if name in _SIZES), 11)
        anchor = next((_ANCHORS[name] for name in classes if name in _ANCHORS), "ls")
        x, y = float(element.get("x", 0)) + at[0], float(element.get("y", 0)) + at[1]
        font, place = self._font(size), self._pixels([(x, y)])[0]
        if "rotate" not in element.get("transform", ""):
            self._pen().text(place, text, fill=self._of(classes), font=font, anchor=anchor)
            return
        # A label of the y axis: written on a picture of its own, which is then turned by 90 degrees.
        long, high = math.ceil(font.getlength(text)), 2 * size * self._k
        label = self._pil.new("RGBA", (long, high), (0, 0, 0, 0))
        ImageDraw.Draw(label).text((long / 2, high / 2), text, fill=self._of(classes), font=font, anchor="ms")
        turned = label.rotate(90, expand=True)
        corner = (round(place[0] - high / 2), round(place[1] - long / 2))
        self._image.alpha_composite(turned, (max(corner[0], 0), max(corner[1], 0)))

    def _font(self, size: int) -> Any:
        from PIL import ImageFont

        if size not in self._fonts:
            self._fonts[size] = ImageFont.load_default(size * self._k)
        return self._fonts[size]


def _polylines(path: str) -> Iterator[list[Point]]:
    """Yield the connected lines of an SVG path of M, L, H, V and h."""
    line: list[Point] = []
    for letter, text in re.findall(r"([MLHVh])([^MLHVh]*)", path):
        numbers = [float(number) for number in text.split()]
        x, y = line[-1] if line else (0.0, 0.0)
        if letter == "M":
            if line:
                yield line
            line = []
        if letter in "ML":
            x, y = numbers
        elif letter == "V":
            (y,) = numbers
        else:
            x = numbers[0] + (x if letter == "h" else 0.0)
        line.append((x, y))
    if line:
        yield line


def _dashes(points: list[Point]) -> Iterator[list[Point]]:
    """Yield the drawn pieces of a dashed line."""
    done = 0.0  # length so far
    period = sum(_DASH)
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        length = math.hypot(x1 - x0, y1 - y0)
        at = 0.0
        while at < length:
            phase = (done + at) % period
            is_drawn = phase < _DASH[0]
            step = min((_DASH[0] if is_drawn else period) - phase + 1e-9, length - at)
            if is_drawn:
                ends = [(x0 + (x1 - x0) * s / length, y0 + (y1 - y0) * s / length) for s in (at, at + step)]
                yield ends
            at += step
        done += length
