"""A circuit drawn as pixels, where no SVG is shown: as `drawing` lays it out. Needs Pillow."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddppo.domains.circuits.quantum.circuit import CX, RZ, Circuit
from ddppo.domains.circuits.quantum.drawing import (
    BOX,
    WIRE_GAP,
    Placed,
    gate_width,
    label,
    picture,
    wire_names,
)

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

_WHITE, _DARK, _WIRE = "#ffffff", "#222222", "#777777"
_BLUE, _RED = ("#0072b2", "#f5f8fb"), ("#d55e00", "#fdf4ec")  # edge and inside of h and x, and of rz
_LETTERS = 12  # their height in pixels
_PI = 8  # its width


def as_pixels(
    circuit: Circuit, names: Sequence[str] | None = None, title: str = "", width: int = 1100
) -> np.ndarray:
    """Return a picture [H, W, 3] uint8 of at most `width` pixels, unless one gate is wider."""
    from PIL import Image, ImageDraw, ImageFont

    names = wire_names(circuit, names)
    total_width, total_height, left, lines, gates = picture(circuit, names, width)
    image = Image.new("RGB", (max(total_width, 8 * len(title)), total_height), _WHITE)
    draw = ImageDraw.Draw(image)
    draw.font = ImageFont.load_default(_LETTERS)
    draw.text((8, 6), title, _DARK, anchor="lm")
    for top, end in lines:
        for wire, name in enumerate(names):
            y = top + WIRE_GAP * wire
            draw.text((8, y), name, _DARK, anchor="lm")
            draw.line((left, y, end, y), _WIRE)
    for placed in gates:
        _draw_gate(draw, placed)
    return np.array(image)


def _draw_gate(draw: "ImageDraw", placed: Placed) -> None:
    _, gate, x, top = placed
    y = top + WIRE_GAP * gate.wires[-1]
    if gate.kind == CX:
        control = top + WIRE_GAP * gate.wires[0]
        draw.line((x, control, x, y), _DARK)
        draw.circle((x, control), 4, _DARK)
        draw.circle((x, y), 9, _WHITE, _DARK)
        draw.line((x - 9, y, x + 9, y), _DARK)
        draw.line((x, y - 9, x, y + 9), _DARK)
    else:
        edge, inside = _RED if gate.kind == RZ else _BLUE
        half = gate_width(gate) / 2
        draw.rounded_rectangle((x - half, y - BOX / 2, x + half, y + BOX / 2), 3, inside, edge)
        _write(draw, label(gate), x, y)


def _write(draw: "ImageDraw", said: str, x: float, y: float) -> None:
    """Write text about (x, y). Pillow's own font has no π, which is drawn."""
    parts = [(part, draw.textlength(part)) for part in said.partition("π") if part]
    at = x - sum(_PI if part == "π" else length for part, length in parts) / 2
    for part, length in parts:
        if part == "π":
            draw.line((at, y - 2, at + 6, y - 2), _DARK)
            for leg in (1.5, 4.5):
                draw.line((at + leg, y - 2, at + leg, y + 4), _DARK)
            at += _PI
        else:
            draw.text((at, y), part, _DARK, anchor="lm")
            at += length
