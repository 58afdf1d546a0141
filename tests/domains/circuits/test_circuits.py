import dataclasses
import math
import random

import numpy as np
import pytest

from ddppo.domains.circuits.quantum import CX, KINDS, RZ, Circuit, Gate, H, X
from ddppo.domains.circuits.quantum.circuit import PI, TURN, of_fraction, of_radians, radians, shown, written
from ddppo.errors import ConfigError
from tests.domains.circuits.circuit_oracle import random_circuit


def swapped(rng, circuit, times):
    """Return the circuit after random swaps of neighbours on disjoint wires, one after another."""
    gates = circuit.gates()
    for _ in range(times):
        i = rng.randrange(max(len(gates) - 1, 1))
        if i + 1 < len(gates) and not set(gates[i].wires) & set(gates[i + 1].wires):
            gates[i], gates[i + 1] = gates[i + 1], gates[i]
    return Circuit.from_gates(circuit.num_qubits, gates)


def same_order_on_every_wire(a, b):
    """The slow oracle of equality: a circuit is what every wire passes, in order, gates told apart by their count."""

    def seen(circuit):
        wires = [[] for _ in range(circuit.num_qubits)]
        for gate in circuit:
            place = tuple(len(wires[w]) for w in gate.wires)
            for w in gate.wires:
                wires[w].append((gate, place))
        return wires

    return a.num_qubits == b.num_qubits and seen(a) == seen(b)


def test_swaps_of_gates_on_disjoint_wires_keep_the_digest():
    rng = random.Random(0)
    for _ in range(300):
        circuit = random_circuit(rng, rng.randrange(1, 7), rng.randrange(0, 40))
        other = swapped(rng, circuit, 200)
        assert other.digest() == circuit.digest()
        assert other == circuit
        assert hash(other) == hash(circuit)
        np.testing.assert_array_equal(other.canonical().wires, circuit.canonical().wires)
        assert same_order_on_every_wire(circuit, circuit.canonical())


def test_circuits_that_differ_on_some_wire_have_different_digests():
    rng = random.Random(1)
    seen = {}
    for _ in range(6_000):  # two qubits and up to five gates: many pairs that differ by one swap only
        circuit = random_circuit(rng, 2, rng.randrange(6), [TURN // 8, TURN // 4])
        known = seen.setdefault(circuit.digest(), circuit)
        assert same_order_on_every_wire(known, circuit)
    assert len(seen) > 2_000


def test_the_digest_tells_qubits_wires_angles_and_order_apart():
    gates = [Gate(H, (0,)), Gate(CX, (0, 1)), Gate(RZ, (1,), 5)]
    others = [
        Circuit.from_gates(3, gates),
        Circuit.from_gates(2, gates[:2]),
        Circuit.from_gates(2, [gates[1], gates[0], gates[2]]),
        Circuit.from_gates(2, [gates[0], Gate(CX, (1, 0)), gates[2]]),
        Circuit.from_gates(2, [*gates[:2], Gate(RZ, (1,), 6)]),
        Circuit.from_gates(2, [Gate(X, (0,)), *gates[1:]]),
    ]
    assert len({Circuit.from_gates(2, gates).digest(), *(c.digest() for c in others)}) == 7


def test_the_digest_is_the_one_that_files_and_other_machines_have():
    circuit = Circuit.from_gates(2, [Gate(RZ, (1,), TURN // 8), Gate(H, (0,)), Gate(CX, (0, 1))])
    assert circuit.digest().hex() == "8c726b6b22f787110c939043b0165b5d"


def test_links_follow_every_wire_from_its_first_gate_to_its_last():
    circuit = Circuit.from_gates(
        4, [Gate(H, (0,)), Gate(CX, (0, 1)), Gate(CX, (2, 0)), Gate(X, (1,)), Gate(CX, (0, 2))]
    )
    links = circuit.links
    assert links.first.tolist() == [0, 1, 2, -1]
    assert links.last.tolist() == [4, 3, 4, -1]
    assert links.next.tolist() == [[1, -1], [2, 3], [4, 4], [-1, -1], [-1, -1]]
    assert links.next_port.tolist() == [[0, -1], [1, 0], [1, 0], [-1, -1], [-1, -1]]
    assert links.previous.tolist() == [[-1, -1], [0, -1], [-1, 1], [1, -1], [2, 2]]
    assert links.previous_port.tolist() == [[-1, -1], [0, -1], [-1, 0], [1, -1], [1, 0]]
    assert circuit.levels.tolist() == [0, 1, 2, 2, 3]
    assert circuit.depth == 4


def test_links_are_those_of_a_walk_along_the_wires():
    rng = random.Random(2)
    for _ in range(50):
        circuit = random_circuit(rng, 5, 30)
        last = {}
        for i, gate in enumerate(circuit):
            for port, wire in enumerate(gate.wires):
                before = last.get(wire, (-1, -1))
                found = circuit.links.previous[i, port], circuit.links.previous_port[i, port]
                assert found == before
                if before[0] >= 0:
                    assert circuit.links.next[before] == i
                    assert circuit.links.next_port[before] == port
                last[wire] = (i, port)


def test_an_empty_circuit_is_one():
    circuit = Circuit.from_gates(3, [])
    assert circuit.depth == 0
    assert len(circuit) == 0
    assert circuit.links.first.tolist() == [-1, -1, -1]
    assert circuit == circuit.canonical()


def test_a_circuit_cannot_be_changed():
    circuit = Circuit.from_gates(1, [Gate(H, (0,))])
    with pytest.raises(ValueError, match="read-only"):
        circuit.kinds[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        circuit.num_qubits = 2


@pytest.mark.parametrize(
    ("num_qubits", "gate", "said"),
    [
        (0, Gate(H, (0,)), "num_qubits=0"),
        (2, Gate(H, (2,)), "wires are not among 0 to 1"),
        (2, Gate(H, (-1,)), "wires are not among 0 to 1"),
        (2, Gate(CX, (0,)), "wires are not among 0 to 1"),
        (2, Gate(H, (0, 1)), "a gate of one qubit"),
        (2, Gate(CX, (1, 1)), "the same wire"),
        (2, Gate(X, (1,), 5), "only rz has an angle"),
        (2, Gate(4, (1,)), "kind is none of"),
        (2, Gate(300, (1,)), "kind is none of"),
        (2, Gate(H, ()), "has one wire"),
        (2, Gate(CX, (0, 70_000)), "wires are not among"),
    ],
)
def test_a_gate_that_cannot_be_is_named_with_the_rule_that_it_breaks(num_qubits, gate, said):
    with pytest.raises(ConfigError, match=said):
        Circuit.from_gates(num_qubits, [gate])


def test_sums_of_angles_are_exact_and_wrap():
    assert of_fraction(1, 4) == 2**45
    assert sum([of_fraction(1, 4)] * 8) % TURN == 0
    assert of_fraction(-1, 2) == 3 * TURN // 4
    assert of_radians(-math.pi / 2) == 3 * TURN // 4
    assert radians(3 * TURN // 4) == -math.pi / 2
    assert radians(PI) == math.pi


@pytest.mark.parametrize(
    ("angle", "in_files", "in_pictures"),
    [
        (0, "0", "0"),
        (PI, "pi", "π"),
        (of_fraction(3, 4), "3*pi/4", "3π/4"),
        (of_fraction(-1, 3), "-pi/3", "-π/3"),
        (of_fraction(255, 256), "255*pi/256", "255π/256"),
        (of_fraction(1, 3) + 3, None, "π/3"),
        (of_radians(1.25), "1.25", "1.25"),
    ],
)
def test_an_angle_is_a_fraction_of_pi_in_files_where_exactly_so_and_in_pictures_where_nearly(
    angle, in_files, in_pictures
):
    assert in_files is None or written(angle) == in_files
    assert in_files is not None or of_radians(float(written(angle))) == angle
    assert shown(angle) == in_pictures


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 1e300])
def test_what_is_no_angle_is_refused(wrong):
    with pytest.raises(ValueError, match="is no angle"):
        of_radians(wrong)


def test_kinds_are_numbered_as_arrays_have_them():
    assert (KINDS[H], KINDS[X], KINDS[CX], KINDS[RZ]) == ("h", "x", "cx", "rz")
