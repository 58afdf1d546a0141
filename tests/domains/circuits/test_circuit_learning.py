"""Walks that learn which rewrites pay: `circuit optimise learn=true`."""

import json
import math

import pytest

from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits.commands import run
from ddppo.domains.circuits.env_walk import AT_RANDOM, learning_walk, random_walk
from ddppo.domains.circuits.quantum.benchmarks import benchmark
from ddppo.domains.circuits.quantum.equivalence import verify
from ddppo.domains.circuits.quantum.qasm_reader import read
from ddppo.domains.circuits.walk import FastWalk, LearningRule
from ddppo.errors import ConfigError
from ddppo.seeding import derived_seed

pytestmark = pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))


def test_a_walk_depends_on_its_seed_alone_and_without_weights_is_one_at_random():
    keywords = {"circuit": "vbe_adder_3", **AT_RANDOM}
    first, second = (
        learning_walk(keywords, 3.0, 0, 5).go([], 700, math.inf).places.tolist() for _ in range(2)
    )
    assert first == second
    at_random = random_walk(keywords, 3.0, 0, 5)
    at_random.go([], 700, math.inf)
    seed = derived_seed(5, "env", 0)
    still = FastWalk(
        keywords, seed, prior=3.0, learning=LearningRule(rate=0.0, shipped=(0.0,) * 15, undo=0.0)
    )
    still.go([], 700, math.inf)
    assert still.best()[1].tolist() == at_random.best()[1].tolist() != first


def test_a_walk_that_learns_has_fewer_gates_after_as_many_steps_than_one_at_random():
    keywords = {"circuit": "rc_adder_6", **AT_RANDOM}
    learned, at_random = (
        sum(make(keywords, 3.0, 0, seed).go([], 4000, math.inf).cost for seed in range(4))
        for make in (learning_walk, random_walk)
    )
    assert learned < at_random - 4


def test_optimise_learns_and_its_circuit_is_the_same_one(tmp_path, capsys):
    out, how = tmp_path / "smaller.qasm", tmp_path / "how.json"
    run(
        [
            "optimise",
            "mod5_4",
            f"out={out}",
            f"rewrites={how}",
            "steps=4000",
            "workers=2",
            "learn=true",
            "start=given",
        ]
    )
    assert "2 workers rewrite and learn for 4,000 steps each" in capsys.readouterr().out
    smaller = read(out).circuit
    assert len(smaller) < 40
    assert verify(benchmark("mod5_4"), smaller).is_equal
    assert len(json.loads(how.read_text())["rewrites"]) > 20


def test_a_run_s_policy_does_not_learn(tmp_path):
    with pytest.raises(ConfigError, match=r"learn=true with run=: .* leave one of both out"):
        run(["optimise", "tof_3", f"out={tmp_path / 'a.qasm'}", f"run={tmp_path}", "learn=true"])


def test_walks_learn_by_themselves_where_the_cost_is_a_sum_over_gates(tmp_path, capsys):
    for cost, said in (("t_count", "1 worker rewrites and learns"), ("depth", "1 worker rewrites at random")):
        run(["optimise", "tof_3", f"out={tmp_path / 'a.qasm'}", "steps=20", "workers=1", f"cost={cost}"])
        assert said in capsys.readouterr().out
    for more, cost in (("cost=depth", "depth"), ("gate_set=ibm", "ibm.gate_count")):
        with pytest.raises(ConfigError, match=rf"learn=true with cost={cost}: .* use learn=false"):
            run(["optimise", "tof_3", f"out={tmp_path / 'a.qasm'}", more, "learn=true"])


def test_optimise_says_what_random_rewriting_finds_in_the_same_time(tmp_path, capsys):
    given = [
        "optimise",
        "tof_3",
        f"out={tmp_path / 'a.qasm'}",
        "steps=3000",
        "workers=1",
        "beside_random=true",
    ]
    assert run(given) == 0
    said = capsys.readouterr().out
    assert said.index("1 worker rewrites and learns") < said.index("1 worker rewrites at random")
    assert said.endswith("at random: gate_count 35; above: 35\n")
    for more in ("learn=false", "cost=depth", "gate_set=ibm"):
        with pytest.raises(ConfigError, match=r"beside_random=true with .*: the search is at random already"):
            run([*given, more])
