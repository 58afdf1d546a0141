"""Redraw docs/design.svg from the imports of the package, and set the line numbers of docs/design.md's links.

    python docs/design.py

tests/unit/test_design_page.py fails if the picture or a link is out of date. A link is `[qualified.name](path#L1)`:
the name is that of a class, function or constant of the file.
"""

import ast
import re
import sys
import textwrap
from html import escape
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
sys.path.insert(0, str(CHECKOUT))

from tests.unit.test_layers import MODULES, ORDER, imports, subject  # noqa: E402

PAGE, PICTURE = CHECKOUT / "docs" / "design.md", CHECKOUT / "docs" / "design.svg"
_LINK = re.compile(r"\[`?([\w.]+)`?\]\((\.\./[\w/.]+\.(?:py|cpp|hpp|c))#L\d+\)")

# -- Links.


def line_of(path: Path, name: str) -> int:
    """Return the line on which `name`, such as Collector.collect or BETAS, is defined. Raises KeyError."""
    if path.suffix != ".py":
        pattern = re.compile(rf"\b{re.escape(name.rpartition('.')[2])}\(")
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if pattern.search(line):
                return number
        raise KeyError(f"{path} has no {name}")
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    node: ast.stmt | None = None
    for part in name.split("."):
        node = next((n for n in body if part in _names(n)), None)
        if node is None:
            raise KeyError(f"{path} has no {name}")
        body = getattr(node, "body", [])
    assert node is not None
    return node.lineno


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [t.id for t in node.targets if isinstance(t, ast.Name)]
    return [node.target.id] if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else []


def with_line_numbers(page: str) -> str:
    """Return the page with the line of every link as it is now."""

    def link(match: re.Match[str]) -> str:
        name, path = match.groups()
        return f"[`{name}`]({path}#L{line_of((PAGE.parent / path).resolve(), name)})"

    return _LINK.sub(link, page)


# -- The picture: the core from top to bottom in the order of imports, the wings beside it. An arrow is an import that
# does not follow from others.

_WIDTH, _HEIGHT, _LEFT, _STEP = 250, 70, 60, 100  # of a box; between boxes from top to bottom
_CORE = [
    ["commands"],
    ["launch", "policies"],
    ["loop"],
    ["records"],
    ["distributed"],
    ["algorithms"],
    ["ppo"],
    ["models", "envs"],
    ["collectives", "config"],
]
_BESIDE = {"domains": 0.0, "study": 1.0, "cluster": 2.0, "serve": 6.0, "search": 8.0}  # and their rows
_WINGS = ("domains", "study", "cluster", "serve")  # the core imports none of them
_GROUND = sorted({*ORDER[0], "options"} - {"__init__"})  # nearly everything imports these: one box, no arrows
_MAIN_PATH = ("launch", "loop", "ppo")


def graph() -> dict[str, set[str]]:
    """Return the subjects that each subject imports, but for the ground."""
    found: dict[str, set[str]] = {name: set() for row in _CORE for name in row} | {
        name: set() for name in _BESIDE
    }
    for module in MODULES:
        # A launcher or sweeper that Hydra finds (_plugins) belongs to the folder that holds it.
        own = module.split(".")[0] if "._plugins." in module else _box(subject(module))
        if own in found:
            found[own] |= {_box(subject(other)) for other in imports(module)} & found.keys() - {own}
    found["commands"] -= {*_WINGS}
    return found


def _box(name: str) -> str:
    return "config" if name == "declarations" else name


def arrows(edges: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return the imports that do not follow from others."""

    def reached(name: str) -> set[str]:
        return set().union(*({other} | reached(other) for other in edges[name]))

    return sorted(
        (name, other)
        for name in edges
        for other in edges[name]
        if not any(other in reached(between) for between in edges[name] - {other})
    )


def picture() -> str:
    """Return the SVG."""
    at: dict[str, tuple[float, float]] = {}
    for i, row in enumerate(_CORE):
        for k, name in enumerate(row):
            at[name] = (_LEFT + k * (_WIDTH + 30), 10 + i * _STEP)
    at |= {name: (_LEFT + 2.4 * (_WIDTH + 30), 10 + row * _STEP) for name, row in _BESIDE.items()}
    width, height = _LEFT + 3.5 * (_WIDTH + 30), 10 + len(_CORE) * _STEP + 56
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" font-family="sans-serif">',
        '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#667"/></marker></defs>',
        f'<rect width="{width:g}" height="{height}" fill="#fff"/>',
    ]
    for name, other in arrows(graph()):
        (x1, y1), (x2, y2) = at[name], at[other]
        if (
            name in _BESIDE and other not in _BESIDE
        ):  # from the left side of a wing to the right side of a box
            start, end = (x1, y1 + _HEIGHT / 2), (x2 + _WIDTH, y2 + _HEIGHT / 2)
            bend = (-90.0, 0.0)
        elif name in _BESIDE:  # from one wing to another
            start, end = (x1 + _WIDTH, y1 + _HEIGHT / 2), (x2 + _WIDTH, y2 + _HEIGHT / 2)
            bend = (40.0, 0.0)
        elif x1 == x2 and y2 - y1 > _STEP:  # past the boxes between, on the left
            start, end = (x1, y1 + _HEIGHT / 2), (x2, y2 + _HEIGHT / 2)
            bend = (-50.0, 0.0)
        else:
            start, end = (x1 + _WIDTH / 2, y1 + _HEIGHT), (x2 + _WIDTH / 2, y2)
            bend = (0.0, 24.0)
        other_side = end[0] + (bend[0] if name not in _BESIDE or other in _BESIDE else -bend[0])
        out.append(
            f'<path d="M{start[0]:g} {start[1]:g}C{start[0] + bend[0]:g} {start[1] + bend[1]:g} '
            f'{other_side:g} {end[1] - bend[1]:g} {end[0]:g} {end[1]:g}" fill="none" stroke="#99a" '
            'stroke-width="1.4" marker-end="url(#a)"/>'
        )
    for name, (x, y) in at.items():
        color = "#ffe9b0" if name in _MAIN_PATH else "#e6f4e6" if name in _WINGS else "#e8eefc"
        out.append(
            f'<rect x="{x:g}" y="{y:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="{color}" stroke="#557"/>'
        )
        out.append(f'<text x="{x + 10:g}" y="{y + 19:g}" font-size="15" font-weight="bold">{name}</text>')
        for k, line in enumerate(textwrap.wrap(_says(name), 41)[:3]):
            out.append(f'<text x="{x + 10:g}" y="{y + 35 + 14 * k:g}" font-size="11">{escape(line)}</text>')
    y = height - 50
    out.append(
        f'<rect x="{_LEFT}" y="{y}" width="{width - 2 * _LEFT:g}" height="30" rx="6" fill="#eee" stroke="#557"/>'
    )
    ground = f"ground, for all of them: {', '.join(_GROUND)}"
    out.append(f'<text x="{_LEFT + 10}" y="{y + 20}" font-size="12">{escape(ground)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def _says(name: str) -> str:
    """Return the first sentence of a package's docstring."""
    if name == "commands":
        return "python -m ddppo.train and its kin: one thin file each."
    tree = ast.parse((CHECKOUT / "ddppo" / name / "__init__.py").read_text())
    return re.split(r"(?<=\.)\s", (ast.get_docstring(tree) or "").strip())[0]


if __name__ == "__main__":
    PAGE.write_text(with_line_numbers(PAGE.read_text()))
    PICTURE.write_text(picture())
