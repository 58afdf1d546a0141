"""Circuits written in a gate set, compared as matrices, and costs that count what is written."""

import itertools
import math
import random
import re

import numpy as np
import pytest

from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits.commands import run
from ddppo.domains.circuits.quantum import CX, RZ, Circuit, Gate, H, X
from ddppo.domains.circuits.quantum.benchmarks import benchmark
from ddppo.domains.circuits.quantum.circuit import PI, TURN, of_fraction
from ddppo.domains.circuits.quantum.costs import COSTS, cost, counts, names_in, qualified
from ddppo.domains.circuits.quantum.gate_sets import GATE_SETS, gate_set
from ddppo.domains.circuits.quantum.qasm_reader import as_qasm, parse, read
from ddppo.errors import ConfigError
from tests.domains.circuits.circuit_oracle import (
    EIGHTHS,
    HADAMARD,
    PAULI_X,
    controlled,
    distance,
    matrix_of,
    on,
    phase_gate,
    random_circuit,
)

SX = np.array([[1 + 1j, 1 - 1j], [1 - 1j, 1 + 1j]]) / 2
MATRICES = {"h": HADAMARD, "x": PAULI_X, "sx": SX} | {
    name: phase_gate(eighths * math.pi / 4)
    for name, eighths in {"t": 1, "s": 2, "z": 4, "sdg": -2, "tdg": -1}.items()
}
QUARTERS = (0, TURN // 4, TURN // 2, 3 * TURN // 4)
ODD = (1, TURN // 16, 12345678901234, TURN // 8, TURN // 2, 0)


def matrix(gates, num_qubits):
    product = np.eye(2**num_qubits)
    for gate in gates:
        if gate.name == "cx":
            product = controlled(num_qubits, gate.wires[:1], gate.wires[1], PAULI_X) @ product
        else:
            turned = phase_gate(gate.angle * 2 * math.pi / TURN)
            one = turned if gate.name == "rz" else MATRICES[gate.name]
            product = on(num_qubits, {gate.wires[0]: one}) @ product
    return product


@pytest.mark.parametrize(
    ("name", "angles"),
    [("nam", ODD), ("clifford_t", EIGHTHS), ("ibm", EIGHTHS), ("ibm", QUARTERS), ("ibm", ODD)],
)
def test_a_circuit_is_the_same_in_every_gate_set_and_read_back_from_it(name, angles):
    rng, chosen = random.Random(0), GATE_SETS[name]
    for _ in range(150):
        circuit = random_circuit(rng, rng.randrange(1, 4), rng.randrange(20), angles)
        gates = chosen.of(circuit)
        assert {gate.name for gate in gates} <= set(chosen.gates)
        expected = matrix_of(circuit)
        assert distance(matrix(gates, circuit.num_qubits), expected) < 1e-12
        assert distance(matrix_of(parse(as_qasm(circuit, chosen)).circuit), expected) < 1e-12


def up_to_phase(unitary):
    place = np.unravel_index(np.abs(unitary).round(6).argmax(), unitary.shape)
    turned = unitary * abs(unitary[place]) / unitary[place]
    return tuple((np.round(turned, 5) + 0.0).ravel())


def test_a_run_in_ibm_is_as_short_as_any_circuit_of_its_gates():
    # All matrices of up to 5 gates of rz(k pi/4), sx and x, by breadth-first search.
    steps = [phase_gate(k * math.pi / 4) for k in range(1, 8)] + [SX, PAULI_X]
    shortest, layer = {up_to_phase(np.eye(2, dtype=complex)): 0}, [np.eye(2, dtype=complex)]
    for length in range(1, 6):
        grown = [step @ before for before in layer for step in steps]
        layer = [m for m in grown if shortest.setdefault(up_to_phase(m), length) == length]
        layer = list({up_to_phase(m): m for m in layer}.values())
    rng = random.Random(1)
    for _ in range(300):
        circuit = random_circuit(rng, 1, rng.randrange(8), EIGHTHS)
        known = shortest.get(up_to_phase(matrix_of(circuit).astype(complex)))
        assert known is None or len(GATE_SETS["ibm"].of(circuit)) == known


def test_a_rotation_in_clifford_t_is_the_fewest_gates_and_neighbours_add_up():
    expected = ["", "t", "s", "s t", "z", "z t", "sdg", "tdg"]
    for eighths, names in enumerate(expected):
        circuit = Circuit.from_gates(1, [Gate(RZ, (0,), eighths * TURN // 8)])
        assert " ".join(gate.name for gate in GATE_SETS["clifford_t"].of(circuit)) == names
    gates = [Gate(RZ, (0,), TURN // 8), Gate(H, (0,)), Gate(H, (0,)), Gate(RZ, (0,), TURN // 8)]
    assert [g.name for g in GATE_SETS["clifford_t"].of(Circuit.from_gates(1, gates))] == ["s"]


def test_an_angle_that_clifford_t_has_not_is_named_with_its_qubit():
    circuit = Circuit.from_gates(2, [Gate(H, (0,)), Gate(CX, (0, 1)), Gate(RZ, (1,), of_fraction(1, 3))])
    said = r"gate_set=clifford_t: rz\(.*\) on qubit 1 is no multiple of pi/4, .*: use nam or ibm"
    with pytest.raises(ConfigError, match=said):
        GATE_SETS["clifford_t"].of(circuit)
    with pytest.raises(ConfigError, match=said):
        cost("clifford_t.gate_count")(circuit)
    with pytest.raises(ConfigError, match=r"gate_set=clifford \(did you mean clifford_t"):
        gate_set("clifford")


def test_costs_count_what_is_written():
    rng = random.Random(2)
    for _ in range(60):
        circuit = random_circuit(rng, 3, 25, EIGHTHS)
        for name, chosen in GATE_SETS.items():
            gates = chosen.of(circuit)
            names = [gate.name for gate in gates]
            is_t = [g.name in ("t", "tdg") or (g.name == "rz" and g.angle % (TURN // 4) != 0) for g in gates]
            expected = {f"{gate}_count": names.count(gate) for gate in chosen.gates} | {
                "gate_count": len(names), "cx_count": names.count("cx"), "t_count": sum(is_t),
                "cx_weighted": len(names) + 2 * names.count("cx"), "depth": longest(gates),
                "cx_depth": longest([gate for gate in gates if gate.name == "cx"]),
            }  # fmt: skip
            assert set(names_in(chosen)) == set(expected)
            assert {key: cost(f"{name}.{key}")(circuit) for key in expected} == expected
            assert {key: cost(key, chosen)(circuit) for key in expected} == expected
            assert counts(circuit, chosen).startswith(f"{len(names)} gates (")
            assert counts(circuit, chosen).endswith(f"depth {expected['depth']}")


def longest(gates):
    """The slow oracle of depth: the longest of all chains of gates that share a wire."""
    lengths = []
    for i, gate in enumerate(gates):
        before = [lengths[j] for j in range(i) if set(gates[j].wires) & set(gate.wires)]
        lengths.append(1 + max(before, default=0))
    return max(lengths, default=0)


def test_a_cost_may_be_a_weighted_sum():
    circuit = benchmark("tof_3")  # 6 h, 18 cx, 21 rz, all of them by pi/4 or -pi/4
    for text, value in {
        "gate_count+2*cx_count": 81, "gate_count + 2 * cx_count": 81, "cx_count-0.5*rz_count": 7.5,
        "-h_count+t_count": 15, "10*cx_count+x_count": 180, "ibm.sx_count + nam.h_count": 12,
    }.items():  # fmt: skip
        assert cost(text)(circuit) == value
    assert (
        qualified("gate_count - .5*rz_count", GATE_SETS["ibm"]).replace(" ", "")
        == "ibm.gate_count-.5*ibm.rz_count"
    )
    assert qualified("nam.depth+depth", GATE_SETS["ibm"]) == "nam.depth+ibm.depth"
    assert qualified("my_costs:cost", GATE_SETS["ibm"]) == "my_costs:cost"
    assert qualified("cx_count", GATE_SETS["nam"]) == "cx_count"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "gate_count+",
            r"cost=gate_count\+: not one of gate_count, .*, a sum such as gate_count\+2\*cx_count",
        ),
        ("gate_count 2*cx_count", "not one of gate_count"),
        ("cx_count*2", "not one of gate_count"),
        ("2", "not one of gate_count"),
        ("", "not one of gate_count"),
        ("gate_count+2*cx_cuont", r"cx_cuont \(did you mean cx_count.* is no cost in nam: give one of"),
        ("sx_count", r"sx_count.* is no cost in nam"),
        ("ibm.h_count", r"h_count.* is no cost in ibm"),
        ("imb.depth", r"imb \(did you mean ibm.* is none of the gate sets nam, clifford_t, ibm"),
        (":cost", "not one of gate_count"),
    ],
)
def test_a_sum_that_cannot_be_read_is_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        cost(text)


def test_verbs_count_and_write_in_a_gate_set(tmp_path, capsys):
    out = tmp_path / "small.qasm"
    for name, expected in {
        "ibm": "60 gates (6 sx, 26 rz, 0 x, 28 cx)",
        "clifford_t": "51 gates (6 h, 1 x, 28 cx",
    }.items():
        assert run(["merge", "mod5_4", f"out={out}", f"gate_set={name}"]) == 0
        said = capsys.readouterr().out
        assert f"{out}: {expected}" in said
        assert "equal up to a phase" in said
        assert run(["show", "mod5_4", f"gate_set={name}"]) == 0
        assert capsys.readouterr().out.startswith(f"mod5_4: {counts(benchmark('mod5_4'), GATE_SETS[name])}\n")
        assert run(["compare", "mod5_4", str(out), f"gate_set={name}", "others=false"]) == 0
        rows = {row.split("  ")[0]: row.split() for row in capsys.readouterr().out.splitlines() if row}
        costs = [f"{cost(each, GATE_SETS[name])(read(out).circuit):g}" for each in COSTS]
        assert rows[str(out)][1 : 1 + len(costs)] == costs
    assert run(["show", "tof_3", "format=qasm", "gate_set=ibm"]) == 0
    text = capsys.readouterr().out
    assert text == as_qasm(benchmark("tof_3"), GATE_SETS["ibm"])
    assert set(itertools.chain(*(line.split("(")[0].split()[:1] for line in text.splitlines()[3:]))) == {
        "sx",
        "rz",
        "cx",
    }


def test_x_and_half_turns_meet_the_sx_beside_them():
    for gates, names in {
        (Gate(X, (0,)), Gate(X, (0,))): [],
        (Gate(H, (0,)), Gate(RZ, (0,), PI), Gate(H, (0,))): ["x"],
        (Gate(X, (0,)), Gate(RZ, (0,), PI), Gate(X, (0,))): ["rz"],
        (Gate(H, (0,)), Gate(X, (0,))): ["rz", "sx", "rz"],
    }.items():
        assert [gate.name for gate in GATE_SETS["ibm"].of(Circuit.from_gates(1, gates))] == names


@pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))
def test_optimise_lowers_the_cost_in_the_gate_set_that_it_writes(tmp_path, capsys):
    out = tmp_path / "small.qasm"
    words = ["optimise", "mod5_4", f"out={out}", "steps=300", "workers=1", "cost=gate_count+2*cx_count"]
    assert run([*words, "gate_set=ibm"]) == 0
    said = capsys.readouterr().out
    before, after = re.search(r"^ibm\.gate_count\+2\*ibm\.cx_count (\d+) -> (\d+)$", said, re.M).groups()
    weighted = cost("ibm.cx_weighted")
    assert weighted(benchmark("mod5_4")) == int(before) > int(after) == weighted(read(out).circuit)
    names = {line.split("(")[0].split()[0] for line in out.read_text().splitlines()[3:]}
    assert names <= set(GATE_SETS["ibm"].gates)
    assert "equal up to a phase" in said
    # Nothing smaller is found: the circuit as given is written in the gate set, and compared.
    minimal = tmp_path / "cx.qasm"
    minimal.write_text('OPENQASM 3; include "stdgates.inc"; qubit[2] q; h q[0]; cx q[0], q[1];')
    assert run(["optimise", str(minimal), f"out={out}", "steps=5", "workers=1", "gate_set=ibm"]) == 0
    said = capsys.readouterr().out
    assert "not made smaller: ibm.gate_count 4 is the least" in said
    assert "4 gates (1 sx, 2 rz, 0 x, 1 cx)" in said
    assert "equal up to a phase" in said
    with pytest.raises(
        ConfigError, match=r"gate_set=clifford_t: rz\(pi/8\) on qubit 2 is no multiple of pi/4"
    ):
        run(["optimise", "qft_5", f"out={out}", "steps=10", "gate_set=clifford_t"])
