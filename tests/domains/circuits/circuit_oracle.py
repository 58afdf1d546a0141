"""Unitaries by Kronecker products of whole matrices, slow and plain, and random circuits to compare them on."""

import functools
import math

import numpy as np

from ddppo.domains.circuits.quantum import CX, RZ, Circuit, Gate, H
from ddppo.domains.circuits.quantum.circuit import TURN

ONE = np.eye(2)
HADAMARD = np.array([[1, 1], [1, -1]]) / math.sqrt(2)
PAULI_X = np.array([[0, 1], [1, 0]])
ON_0, ON_1 = np.diag([1, 0]), np.diag([0, 1])
EIGHTHS = tuple(n * TURN // 8 for n in range(8))


def random_circuit(rng, num_qubits=4, num_gates=20, angles=EIGHTHS):
    gates = []
    for _ in range(num_gates):
        kind = rng.choice([H, 1, CX, RZ] if num_qubits > 1 else [H, 1, RZ])
        wires = tuple(rng.sample(range(num_qubits), 2 if kind == CX else 1))
        gates.append(Gate(kind, wires, rng.choice(angles) if kind == RZ else 0))
    return Circuit.from_gates(num_qubits, gates)


def on(num_qubits, matrices):
    """Return the matrix of {wire: 2 x 2}, wire 0 the leftmost factor."""
    return functools.reduce(np.kron, [matrices.get(wire, ONE) for wire in range(num_qubits)])


def controlled(num_qubits, controls, wire, matrix):
    """Return 1 + P (M - 1): M on the wire where all controls are 1."""
    projected = on(num_qubits, {**dict.fromkeys(controls, ON_1), wire: matrix - ONE})
    return np.eye(2**num_qubits) + projected


def phase_gate(radians):
    return np.diag([1, np.exp(1j * radians)])


def matrix_of(circuit):
    n = circuit.num_qubits
    product = np.eye(2**n)
    for gate in circuit:
        wire = gate.wires[-1]
        if gate.kind == CX:
            matrix = controlled(n, gate.wires[:1], wire, PAULI_X)
        elif gate.kind == RZ:
            matrix = on(n, {wire: phase_gate(gate.angle * 2 * math.pi / TURN)})
        else:
            matrix = on(n, {wire: HADAMARD if gate.kind == H else PAULI_X})
        product = matrix @ product
    return product


def distance(first, second):
    """Return max |U - e^{i phi} V|, phi from the largest element of V."""
    place = np.unravel_index(np.abs(second).argmax(), second.shape)
    phase = first[place] / second[place]
    return np.abs(first - phase / max(abs(phase), 1e-300) * second).max()
