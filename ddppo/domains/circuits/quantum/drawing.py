"""Pictures of circuits: as text, as SVG, and as pixels for TensorBoard, which shows no SVG."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddppo.domains.circuits.quantum.circuit import CX, KINDS, RZ, Circuit, Gate, shown

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw


# -- Text and SVG: a line for each qubit, time from left to right. A picture that is too wide continues below. -------


WIRE_GAP, BOX, _COLUMN_GAP = 40, 26, 12  # pixels of the SVG
_LETTER = 7.4  # width of a letter, in pixels


class Column(NamedTuple):
    """Gates that are drawn above one another."""

    gates: list[Gate]
    numbers: list[int]  # their positions in the circuit


def columns(circuit: Circuit) -> list[Column]:
    """Return the columns of the picture, with each gate as far left as possible.

    A cx takes all wires between its two, because its line crosses them.
    """
    free_at = [0] * circuit.num_qubits
    found: list[Column] = []
    for number, gate in enumerate(circuit):
        span = range(min(gate.wires), max(gate.wires) + 1)
        at = max(free_at[wire] for wire in span)
        for wire in span:
            free_at[wire] = at + 1
        if at == len(found):
            found.append(Column([], []))
        found[at].gates.append(gate)
        found[at].numbers.append(number)
    return found


def as_text(circuit: Circuit, names: Sequence[str] | None = None, width: int = 100) -> str:
    """Return the picture in box-drawing characters; (a) is rz(a). Lines exceed `width` only if a single gate does."""
    names = wire_names(circuit, names)
    indent = max(map(len, names)) + 2
    drawn = [_drawn(column, circuit.num_qubits) for column in columns(circuit)]
    blocks = _folded([len(lines[0]) for lines in drawn], width - indent - 1)
    pictures = []
    for first, last in blocks:
        lines = []
        for row in range(2 * circuit.num_qubits - 1):
            is_wire = row % 2 == 0
            label = names[row // 2] if is_wire else ""
            body = "".join(part[row] for part in drawn[first:last]) + ("─" if is_wire else "")
            lines.append(f"{label:<{indent}}{body}".rstrip())
        pictures.append("\n".join(lines))
    return "\n\n".join(pictures)


def _drawn(column: Column, num_qubits: int) -> list[str]:
    """Return the rows of a column, all of one width: even rows are wires, odd rows are the gaps between them."""
    # 1. The label of each wire with a gate, and the rows that the line of a cx crosses.
    labels = {}
    crossed: set[int] = set()
    for gate in column.gates:
        if gate.kind == CX:
            control, target = gate.wires
            labels[control], labels[target] = "●", "⊕"
            crossed |= set(range(2 * min(gate.wires) + 1, 2 * max(gate.wires)))
        else:
            labels[gate.wires[0]] = f"({shown(gate.angle)})" if gate.kind == RZ else KINDS[gate.kind].upper()
    # 2. Every row, padded to the longest label.
    width = max(map(len, labels.values()))
    rows = []
    for row in range(2 * num_qubits - 1):
        if row % 2 == 0:
            label = labels.get(row // 2, "┼" if row in crossed else "─")
            rows.append(f"─{label:─^{width}}─")
        else:
            rows.append(f" {'│' if row in crossed else ' ':^{width}} ")
    return rows


class Placed(NamedTuple):
    """A gate in a picture."""

    number: int  # position in the circuit
    gate: Gate
    x: float  # of its middle, in pixels
    top: int  # y of the highest wire of its line of the picture, in pixels


class Picture(NamedTuple):
    """The layout of a picture, in pixels."""

    width: int
    height: int
    left: int  # x at which wires begin
    lines: list[tuple[int, float]]  # y of the highest wire of each line, and x at which its wires end
    gates: list[Placed]


def picture(circuit: Circuit, names: Sequence[str], width: int) -> Picture:
    """Return the layout of a picture of at most `width` pixels, unless a single gate is wider."""
    # Columns are as wide as their widest gate; a line of the picture takes as many columns as fit.
    drawn = columns(circuit)
    widths = [max(gate_width(gate) for gate in column.gates) + _COLUMN_GAP for column in drawn]
    left = 16 + round(_LETTER * max(map(len, names)))
    line_height = WIRE_GAP * circuit.num_qubits + 20
    lines, gates = [], []
    for number, (first, last) in enumerate(_folded(widths, width - left - 16)):
        top = 30 + number * line_height
        lines.append((top, left + sum(widths[first:last]) + _COLUMN_GAP))
        starts = accumulate(widths[first:last], initial=left + _COLUMN_GAP / 2)
        for column, start, size in zip(drawn[first:last], starts, widths[first:last], strict=False):
            middle = start + size / 2
            gates += [Placed(*each, middle, top) for each in zip(column.numbers, column.gates, strict=True)]
    widest = max(end for _, end in lines)
    return Picture(round(widest + 16), 10 + line_height * len(lines), left, lines, gates)


def as_svg(circuit: Circuit, names: Sequence[str] | None = None, title: str = "", width: int = 1100) -> str:
    """Return an SVG of at most `width` pixels, unless a single gate is wider. Each gate has a tooltip."""
    names = wire_names(circuit, names)
    total_width, total_height, left, lines, gates = picture(circuit, names, width)
    # 1. Wires with their names, then gates on top of them.
    shapes = []
    for top, end in lines:
        for wire, name in enumerate(names):
            y = top + WIRE_GAP * wire
            shapes.append(f'<text x="8" y="{y + 4}">{escape(name)}</text><path d="M{left} {y}H{end:g}"/>')
    for number, gate, x, top in gates:
        shapes += _shapes(gate, f"gate {number}: {_described(gate, names)}", x, top)
    # 2. The SVG, with colours for light and dark mode.
    heading = title or f"{len(circuit)} gates on {circuit.num_qubits} qubits"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total_width} {total_height}" '
            f'width="{total_width}" height="{total_height}" role="img">',
            f"<title>{escape(heading)}</title>",
            "<style>:root{color-scheme:light dark}text{font:12px ui-monospace,monospace;fill:#222}"
            ".m{text-anchor:middle}path,circle{stroke:#555;fill:none;stroke-width:1.2}rect{stroke:#0072b2;fill:#f5f8fb}"
            ".r{stroke:#d55e00;fill:#fdf4ec}.c{fill:#222;stroke:#222}.t{fill:#fff;stroke:#222}.l{stroke:#222}"
            "@media(prefers-color-scheme:dark){text{fill:#eee}path,circle{stroke:#999}rect{fill:#1d2730}.r{fill:#33261a}"
            ".c{fill:#eee;stroke:#eee}.t{fill:#111;stroke:#eee}.l{stroke:#eee}}</style>",
            *shapes,
            "</svg>\n",
        ]
    )


def _shapes(gate: Gate, tooltip: str, x: float, top: int) -> Iterator[str]:
    y = top + WIRE_GAP * gate.wires[-1]
    yield f"<g><title>{escape(tooltip)}</title>"
    if gate.kind == CX:
        control = top + WIRE_GAP * gate.wires[0]
        yield f'<path class="l" d="M{x:g} {control}V{y}"/><circle class="c" cx="{x:g}" cy="{control}" r="4"/>'
        yield f'<circle class="t" cx="{x:g}" cy="{y}" r="9"/><path class="l" d="M{x - 9:g} {y}h18M{x:g} {y - 9}v18"/>'
    else:
        width, kind = gate_width(gate), ' class="r"' if gate.kind == RZ else ""
        yield f'<rect{kind} x="{x - width / 2:g}" y="{y - BOX / 2:g}" width="{width:g}" height="{BOX}" rx="3"/>'
        yield f'<text class="m" x="{x:g}" y="{y + 4}">{label(gate)}</text>'
    yield "</g>"


def label(gate: Gate) -> str:
    return shown(gate.angle) if gate.kind == RZ else KINDS[gate.kind].upper()


def gate_width(gate: Gate) -> float:
    return BOX if gate.kind == CX else max(BOX, 8 + _LETTER * len(label(gate)))


def _described(gate: Gate, names: Sequence[str]) -> str:
    angle = f"({shown(gate.angle)})" if gate.kind == RZ else ""
    return f"{KINDS[gate.kind]}{angle} {', '.join(names[wire] for wire in gate.wires)}"


def wire_names(circuit: Circuit, names: Sequence[str] | None) -> Sequence[str]:
    return names if names is not None else [f"q[{wire}]" for wire in range(circuit.num_qubits)]


def _folded(widths: Sequence[float], room: float) -> list[tuple[int, int]]:
    """Return the columns [first, last) of each line of the picture: as many as fit, at least one."""
    blocks: list[tuple[int, int]] = []
    first, used = 0, 0.0
    for at, width in enumerate(widths):
        if at > first and used + width > room:
            blocks.append((first, at))
            first, used = at, 0.0
        used += width
    return [*blocks, (first, len(widths))]


# -- Pixels, with the layout of the SVG. Needs Pillow. ---------------------------------------------------------------


_WHITE, _DARK, _WIRE = "#ffffff", "#222222", "#777777"
_BLUE, _RED = ("#0072b2", "#f5f8fb"), ("#d55e00", "#fdf4ec")  # edge and inside: of h and x; of rz
_MARKED = "#ffe680"  # inside of a marked gate
_LETTERS = 12  # height of letters, in pixels
_PI = 8  # width of π, in pixels


def as_pixels(
    circuit: Circuit,
    names: Sequence[str] | None = None,
    title: str = "",
    width: int = 1100,
    marked: Iterable[int] = (),
) -> np.ndarray:
    """Return a picture [H, W, 3] uint8 of at most `width` pixels, unless a single gate is wider.

    marked: positions of gates that are drawn in yellow.
    """
    from PIL import Image, ImageDraw, ImageFont

    names = wire_names(circuit, names)
    total_width, total_height, left, lines, gates = picture(circuit, names, width)
    # The title, then wires with their names, then gates on top of them.
    image = Image.new("RGB", (max(total_width, 8 * len(title)), total_height), _WHITE)
    draw = ImageDraw.Draw(image)
    draw.font = ImageFont.load_default(_LETTERS)
    draw.text((8, 6), title, _DARK, anchor="lm")
    for top, end in lines:
        for wire, name in enumerate(names):
            y = top + WIRE_GAP * wire
            draw.text((8, y), name, _DARK, anchor="lm")
            draw.line((left, y, end, y), _WIRE)
    of_mark = frozenset(marked)
    for placed in gates:
        _draw_gate(draw, placed, is_marked=placed.number in of_mark)
    return np.array(image)


def _draw_gate(draw: "ImageDraw", placed: Placed, *, is_marked: bool) -> None:
    _, gate, x, top = placed
    y = top + WIRE_GAP * gate.wires[-1]
    if gate.kind == CX:
        control = top + WIRE_GAP * gate.wires[0]
        draw.line((x, control, x, y), _DARK)
        draw.circle((x, control), 4, _DARK)
        draw.circle((x, y), 9, _MARKED if is_marked else _WHITE, _DARK)
        draw.line((x - 9, y, x + 9, y), _DARK)
        draw.line((x, y - 9, x, y + 9), _DARK)
    else:
        edge, inside = _RED if gate.kind == RZ else _BLUE
        half = gate_width(gate) / 2
        corners = (x - half, y - BOX / 2, x + half, y + BOX / 2)
        draw.rounded_rectangle(corners, 3, _MARKED if is_marked else inside, edge)
        _write(draw, label(gate), x, y)


def _write(draw: "ImageDraw", text: str, x: float, y: float) -> None:
    """Write text centred at (x, y). The font of Pillow has no π, so that letter is drawn."""
    parts = [(part, draw.textlength(part)) for part in text.partition("π") if part]
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
