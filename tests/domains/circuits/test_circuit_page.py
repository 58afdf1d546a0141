"""The verb compare: a table, a page of circuits and rewrites, and what it refuses."""

import json
import re

import numpy as np
import pytest

from ddppo.domains.circuits import PLUGIN, page
from ddppo.domains.circuits.commands import run
from ddppo.domains.circuits.quantum import CX, Circuit, Gate, H, X
from ddppo.domains.circuits.quantum.benchmarks import benchmark
from ddppo.domains.circuits.quantum.qasm_reader import write
from ddppo.domains.circuits.quantum.rewriting import differing_gates
from ddppo.domains.circuits.task.lineage import read_rewrites, started
from ddppo.errors import ConfigError

pytestmark = pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))
FEW = ("workers=1", "steps=1500")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A folder like that of a run: best/barenco_tof_3.json and .qasm."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "best").mkdir()
    best = folder / "best" / "barenco_tof_3"
    code = run(
        ["optimise", "barenco_tof_3", f"out={best.with_suffix('.qasm')}", f"rewrites={best.with_suffix('.json')}", *FEW]
    )  # fmt: skip
    assert code == 0
    return folder


def data_of(html):
    return json.loads(re.search(r'id="data">(.*?)</script>', html)[1])


def test_the_table_has_a_line_for_each_circuit_with_its_costs(found, capsys):
    best = found / "best" / "barenco_tof_3"
    assert run(["compare", "barenco_tof_3", str(found), str(best.with_suffix(".qasm")), "others=false"]) == 0
    said = capsys.readouterr().out
    held = read_rewrites(best.with_suffix(".json"))
    lines = [line.split() for line in said.splitlines() if line]
    assert lines[1][:6] == ["gate_count", "cx_count", "cx_weighted", "t_count", "depth", "cx_depth"]
    assert lines[2][:3] == ["original", "58", "24"]
    of_run = next(line for line in said.splitlines() if f"{found.name}, barenco_tof_3" in line)
    assert f" {len(held.smaller)} " in of_run
    assert f" {len(held.rewrites)} " in of_run
    assert sum("equal up to a phase" in line for line in said.splitlines()) == 3


def test_the_gates_that_each_rewrite_removes_and_adds_lead_from_the_first_circuit_to_the_last(
    found, tmp_path
):
    html = tmp_path / "page.html"
    assert run(["compare", "barenco_tof_3", str(found), f"html={html}", "others=false"]) == 0
    told = data_of(html.read_text())
    (path,) = told["paths"]
    held = read_rewrites(found / "best" / "barenco_tof_3.json")
    first = started(benchmark("barenco_tof_3"), held.start)
    assert len(path["first"]) == len(first)
    assert len(path["steps"]) == len(held.rewrites)
    # The multiset of gates: what it was, without what went, with what came.
    have = sorted(path["first"])
    for step in path["steps"]:
        for gate in step["gone"]:
            have.remove(gate)
        have = sorted([*have, *step["come"]])
        assert have == sorted(step["circuit"])
        assert len(have) == step["gates"]
        assert [step["circuit"][at] for at in step["at"]] == step["come"]
        assert str(step["rule"]) in path["rules"]
    assert path["steps"][-1]["gates"] == len(held.smaller)


def test_of_long_ways_some_whole_circuits_are_drawn_and_the_last_one(found, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "_MOST_DRAWN", 100)
    html = tmp_path / "page.html"
    run(["compare", "barenco_tof_3", str(found), f"html={html}", "others=false"])
    (path,) = data_of(html.read_text())["paths"]
    drawn = [step["circuit"] is not None for step in path["steps"]]
    assert drawn[-1]
    assert 1 <= sum(drawn) <= 3


def test_the_page_is_one_file_and_shows_names_as_text(found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = "a<b>&.qasm"
    write(benchmark("barenco_tof_3"), named)
    run(["compare", named, str(found), "html=page.html", "others=false"])
    html = (tmp_path / "page.html").read_text()
    assert "a&lt;b&gt;&amp;.qasm" in html
    assert "<b>&" not in html
    assert not re.search(r'(?:src|href)="(?!data:)', html)
    assert "python -m ddppo.domains.circuits compare" in html


def test_a_circuit_that_is_not_equal_is_named_and_the_exit_code_is_1(tmp_path, capsys):
    path = tmp_path / "other.qasm"
    write(Circuit.from_gates(5, [Gate(X, (0,))]), path)
    assert run(["compare", "tof_3", str(path), "others=false"]) == 1
    assert "differ" in capsys.readouterr().out


def test_an_optimiser_that_fails_is_a_warning_and_left_out(monkeypatch, capsys):
    def fails(name, circuit):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(page, "installed", lambda name: name == "qiskit level 3")
    monkeypatch.setattr(page, "optimised", fails)
    assert run(["compare", "tof_3"]) == 0
    assert "qiskit level 3 is left out: ZeroDivisionError: by zero" in capsys.readouterr().err


def test_what_cannot_be_compared_is_a_sentence(found, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for words, sentence in (
        (["tof_3", str(found)], r"circuits \(barenco_tof_3\) do not start from the original"),
        (["tof_3", str(empty)], r"a folder without best/\*.json"),
        (["tof_3", "tof_5"], r"it has 9 qubits, and the original 5"),
        (["tof_3", "html=page.txt"], r"a file that ends in .html"),
        (["barenco_tof_3", str(found), "rules=none.rules"], r"none.rules"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            run(["compare", *words])


def test_a_report_has_the_numbers_a_page_with_random_s_curve_and_the_command_to_repeat_it(found):
    ((heading, text),) = page.excerpts(found)
    held = json.loads((found / "best" / "barenco_tof_3.json").read_text())
    assert heading == (
        f"barenco_tof_3: gates 58 to {held['gates']}, cx 24 to {held['cx']}, depth 42 to {held['depth']}, "
        f"by {held['num_rewrites']} rewrites"
    )
    assert held["verified"] in text
    assert f"compare {held['name']} {found} html=barenco_tof_3.html" in text
    html = found / "best" / "barenco_tof_3.html"
    assert f"pictures, cost over time and each rewrite: {html}\n" in text
    assert ": at random" not in html.read_text()  # this folder has no summary of a run
    at_random = {"cost": 44.0, "cpu_s": 2.0, "improvements": [{"cpu_s": 0.5, "cost": 44.0}]}
    of_run = {"original": {"cost": 58.0}, "at_random": at_random}
    told = found / "summary.json"
    told.write_text(json.dumps({"task": {"circuits": {"barenco_tof_3": of_run}}}))
    page.excerpts(found)
    assert "barenco_tof_3: at random" in html.read_text()
    of_run["original"]["cost"] = 24.0  # the run counts cx alone, and the picture all gates
    told.write_text(json.dumps({"task": {"circuits": {"barenco_tof_3": of_run}}}))
    page.excerpts(found)
    told.unlink()
    assert ": at random" not in html.read_text()


def test_gates_that_differ_are_those_between_the_common_beginning_and_the_common_end():
    shared = [Gate(H, (0,)), Gate(CX, (0, 1))]
    a = Circuit.from_gates(3, [*shared, Gate(X, (1,)), Gate(CX, (1, 2))])
    b = Circuit.from_gates(3, [*shared, Gate(H, (1,)), Gate(H, (1,)), Gate(CX, (1, 2))])
    gone, come = differing_gates(a, b)
    assert np.array_equal(gone, [2])
    assert np.array_equal(come, [2, 3])
