import math
import random

import numpy as np
import pytest

from ddppo.domains.circuits.quantum import CX, RZ, Circuit, Gate, H, X, equivalence
from ddppo.domains.circuits.quantum.benchmarks import benchmark, tof_n
from ddppo.domains.circuits.quantum.circuit import TURN
from ddppo.domains.circuits.quantum.costs import COSTS, cost
from ddppo.domains.circuits.quantum.equivalence import (
    chance_to_miss,
    product_state,
    stabiliser_state,
    unitary,
    verify,
)
from ddppo.domains.circuits.quantum.rewriting import differing_parts, merged
from ddppo.errors import ConfigError
from tests.domains.circuits.circuit_oracle import distance, matrix_of, random_circuit

ANGLES = (1, TURN // 16, TURN // 8, TURN // 2, TURN - 5, 12345678901234)


def test_the_unitary_is_that_of_kronecker_products():
    rng = random.Random(0)
    for _ in range(60):
        circuit = random_circuit(rng, rng.randrange(1, 5), rng.randrange(30), ANGLES)
        assert distance(unitary(circuit), matrix_of(circuit)) < 1e-12


def rewritten(rng, circuit):
    """Return an equal circuit by identities put in at random: h h, cx cx, rz(a) rz(-a), and x rz(a) x for rz(-a)."""
    gates = circuit.gates()
    for _ in range(12):
        at, (a, b) = rng.randrange(len(gates) + 1), rng.sample(range(circuit.num_qubits), 2)
        turned = TURN // 8 * rng.randrange(8)
        gates[at:at] = rng.choice(
            [
                [Gate(H, (a,))] * 2,
                [Gate(CX, (a, b))] * 2,
                [Gate(RZ, (b,), turned), Gate(X, (b,)), Gate(RZ, (b,), turned), Gate(X, (b,))],
                [
                    Gate(H, (a,)),
                    Gate(H, (b,)),
                    Gate(CX, (a, b)),
                    Gate(H, (a,)),
                    Gate(H, (b,)),
                    Gate(CX, (b, a)),
                ],
            ]
        )
    return Circuit.from_gates(circuit.num_qubits, gates)


@pytest.mark.parametrize(("num_qubits", "times"), [(4, 40), (12, 3)])
def test_equal_circuits_are_found_equal_and_a_change_of_one_gate_is_found(num_qubits, times):
    rng = random.Random(1)
    for _ in range(times):
        circuit = random_circuit(rng, num_qubits, 60, ANGLES)
        other = rewritten(rng, circuit)
        assert verify(circuit, other).is_equal
        gates = other.gates()
        changed = Gate(RZ, (rng.randrange(num_qubits),), TURN // 1000)
        gates.insert(rng.randrange(len(gates)), changed)
        verdict = verify(circuit, Circuit.from_gates(num_qubits, gates))
        assert not verdict.is_equal
        assert verdict.distance > 1e-6


def test_a_difference_in_few_amplitudes_is_found():
    circuit = tof_n(6)  # moves one basis state of 64, ancillas at 0
    assert circuit.num_qubits == 11
    assert not verify(circuit, Circuit.from_gates(11, [])).is_equal


def test_the_bound_on_the_chance_to_miss_holds_for_the_hardest_difference():
    """M of one element .1: what a product state leaves of it is .1 times the product of its amplitudes."""
    rng, n, low = np.random.default_rng(0), 11, 2.0e-4
    shares = -np.log(rng.uniform(size=(200_000, n))).sum(1)  # |amplitude|^2 of a uniform state is uniform
    missed = np.mean(0.1 * np.exp(-shares / 2) < low)

    def bound(tolerance):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(equivalence, "_STATE_TOLERANCE", tolerance)
            return chance_to_miss(n)

    assert 0 < missed < bound(low) < 1
    assert chance_to_miss(n) < 1e-6
    assert chance_to_miss(20) < 1e-3
    assert all(chance_to_miss(k) <= chance_to_miss(k + 1) < 1 for k in range(11, 50))


def test_circuits_of_other_qubits_are_not_equal():
    assert "3 and 5 qubits" in str(verify(Circuit.from_gates(3, []), Circuit.from_gates(5, [])))


def test_what_circuits_share_at_both_ends_is_left_out():
    shared = [Gate(H, (0,)), Gate(CX, (0, 1)), Gate(CX, (1, 2))]
    a = Circuit.from_gates(4, [*shared, Gate(X, (1,)), Gate(CX, (1, 2)), Gate(X, (3,))])
    b = Circuit.from_gates(4, [Gate(X, (3,)), *shared, Gate(H, (1,)), Gate(CX, (1, 2))])
    first, second = differing_parts(a, b)
    assert first.gates() == [Gate(X, (0,))]
    assert second.gates() == [Gate(H, (0,))]
    rng = random.Random(2)
    for _ in range(40):
        a, b = random_circuit(rng, 4, 12), random_circuit(rng, 4, 12)
        b = Circuit.from_gates(4, [*a.gates()[:6], *b.gates()[:3], *a.gates()[6:]])
        parts = differing_parts(a, b)
        assert len(parts[0]) <= len(a)
        equal = distance(matrix_of(a), matrix_of(b)) < 1e-9
        assert equal == (distance(matrix_of(parts[0]), matrix_of(parts[1])) < 1e-9)


def test_a_local_change_of_a_large_circuit_is_verified_exactly():
    rng = random.Random(3)
    circuit = random_circuit(rng, 200, 3000)
    gates = circuit.gates()
    gates[1500:1500] = [Gate(CX, (17, 99)), Gate(CX, (17, 99))]
    verdict = verify(circuit, Circuit.from_gates(200, gates))
    assert verdict.is_equal
    assert verdict.chance == 0


def test_more_qubits_than_memory_holds_are_refused():
    a, b = (Circuit.from_gates(60, [Gate(kind, (w,)) for w in range(60)]) for kind in (H, X))
    with pytest.raises(ConfigError, match=r"differ on 60 qubits: their states need .* compare them in parts"):
        verify(a, b)


def test_random_states_are_states():
    rng = np.random.default_rng(0)
    for state in (product_state(6, rng), stabiliser_state(6, rng)):
        assert np.linalg.norm(state) == pytest.approx(1)
    sizes = np.unique(np.abs(stabiliser_state(6, rng)).round(12))
    assert len(sizes) <= 2  # a stabiliser state has one amplitude but for phase, and zeros


def test_merging_random_circuits_keeps_their_unitary_and_leaves_no_rotation_by_zero():
    rng = random.Random(4)
    for _ in range(100):
        circuit = random_circuit(rng, rng.randrange(1, 5), 40)
        smaller = merged(circuit)
        assert len(smaller) <= len(circuit)
        assert not ((smaller.kinds == RZ) & (smaller.angles == 0)).any()
        assert distance(unitary(circuit), unitary(smaller)) < 1e-12


def test_costs_are_those_of_their_names():
    circuit = benchmark("tof_3")
    assert {name: function(circuit) for name, function in COSTS.items()} == {
        "gate_count": 45, "cx_count": 18, "cx_weighted": 81, "t_count": 21, "depth": circuit.depth, "cx_depth": 16,
    }  # fmt: skip
    assert cost("math:isqrt") is not None
    assert cost("tests.domains.circuits.test_circuit_equivalence:number_of_h")(circuit) == 6


def number_of_h(circuit):
    return (circuit.kinds == H).sum()


def no_number(circuit):
    return math.nan


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gate_cont", r"cost=gate_cont: gate_cont \(did you mean gate_count"),
        ("no_such_package:cost", "cannot be imported: ModuleNotFoundError"),
        ("math:no_such", "cannot be imported: AttributeError"),
        ("math:pi", "has to be a function"),
        ("math:sqrt", "raised TypeError"),
        (
            "tests.domains.circuits.test_circuit_equivalence:no_number",
            "returned nan; a cost is a finite number",
        ),
    ],
)
def test_a_cost_that_is_none_is_refused(name, said):
    with pytest.raises(ConfigError, match=said):
        cost(name)(benchmark("tof_3"))


def test_a_benchmark_that_is_none_is_refused():
    with pytest.raises(
        ConfigError, match=r"tof_33 \(did you mean tof_3.* is none of the benchmark circuits: tof_3"
    ):
        benchmark("tof_33")


def test_up_to_12_qubits_every_element_is_compared_where_that_is_asked_for(monkeypatch):
    monkeypatch.setattr(equivalence, "_BLOCK", 2**14)  # four columns of 12 qubits at a time
    gates = [Gate(CX, (wire, wire + 1)) for wire in range(11)]
    a = Circuit.from_gates(12, [*gates, Gate(X, (11,)), *gates])
    b = Circuit.from_gates(12, [*gates[::-1], *gates[::-1], *gates, Gate(X, (11,)), *gates])
    assert not verify(a, b, whole_qubits=12).is_equal
    turned = Circuit.from_gates(12, [Gate(RZ, (0,), TURN // 8), *a.gates(), Gate(RZ, (0,), TURN - TURN // 8)])
    for other in (turned, Circuit.from_gates(12, [Gate(H, (3,)), Gate(H, (3,)), *a.gates()])):
        verdict = verify(a, other, whole_qubits=12)
        assert verdict.is_equal
        assert verdict.chance == 0
    assert "random product states" not in str(verify(a, turned, whole_qubits=12))
