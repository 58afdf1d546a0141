"""Walks in C++ make the choices of a walk in Python by the same random numbers, and keep all matches up to date."""

import math

import numpy as np
import pytest

from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits.env_walk import AT_RANDOM
from ddppo.domains.circuits.quantum import CX, RZ, Circuit, Gate, H, X
from ddppo.domains.circuits.quantum.benchmarks import benchmark
from ddppo.domains.circuits.quantum.circuit import TURN
from ddppo.domains.circuits.quantum.costs import by_gate, cost
from ddppo.domains.circuits.quantum.coupling import coupling
from ddppo.domains.circuits.quantum.equivalence import verify
from ddppo.domains.circuits.quantum.qasm_reader import write
from ddppo.domains.circuits.task.board import growth_of
from ddppo.domains.circuits.walk import FastWalk, LearningRule, rewrites_of, why_not
from tests.domains.circuits.walk_oracle import LearningOracle, WalkOracle, node_at

pytestmark = pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))

FOREVER = math.inf


def walk(circuit, seed=0, learning=None, patience=0.0, **env):
    return FastWalk(
        {**AT_RANDOM, "circuit": circuit, **env}, seed, prior=3.0, patience=patience, learning=learning
    )


@pytest.mark.parametrize(("circuit", "steps"), [("tof_3", 400), ("vbe_adder_3", 300)])
def test_every_circuit_is_the_one_that_python_draws_by_the_same_numbers(circuit, steps):
    fast = walk(circuit, seed=7)
    oracle = WalkOracle(fast.start, fast.rewriter, seed=7)
    for _ in range(steps):
        assert fast.now() == oracle.circuit
        oracle.step(*fast.matches())
        fast.go([], 1, FOREVER)
    assert oracle.num_ends > 5
    assert fast.facts().num_circuits == sum(map(len, oracle.levels.values()))


def test_what_a_walk_learns_is_what_python_learns_by_the_same_numbers():
    shipped = tuple(0.1 * k * (-1) ** k for k in range(15))  # all different
    rule = LearningRule(rate=0.3, num_steps=40, shipped=shipped, undo=0.0, turns=False)
    fast = walk("tof_3", seed=4, learning=rule)
    oracle = LearningOracle(fast.start, fast.rewriter, 4, rule, fast.room)
    while oracle.num_updates < 3:
        assert fast.now() == oracle.circuit
        rows, weights = fast.matches()
        classes = oracle.classes(rows, weights)
        assert oracle.is_listed.tolist() == (weights > 0).tolist()
        np.testing.assert_allclose(np.abs(weights), oracle.weights(rows, classes))
        oracle.step(rows, weights)
        fast.go([], 1, FOREVER)
        np.testing.assert_allclose(fast.table(), oracle.table, atol=1e-12)
    assert np.abs(oracle.table).max() > 0.3


def test_rewrites_that_take_back_another_are_likely_only_as_undo_says():
    rule = LearningRule(rate=0.0, shipped=(0.0,) * 15, undo=-4.0, turns=False)
    fast = walk("qft_5", seed=2, learning=rule)
    growth, num_back, num_others = growth_of(fast.rewriter), 0, 0
    while num_back < 20:
        before, episodes = fast.now().canonical(), fast.facts().num_episodes
        fast.go([], 1, FOREVER)
        if fast.facts().num_episodes > episodes:
            continue
        now = fast.now().canonical()
        rows, weights = fast.matches()
        undo = np.log(np.abs(weights)) + 3.0 * growth[rows[:, 2]]
        assert np.isclose(undo[:, None], [0.0, -4.0]).any(axis=1).all()
        for (wire, place, number), each in zip(rows[weights > 0].tolist(), undo[weights > 0], strict=True):
            after, _ = fast.rewriter.apply(now, node_at(now, wire, place), number)
            if after == before:
                assert np.isclose(each, -4.0)
                num_back += 1
            num_others += bool(np.isclose(each, 0.0))
    assert num_others > num_back


def test_episodes_at_random_come_in_between_and_teach_nothing():
    fast = walk("qft_5", learning=LearningRule(num_steps=50))
    growth, kinds = growth_of(fast.rewriter), set()
    before, was_random = fast.table(), False
    for _ in range(2000):
        fast.go([], 1, FOREVER)
        rows, weights = fast.matches()
        is_random = bool(np.allclose(np.abs(weights), np.exp(-3.0 * growth[rows[:, 2]])))
        after = fast.table()
        assert not (was_random and is_random) or (after == before).all()
        before, was_random = after.copy(), is_random
        kinds.add(is_random)
    assert kinds == {True, False}
    assert np.any(before != 0)


@pytest.mark.parametrize("learning", [None, LearningRule()])
def test_after_many_rewrites_the_matches_are_those_of_the_whole_circuit(learning):
    fast = walk("gf2^4_mult", learning=learning)
    growth = growth_of(fast.rewriter)
    for _ in range(60):
        fast.go([], 23, FOREVER)
        now = fast.now().canonical()
        rows, weights = fast.matches()
        possible = [
            (node_at(now, wire, place), rule)
            for (wire, place, rule), weight in zip(rows.tolist(), weights, strict=True)
            if weight > 0
        ]
        there = [
            (node, rule)
            for node, rule in fast.rewriter.pairs(now).tolist()
            if len(now) + growth[rule] <= fast.room
        ]
        assert sorted(possible) == sorted(there)
        if learning is None:
            np.testing.assert_allclose(np.abs(weights), np.exp(-3.0 * growth[rows[:, 2]]))


def test_a_best_circuit_is_repeated_from_its_places_and_equal_to_the_original():
    fast = walk("vbe_adder_3", learning=LearningRule())
    progress = fast.go([], 20_000, FOREVER)
    again, rewrites = rewrites_of(fast.rewriter, fast.start, progress.places)
    assert again == progress.circuit
    assert len(again) == progress.cost < 90
    assert len(rewrites) == len(progress.places)
    assert verify(benchmark("vbe_adder_3"), again).is_equal


@pytest.mark.parametrize("learning", [None, LearningRule(num_steps=50)])
@pytest.mark.parametrize(
    "more",
    [
        {"cost": "gate_count+9*cx_count-rz_count"},  # some gates are free, x and h are not
        {"coupling": "line"},
        {
            "buffer": {"draw": "power", "level_size": 1, "megabytes": 0.02}
        },  # circuits are dropped all the time
        {"buffer": {"draw": "original"}},
    ],
)
def test_every_circuit_on_the_way_is_equal_to_the_original(tmp_path, more, learning):
    rng = np.random.default_rng(3)
    gates = []
    for kind in rng.choice([H, X, CX, RZ], 40):
        wire = int(rng.integers(2))
        at = (wire, wire + 1)[:: rng.choice([1, -1])] if kind == CX else (wire,)
        gates.append(Gate(int(kind), at, int(rng.integers(1, 16)) * TURN // 16 if kind == RZ else 0))
    write(start := Circuit.from_gates(3, gates), path := tmp_path / "start.qasm")
    fast, seen = walk(str(path), learning=learning, **more), set()
    for _ in range(40):
        fast.go([], 17, FOREVER)
        now = fast.now()
        seen.add(now.digest())
        assert verify(start, now).is_equal
        if "coupling" in more:
            coupling("line", 3).check(now, "now")
    assert len(seen) > 20
    best, places = fast.best()
    assert rewrites_of(fast.rewriter, fast.start, places)[0] == best.canonical()


@pytest.mark.parametrize("name", ["cx_count", "t_count", "gate_count+2*cx_count", "0.1*h_count+0.7*rz_count"])
def test_the_cost_of_a_sum_over_gates_is_that_of_its_name(name):
    fast = walk("barenco_tof_3", cost=name)
    progress = fast.go([], 4000, FOREVER)
    assert progress.cost == pytest.approx(cost(name)(progress.circuit))
    assert progress.cost < cost(name)(benchmark("barenco_tof_3"))


def test_costs_that_are_no_sums_over_gates_have_no_walk_in_cpp():
    assert by_gate("gate_count+2*cx_count") == (1, 1, 3, 1, 0)
    assert by_gate("2*t_count-x_count") == (0, -1, 0, 0, 2)
    for name in ("depth", "gate_count+cx_depth", "ibm.gate_count", "my_pkg:cost"):
        assert by_gate(name) is None
        assert "is no sum over gates" in why_not({"circuit": "tof_3", "cost": name})


def test_a_better_circuit_of_another_walk_is_taken_with_its_rewrites():
    finder, listener = walk("vbe_adder_3"), walk("vbe_adder_3", seed=1)
    found = finder.go([], 20_000, FOREVER)
    assert listener.go([], 50, FOREVER).cost > found.cost
    heard = listener.go(found.messages, 0, FOREVER)
    assert heard.cost == found.cost
    assert rewrites_of(listener.rewriter, listener.start, heard.places)[0] == found.circuit
    assert walk("vbe_adder_3", buffer={"share": 0}).go([], 500, FOREVER).messages == []


@pytest.mark.parametrize("learning", [None, LearningRule()])
def test_a_walk_that_stands_still_begins_anew_and_keeps_its_best_circuit(learning):
    fast = walk("tof_3", learning=learning, patience=2.0)
    steps_of_best, best = 0, math.inf
    while fast.facts().num_restarts == 0:
        fast.go([], 1, FOREVER)
        facts = fast.facts()
        if facts.best_cost < best:
            best, steps_of_best = facts.best_cost, facts.num_steps
    # An episode has at most 100 steps, and the walk begins anew between two of them.
    assert 0 < facts.num_steps - steps_of_best - max(5000, 2 * steps_of_best) <= 101
    assert fast.now() == fast.start
    assert (facts.num_circuits, facts.num_levels) == (1, 1)
    # Each attempt waits twice as long as the one before it.
    first = facts.num_steps
    fast.go([], 10_000, FOREVER)
    assert fast.facts().num_restarts == 1
    while fast.facts().num_restarts == 1:
        fast.go([], 100, FOREVER)
    assert fast.facts().num_steps - first > 10_000
    found, places = fast.best()
    assert len(found) == fast.facts().best_cost == 35
    assert rewrites_of(fast.rewriter, fast.start, places)[0] == found.canonical()
    assert walk("tof_3", learning=learning).go([], 30_000, FOREVER).cost == 35
    assert fast.facts().nbytes < 32e6


def test_a_walk_takes_the_settings_of_an_environment_that_offers_to_change_nothing_at_every_node():
    # As the comparison with chance at the end of a run with experiment=quarl does.
    as_in_quarl = walk("tof_3", episode={"max_steps": 100, "nop": "nodes", "nop_stop": False})
    of_all = walk("tof_3", episode={"max_steps": 100, "mask": False})
    assert as_in_quarl.room == of_all.room == walk("tof_3").room
    assert as_in_quarl.go([], 2000, FOREVER).cost == walk("tof_3").go([], 2000, FOREVER).cost


def test_a_circuit_without_any_rewrite_is_walked_without_an_end(tmp_path):
    write(Circuit.from_gates(1, [Gate(X, (0,))]), path := tmp_path / "x.qasm")
    progress = walk(str(path)).go([], 50, FOREVER)
    assert (progress.num_steps, progress.cost) == (50, 1)


def test_memory_is_bounded():
    fast = walk("vbe_adder_3", buffer={"draw": "greedy", "megabytes": 1.0})
    fast.go([], 20_000, FOREVER)
    assert fast.facts().nbytes < 1.1e6
    assert fast.facts().num_circuits > 100
