"""Circuits by name: the benchmarks of the literature, built here, and files of OpenQASM."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ddppo.domains.circuits.quantum.circuit import CX, PI, RZ, TURN, Circuit, Gate, H, X
from ddppo.domains.circuits.quantum.qasm_reader import QasmProgram, read
from ddppo.errors import ConfigError, near

# -- The arithmetic circuits on which optimisers are compared, by their published constructions ----------------------
# A Toffoli gate is H CCZ H. A CCZ has 13 gates; its inverse is the same unitary with all angles negated. `signs`
# chooses one of both for each CCZ: rotations of two CCZ cancel if the signs are opposite, and only add up if they are
# equal. The signs below are those with which merging rotations removes the most gates; for gf2^n_mult, n > 4, the best
# that changing one sign at a time finds. Gate counts do not depend on them.


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


def barenco_tof_n(n: int) -> Circuit:
    """x_t ^= x_0 ... x_(n-1) by n - 2 dirty ancillas, which keep their values: 4 (n - 2) Toffolis.

    Barenco et al., arXiv:quant-ph/9503016, lemma 7.2. Controls 0 to n - 1, ancillas n to 2 n - 3, the target t at
    2 n - 2. Of two h that meet on a wire, both are left out: 60 (n - 2) - 4 n + 10 gates, 24 (n - 2) cx.
    """
    # Step k has control k + 1 and adds to ancilla k of n, n + 1, ..., the last one to the target.
    steps = [(0, 1, n), *((k + 1, n + k - 1, n + k) for k in range(1, n - 1))]
    down = [*reversed(steps), *steps[1:]]  # from the target down to the first ancilla, and back
    gates: list[Gate] = []
    signs = dict.fromkeys(steps, 1)
    for step in [*down, *down[1:-1]]:
        gates += toffoli(*step, sign=signs[step])
        signs[step] *= -1
    return without_pairs_of_h(Circuit.from_gates(2 * n - 1, gates))


def without_pairs_of_h(circuit: Circuit) -> Circuit:
    """Return the circuit without h h on one wire."""
    kept: list[Gate] = []
    last: dict[int, list[int]] = {wire: [] for wire in range(circuit.num_qubits)}  # of `kept`, by wire
    gone = set()
    for gate in circuit:
        before = last[gate.wires[0]]
        if gate.kind == H and before and kept[before[-1]].kind == H:
            gone.add(before.pop())
            continue
        for wire in gate.wires:
            last[wire].append(len(kept))
        kept.append(gate)
    return Circuit.from_gates(circuit.num_qubits, [gate for i, gate in enumerate(kept) if i not in gone])


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


def gf2_mult(n: int) -> Circuit:
    """c = a b in the field GF(2^n), modulo the polynomial in _GF: a_i, b_i, c_i on wires i, n + i, 2 n + i; c is 0.

    The coefficients of x^n to x^(2n-2) are added to the zeros of c first, and multiplied by x^n there. A multiplication
    by x renames the wires, and adds the top coefficient to those of the polynomial: one cx for a trinomial, three for
    n = 8. 13 n^2 + 4 n - 2 gates, and (n - 1) times the number of inner terms.
    """
    terms, signs = _GF[n]
    number = 0

    def coefficient(k: int, wire: int) -> list[Gate]:
        """c_wire ^= the sum of a_i b_j over i + j = k"""
        nonlocal number
        products: list[Gate] = []
        for i in range(max(0, k - n + 1), min(k, n - 1) + 1):
            products += ccz((i, n + k - i, wire), -1 if signs >> number & 1 else 1)
            number += 1
        return [*h(wire), *products, *h(wire)]

    # `at` is the wire of each power of x. The last wire is 0 at first, so that the first multiplication has no cx.
    at = list(range(2 * n, 3 * n))
    gates = [gate for k in range(n - 1) for gate in coefficient(n + k, at[k])]
    for step in range(n):
        at = [at[-1], *at[:-1]]
        if step:
            gates += cx(*((at[0], at[term]) for term in terms))
    assert at == list(range(2 * n, 3 * n)), at
    for k in range(n):
        gates += coefficient(k, at[k])
    return Circuit.from_gates(3 * n, gates)


# The inner terms of irreducible polynomials x^n + ... + 1, as in the papers' circuits, and signs as bits.
_GF = {
    5: ((2,), 0xA10DA),
    6: ((1,), 0x9435950DE),
    7: ((1,), 0xA1C851A6E6A3),
    8: ((1, 3, 4), 0x1ED26FE53B0F7537),
}


def rc_adder(n: int) -> Circuit:
    """b += a for numbers of n bits, the carry out into z; 2 n - 1 Toffolis, 5 n - 3 cx and 2 n - 4 x.

    Cuccaro, Draper, Kutin, Moulton, arXiv:quant-ph/0410184, section 3: a ripple of carries through a and one ancilla.
    Wires: b_i and a_i at 2 i and 2 i + 1, the ancilla 0 at 2 n, z at 2 n + 1.
    """
    b, a = [2 * i for i in range(n)], [2 * i + 1 for i in range(n)]
    ancilla, z = 2 * n, 2 * n + 1
    carries = [ancilla, *a[1:]]  # where the carry into bit i + 1 is computed
    left = iter([1] * n + [-1] * (n - 1))

    def carry(i: int) -> list[Gate]:
        """carries[i] ^= the product of bit i of b and of the carry into bit i (of a_0, for i = 0)."""
        return toffoli(a[0] if i == 0 else carries[i - 1], b[i], carries[i], next(left))

    # 1. Carries upwards. Before each, the next a is added to the place of the carry after it.
    gates = cx(*((a[i], b[i]) for i in range(1, n)), (a[1], ancilla))
    for i in range(n - 2):
        gates += [*carry(i), *cx((a[i + 2], carries[i + 1]))]
    gates += [*carry(n - 2), *cx((a[n - 1], z)), *toffoli(carries[n - 2], b[n - 1], z, next(left))]
    # 2. Sums. Carries are removed downwards with b negated.
    gates += [*x(*b[1 : n - 1]), *cx((ancilla, b[1]), *((a[i - 1], b[i]) for i in range(2, n)))]
    for i in range(n - 2, -1, -1):
        gates += carry(i)
        if i < n - 2:
            gates += [*cx((a[i + 2], carries[i + 1])), *x(b[i + 1])]
    gates += cx((a[1], ancilla), *((a[i], b[i]) for i in range(n)))
    return Circuit.from_gates(2 * n + 2, gates)


def csla_mux_3(signs: Sequence[int] = (1,) * 10) -> Circuit:
    """s = a + b + c for numbers of 3 bits and a carry c: both sums are computed and c selects one; 170 gates, 80 cx.

    A carry-select adder as in Van Meter, Itoh, arXiv:quant-ph/0408006, with the gates of benchmarks/csla_mux_3.qc in
    github.com/meamy/feynman. Wires: c 0; a_i and b_i at 1, 2; 5, 6; 10, 11; zeros at all others. The sum is on 2, 8,
    13 and 14; a and c keep their values.
    """
    carry, a0, b0, c0, d0, a1, b1, c1, d1, e1, a2, b2, c2, d2, e2 = range(15)
    left = iter(signs)

    def ands(*products: Triple) -> list[Gate]:
        """Add products to their targets, the last wires; h in front of and behind all."""
        targets = list(dict.fromkeys(target for _, _, target in products))
        return [*h(*targets), *(gate for each in products for gate in ccz(each, next(left))), *h(*targets)]

    gates = [
        *ands((a0, b0, c0), (a1, b1, c1), (a2, b2, c2)),
        *cx((a0, b0), (c0, d0), (a1, b1), (c1, e1), (a2, b2), (c2, e2), (b0, c0), (b2, d2)),
        *ands((c0, b1, c1), (d0, b1, e1)),
        *ands((c1, b2, c2), (e1, b2, e2)),
        *cx((b1, d1), (c0, b1), (c1, b2), (d0, d1), (e1, d2), (e2, c2), (d2, b2), (d1, b1)),
        *ands((carry, c2, e2), (carry, b2, d2), (carry, b1, d1)),
        *cx((e2, c2), (d2, b2), (d1, b1), (carry, b0)),
    ]
    return Circuit.from_gates(15, gates)


def mod_mult_55(signs: Sequence[int] = (1,) * 7) -> Circuit:
    """y = 16^x mod 55 for x of 3 bits, except that 3 and 4 have each other's result: 119 gates, 48 cx.

    Its gates are those of benchmarks/mod_mult_55.qc in github.com/meamy/feynman. x_i and y_i are on wires i and 3 + i;
    y is 0 at first.
    """
    x0, x1, x2, y0, y1, y2, y3, y4, y5 = range(9)
    left = iter(signs)

    def ands(*products: Triple) -> list[Gate]:
        targets = [target for _, _, target in products]
        return [*h(*targets), *(gate for each in products for gate in ccz(each, next(left))), *h(*targets)]

    gates = [
        *x(x2), *ands((x0, x2, y4)), *x(x2, x0), *ands((x1, y4, y3), (x0, x2, y5)), *cx((y3, y2), (y3, y0), (y5, y4)),
        *x(x1, y4), *ands((x1, y5, y3), (x1, y4, y0)), *x(x1), *cx((y3, y1), (y2, y5)),
        *ands((x1, y4, y2), (x0, x2, y5)), *x(x0, y4), *cx((y2, y5)),
    ]  # fmt: skip
    return Circuit.from_gates(9, gates)


def qft(n: int) -> Circuit:
    """The quantum Fourier transform of n qubits, the result with its bits reversed: n h, and 5 gates for each pair.

    Coppersmith, arXiv:quant-ph/0201067. A rotation by t that two qubits control is three rotations by t/2 and two cx.
    """
    gates: list[Gate] = []
    for k in range(n):
        gates += h(k)
        for j in range(k + 1, n):
            half = PI >> (j - k + 1)
            gates += [Gate(RZ, (j,), half), Gate(CX, (j, k)), Gate(RZ, (k,), TURN - half), Gate(CX, (j, k))]
            gates.append(Gate(RZ, (k,), half))
    return Circuit.from_gates(n, gates)


BENCHMARKS: dict[str, Callable[[], Circuit]] = {
    "tof_3": lambda: tof_n(3),
    "qft_5": lambda: qft(5),
    "barenco_tof_3": lambda: barenco_tof_n(3),
    "mod5_4": mod5_4,
    "tof_4": lambda: tof_n(4),
    "tof_5": lambda: tof_n(5),
    "barenco_tof_4": lambda: barenco_tof_n(4),
    "mod_mult_55": mod_mult_55,
    "qft_8": lambda: qft(8),
    "vbe_adder_3": vbe_adder_3,
    "barenco_tof_5": lambda: barenco_tof_n(5),
    "csla_mux_3": csla_mux_3,
    "rc_adder_6": lambda: rc_adder(6),
    "gf2^4_mult": gf2_4_mult,
    "tof_10": lambda: tof_n(10),
    "gf2^5_mult": lambda: gf2_mult(5),
    "gf2^6_mult": lambda: gf2_mult(6),
    "qft_16": lambda: qft(16),
    "gf2^7_mult": lambda: gf2_mult(7),
    "gf2^8_mult": lambda: gf2_mult(8),
}


def benchmark(name: str) -> Circuit:
    """Return the benchmark circuit of this name. Raises ConfigError."""
    if name not in BENCHMARKS:
        known = ", ".join(BENCHMARKS)
        raise ConfigError(f"{name}{near(name, list(BENCHMARKS))} is none of the benchmark circuits: {known}")
    return BENCHMARKS[name]()


# -- A circuit by a user's word: the path of an OpenQASM file, or the name of a benchmark -- --------------------------


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
