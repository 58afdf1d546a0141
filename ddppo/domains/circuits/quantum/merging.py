"""Rotation merging: rotations about the same parity of the same variables become one. A baseline without search.

Nam, Ross, Su, Childs, Maslov, arXiv:1710.07345, section 4.4. They cut the circuit into regions of cx, x and rz between
the h gates; here an h begins a new variable on its wire, and parities are followed through the whole circuit (Amy,
Maslov, Mosca, arXiv:1303.2042), which finds what they find and the pairs that no one region holds.
"""

from ddppo.domains.circuits.quantum.angles import TURN
from ddppo.domains.circuits.quantum.circuit import CX, RZ, Circuit, Gate, H


def merged(circuit: Circuit) -> Circuit:
    """Return an equal circuit with at most one rz for each parity, at its first place; none of angle 0.

    A sum over paths x of the variables gives each path the phase sum over rz of angle f(x), f the Boolean affine
    function on the wire there: so rotations of one f add up, and about 1 - f the angle counts with the other sign.
    """
    labels = [1 << wire for wire in range(circuit.num_qubits)]  # sets of variables: a bit for each
    negated = [False] * circuit.num_qubits
    num_variables = circuit.num_qubits
    sums: dict[int, int] = {}  # parity -> angle
    places: dict[int, bool] = {}  # parity -> whether its first place has the negation
    kept: list[tuple[Gate, int]] = []  # gates, and for rotations their parity
    for gate in circuit:
        wire = gate.wires[-1]
        if gate.kind == RZ:
            parity = labels[wire]
            sums[parity] = sums.get(parity, 0) + (-gate.angle if negated[wire] else gate.angle)
            if parity not in places:
                places[parity] = negated[wire]
                kept.append((gate, parity))
            continue
        kept.append((gate, 0))
        if gate.kind == CX:
            control = gate.wires[0]
            labels[wire] ^= labels[control]
            negated[wire] ^= negated[control]
        elif gate.kind == H:
            labels[wire], negated[wire] = 1 << num_variables, False
            num_variables += 1
        else:
            negated[wire] = not negated[wire]
    gates = []
    for gate, parity in kept:
        if parity:
            angle = (-sums[parity] if places[parity] else sums[parity]) % TURN
            gates += [Gate(RZ, gate.wires, angle)] * (angle != 0)
        else:
            gates.append(gate)
    return Circuit.from_gates(circuit.num_qubits, gates)
