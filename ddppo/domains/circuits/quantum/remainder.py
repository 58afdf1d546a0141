"""What two circuits do not share: without the gates that both begin and end with, and the qubits left idle."""

import numpy as np
from numpy.typing import NDArray

from ddppo.domains.circuits.quantum.circuit import Circuit


def differing_parts(a: Circuit, b: Circuit) -> tuple[Circuit, Circuit]:
    """Return A and B, where a = P A S and b = P B S, on the wires that either touches, at least one, renumbered."""
    for _ in range(2):  # the beginnings; then, both turned round, the ends; then turned back
        a, b = (_turned_round(circuit) for circuit in _without_common_beginning(a, b))
    used = np.zeros(a.num_qubits, bool)
    for circuit in (a, b):
        used[circuit.wires[circuit.wires >= 0]] = True
    used[0] |= not used.any()
    places = np.append(np.cumsum(used) - 1, -1).astype(np.int16)  # the last one: of no wire, -1
    return _on(places, a, int(used.sum())), _on(places, b, int(used.sum()))


def _on(places: NDArray[np.int16], circuit: Circuit, num_qubits: int) -> Circuit:
    return Circuit(num_qubits, circuit.kinds, places[circuit.wires], circuit.angles)


def _turned_round(circuit: Circuit) -> Circuit:
    """Return the gates from last to first: not the inverse, whose angles have the other sign."""
    return _kept(circuit, np.arange(len(circuit))[::-1])


def _kept(circuit: Circuit, gates: NDArray[np.int64]) -> Circuit:
    return Circuit(circuit.num_qubits, circuit.kinds[gates], circuit.wires[gates], circuit.angles[gates])


def _without_common_beginning(a: Circuit, b: Circuit) -> tuple[Circuit, Circuit]:
    """Take gates off both as long as one is at the front of both."""
    gates_b = b.gates()
    at, following = b.links.first.tolist(), b.links.next.tolist()
    is_blocked = [False] * a.num_qubits
    left_a, gone_b = [], np.zeros(len(b), bool)
    for i, gate in enumerate(a):
        j = at[gate.wires[0]]
        is_shared = (
            j >= 0
            and not any(is_blocked[wire] for wire in gate.wires)
            and gates_b[j] == gate
            and all(at[wire] == j for wire in gate.wires)
        )
        if is_shared:
            gone_b[j] = True
            for port, wire in enumerate(gate.wires):
                at[wire] = following[j][port]
        else:
            left_a.append(i)
            for wire in gate.wires:
                is_blocked[wire] = True
    return _kept(a, np.array(left_a, np.int64)), _kept(b, np.flatnonzero(~gone_b))
