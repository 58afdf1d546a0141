"""Graphs of topologies: what is drawn of a layout, and that the docs show it as it is."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from ddppo.distributed.topologies.contract import Layout, Message, Role, Sizes
from ddppo.distributed.topologies.drawing import as_mermaid, as_svg, as_text
from ddppo.distributed.topologies.known import TOPOLOGIES
from ddppo.fragments import fragments
from ddppo.launch.arguments import composed
from tests.support import CHECKOUT, PATIENCE_S

SIZES = Sizes(96, 32, 20, 16, 16, 8, 36_600, 4)
DOCS = (CHECKOUT / "docs" / "topology_graphs.md").read_text()
GRAPHS = re.findall(r"## (\w+)[^\n]*\n(?:With `([^`]*)`\.\n)?\n!\[.*\]\((pictures/\w+\.svg)\)", DOCS)
ABOVE, OF_LETTER = (
    12,
    0.62,
)  # px that a text rises above its line, and em that a letter of the page's font takes


def role(name, ranks, **does):
    return Role(name, ranks, **{"steps": False, "acts": False, "learns": False} | does, does=("wait",))


THREE = Layout(
    (
        role("learner", (0, 4), learns=True),
        role("actor", (1, 5), acts=True),
        role("environments", (2, 3, 6, 7), steps=True),
    ),
    (
        Message("rollout", "actor", "learner", "send", 1, 10**6),
        Message("results of a step", "environments", "actor", "gather", 128, 225),
        Message("gradients", "actor", "actor", "sum", 20, 10**5),
        Message("moments", "environments", "environments", "sum", 1, 64),
    ),
)
LAYOUTS = {"three roles": THREE} | {
    f"{name}, W={world_size}": topology.of(world_size, SIZES)
    for name, topology in TOPOLOGIES.items()
    for world_size in (2, 33 if name != "multi_learner" else 32)
}


@pytest.mark.parametrize(("name", "settings", "picture"), GRAPHS, ids=[picture for *_, picture in GRAPHS])
def test_the_docs_show_the_graph_that_the_command_draws(name, settings, picture):
    sizes = ["env=cartpole", "dist.world_size=5", "env.num_envs=20"]
    config = composed([*sizes, f"distributed={name}", *settings.split()])
    drawn = as_svg(fragments(config), f"{name}, W={config.dist.world_size}, CartPole-v1")
    assert (CHECKOUT / "docs" / picture).read_text() == drawn, "python docs/pictures/make.py topologies"


def test_the_docs_show_every_topology():
    assert list(dict.fromkeys(name for name, *_ in GRAPHS)) == list(TOPOLOGIES)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_texts_of_a_picture_are_inside_and_apart(layout):
    picture = ET.fromstring(as_svg(layout, "a title"))
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    boxes = []
    for text in picture.iter("{http://www.w3.org/2000/svg}text"):
        assert text.text
        size = 12 if text.get("class") == "q" else 14
        length = OF_LETTER * size * len(text.text)
        shift = {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor", "start")]
        left, base = float(text.attrib["x"]) - shift * length, float(text.attrib["y"])
        boxes.append((left, left + length, base - ABOVE, base))
    for k, (left, right, top, base) in enumerate(boxes):
        assert left >= 0
        assert right <= width
        assert base <= height
        for other in boxes[:k]:
            assert left >= other[1] or right <= other[0] or top >= other[3] or base <= other[2]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_text_says_what_each_role_runs_and_what_travels(layout):
    said = as_text(layout, "a title")
    assert all(step in said for each in layout.roles for step in each.does)
    assert all(f"{message.source} -> {message.target}" in said for message in layout.messages)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_graph_for_mermaid_has_each_role_and_each_message(layout):
    lines = [line.strip() for line in as_mermaid(layout).splitlines()]
    assert lines[0] == "flowchart LR"
    assert all(any(line.startswith(f'{each.name}["') for line in lines) for each in layout.roles)
    sent = re.findall(r"^(\w+) -->\|.*\| (\w+)$", "\n".join(lines), re.MULTILINE)
    assert sorted(sent) == sorted((message.source, message.target) for message in layout.messages)


def test_the_door_prints_them():
    command = [sys.executable, "-m", "ddppo.fragments", "distributed=sync_actors", "format=svg"]
    said = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert said.returncode == 0, said.stderr
    assert "<title>sync_actors, W=3, CartPole-v1</title>" in said.stdout


def test_ranks_that_step_tasks_of_text_exchange_turns_instead_of_steps():
    layout = TOPOLOGIES["env_workers"].of(3, SIZES._replace(num_envs=10, turns=6, turn_bytes=100))
    turns, answers = layout.messages
    assert (turns.what, turns.times, turns.num_bytes) == ("turns of text", 7, 10 * 100)  # 7: the prompts too
    assert (answers.what, answers.times, answers.num_bytes) == ("answers", 7, 5 * SIZES.raw_obs_bytes)
    assert [role.ranks for role in layout.roles] == [(0,), (1, 2)]
