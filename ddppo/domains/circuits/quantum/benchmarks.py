"""Circuits by name: the benchmarks of the literature, built here, and files of OpenQASM 2."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ddppo.domains.circuits.quantum.circuit import CX, RZ, TURN, Circuit, Gate, H, X
from ddppo.domains.circuits.quantum.qasm_reader import QasmProgram, read
from ddppo.errors import ConfigError, near

# -- The arithmetic circuits on which optimisers are compared, by their published constructions ----------------------
# A Toffoli gate is H CCZ H. A CCZ has 13 gates; its inverse is the same unitary with all angles negated. `signs`
# chooses one of both for each CCZ: rotations of two CCZ cancel if the signs are opposite, and only add up if they are
# equal. The signs below are those with which merging rotations removes the most gates; gate counts do not depend on
# them.


Triple = tuple[int, int, int]
_GF_SIGNS = (1, -1, 1, -1, -1, -1, -1, -1, 1, 1, 1, 1, 1, -1, 1, -1)


def ccz(wires: Triple, sign: int = 1) -> list[Gate]:
    """Return diag(1, ..., 1, -1) as 13 gates, 6 cx and 7 rz(+-pi/4).

    4 abc = a + b + c - (a+b) - (b+c) - (a+c) + (a+b+c), where sums in brackets are modulo 2. `sign` multiplies all
    angles.
    """
    a, b, c = wires
    eighth = sign * TURN // 8

    def rotation(wire: int, times: int) -> Gate:
        return Gate(RZ, (wire,), times * eighth % TURN)

    return [
        Gate(CX, (b, c)), rotation(c, -1), Gate(CX, (a, c)), rotation(c, 1),
        Gate(CX, (b, c)), rotation(c, -1), Gate(CX, (a, c)), rotation(b, 1), rotation(c, 1),
        Gate(CX, (a, b)), rotation(b, -1), rotation(a, 1), Gate(CX, (a, b)),
    ]  # fmt: skip


def h(*wires: int) -> list[Gate]:
    return [Gate(H, (wire,)) for wire in wires]


def x(*wires: int) -> list[Gate]:
    return [Gate(X, (wire,)) for wire in wires]


def cx(*pairs: tuple[int, int]) -> list[Gate]:
    return [Gate(CX, pair) for pair in pairs]


def toffoli(a: int, b: int, target: int, sign: int = 1) -> list[Gate]:
    """Return 15 gates that flip the target where both controls, a and b, are 1."""
    return [*h(target), *ccz((a, b, target), sign), *h(target)]


def tof_n(n: int) -> Circuit:
    """x_n ^= x_0 ... x_(n-1): a ladder of Toffolis into n - 2 clean ancillas, and back, 2 n - 3 in all.

    15 (2 n - 3) gates, 6 (2 n - 3) cx on 2 n - 1 qubits: controls 0 to n - 1, the target n, ancillas above.
    """
    # Up the ladder, the last Toffoli into the target, and down again, which clears the ancillas.
    ladder = [(0, 1, n + 1), *((k, n + k - 1, n + k) for k in range(2, n - 1))]
    gates = [gate for step in ladder for gate in toffoli(*step)]
    gates += toffoli(n - 1, 2 * n - 2, n)
    gates += [gate for step in reversed(ladder) for gate in toffoli(*step, sign=-1)]
    return Circuit.from_gates(2 * n - 1, gates)


def barenco_tof_3(signs: Sequence[int] = (1, 1, -1, -1)) -> Circuit:
    """x_4 ^= x_0 x_1 x_2 by a dirty ancilla 3: 58 gates, 24 cx.

    Barenco et al., arXiv:quant-ph/9503016, lemma 7.2: four Toffolis; the h of two neighbours cancel.
    """
    outer, inner = (2, 3, 4), (0, 1, 3)
    gates = [
        *h(4), *ccz(outer, signs[0]), *h(3), *ccz(inner, signs[1]), *h(3), *ccz(outer, signs[2]), *h(4),
        *h(3), *ccz(inner, signs[3]), *h(3),
    ]  # fmt: skip
    return Circuit.from_gates(5, gates)


def mod5_4(signs: Sequence[int] = (1, -1, 1, -1)) -> Circuit:
    """x_4 ^= 1 where the number x_0 + 2 x_1 + 4 x_2 + 8 x_3 is a multiple of 5: 63 gates, 28 cx."""
    gates = [
        *x(4), *h(4), *ccz((0, 3, 4), signs[0]), *ccz((2, 3, 4), signs[1]), *h(4), *cx((3, 4)),
        *h(4), *ccz((1, 2, 4), signs[2]), *h(4), *cx((2, 4)),
        *h(4), *ccz((0, 1, 4), signs[3]), *h(4), *cx((1, 4), (0, 4)),
    ]  # fmt: skip
    return Circuit.from_gates(5, gates)


def vbe_adder_3(signs: Sequence[int] = (1,) * 6 + (-1,) * 4) -> Circuit:
    """b += a for numbers of 3 bits, the carry out into a tenth qubit: 150 gates, 70 cx.

    Vedral, Barenco, Ekert, arXiv:quant-ph/9511018, figure 2. Wires: c_i, a_i and b_i are at 3 i, 3 i + 1 and 3 i + 2;
    c_3 is 9. Two equal cx that follow one another, at the end of the last carry and in the last sum, are left out.
    """
    left = iter(signs)

    def carry(i: int) -> list[Gate]:
        c, a, b, out = 3 * i, 3 * i + 1, 3 * i + 2, 3 * i + 3
        return [*h(out), *ccz((a, b, out), next(left)), *cx((a, b)), *ccz((c, b, out), next(left)), *h(out)]

    def carry_back(i: int) -> list[Gate]:
        c, a, b, out = 3 * i, 3 * i + 1, 3 * i + 2, 3 * i + 3
        return [*h(out), *ccz((c, b, out), next(left)), *cx((a, b)), *ccz((a, b, out), next(left)), *h(out)]

    # The sum of bit 2 is one cx: its other cx cancels with the cx of carry(2).
    gates = [*carry(0), *carry(1), *carry(2), *cx((6, 8))]
    for i in (1, 0):
        gates += [*carry_back(i), *cx((3 * i + 1, 3 * i + 2), (3 * i, 3 * i + 2))]
    return Circuit.from_gates(10, gates)


def gf2_4_mult(signs: Sequence[int] = _GF_SIGNS) -> Circuit:
    """c = a b in the field GF(2^4) with x^4 + x + 1: 225 gates, 99 cx; a_i, b_i, c_i on wires i, 4 + i, 8 + i; c is 0.

    Mastrovito's product, as in Maslov et al., arXiv:0710.1093. First come the coefficients of x^4, x^5 and x^6, which
    three cx spread by x^4 = x + 1, then the coefficients of 1 to x^3. Each is a product of ccz on c_i between two h.
    """
    left = iter(signs)

    def coefficient(k: int, target: int) -> list[Gate]:
        """c_target ^= the sum of a_i b_j over i + j = k"""
        pairs = [(i, k - i) for i in range(4) if 0 <= k - i < 4]
        wire = 8 + target
        products = [gate for i, j in pairs for gate in ccz((i, 4 + j, wire), next(left))]
        return [*h(wire), *products, *h(wire)]

    # The coefficients of x^6, x^5 and x^4 go to the upper of their two terms, x^(k+4) = x^(k+1) + x^k; the three cx add
    # them to the lower one.
    gates = [*coefficient(6, 3), *coefficient(5, 2), *coefficient(4, 1)]
    gates += cx((9, 8), (10, 9), (11, 10))
    for k in range(4):
        gates += coefficient(k, k)
    return Circuit.from_gates(12, gates)


BENCHMARKS: dict[str, Callable[[], Circuit]] = {
    "tof_3": lambda: tof_n(3),
    "barenco_tof_3": barenco_tof_3,
    "mod5_4": mod5_4,
    "tof_5": lambda: tof_n(5),
    "vbe_adder_3": vbe_adder_3,
    "gf2^4_mult": gf2_4_mult,
}


def benchmark(name: str) -> Circuit:
    """Return the benchmark circuit of this name. Raises ConfigError."""
    if name not in BENCHMARKS:
        known = ", ".join(BENCHMARKS)
        raise ConfigError(f"{name}{near(name, list(BENCHMARKS))} is none of the benchmark circuits: {known}")
    return BENCHMARKS[name]()


# -- A circuit by a user's word: the path of an OpenQASM 2 file, or the name of a benchmark --------------------------


def program(source: str) -> QasmProgram:
    """Return the circuit and the names of its qubits. A file takes precedence over a benchmark of the same name.

    Raises ConfigError if the word names neither, or the file cannot be read as a circuit.
    """
    if source in BENCHMARKS and not Path(source).exists():
        circuit = benchmark(source)
        return QasmProgram(circuit, tuple(f"q[{wire}]" for wire in range(circuit.num_qubits)), ())
    if not Path(source).exists() and "/" not in source and "." not in source:
        known = ", ".join(BENCHMARKS)
        raise ConfigError(
            f"{source}{near(source, list(BENCHMARKS))}: neither a file nor one of the benchmark circuits {known}"
        )
    return read(source)


def noted(source: str) -> QasmProgram:
    """Return `program(source)`, and print on stderr which statements of the file are not in the circuit."""
    found = program(source)
    for remark in found.remarks:
        print(f"note: {remark}", file=sys.stderr)
    return found
