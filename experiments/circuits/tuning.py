"""The circuits on which settings were chosen; none of them is in a table of results.

python experiments/circuits/tuning.py outputs/circuits/tuning    # writes gf2_3_mult.qasm, tof_7.qasm, ...
"""

import sys
from pathlib import Path

import numpy as np

from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.benchmarks import barenco_tof_n, ccz, cx, h, qft, tof_n, toffoli
from ddppo.domains.circuits.quantum.qasm_reader import as_qasm


def gf2_3_mult() -> Circuit:
    """c = a b in GF(2^3) with x^3 + x + 1, built as gf2^4_mult is: 129 gates; a_i, b_i, c_i on i, 3 + i, 6 + i."""

    def coefficient(k: int, target: int) -> list:
        wire = 6 + target
        pairs = [(i, k - i) for i in range(3) if 0 <= k - i < 3]
        return [
            *h(wire),
            *(gate for n, (i, j) in enumerate(pairs) for gate in ccz((i, 3 + j, wire), (-1) ** n)),
            *h(wire),
        ]

    gates = [*coefficient(4, 2), *coefficient(3, 1), *cx((7, 6), (8, 7))]
    for k in range(3):
        gates += coefficient(k, k)
    return Circuit.from_gates(9, gates)


def poly_4() -> Circuit:
    """c = a b for polynomials with four coefficients over GF(2): 222 gates; a_i, b_i, c_i on i, 4 + i, 8 + i."""
    gates, number = [], 0
    for k in range(7):
        gates += h(8 + k)
        for i in range(max(0, k - 3), min(k, 3) + 1):
            gates += ccz((i, 4 + k - i, 8 + k), (-1) ** number)
            number += 1
        gates += h(8 + k)
    return Circuit.from_gates(15, gates)


def network(num_qubits: int, num_toffolis: int, seed: int) -> Circuit:
    """Toffolis and cx on neighbouring wires, as in adders, up and back: every second gate is undone later."""
    rng = np.random.default_rng(seed)
    gates = []
    for k in range(num_toffolis):
        at = int(rng.integers(num_qubits - 2))
        a, b, target = (at + int(i) for i in rng.permutation(3))
        gates += toffoli(a, b, target, (-1) ** k)
        if rng.random() < 0.5:
            gates += cx((a, target))
        if rng.random() < 0.5:
            gates += toffoli(b, target, a, (-1) ** k)
            k += 1
    return Circuit.from_gates(num_qubits, gates)


CIRCUITS = {
    "gf2_3_mult": gf2_3_mult,
    "poly_4": poly_4,
    "tof_7": lambda: tof_n(7),
    "barenco_tof_6": lambda: barenco_tof_n(6),
    "qft_6": lambda: qft(6),
    "qft_7": lambda: qft(7),
    "net_8": lambda: network(8, 7, 1),
    "net_12": lambda: network(12, 22, 2),
    "net_16": lambda: network(16, 40, 3),
}


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in CIRCUITS.items():
        (folder / f"{name}.qasm").write_text(as_qasm(make()))


if __name__ == "__main__":
    main()
