"""Coupling maps: which circuits are within one, and that rewriting stays there."""

import random

import pytest

from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits.commands import run
from ddppo.domains.circuits.env_walk import policy_of_run
from ddppo.domains.circuits.quantum import CX, Circuit, Gate, H
from ddppo.domains.circuits.quantum.coupling import coupling, keeps_pairs
from ddppo.domains.circuits.quantum.equivalence import verify
from ddppo.domains.circuits.quantum.qasm_reader import read, write
from ddppo.domains.circuits.quantum.rules import packaged, parse
from ddppo.domains.circuits.task.board import rewriter
from ddppo.domains.circuits.task.env import CircuitEnv
from ddppo.domains.circuits.task.lineage import read_rewrites
from ddppo.errors import ConfigError
from tests.domains.circuits.circuit_oracle import EIGHTHS, random_circuit
from tests.domains.circuits.test_wrong_circuits import a_run

needs_cpp = pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))


def pairs_of(circuit):
    return {frozenset(gate.wires) for gate in circuit if gate.kind == CX}


def within(pairs, num_qubits, num_gates=60, seed=0):
    """A random circuit with cx on these pairs alone."""
    rng = random.Random(seed)
    gates = [
        Gate(CX, tuple(rng.sample(rng.choice(pairs), 2))) if gate.kind == CX else gate
        for gate in random_circuit(rng, num_qubits, num_gates, EIGHTHS)
    ]
    return Circuit.from_gates(num_qubits, gates)


@pytest.mark.parametrize(
    ("text", "num_qubits", "pairs"),
    [
        ("line", 4, [(0, 1), (1, 2), (2, 3)]),
        ("line", 1, []),
        ("ring", 4, [(0, 1), (1, 2), (2, 3), (0, 3)]),
        ("ring", 2, [(0, 1)]),
        ("grid:2x3", 5, [(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)]),
        ("0-1,2-1", 3, [(0, 1), (1, 2)]),
        (["0-1", "1-2"], 3, [(0, 1), (1, 2)]),
    ],
)
def test_a_map_is_named_or_listed(text, num_qubits, pairs):
    assert coupling(text, num_qubits).pairs == {frozenset(pair) for pair in pairs}


def test_a_map_may_be_a_file(tmp_path):
    path = tmp_path / "map.txt"
    path.write_text("# my machine\n0 1\n1-2  # a comment\n\n3,2\n")
    assert coupling(str(path), 4).pairs == {frozenset(pair) for pair in [(0, 1), (1, 2), (2, 3)]}
    path.write_text("0 1\n1 1\n")
    with pytest.raises(ConfigError, match=r"map.txt, line 2: `1 1` is no pair of two qubits"):
        coupling(str(path), 4)
    path.write_text("# none\n")
    with pytest.raises(ConfigError, match="the file has no pair"):
        coupling(str(path), 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lin", "coupling=lin: neither line, ring, grid:ROWSxCOLUMNS, .*cannot be read"),
        ("grid:2", "a grid is grid:ROWSxCOLUMNS"),
        ("grid:0x5", "a grid is grid:ROWSxCOLUMNS"),
        ("grid:2x2", "it has 4 places for 5 qubits"),
        ("0-1,1-1", "`1-1` is no pair of two qubits"),
        ("0-1,2-", "`2-` is no pair of two qubits"),
    ],
)
def test_a_map_that_is_none_is_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        coupling(text, 5)


def test_the_first_cx_outside_the_map_is_named():
    circuit = Circuit.from_gates(4, [Gate(H, (0,)), Gate(CX, (1, 0)), Gate(CX, (1, 3)), Gate(CX, (0, 3))])
    with pytest.raises(
        ConfigError, match=r"coupling=line: gate 2 of my.qasm, cx 1,3, .*qubit 1 is coupled to 0, 2"
    ):
        coupling("line", 4).check(circuit, "my.qasm")
    coupling("0-1,3-1,0-3", 4).check(circuit, "my.qasm")


def test_rules_are_left_out_that_join_other_qubits_and_on_a_map_without_triangles_no_more():
    assert keeps_pairs(parse("cx 0 1; rz(a) 0 -> rz(a) 0; cx 0 1"))
    assert keeps_pairs(parse("cx 0 1 -> h 0; h 1; cx 1 0; h 0; h 1"))
    assert not keeps_pairs(parse("cx 0 1; cx 1 2; cx 0 1; cx 1 2 -> cx 0 2"))
    for rule in packaged().rules:
        source, target = ({frozenset(g.wires) for g in side if g.kind == CX} for side in rule)
        closes = all(
            any({first ^ second} == {new} for first in source for second in source) for new in target - source
        )
        assert keeps_pairs(rule) == (target <= source)
        assert closes  # a pair that is new joins the ends of two old ones


@needs_cpp
def test_random_rewriting_stays_within_the_map(tmp_path):
    grid = [(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)]
    path = tmp_path / "c.qasm"
    write(within(grid, 6), path)
    env = CircuitEnv(str(path), coupling="grid:2x3", episode={"slack": 8.0})
    free = CircuitEnv(str(path), episode={"slack": 8.0})
    seen = {}
    for each in (env, free):
        rng, found = random.Random(0), set()
        obs, _ = each.reset(seed=0)
        for _ in range(1_500):
            obs, _, terminated, truncated, _ = each.step(rng.randrange(int(obs["num_pairs"][0])))
            found |= pairs_of(each.circuit)
            if terminated or truncated:
                obs, _ = each.reset()
        seen[each] = found
    allowed = {frozenset(pair) for pair in grid}
    assert seen[env] <= allowed
    assert not seen[free] <= allowed  # without a map, rewriting leaves it


@needs_cpp
def test_the_command_optimises_within_a_map_and_its_rewrites_can_be_repeated(tmp_path, capsys):
    path, out, how = tmp_path / "c.qasm", tmp_path / "small.qasm", tmp_path / "how.json"
    pairs = [(0, 1), (1, 2), (2, 3)]
    circuit = within(pairs, 4)
    write(circuit, path)
    words = [
        "optimise",
        str(path),
        f"out={out}",
        f"rewrites={how}",
        "steps=1500",
        "workers=1",
        "coupling=line",
    ]
    assert run(words) == 0
    smaller = read(out).circuit
    assert len(smaller) < len(circuit)
    assert pairs_of(smaller) <= {frozenset(pair) for pair in pairs}
    assert verify(circuit, smaller).is_equal
    assert len(read_rewrites(how).rewrites) > 0
    assert run(["replay", str(path), str(how), f"out={tmp_path / 'again.qasm'}"]) == 0
    assert read(tmp_path / "again.qasm").circuit == smaller
    html = tmp_path / "page.html"
    assert run(["compare", str(path), str(how), f"html={html}", "others=false"]) == 0
    with pytest.raises(
        ConfigError, match=r"coupling=0-1: gate \d+ of .*c.qasm, cx \d,\d, is on no pair of it"
    ):
        run([*words[:-1], "coupling=0-1"])


@needs_cpp
def test_a_policy_that_was_trained_without_a_map_is_refused_with_one(tmp_path):
    folder = a_run(tmp_path / "run")
    with pytest.raises(
        ConfigError, match="was trained without a coupling map, so with other rules: leave run="
    ):
        policy_of_run(str(folder), "last", None, "line")
    mapped = a_run(tmp_path / "mapped", coupling="line")
    with pytest.raises(ConfigError, match="has no checkpoint yet"):
        policy_of_run(str(mapped), "last", None, "ring")


@needs_cpp
def test_rules_of_which_none_keeps_pairs_are_refused(tmp_path):
    own = tmp_path / "mine.txt"
    own.write_text("cx 0 1; cx 1 2; cx 0 1; cx 1 2 -> cx 0 2\n")
    run(["rules", f"out={tmp_path / 'mine.rules'}", "spaces=null", f"own={own}"])
    with pytest.raises(ConfigError, match="each of its rules puts a cx on other qubits"):
        rewriter(str(tmp_path / "mine.rules"), keeps_pairs=True)
