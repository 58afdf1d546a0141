"""Quartz's files of equivalent circuit classes as rules, in both of their forms."""

import json
import random

import pytest

from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits.commands import run
from ddppo.domains.circuits.quantum.benchmarks import benchmark
from ddppo.domains.circuits.quantum.circuit import TURN
from ddppo.domains.circuits.quantum.ecc import _TEMPLATES, read
from ddppo.domains.circuits.quantum.equivalence import verify
from ddppo.domains.circuits.quantum.qasm_reader import parse
from ddppo.domains.circuits.quantum.qasm_reader import read as read_qasm
from ddppo.domains.circuits.quantum.rules import Rule, circuit, parsed_gates
from ddppo.domains.circuits.quantum.rules import read as read_rules
from ddppo.errors import ConfigError
from tests.domains.circuits.circuit_oracle import distance, matrix_of

needs_cpp = pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))


def gate(name, *wires):
    qubits = [wire for wire in wires if wire.startswith("Q")]
    return [name, qubits, list(wires)]


def sequence(*gates, qubits=1):
    return [[qubits, len(gates)], [gate(*each.split()) for each in gates]]


# Parameters stand in front: P2 = P0 + P1, P3 = -P0, P5 = pi/4, P6 = -pi/4, P7 = 2 P0, P8 = P0 + .25, P9 = pi/2.
NEW = [
    [[12, "", "", ["add", ["P2"], ["P0", "P1"]], ["neg", ["P3"], ["P0"]], 4, ["pi", ["P5"], ["P4"]],
      ["neg", ["P6"], ["P5"]], ["add", ["P7"], ["P0", "P0"]], 0.25, ["add", ["P9"], ["P0", "P8"]], 2,
      ["mult", ["P11"], ["P10", "P5"]]], [2, 0.5, 1.5]],
    {
        "0_2": [sequence("rz Q0 P0", "rz Q0 P1"), sequence("rz Q0 P2")],
        "1_3": [[[2, 0], []], sequence("h Q0", "h Q0"), sequence("cz Q0 Q1", "cz Q0 Q1", qubits=2)],
        "2_2": [sequence("x Q0", "rz Q0 P0"), sequence("rz Q0 P3", "x Q0")],
        "3_3": [sequence("t Q0", "t Q0"), sequence("rz Q0 P5", "rz Q0 P5"), sequence("s Q0"), sequence("rz Q0 P11")],
        "4_2": [sequence("h Q1", "cx Q0 Q1", "h Q1", qubits=2), sequence("h Q0", "cx Q1 Q0", "h Q0", qubits=2)],
        "5_2": [sequence("rz Q0 P0", "rz Q0 P0"), sequence("rz Q0 P7")],
        "6_2": [sequence("tdg Q0", "x Q0"), sequence("x Q0", "rz Q0 P5")],
        "7_2": [sequence("ccz Q0 Q1 Q2", qubits=3), sequence("ccz Q0 Q2 Q1", qubits=3)],
        "8_2": [sequence("sx Q0", "sx Q0"), sequence("x Q0")],
    },
]  # fmt: skip
# An older file: the circuit itself computes its parameters.
OLD = [
    [],
    {
        "0_2": [
            [[1, 1, 2, 2, ["a1"], [0.1, 0.2]], [["neg", ["P1"], ["P0"]], gate("rz", "Q0", "P1")]],
            [[1, 1, 1, 3, ["a1"], [0.1, 0.2]], [gate("x", "Q0"), gate("rz", "Q0", "P0"), gate("x", "Q0")]],
        ],
        "1_2": [
            [[1, 2, 3, 3, ["b"], [0.0, 0.0]], [["add", ["P2"], ["P0", "P1"]], gate("rx", "Q0", "P2")]],
            [[1, 2, 2, 2, ["b"], [0.0, 0.0]], [gate("rx", "Q0", "P0"), gate("rx", "Q0", "P1")]],
        ],
    },
]


def written(folder, content, name="ecc.json"):
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def texts(path):
    return {str(rule) for rule in read(path).rules}


def test_pairs_with_the_shortest_circuit_become_rules_in_both_directions(tmp_path, capsys):
    found = texts(written(tmp_path, NEW))
    assert found == {
        "rz(a) 0; rz(b) 0 -> rz(a+b) 0",  # back is no rule: nothing tells a from b
        "h 0; h 0 -> ", "h 0; cx 1 0; cx 1 0; h 0 -> ",
        "rz(a) 0; x 0 -> x 0; rz(-a) 0", "x 0; rz(a) 0 -> rz(-a) 0; x 0",
        "rz(pi/4) 0; rz(pi/4) 0 -> rz(pi/2) 0", "rz(pi/2) 0 -> rz(pi/4) 0; rz(pi/4) 0",
        "h 0; cx 1 0; h 0 -> h 1; cx 0 1; h 1",
        "rz(a) 0; rz(a) 0 -> rz(a+a) 0",
        "rz(-pi/4) 0; x 0 -> x 0; rz(pi/4) 0", "x 0; rz(pi/4) 0 -> rz(-pi/4) 0; x 0",
        "h 0; rz(pi) 0; h 0 -> x 0", "x 0 -> h 0; rz(pi) 0; h 0",
    }  # fmt: skip
    said = capsys.readouterr().err
    assert said.startswith(
        f"note: {tmp_path}/ecc.json: 9 classes of 21 circuits, 13 rules; left out: 2 circuits (gate ccz)"
    )
    assert "4 rules with a source of no gate, gates that are not connected, sums of angles" in said


def test_older_files_compute_parameters_among_the_gates(tmp_path):
    assert texts(written(tmp_path, OLD)) == {
        "x 0; rz(a) 0; x 0 -> rz(-a) 0",
        "rz(a) 0 -> x 0; rz(-a) 0; x 0",
        "h 0; rz(a) 0; rz(b) 0; h 0 -> h 0; rz(a+b) 0; h 0",
    }


@pytest.mark.parametrize("name", _TEMPLATES)
def test_a_gate_of_quartz_is_the_one_of_openqasm(name):
    rng = random.Random(0)
    values = [rng.randrange(TURN) for _ in range(3)]
    template = parsed_gates(_TEMPLATES[name])
    ours = {"rx1": "rx(pi/2)", "rx3": "rx(-pi/2)", "pdg": "inv @ p"}.get(name, name)
    num_angles = len({k for each in template for k in each.angle.parameters})
    num_wires = 1 + max(w for each in template for w in each.wires)
    angles = f"({','.join(f'{v}*2*pi/2**48' for v in values[:num_angles])})" if num_angles else ""
    wires = ",".join(f"q[{w}]" for w in range(num_wires))
    text = f'OPENQASM 3;include "stdgates.inc";qubit[{num_wires}] q;{ours}{angles} {wires};'
    assert distance(matrix_of(circuit(template, num_wires, values)), matrix_of(parse(text).circuit)) < 1e-12


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("[[],\n{\n]", "rules={path}, line 3: .*it is no JSON"),
        ("{}", "it is no ECC file of Quartz, .parameters, {{class: circuits}}."),
        ([[[1, ""], [1, 0.1]], {"7_1": 3}], "class 7_1: it is no list of circuits"),
        ([[[2, ""], [1, 0.1]], {}], "parameters: its first part is no list of parameters"),
        ([[[1, ["add", ["P0"], ["P1", "P2"]]], []], {}], "parameters: P1 is used before it is defined"),
        ([[[2, "", ["add", ["P0"], ["P0", "P0"]]], []], {}], "parameters: parameter 1 computes P0 instead of P1"),
        ([[[3, "", "", ["mult", ["P2"], ["P0", "P1"]]], []], {}], "parameters: mult of two symbols"),
        ([[[1, ["div", ["P0"], []]], []], {}], "parameters: div of 0 angles is none of add, neg"),
        ([[], {"3_2": [sequence("h Q0", "h Q0"), [1]]}], r"class 3_2, circuit 1: it is no \[\[qubits"),
        ([[], {"3_2": [[[1, 1], ["h"]]]}], r"class 3_2, circuit 0: \"h\" is no \[gate, outputs, inputs\]"),
        ([[], {"3_2": [sequence("h Q1")]}], "class 3_2, circuit 0: Q1 is none of its 1 qubits"),
        ([[], {"3_2": [sequence("cx Q0")]}], "class 3_2, circuit 0: cx has 1 wires and 0 angles, instead of 2 and 0"),
        ([[], {"3_2": [sequence("rz Q0")]}], "class 3_2, circuit 0: rz has 1 wires and 0 angles, instead of 1 and 1"),
        ([[[0], [0]], {"3_2": [sequence("rz Q0 P0")]}], "class 3_2, circuit 0: P0 is used before it is defined"),
        ([[], {"3_2": [sequence("s Q0"), sequence("t Q0")]}],
         "class 3_2, circuits 0 and 1: they are not equal, but differ by"),
        ([[], {"3_2": [sequence("s Q0"), sequence("frob Q0")]}],
         r"none of its 2 circuits gives a rule: 1 circuits \(gate frob\)"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_its_line_or_entry(tmp_path, change, said):
    path = written(tmp_path, change)
    with pytest.raises(ConfigError, match=said.format(path=path)) as raised:
        read(path)
    assert str(raised.value).startswith(f"rules={path}")
    assert "\n" not in str(raised.value)


def test_a_circuit_that_is_too_large_is_left_out_with_a_count(tmp_path, capsys):
    long = sequence(*["h Q0"] * 10)
    many = [sequence(*[f"rz Q0 P{k}" for k in order]) for order in ((0, 1, 2, 3, 4), (4, 3, 2, 1, 0))]
    read(written(tmp_path, [[], {"0": [sequence("h Q0", "h Q0"), long, [[1, 0], []]], "1": many}]))
    said = capsys.readouterr().err
    assert "1 circuits (more than 8 gates in h, x, cx and rz)" in said
    assert "2 circuits (more than 4 parameters in a class)" in said


@needs_cpp
def test_a_file_of_quartz_rewrites_circuits_and_becomes_a_file_of_rules(tmp_path, capsys):
    path, out = written(tmp_path, NEW), tmp_path / "small.qasm"
    assert (
        run(["optimise", "tof_3", f"out={out}", f"rules={path}", "steps=200", "workers=1", "start=given"])
        == 0
    )
    assert verify(read_qasm(out).circuit, benchmark("tof_3")).is_equal
    assert "9 classes of 21 circuits" in capsys.readouterr().err
    own = tmp_path / "mine.rules"
    assert run(["rules", f"out={own}", "spaces=null", f"own={path}"]) == 0
    assert set(read_rules(own).rules) == set(read(path).rules)
    with pytest.raises(ConfigError, match=f"own={tmp_path}/none.json: cannot be read"):
        run(["rules", f"out={own}", "spaces=null", f"own={tmp_path}/none.json"])
    assert all(isinstance(rule, Rule) for rule in read(own).rules)
