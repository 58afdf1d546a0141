import itertools
import json
import math
import random

import pytest

from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits.commands import run
from ddppo.domains.circuits.quantum.circuit import TURN
from ddppo.domains.circuits.quantum.rule_search import RuleSpace, classes
from ddppo.domains.circuits.quantum.rules import (
    NO_ANGLE,
    PACKAGED,
    Expression,
    Rule,
    SymbolicGate,
    canonical,
    circuit,
    difference,
    packaged,
    parse,
    read,
    write,
)
from ddppo.errors import ConfigError
from tests.domains.circuits.circuit_oracle import distance, matrix_of

TRUE = "cx 0 1; rz(a) 0 -> rz(a) 0; cx 0 1"


def largest_distance(rule, rng, times):
    """Return how far the Kronecker products of both sides are apart, up to phase, at random angles."""
    found = []
    for _ in range(times):
        values = [rng.randrange(TURN) for _ in range(4)]
        source, target = (matrix_of(circuit(gates, rule.num_wires, values)) for gates in rule)
        found.append(distance(source, target))
    return max(found)


# -- the rules of the package ---------------------------------------------------------------------------------------


def test_the_packaged_file_says_how_it_was_made_and_is_small():
    rules, made_by = packaged()
    assert made_by["command"].startswith("python -m ddppo.domains.circuits rules spaces=3:5:h+x+cx+rz,")
    assert made_by["rules"] == len(rules) > 1_000
    assert made_by["seconds"] > 0
    assert PACKAGED.stat().st_size < 1_000_000


def test_no_packaged_rule_stands_twice_and_those_of_a_source_stand_together():
    rules = packaged().rules
    assert len({canonical(rule) for rule in rules}) == len(rules)
    assert len(list(itertools.groupby(rules, key=lambda rule: rule.source))) == len(
        {rule.source for rule in rules}
    )


def test_a_sample_of_the_packaged_rules_is_true_by_kronecker_products():
    rng = random.Random(0)
    for rule in rng.sample(packaged().rules, 100):
        assert largest_distance(rule, rng, 2) < 1e-10, rule


@pytest.mark.slow
def test_every_packaged_rule_is_true_by_kronecker_products():
    rng = random.Random(1)
    for rule in packaged().rules:
        assert largest_distance(rule, rng, 4) < 1e-10, rule


# -- one rule -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        TRUE,
        "h 0; h 0 -> ",
        "rz(a) 0; rz(b) 0 -> rz(a+b) 0",
        "h 0; rz(pi/2) 0; h 0 -> rz(-pi/2) 0; h 0; rz(-pi/2) 0",
        "x 0; rz(a) 0 -> rz(-a) 0; x 0",
        "rz(a) 0; rz(b) 0 -> rz(b) 0; rz(a) 0",
        "rz(a) 0; rz(3*pi/4) 0 -> rz(a+3*pi/4) 0",
    ],
)
def test_true_rules_are_read_written_and_verified(text):
    rule = parse(text)
    assert str(rule).strip() == text.strip()
    assert parse(str(rule)) == rule
    assert difference(rule) < 1e-14


@pytest.mark.parametrize(
    "text",
    [
        "h 0 -> x 0",
        "h 0; rz(a) 0 -> rz(a) 0; h 0",  # true where a = 0
        "rz(a) 0; rz(b) 0 -> rz(a-b) 0",  # where b = 0 or pi
        "cx 0 1; rz(a) 1 -> rz(a) 1; cx 0 1",
        "rz(a) 0 -> rz(a+pi/128) 0",
        "cx 0 1 -> cx 1 0",
    ],
)
def test_rules_that_hold_at_some_angles_only_or_at_none_are_found_out(text):
    assert difference(parse(text)) > 1e-3


def test_a_rule_that_misses_at_one_power_of_the_phase_only_is_found_out():
    angle = Expression((0, 0, 0, 0), 1000)  # 2e-11 radians would pass for equal, 2e-9 does not
    rule = Rule((SymbolicGate(3, (0,), Expression((1, 0, 0, 0), 0)),), (SymbolicGate(3, (0,), angle),))
    assert difference(rule) > 0.5
    near = Rule(rule.source, (SymbolicGate(3, (0,), Expression((1, 0, 0, 0), 100_000)),))
    assert difference(near) == pytest.approx(2 * math.pi * 100_000 / TURN, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("h 0", "source -> target"),
        (" -> h 0; h 0", "the source at least 1"),
        ("h 0; h 1 -> h 1; h 0", "not all connected"),
        ("h 0; h 0 -> x 1; x 1", "wires that its source has not"),
        ("rz(a+b) 0 -> rz(b) 0; rz(a) 0", "one parameter, not a\\+b"),
        (
            "rz(a) 0; rz(b-a) 0 -> rz(b) 0",
            "one parameter, not -a\\+b",
        ),  # true, but b is no angle of a circuit's
        ("h 0; h 0 -> rz(a) 0; rz(-a) 0", "parameters that its source has not"),
        ("y 0 -> x 0", "`y 0` is no gate"),
        ("cx 0 0 -> ", "wrong number of wires"),
        ("rz 0 -> ", "wrong number of wires or angles"),
        ("rz(a b) 0 -> ", "`a b` is no sum"),
        ("h 4; h 4 -> ", "wires of a rule are 0 to 3"),
    ],
)
def test_text_that_is_no_rule_is_refused_with_the_reason(text, said):
    with pytest.raises(ValueError, match=said):
        parse(text)


def test_a_rule_has_one_form_whatever_its_names():
    one = parse("cx 0 1; rz(a) 0; rz(b) 1 -> rz(a) 0; cx 0 1; rz(b) 1")
    for other in (
        "cx 1 0; rz(b) 1; rz(a) 0 -> rz(b) 1; cx 1 0; rz(a) 0",
        "cx 2 0; rz(c) 0; rz(a) 2 -> rz(a) 2; cx 2 0; rz(c) 0",
    ):
        assert canonical(parse(other)) == canonical(one)
    assert canonical(parse("cx 0 1; rz(a) 0; rz(b) 1 -> rz(b) 1; cx 0 1; rz(a) 0")) != canonical(one)


# -- search ---------------------------------------------------------------------------------------------------------


def test_the_search_finds_all_pairs_that_comparing_all_unitaries_finds():
    space = RuleSpace(2, 2, ("h", "x", "cx", "s"))
    letters = [tuple(word) for n in range(3) for word in itertools.product(space.alphabet(), repeat=n)]
    matrices = [matrix_of(circuit(word, 2, ())) for word in letters]
    groups = []
    for word, matrix in zip(letters, matrices, strict=True):
        group = next((g for g in groups if distance(matrix, g[0]) < 1e-9), None)
        if group is None:
            groups.append((matrix, [word]))
        else:
            group[1].append(word)
    found = {frozenset(members) for members in classes(space)}
    distinct = 0
    for _, words in groups:  # the search keeps one order of gates on disjoint wires
        kept = {word for word in words if any(word in members for members in found)}
        orders = {circuit(word, 2, ()) for word in words}
        assert len(orders) == 1 or orders == {circuit(word, 2, ()) for word in kept}
        distinct += len(orders) > 1
    assert len(found) == distinct > 10


def test_classes_hold_circuits_of_equal_unitaries_for_random_angles():
    rng = random.Random(2)
    num_pairs = 0
    for members in classes(RuleSpace(2, 3, ("h", "x", "cx", "rz"))):
        for other in members[1:]:
            assert difference(Rule(members[0], other)) < 1e-10
            num_pairs += 1
        assert largest_distance(Rule(members[-1], members[0]), rng, 1) < 1e-9
    assert num_pairs > 100


# -- files ----------------------------------------------------------------------------------------------------------


def written(path, *texts):
    write(path, [parse(text) for text in texts], {"command": "test"})
    return path


@pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))
def test_a_command_searches_and_writes_a_file_that_reads_the_same_each_time(tmp_path, capsys):
    for name in ("one", "two"):
        run(["rules", f"out={tmp_path / name}", "spaces=2:2:h+cx,1:3:x+rz"])
    assert "rules in" in capsys.readouterr().out
    one, two = read(tmp_path / "one"), read(tmp_path / "two")
    assert one.rules == two.rules
    assert {str(rule) for rule in one.rules} >= {
        "h 0; h 0 -> ",
        "cx 0 1; cx 0 1 -> ",
        "rz(a) 0; rz(b) 0 -> rz(a+b) 0",
        "x 0; rz(a) 0 -> rz(-a) 0; x 0",
    }
    assert one.made_by["command"] == (
        "python -m ddppo.domains.circuits rules spaces=2:2:h+cx,1:3:x+rz growth=2 steps=3 seed=0 out=one"
    )


@pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))
def test_rules_of_ones_own_are_verified_and_stand_beside_those_that_are_found(tmp_path, capsys):
    own = tmp_path / "own.txt"
    own.write_text(
        "# three cx make a swap, the other way round\n\ncx 0 1; cx 1 0; cx 0 1 -> cx 1 0; cx 0 1; cx 1 0\nh 0; h 0 ->\n"
    )
    run(["rules", f"out={tmp_path / 'my.rules'}", "spaces=1:2:h", f"own={own}"])
    assert "2 rules" in capsys.readouterr().out
    rules, made_by = read(tmp_path / "my.rules")
    assert [str(rule) for rule in rules] == [
        "h 0; h 0 -> ",
        "cx 0 1; cx 1 0; cx 0 1 -> cx 1 0; cx 0 1; cx 1 0",
    ]
    assert "spaces=1:2:h own=own.txt growth" in made_by["command"]
    run(["rules", f"out={tmp_path / 'alone.rules'}", "spaces=null", f"own={own}"])
    assert len(read(tmp_path / "alone.rules").rules) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "h 0; h 0 ->\nx 0; h 0 -> h 0; x 0\n",
            r"line 2: `x 0; h 0 -> h 0; x 0` is not true, its sides differ by",
        ),
        ("h 0; t 0 ->\n", "line 1: `t 0` is no gate such as"),
    ],
)
def test_a_rule_of_ones_own_that_is_not_true_is_refused_with_its_line(tmp_path, text, said):
    own = tmp_path / "own.txt"
    own.write_text(text)
    with pytest.raises(ConfigError, match=said):
        run(["rules", f"out={tmp_path / 'my.rules'}", "spaces=null", f"own={own}"])
    assert not (tmp_path / "my.rules").exists()


@pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))
def test_the_door_of_circuits_has_the_command_as_a_verb(tmp_path):
    assert run(["rules", f"out={tmp_path / 'my.rules'}", "spaces=1:2:h"]) == 0
    assert [str(rule).strip() for rule in read(tmp_path / "my.rules").rules] == ["h 0; h 0 ->"]


def test_a_damaged_file_is_refused(tmp_path):
    path = written(tmp_path / "my.rules", TRUE, "h 0; h 0 -> ")
    whole = path.read_bytes()
    for damaged in (whole[:-6], whole.replace(b"cx 0 1; rz", b"cx 1 0; rz"), whole + b"h 0; h 0 -> \n"):
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"my\.rules: damaged, .*make it again by `python -m"):
            read(path)
    for no_rules in (b"", b"h 0; h 0 -> \n", b"[]\n", b"\xff\xfe"):
        path.write_bytes(no_rules)
        with pytest.raises(ConfigError, match=r"my\.rules: (not a file of rules|cannot be read)"):
            read(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path / "none.rules")


def test_a_file_of_another_version_is_refused(tmp_path):
    path = written(tmp_path / "my.rules", TRUE)
    first, body = path.read_text().split("\n", 1)
    path.write_text(json.dumps(json.loads(first) | {"version": 2}) + "\n" + body)
    with pytest.raises(ConfigError, match="its version is 2, and this program reads version 1"):
        read(path)


def test_a_file_with_a_rule_that_is_not_true_is_refused_with_its_line(tmp_path):
    path = written(tmp_path / "my.rules", TRUE, "rz(a) 0; x 0 -> x 0; rz(a) 0")
    with pytest.raises(ConfigError, match=r"line 3: `rz\(a\) 0; x 0 -> x 0; rz\(a\) 0` is not true"):
        read(path)
    path = tmp_path / "other.rules"
    write(path, [Rule((SymbolicGate(0, (0,), NO_ANGLE),) * 9, ())], {})
    with pytest.raises(ConfigError, match="line 2: source and target have at most 8 gates"):
        read(path)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("spaces=3:4", "a space is QUBITS:GATES:KINDS"),
        ("spaces=3:4:h+t", "a space is QUBITS:GATES:KINDS"),
        ("spaces=5:4:h", "1 to 4 qubits"),
        ("spaces=null", "spaces=null leaves no rules"),
        ("own=nowhere.txt", "own=nowhere.txt: cannot be read"),
        ("steps=0", "steps=0: must be at least 1"),
        ("out=/none/my.rules", "there is no such folder"),
        ("qubit=3", "there is no setting qubit"),
    ],
)
def test_a_wrong_command_is_refused_by_a_sentence(given, said):
    with pytest.raises(ConfigError, match=said):
        run(["rules", "spaces=1:1:h", given])


def test_parameters_evaluate_modulo_a_turn():
    assert Expression((1, -1, 0, 0), 5).at([3, 10, 0, 0]) == TURN - 2
    assert str(Expression((2, -1, 0, 0), 3 * TURN // 8)) == "a+a-b+3*pi/4"
    assert str(Expression()) == "0"
