import itertools
import pickle
import random
from array import array

import numpy as np
import pytest

from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits.quantum import CX, RZ, Circuit, Gate, H, X, rewriting
from ddppo.domains.circuits.quantum.circuit import TURN
from ddppo.domains.circuits.quantum.rewriting import Rewriter, digest, unchecked
from ddppo.domains.circuits.quantum.rules import packaged, parse
from ddppo.errors import ConfigError
from tests.domains.circuits.circuit_oracle import EIGHTHS, distance, matrix_of, random_circuit

pytestmark = pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))

MERGE = parse("rz(a) 0; rz(b) 0 -> rz(a+b) 0")
EIGHTH = TURN // 8


def rz(wire, eighths):
    return Gate(RZ, (wire,), eighths * EIGHTH % TURN)


def cx(control, target):
    return Gate(CX, (control, target))


def rewritten(circuit, rng, rewriter, times, most_gates):
    """Return the circuit after so many random rewrites; of those that would make it too long, none."""
    for _ in range(times):
        pairs = rewriter.pairs(circuit)
        if not len(pairs):
            break
        after, _ = rewriter.apply(circuit, *pairs[rng.randrange(len(pairs))])
        if len(after) <= most_gates:
            circuit = after
    return circuit


# -- matching -------------------------------------------------------------------------------------------------------


def paths_of(circuit):
    """Return leads[i, j]: a path goes from gate i to gate j."""
    n = len(circuit)
    leads = np.zeros((n, n), bool)
    wires = [set(gate.wires) for gate in circuit]
    for j in range(n):
        for i in range(j):
            if wires[i] & wires[j]:
                leads[:, j] |= leads[:, i]
                leads[i, j] = True
    return leads


def matches_slowly(circuit, rule, node, leads):
    """Try all gates for all gates of the source, in circuit order on every wire, and ask whether none is between."""
    gates, wires, parameters = circuit.gates(), {}, {}

    def fits(symbolic, gate):
        if symbolic.kind != gate.kind:
            return None
        new_wires = dict(zip(symbolic.wires, gate.wires, strict=True))
        angle = symbolic.angle
        new_parameters = dict.fromkeys(angle.parameters, gate.angle)
        if symbolic.kind == RZ and not angle.parameters and angle.constant != gate.angle:
            return None
        return new_wires, new_parameters

    def agrees(known, new):
        return all(known.get(k, v) == v for k, v in new.items())

    def search(chosen, wires, parameters):
        k = len(chosen)
        if k == len(rule.source):
            return is_in_place(chosen)
        for i in [node] if k == 0 else range(len(gates)):
            found = fits(rule.source[k], gates[i]) if i not in chosen else None
            if found is None or not agrees(wires, found[0]) or not agrees(parameters, found[1]):
                continue
            names = wires | found[0]
            if len(set(names.values())) == len(names) and search([*chosen, i], names, parameters | found[1]):
                return True
        return False

    def is_in_place(chosen):
        for a, b in itertools.combinations(range(len(chosen)), 2):
            if set(rule.source[a].wires) & set(rule.source[b].wires) and chosen[a] > chosen[b]:
                return False
        outside = [i for i in range(len(gates)) if i not in chosen]
        return not any(leads[chosen, i].any() and leads[i, chosen].any() for i in outside)

    return search([], wires, parameters)


def test_the_mask_is_what_trying_all_gates_finds():
    rng = random.Random(0)
    rules = [rule for rule in packaged().rules if len(rule.source) <= 3]
    rules += rng.sample([rule for rule in packaged().rules if len(rule.source) == 4], 40)
    num_found = 0
    for _ in range(4):
        circuit = random_circuit(rng, 4, 14, EIGHTHS[2::2])
        mask, leads = Rewriter(rules).matches(circuit), paths_of(circuit)
        assert mask[:, -1].all()
        for r, rule in enumerate(rules):
            for node in range(len(circuit)):
                assert mask[node, r] == matches_slowly(circuit, rule, node, leads), f"{rule} at {node}"
        num_found += mask[:, :-1].sum()
    assert num_found > 20


def test_a_source_does_not_match_around_gates_that_stand_between_its_own():
    rule = parse("cx 0 1; cx 1 2 -> cx 0 2; cx 1 2; cx 0 1")
    through = Circuit.from_gates(
        4, [cx(0, 1), rz(0, 1), cx(0, 3), cx(3, 2), cx(1, 2)]
    )  # 0 -> 3 -> 2 leads back in
    beside = Circuit.from_gates(4, [cx(0, 1), cx(3, 2), rz(0, 1), cx(0, 3), cx(1, 2)])
    assert not Rewriter([rule]).matches(through)[0, 0]
    assert Rewriter([rule]).matches(beside)[0, 0]


def test_a_parameter_that_stands_twice_asks_for_equal_angles():
    rewriter = Rewriter([parse("rz(a) 0; x 0; rz(a) 0 -> x 0")])
    for other in (1, 2):
        circuit = Circuit.from_gates(1, [rz(0, 1), Gate(X, (0,)), rz(0, other)])
        assert rewriter.matches(circuit)[0, 0] == (other == 1)


# -- applying -------------------------------------------------------------------------------------------------------


def test_next_nodes_are_the_gates_inserted_and_those_just_before():
    circuit = Circuit.from_gates(
        3, [Gate(H, (0,)), Gate(H, (1,)), Gate(H, (2,)), cx(0, 1), rz(0, 1), cx(1, 2)]
    )
    rewriter = Rewriter([parse("cx 0 1; rz(a) 0 -> rz(a) 0; cx 0 1")])
    after, next_nodes = rewriter.apply(circuit, 3, 0)
    assert after == Circuit.from_gates(3, [*circuit.gates()[:3], rz(0, 1), cx(0, 1), cx(1, 2)])
    gates = after.gates()
    assert [gates[i] for i in next_nodes] == [Gate(H, (0,)), Gate(H, (1,)), rz(0, 1), cx(0, 1)]


def test_rotations_by_zero_disappear():
    circuit = Circuit.from_gates(2, [cx(0, 1), rz(1, 3), rz(1, -3), cx(0, 1)])
    after, next_nodes = Rewriter([MERGE]).apply(circuit, 1, 0)
    assert after == Circuit.from_gates(2, [cx(0, 1), cx(0, 1)])
    assert next_nodes.tolist() == [0]


def test_the_last_rule_changes_nothing():
    circuit = random_circuit(random.Random(3), 5, 30).canonical()
    rewriter = Rewriter([MERGE])
    after, next_nodes = rewriter.apply(circuit, 7, rewriter.nop)
    assert after == circuit
    assert next_nodes.tolist() == [7]


def test_a_batch_is_each_circuit_alone():
    rng = random.Random(4)
    rewriter = Rewriter(packaged().rules)
    circuits = [random_circuit(rng, q, 5 * q).canonical() for q in (2, 5, 9)]
    masks = [rewriter.matches(circuit) for circuit in circuits]
    np.testing.assert_array_equal(rewriter.matches_all(circuits), np.concatenate(masks))
    for circuit, mask in zip(circuits, masks, strict=True):
        assert sorted(rewriter.pairs(circuit).tolist()) == np.argwhere(mask[:, :-1]).tolist()
    ends = [len(circuit) - 1 for circuit in circuits]
    np.testing.assert_array_equal(rewriter.matches_at(circuits, ends), [mask[-1] for mask in masks])
    chosen = [rng.choice(np.argwhere(mask).tolist()) for mask in masks]
    nodes, rules = zip(*chosen, strict=True)
    for circuit, (node, rule), (after, next_nodes) in zip(
        circuits, chosen, rewriter.apply_all(circuits, nodes, rules), strict=True
    ):
        alone, its_next = rewriter.apply(circuit, node, rule)
        assert after == alone
        assert next_nodes.tolist() == its_next.tolist()


def test_a_rule_that_does_not_match_is_refused_by_a_sentence():
    circuit = Circuit.from_gates(1, [rz(0, 1), rz(0, 2)])
    rewriter = Rewriter([MERGE])
    for node, rule in ((1, 0), (2, 0), (-1, 0), (0, 2), (0, -1)):
        with pytest.raises(
            ConfigError, match=f"rule {rule} does not match at node {node} of a circuit of 2 gates"
        ):
            rewriter.apply(circuit, node, rule)
    with pytest.raises(ConfigError, match="1 circuits have no such nodes"):
        rewriter.matches_at([circuit], [2])
    with pytest.raises(ConfigError, match="1 circuits need as many nodes and rules"):
        rewriter.apply_all([circuit], [0, 1], [0])


def test_a_rewriter_travels_to_other_processes():
    circuit = random_circuit(random.Random(7), 5, 30)
    rewriter = Rewriter([MERGE, parse("h 0; h 0 -> ")])
    copied = pickle.loads(pickle.dumps(rewriter))
    np.testing.assert_array_equal(copied.matches(circuit), rewriter.matches(circuit))


def test_a_machine_without_a_compiler_says_so(monkeypatch):
    monkeypatch.setattr(rewriting, "_compiled", {})
    monkeypatch.setattr(PLUGIN.cpp, "why_not", lambda: "there is no C++ compiler")
    with pytest.raises(ConfigError, match="cannot be compiled here: there is no C\\+\\+ compiler"):
        Rewriter([MERGE])


# -- soundness ------------------------------------------------------------------------------------------------------


def check_that_rewrites_keep_the_unitary(seed, times):
    rng = random.Random(seed)
    circuit = random_circuit(rng, 5, 40, [rng.randrange(1, TURN) for _ in range(3)] + list(EIGHTHS[1:]))
    after = rewritten(circuit, rng, Rewriter(packaged().rules), times, most_gates=60)
    assert after != circuit
    assert distance(matrix_of(after), matrix_of(circuit)) < 1e-8


def test_a_thousand_rewrites_keep_the_unitary():
    for seed in range(20):
        check_that_rewrites_keep_the_unitary(seed, 1_000)


def test_the_digest_is_that_of_python():
    rng = random.Random(5)
    for _ in range(300):
        circuit = random_circuit(rng, rng.randrange(1, 9), rng.randrange(40), [0, 1, TURN - 1, TURN // 3])
        assert digest(circuit) == circuit.digest()
    rewriter = Rewriter(packaged().rules)
    after = rewritten(circuit, rng, rewriter, 20, 60)
    assert digest(after) == after.digest() == Circuit.from_gates(after.num_qubits, after.gates()).digest()


def same_on_every_wire(picked, gates):
    """Return what tells circuits apart: each gate, by its number, with how many its wires passed before."""
    passed, seen = [0] * 3, []
    for number in picked:
        before = 0
        for wire in gates[number].wires:
            before = 16 * before + passed[wire]
            passed[wire] += 1
        seen.append(256 * number + before)
    return array("H", sorted(seen)).tobytes()


def count_digests(num_circuits):
    rng = random.Random(6)
    gates = [Gate(H, (w,)) for w in range(3)] + [rz(w, 1) for w in range(3)]
    gates += [cx(v, w) for v, w in itertools.permutations(range(3), 2)]
    each = Circuit.from_gates(3, gates)
    digests, circuits, drawn = set(), set(), set()
    for _ in range(num_circuits):
        picked = rng.choices(range(len(gates)), k=rng.randrange(12))
        if (again := bytes(picked)) in drawn:  # short ones are drawn again and again
            continue
        drawn.add(again)
        taken = np.array(picked, np.intp)
        digests.add(digest(unchecked(3, each.kinds[taken], each.wires[taken], each.angles[taken])))
        circuits.add(same_on_every_wire(picked, gates))
    return len(digests), len(circuits)


def test_circuits_have_as_many_digests_as_there_are_circuits():
    digests, circuits = count_digests(10_000)
    assert digests == circuits > 5_000


@pytest.mark.slow
def test_a_million_circuits_have_as_many_digests_as_there_are_circuits():
    digests, circuits = count_digests(1_000_000)
    assert digests == circuits > 500_000
