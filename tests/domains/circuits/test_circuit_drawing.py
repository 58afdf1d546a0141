import random
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits.quantum import CX, RZ, Circuit, Gate, H, X
from ddppo.domains.circuits.quantum.benchmarks import benchmark
from ddppo.domains.circuits.quantum.circuit import TURN
from ddppo.domains.circuits.quantum.drawing import WIRE_GAP, as_pixels, as_svg, as_text, columns, picture
from ddppo.domains.circuits.task.env import CircuitEnv
from ddppo.errors import ConfigError
from tests.domains.circuits.circuit_oracle import random_circuit

SVG = "{http://www.w3.org/2000/svg}"


def test_a_small_circuit_is_drawn_as_one_would_by_hand():
    circuit = Circuit.from_gates(
        4, [Gate(H, (0,)), Gate(CX, (0, 2)), Gate(RZ, (2,), 7 * TURN // 8), Gate(X, (1,)), Gate(CX, (3, 2))]
    )
    assert as_text(circuit, ["a", "b", "c[0]", "c[1]"]).split("\n") == [
        "a     ─H──●─────────────",
        "          │",
        "b     ────┼────X────────",
        "          │",
        "c[0]  ────⊕──(-π/4)──⊕──",
        "                     │",
        "c[1]  ───────────────●──",
    ]


def test_no_gate_or_line_of_a_column_is_in_anothers_way():
    rng = random.Random(0)
    for _ in range(50):
        circuit = random_circuit(rng, 6, 50)
        drawn = columns(circuit)
        for column in drawn:
            spans = [set(range(min(gate.wires), max(gate.wires) + 1)) for gate in column.gates]
            assert sum(map(len, spans)) == len(set().union(*spans))
        in_order = [gate for column in drawn for gate in column.gates]
        assert Circuit.from_gates(6, in_order) == circuit


def test_a_long_circuit_is_folded_to_the_width():
    circuit = benchmark("vbe_adder_3")
    for width in (40, 80, 200):
        text = as_text(circuit, width=width)
        assert max(map(len, text.split("\n"))) <= width
        assert text.count("●") == text.count("⊕") == 70
        assert text.count("H") == 10
    assert as_text(Circuit.from_gates(2, [])) == "q[0]  ─\n\nq[1]  ─"


def test_a_picture_holds_every_gate_and_says_what_it_is():
    circuit = benchmark("barenco_tof_3")
    root = ElementTree.fromstring(as_svg(circuit, [f"a<{i}" for i in range(5)], width=500))
    groups = root.findall(f"{SVG}g")
    assert len(groups) == 58
    assert len(root.findall(f".//{SVG}rect")) == 58 - 24
    said = {group.findtext(f"{SVG}title") for group in groups}
    assert "gate 0: h a<4" in said
    assert any(re.fullmatch(r"gate \d+: cx a<3, a<4", title) for title in said)
    width, height = (float(root.get(name)) for name in ("width", "height"))
    assert width <= 500
    for shape in root.findall(f".//{SVG}rect") + root.findall(f".//{SVG}circle"):
        x, y = (float(shape.get(name) or shape.get(f"c{name}")) for name in ("x", "y"))
        assert 0 < x < width
        assert 0 < y < height


def test_pixels_show_what_the_svg_does():
    circuit = benchmark("tof_5")
    names = [f"q[{i}]" for i in range(9)]
    root = ElementTree.fromstring(as_svg(circuit, names, width=600))
    pixels = as_pixels(circuit, names, "tof_5", width=600)
    assert pixels.shape == (int(root.get("height")), int(root.get("width")), 3)
    assert pixels.dtype == np.uint8
    places = picture(circuit, names, 600).gates
    assert len(places) == 105
    for _, gate, x, top in places:
        edges = {CX: (9, (34, 34, 34)), RZ: (13, (213, 94, 0))}
        below, colour = edges.get(gate.kind, (13, (0, 114, 178)))
        assert tuple(pixels[top + WIRE_GAP * gate.wires[-1] + below, round(x)]) == colour


COMPILED = pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))


@COMPILED
def test_an_environment_draws_its_circuit_and_marks_what_the_last_rewrite_changed():
    pictures, texts = (CircuitEnv("tof_3", render_mode=mode) for mode in ("rgb_array", "ansi"))
    yellow = np.array([0xFF, 0xE6, 0x80], np.uint8)
    for env in (pictures, texts):
        env.reset(seed=0)
    assert not (pictures.render() == yellow).all(-1).any()
    assert texts.render().startswith("tof_3, rewrite 0: cost 45, 45 gates; least cost 45\n\nq[0]")
    for env in (pictures, texts):
        pairs = env.reset(seed=0)[0]["pairs"]
        env.step(int(np.argmax(pairs[:, 1] != env.rewriter.nop)))
    assert (pictures.render() == yellow).all(-1).any()
    assert texts.render().startswith(f"tof_3, rewrite 1: cost {len(texts.circuit)}")
    with pytest.raises(ConfigError, match="render_mode=window: one of human, ansi, rgb_array"):
        CircuitEnv("tof_3", render_mode="window")


@COMPILED
def test_for_a_person_it_draws_after_every_reset_and_step(capsys, monkeypatch):
    monkeypatch.setattr(CircuitEnv, "metadata", {**CircuitEnv.metadata, "render_fps": 1e6})
    env = CircuitEnv("tof_3", render_mode="human")
    env.reset(seed=0)
    env.step(1)
    said = capsys.readouterr().out
    assert [line.split(":")[0] for line in said.splitlines() if line.startswith("tof_3")] == [
        "tof_3, rewrite 0",
        "tof_3, rewrite 1",
    ]
    assert "\x1b" not in said
