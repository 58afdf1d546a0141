"""A circuit applied to states, and random states to apply it to.

x, cx and rz only permute basis states and turn their phases: both are gathered, phases in exact whole units, and
applied together when an h comes. Wire 0 is the first axis: basis state i has (i >> (n - 1 - w)) & 1 on wire w.
"""

import numpy as np
from numpy.typing import NDArray

from ddppo.domains.circuits.quantum.angles import TURN
from ddppo.domains.circuits.quantum.circuit import CX, RZ, Circuit, Gate, H, X

States = NDArray[np.complex128]  # [2^n, K], K states in columns


def applied(circuit: Circuit, states: States) -> States:
    """Return U states [2^n, K] for K states in columns, U without regard to a phase of its own."""
    size = 2**circuit.num_qubits
    assert states.shape[0] == size, (states.shape, circuit.num_qubits)
    gathered = _Gathered(circuit.num_qubits)
    for gate in circuit:
        if gate.kind == H:
            states = _hadamard(gathered.applied(states), gate.wires[0])
            gathered = _Gathered(circuit.num_qubits) if gathered.is_used else gathered
        else:
            gathered.add(gate)
    return gathered.applied(states)


def unitary(circuit: Circuit) -> States:
    """Return U [2^n, 2^n] up to a phase."""
    return applied(circuit, np.eye(2**circuit.num_qubits, dtype=np.complex128))


class _Gathered:
    """A map of states: new[i] = exp(2 pi i turns[i] / TURN) old[source[i]], of x, cx and rz."""

    def __init__(self, num_qubits: int) -> None:
        self._source = np.arange(2**num_qubits)
        self._turns = np.zeros(2**num_qubits, np.int64)  # wraps at 2^64, a multiple of TURN
        self.is_used = self._is_permuted = self._is_turned = False

    def add(self, gate: Gate) -> None:
        self.is_used = True
        if gate.kind == RZ:
            self._is_turned = True
            self._turns.reshape(2 ** gate.wires[0], 2, -1)[:, 1] += gate.angle
            return
        self._is_permuted = True
        for values in (self._source, self._turns):
            halves = self._halves(values, gate)
            halves[...] = halves[:, :, ::-1].copy()

    def _halves(self, values: NDArray[np.int64], gate: Gate) -> NDArray[np.int64]:
        """Return a view, its third axis the target of x or cx, of the values where the control, if any, is 1."""
        if gate.kind == X:
            return values.reshape(1, 2 ** gate.wires[0], 2, -1)
        assert gate.kind == CX, gate
        control, target = gate.wires
        low, high = min(gate.wires), max(gate.wires)
        by_bits = values.reshape(2**low, 2, 2 ** (high - low - 1), 2, -1)
        if control < target:
            return by_bits[:, 1]
        return by_bits[:, :, :, 1].swapaxes(1, 2)

    def applied(self, states: States) -> States:
        if self._is_permuted:
            states = np.take(states, self._source, axis=0)
        if self._is_turned:
            turns = (self._turns & (TURN - 1)) * (2 * np.pi / TURN)
            states = states * np.exp(1j * turns)[:, None]
        return states


def _hadamard(states: States, wire: int) -> States:
    old = states.reshape(2**wire, 2, -1)
    new = np.empty_like(old)
    np.add(old[:, 0], old[:, 1], out=new[:, 0])
    np.subtract(old[:, 0], old[:, 1], out=new[:, 1])
    new *= np.sqrt(0.5)
    return new.reshape(states.shape)


def product_state(num_qubits: int, rng: np.random.Generator) -> States:
    """Return a product [2^n, 1] of states of one qubit, each uniform on its sphere."""
    state = np.ones(1, np.complex128)
    for _ in range(num_qubits):
        pair = rng.normal(size=2) + 1j * rng.normal(size=2)
        state = np.multiply.outer(state, pair / np.linalg.norm(pair)).ravel()
    return state[:, None]


def stabiliser_state(num_qubits: int, rng: np.random.Generator) -> States:
    """Return a state [2^n, 1] of a random circuit of h, s and cx: three layers of cx between random partners."""
    gates: list[Gate] = []
    for _ in range(3):
        for wire in range(num_qubits):
            gates += [Gate(H, (wire,))] * int(rng.integers(2))
            gates.append(Gate(RZ, (wire,), int(rng.integers(4)) * TURN // 4))
            gates.append(Gate(H, (wire,)))
        order = rng.permutation(num_qubits).tolist()
        gates += [Gate(CX, pair) for pair in zip(order[::2], order[1::2], strict=False)]
    state = np.zeros((2**num_qubits, 1), np.complex128)
    state[0] = 1
    return applied(Circuit.from_gates(num_qubits, gates), state)
