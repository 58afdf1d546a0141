"""Pictures of a game: the network by subnet, the hosts that Red holds, Blue's assessment, and the last actions.

`scene` reads a game. `as_text` is for the terminal, `as_svg` for a page and `as_pixels` for a film; the latter two draw
the same shapes. Subnets stand in the order in which Red crosses them, from the users to the operational server.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

import numpy as np

from ddppo.domains.cage2.games import Games
from ddppo.domains.cage2.rules import (
    ACTIONS,
    DOWN_TENTHS,
    ENTERPRISE,
    ESCALATE,
    EXPLOIT,
    HOSTS,
    IMPACT,
    NOBODY,
    OPERATIONAL,
    SCAN,
    SLEEP,
    SWEEP,
    USER,
)

TRUTH = ("", "user", "root")  # by Games.compromised: what Red has on a host
_OPERATIONS = {
    SLEEP: "sleep", SWEEP: "sweep of subnet", SCAN: "scan of", EXPLOIT: "exploit of", ESCALATE: "escalation on",
    IMPACT: "impact on",
}  # fmt: skip
# Blue's assessment, by the two bits of the observation.
_BELIEFS = {(0, 0): "clean", (1, 0): "unknown", (0, 1): "user", (1, 1): "root"}
_SUBNETS = (USER, ENTERPRISE, OPERATIONAL)


@dataclass(frozen=True, slots=True)
class HostView:
    """One host."""

    name: str
    subnet: str
    truth: int  # Games.compromised: index into TRUTH
    belief: str  # Blue's
    activity: str  # that Blue observes: "", "scan" or "exploit"
    num_decoys: int  # ports that decoys hold open


@dataclass(frozen=True, slots=True)
class Scene:
    """What a picture shows."""

    time: int  # steps done
    num_steps: int  # of an episode
    hosts: tuple[HostView, ...]
    blue: str  # action of the last step; "" before the first
    red: str
    blue_target: int  # index of the host of Blue's action, NOBODY for none
    red_target: int
    is_down: bool  # OTService
    rewards: tuple[float, ...]  # of the game alone, for each step so far

    @property
    def heading(self) -> str:
        last = f", last step {self.rewards[-1]:.1f}" if self.rewards else ""
        down = f"down: {-DOWN_TENTHS / 10:g} a step" if self.is_down else "up"
        score = round(sum(self.rewards), 1) or 0.0  # not -0.0
        return f"step {self.time} of {self.num_steps} · score {score:.1f}{last} · OTService {down}"


def scene(games: Games, actions: Sequence[int], rewards: Sequence[float], num_steps: int) -> Scene:
    """Return the scene of the first of `games`, after Blue's `actions` with these `rewards`."""
    state, obs = games.state_of, games.obs[0].astype(int).reshape(-1, 4)
    truth = games.compromised[0]
    hosts = tuple(
        HostView(
            host.name,
            host.subnet,
            int(truth[h]),
            _BELIEFS[int(obs[h, 2]), int(obs[h, 3])],
            ("", "exploit", "scan")[0 if not obs[h, 0] else 1 + (not obs[h, 1])],
            int(state.decoys[0, h]).bit_count(),
        )
        for h, host in enumerate(HOSTS)
    )
    blue = ACTIONS[actions[-1]] if len(actions) else ""
    blue_target = next((h for h, host in enumerate(HOSTS) if blue.endswith(f" {host.name}")), NOBODY)
    operation, target = int(state.operation[0]), int(state.target[0])
    # Before the first step Red has done nothing, and its sleep has no host.
    acts = bool(actions) and operation != SLEEP and target < NOBODY
    red = ""
    if actions:
        place = f" {HOSTS[target].subnet if operation == SWEEP else HOSTS[target].name}" if acts else ""
        red = f"{_OPERATIONS[operation]}{place}{'' if state.success[0] or not acts else ' (failed)'}"
    red_target = target if acts else NOBODY
    down = bool(state.down[0])
    return Scene(
        int(state.time[0]), num_steps, hosts, blue, red, blue_target, red_target, down, tuple(rewards)
    )


def as_text(scene: Scene) -> str:
    """Return the scene for a terminal of 110 columns: a column for each subnet, a line for each host.

    B and R mark the hosts of the last actions.
    """
    lines = [scene.heading, f"Blue: {scene.blue or '-'}", f"Red:  {scene.red or '-'}", ""]
    columns = [[subnet, "-" * 34, *_cells(scene, subnet)] for subnet in _SUBNETS]
    for row in range(max(map(len, columns))):
        cells = [column[row] if row < len(column) else "" for column in columns]
        lines.append("  ".join(f"{cell:<34}" for cell in cells).rstrip())
    lines += [
        "",
        "[user], [root]: sessions of Red; after them Blue's assessment, where it differs; 1d: a decoy",
    ]
    return "\n".join(lines)


def _cells(scene: Scene, subnet: str) -> list[str]:
    cells = []
    for h, host in enumerate(scene.hosts):
        if host.subnet != subnet:
            continue
        marks = ("B" if h == scene.blue_target else " ") + ("R" if h == scene.red_target else " ")
        held = f" [{TRUTH[host.truth]}]" if host.truth else ""
        differs = host.belief != (TRUTH[host.truth] or "clean")
        believed = f" {host.belief}?" if differs else ""
        decoys = f" {host.num_decoys}d" if host.num_decoys else ""
        cells.append(f"{marks} {host.name}{held}{believed}{decoys}")
    return cells


# -- Shapes, in pixels: (x, y, width, height, fill, outline, width of the outline) and (x, y, text, size, fill).

Box: TypeAlias = tuple[float, float, float, float, str, str, int]
Label: TypeAlias = tuple[float, float, str, int, str]

WIDTH, HEIGHT = 940, 540
_DARK, _LINE, _PALE, _BLUE, _RED = "#1f2933", "#c3ccd5", "#f4f6f8", "#1769c2", "#c22f2f"
_FILLS = ("#ffffff", "#f7c873", "#ef8a80")  # by truth
_TOP, _PANEL_WIDTH, _ROW, _STRIP = 76, 300, 62, 70  # _STRIP: height of the rewards at the bottom


def shapes(scene: Scene) -> tuple[list[Box], list[Label]]:
    """Return the boxes and labels of the picture, in the order in which they are drawn."""
    boxes: list[Box] = [(0, 0, WIDTH, HEIGHT, "#ffffff", "#ffffff", 0)]
    labels: list[Label] = [(12, 20, scene.heading, 16, _DARK)]
    labels += [
        (12, 44, f"Blue: {scene.blue or '-'}", 14, _BLUE),
        (340, 44, f"Red: {scene.red or '-'}", 14, _RED),
    ]
    bottom = HEIGHT - _STRIP - 34
    for column, subnet in enumerate(_SUBNETS):
        left = 12 + column * (_PANEL_WIDTH + 8)
        boxes.append((left, _TOP - 10, _PANEL_WIDTH, bottom - _TOP + 10, _PALE, _LINE, 1))
        labels.append((left + 10, _TOP + 6, subnet, 14, _DARK))
        inside = [h for h, host in enumerate(scene.hosts) if host.subnet == subnet]
        for row, h in enumerate(inside):
            _draw_host(scene, h, left + 10, _TOP + 22 + row * _ROW, boxes, labels)
    # A bar for each step: the points that it cost.
    most = max([1.0, *(-reward for reward in scene.rewards)])
    labels.append((12, bottom + 16, f"points lost in each step, to {most:.1f}", 12, _DARK))
    wide = (WIDTH - 24) / max(scene.num_steps, 1)
    for step, reward in enumerate(scene.rewards):
        tall = -reward / most * _STRIP
        if tall > 0:
            boxes.append((12 + step * wide, HEIGHT - 8 - tall, max(wide - 1, 1), tall, _RED, _RED, 0))
    boxes.append((12, HEIGHT - 8, WIDTH - 24, 1, _LINE, _LINE, 0))
    return boxes, labels


def _draw_host(scene: Scene, h: int, x: float, y: float, boxes: list[Box], labels: list[Label]) -> None:
    host = scene.hosts[h]
    boxes.append((x, y, _PANEL_WIDTH - 20, _ROW - 8, _FILLS[host.truth], _LINE, 1))
    # An outline for the host of an action; Red's outside, so that both can be seen.
    if h == scene.red_target:
        boxes.append((x - 2, y - 2, _PANEL_WIDTH - 16, _ROW - 4, "none", _RED, 2))
    if h == scene.blue_target:
        boxes.append((x + 2, y + 2, _PANEL_WIDTH - 24, _ROW - 12, "none", _BLUE, 2))
    labels.append((x + 10, y + 17, host.name, 14, _DARK))
    if host.truth:
        labels.append((x + 120, y + 17, f"Red: {TRUTH[host.truth]} session", 13, _DARK))
    seen = f", {host.activity}" if host.activity else ""
    decoys = f" · decoys: {host.num_decoys}" if host.num_decoys else ""
    labels.append((x + 10, y + 38, f"Blue sees {host.belief}{seen}{decoys}", 12, _DARK))


def as_svg(scene: Scene) -> str:
    """Return the scene as an SVG element."""
    boxes, labels = shapes(scene)
    drawn = [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" fill="{fill}" stroke="{line}" '
        f'stroke-width="{thick}"/>'
        for x, y, w, h, fill, line, thick in boxes
    ]
    drawn += [
        f'<text x="{x:.0f}" y="{y + size * 0.35:.1f}" font-size="{size}" fill="{fill}">{escape(text)}</text>'
        for x, y, text, size, fill in labels
    ]
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg" '
    return f'{head}font-family="system-ui, sans-serif">{"".join(drawn)}</svg>'


def as_pixels(scene: Scene) -> np.ndarray:
    """Return the scene as a picture [HEIGHT, WIDTH, 3] uint8. Needs Pillow, of the extra `video`."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw = ImageDraw.Draw(image)
    boxes, labels = shapes(scene)
    for x, y, w, h, fill, line, thick in boxes:
        inside = None if fill == "none" else fill
        draw.rectangle((x, y, x + w, y + h), inside, line if thick else None, thick)
    for x, y, text, size, colour in labels:
        draw.text((x, y), text, colour, ImageFont.load_default(size), anchor="lm")
    return np.array(image)
