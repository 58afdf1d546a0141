"""The benchmark circuits: counts of the papers, and what each does to basis states, by a slow simulator."""

import cmath
import math
import random

import numpy as np
import pytest

from ddppo.domains.circuits.quantum import CX, RZ, H
from ddppo.domains.circuits.quantum.benchmarks import (
    BENCHMARKS,
    barenco_tof_n,
    benchmark,
    gf2_mult,
    qft,
    rc_adder,
    tof_n,
)
from ddppo.domains.circuits.quantum.circuit import radians
from ddppo.domains.circuits.quantum.costs import cost
from ddppo.domains.circuits.quantum.equivalence import applied, unitary, verify
from ddppo.domains.circuits.quantum.rewriting import merged
from ddppo.errors import ConfigError

COUNTS = {  # gates, cx, after merging
    "tof_3": (45, 18, 39), "qft_5": (55, 20, 43), "barenco_tof_3": (58, 24, 46), "mod5_4": (63, 28, 51),
    "tof_4": (75, 30, 63), "tof_5": (105, 42, 87), "barenco_tof_4": (114, 48, 86), "mod_mult_55": (119, 48, 106),
    "qft_8": (148, 56, 106), "vbe_adder_3": (150, 70, 109), "barenco_tof_5": (170, 72, 126),
    "csla_mux_3": (170, 80, 164), "rc_adder_6": (200, 93, 170), "gf2^4_mult": (225, 99, 181),
    "tof_10": (255, 102, 207), "gf2^5_mult": (347, 154, 287), "gf2^6_mult": (495, 221, 395), "qft_16": (616, 240, 406),
    "gf2^7_mult": (669, 300, 543), "gf2^8_mult": (883, 405, 703),
}  # fmt: skip


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_has_the_counts_that_papers_begin_from(name):
    circuit = benchmark(name)
    smaller = merged(circuit)
    assert (len(circuit), int((circuit.kinds == CX).sum()), len(smaller)) == COUNTS[name]
    assert merged(smaller) == smaller


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if benchmark(name).num_qubits <= 15])
def test_merging_keeps_the_unitary(name):
    assert verify(benchmark(name), merged(benchmark(name))).is_equal


def taken_to(circuit, bits):
    """Return the bits and the phase that a basis state is taken to: a slow simulation of its few amplitudes."""
    amplitudes = {tuple(bits): 1 + 0j}
    for gate in circuit:
        wire = gate.wires[-1]
        after = {}
        for state, amplitude in amplitudes.items():
            flipped = (*state[:wire], 1 - state[wire], *state[wire + 1 :])
            if gate.kind == RZ:
                turned = amplitude * cmath.exp(1j * radians(gate.angle)) if state[wire] else amplitude
                after[state] = after.get(state, 0) + turned
            elif gate.kind == H:
                sign = -1 if state[wire] else 1
                after[state] = after.get(state, 0) + sign * amplitude / math.sqrt(2)
                after[flipped] = after.get(flipped, 0) + amplitude / math.sqrt(2)
            else:
                is_on = gate.kind != CX or state[gate.wires[0]]
                after[flipped if is_on else state] = amplitude
        amplitudes = {state: amplitude for state, amplitude in after.items() if abs(amplitude) > 1e-9}
    ((state, amplitude),) = amplitudes.items()
    return state, amplitude


def basis_states(circuit, zeros=(), times=64, ones=()):
    """Return random basis states, 0 and 1 at these wires, with the one that the circuit takes each to, of one phase."""
    rng = random.Random(0)
    free = [wire for wire in range(circuit.num_qubits) if wire not in (*zeros, *ones)]
    inputs = range(2 ** len(free)) if 2 ** len(free) <= times else rng.sample(range(2 ** len(free)), times)
    found = []
    for number in inputs:
        before = [0] * circuit.num_qubits
        for k, wire in enumerate(free):
            before[wire] = number >> k & 1
        for wire in ones:
            before[wire] = 1
        found.append((tuple(before), *taken_to(circuit, before)))
    phases = [phase for _, _, phase in found]
    np.testing.assert_allclose(phases, phases[0], atol=1e-9)  # else it is no map of bits
    np.testing.assert_allclose(np.abs(phases), 1, atol=1e-9)
    return [(before, after) for before, after, _ in found]


def number(bits):
    return sum(bit << k for k, bit in enumerate(bits))


def both(name):
    """The benchmark, and what merging makes of it: they have to do the same."""
    return benchmark(name), merged(benchmark(name))


def test_mod5_4_flips_at_multiples_of_5():
    for circuit in both("mod5_4"):
        for before, after in basis_states(circuit):
            assert after == (*before[:4], before[4] ^ (number(before[:4]) % 5 == 0))


@pytest.mark.parametrize(
    "name", ["tof_3", "tof_4", "tof_5", "tof_10", "barenco_tof_3", "barenco_tof_4", "barenco_tof_5"]
)
def test_a_toffoli_of_many_controls_flips_its_target_where_all_are_1(name):
    n = int(name.rpartition("_")[2])
    is_dirty = name.startswith("barenco")
    ancillas = range(n, 2 * n - 2) if is_dirty else range(n + 1, 2 * n - 1)
    target = 2 * n - 2 if is_dirty else n
    for circuit in both(name):
        some = basis_states(circuit, () if is_dirty else ancillas, times=40)
        some += basis_states(circuit, () if is_dirty else ancillas, ones=range(n), times=8)
        for before, after in some:
            expected = list(before)
            expected[target] ^= all(before[:n])
            assert after == tuple(expected)


def test_vbe_adder_3_adds():
    for circuit in both("vbe_adder_3"):
        for before, after in basis_states(circuit, zeros=(0, 3, 6)):
            a, b = number(before[1:9:3]), number(before[2:9:3])
            total = a + b
            assert (number(after[0:9:3]), number(after[1:9:3])) == (0, a)
            assert number(after[2:9:3]) == total % 8
            assert after[9] == before[9] ^ (total >> 3)


@pytest.mark.parametrize("n", [4, 6])
def test_rc_adder_adds(n):
    for circuit in (rc_adder(n), merged(rc_adder(n))):
        for before, after in basis_states(circuit, zeros=(2 * n,)):
            a, b = number(before[1 : 2 * n : 2]), number(before[0 : 2 * n : 2])
            assert (number(after[1 : 2 * n : 2]), after[2 * n]) == (a, 0)
            assert number(after[0 : 2 * n : 2]) == (a + b) % 2**n
            assert after[2 * n + 1] == before[2 * n + 1] ^ (a + b >> n)
    counts = len(rc_adder(n)), cost("cx_count")(rc_adder(n)), cost("x_count")(rc_adder(n))
    assert counts == (15 * (2 * n - 1) + 5 * n - 3 + 2 * n - 4, 6 * (2 * n - 1) + 5 * n - 3, 2 * n - 4)


def test_csla_mux_3_adds_with_a_carry():
    a, b, sums = (1, 5, 10), (2, 6, 11), (2, 8, 13, 14)
    for circuit in both("csla_mux_3"):
        for before, after in basis_states(circuit, zeros=(3, 4, 7, 8, 9, 12, 13, 14), times=128):
            of = [number([before[wire] for wire in wires]) for wires in (a, b)]
            assert number([after[wire] for wire in sums]) == sum(of) + before[0]
            assert [after[wire] for wire in (0, *a)] == [before[wire] for wire in (0, *a)]


def test_mod_mult_55_is_a_power_of_16():
    expected = [16**x % 55 for x in range(8)]
    expected[3], expected[4] = expected[4], expected[3]
    for circuit in both("mod_mult_55"):
        for before, after in basis_states(circuit, zeros=range(3, 9)):
            assert after[:3] == before[:3]
            assert number(after[3:]) == expected[number(before[:3])]


@pytest.mark.parametrize(
    ("n", "polynomial"), [(4, 0b10011), (5, 0b100101), (6, 0b1000011), (7, 0b10000011), (8, 0b100011011)]
)
def test_gf2_mult_multiplies_in_the_field(n, polynomial):
    for circuit in both(f"gf2^{n}_mult"):
        for before, after in basis_states(circuit, zeros=range(2 * n, 3 * n), times=24):
            a, b = number(before[:n]), number(before[n : 2 * n])
            product = 0
            for k in range(n):
                product ^= (a << k) * (b >> k & 1)
            for k in range(2 * n - 2, n - 1, -1):
                product ^= (polynomial << (k - n)) * (product >> k & 1)
            assert after == (*before[: 2 * n], *(product >> k & 1 for k in range(n)))
    # The polynomial has no divisor of degree 1 to n / 2, so that its remainders are a field.
    assert all(remainder(polynomial, divisor) for divisor in range(2, 2 ** (n // 2 + 1)))


def remainder(polynomial, divisor):
    while polynomial.bit_length() >= divisor.bit_length():
        polynomial ^= divisor << (polynomial.bit_length() - divisor.bit_length())
    return polynomial


def test_gf2_mult_adds_its_product_to_what_is_there():
    """On the zeros alone the first h would make no difference: reduction acts on c, so c has to be 0."""
    circuit = gf2_mult(5)
    before = (1, 0, 0, 0, 0, 1, 0, 1, 1, 0, *[0] * 5)
    assert taken_to(circuit, before)[0] == (*before[:10], 1, 0, 1, 1, 0)  # 1 times b


@pytest.mark.parametrize("n", [1, 5, 8])
def test_qft_is_the_fourier_transform_with_its_bits_reversed(n):
    size = 2**n
    rows = [int(format(i, f"0{n}b")[::-1], 2) for i in range(size)]
    fourier = np.exp(2j * np.pi * np.outer(np.arange(size), np.arange(size)) / size) / math.sqrt(size)
    for circuit in (qft(n), merged(qft(n))):
        found = unitary(circuit)
        np.testing.assert_allclose(found * (abs(found[0, 0]) / found[0, 0]), fourier[rows], atol=1e-10)


def test_qft_16_is_the_fourier_transform_of_a_basis_state():
    circuit, size, at = benchmark("qft_16"), 2**16, 12345
    state = np.zeros((size, 1), complex)
    state[at] = 1
    rows = np.array([int(format(i, "016b")[::-1], 2) for i in range(size)])
    found = applied(circuit, state)[:, 0]
    expected = np.exp(2j * np.pi * (rows * at % size) / size) / math.sqrt(size)
    np.testing.assert_allclose(found * (abs(found[0]) / found[0]), expected, atol=1e-10)


def test_ladders_have_6_cx_for_each_of_their_toffolis():
    for n in (3, 4, 6, 10):
        circuit = tof_n(n)
        assert (circuit.num_qubits, len(circuit)) == (2 * n - 1, 15 * (2 * n - 3))
        assert cost("cx_count")(circuit) == 6 * (2 * n - 3)
        circuit = barenco_tof_n(n)
        assert (circuit.num_qubits, len(circuit)) == (2 * n - 1, 60 * (n - 2) - 4 * n + 10)
        assert cost("cx_count")(circuit) == 24 * (n - 2)


def test_a_benchmark_that_is_none_is_refused():
    with pytest.raises(
        ConfigError, match=r"tof_33 \(did you mean tof_3.* is none of the benchmark circuits: tof_3"
    ):
        benchmark("tof_33")
