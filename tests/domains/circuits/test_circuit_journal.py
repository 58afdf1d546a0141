import functools
import json
import time
from types import SimpleNamespace

import numpy as np
import pytest

from ddppo.config.settings import EnvConfig
from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.benchmarks import benchmark, program
from ddppo.domains.circuits.quantum.drawing import as_pixels
from ddppo.domains.circuits.quantum.equivalence import Verdict, verify
from ddppo.domains.circuits.quantum.qasm_reader import parse, read
from ddppo.domains.circuits.task import CircuitEnv, replayed
from ddppo.domains.circuits.task import journal as journal_module
from ddppo.domains.circuits.task.board import starts
from ddppo.domains.circuits.task.journal import CircuitJournal, _without_rewrites, labels
from ddppo.domains.circuits.task.lineage import EnvMessage, StartMessage, decode_messages, encode_message
from ddppo.domains.circuits.task.settings import packed, unpacked
from ddppo.errors import RunFolderError, TrainingError
from tests.domains.circuits.circuit_play import Together, qasm

pytestmark = pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))

BOTH = {"circuit": ["tof_3", "mod5_4"], "episode": {"min_steps": 60}}


def journal_of(folder, **kwargs):
    return CircuitJournal(EnvConfig(id="ddppo/Circuit-v0", kwargs={**BOTH, **kwargs}), folder)


@functools.cache
def played():
    """Return environments that played 6 iterations, and what they said after each: for journals of any patience."""
    run, said = Together(4, **BOTH), []
    for _ in range(6):
        run.play(100)
        said.append(run.exchange())
    return run, said


def noted(folder, num_iterations=6, **kwargs):
    """Return a journal of a short run, what it said of each iteration, and the environments after all 6."""
    run, messages = played()
    journal = journal_of(folder, **kwargs)
    said = [journal.note(list(messages[k - 1]), 400 * k, 2.5 * k) for k in range(1, num_iterations + 1)]
    return journal, said, run


def test_the_best_circuits_are_files_that_are_equal_to_the_originals_and_can_be_repeated(tmp_path):
    _, said, run = noted(tmp_path)
    for name, rewriter in (("tof_3", run.envs[0].rewriter), ("mod5_4", run.envs[0].rewriter)):
        found = json.loads((tmp_path / "best" / f"{name}.json").read_text())
        original, smaller = parse(found["original"]).circuit, read(tmp_path / "best" / f"{name}.qasm").circuit
        assert original == program(name).circuit
        assert found["cost"] == len(smaller) == said[-1][f"best_cost/{name}"] < len(original)
        assert replayed(rewriter, original, found["rewrites"]) == smaller
        assert verify(original, smaller).is_equal
        assert found["verified"].startswith(
            "by its rewrites, repeated, and equal up to a phase: all elements"
        )
        costs = [each["cost"] for each in found["improvements"]]
        assert costs == sorted(set(costs), reverse=True)
        assert costs[-1] == found["cost"]
        for each in found["improvements"]:  # when the journal heard of it
            iteration = each["env_steps"] // 400
            assert each["wall_s"] == 2.5 * iteration
            assert said[iteration - 1][f"best_cost/{name}"] == each["cost"]


def test_metrics_are_listed_and_say_what_happened(tmp_path):
    journal, said, run = noted(tmp_path)
    assert all(name.partition("/")[0] in journal.metrics for metrics in said for name in metrics)
    last = said[-1]
    assert last["rewrites_per_s"] == last["rewrites"] / 2.5
    assert "rewrites_per_s" not in said[0]
    assert 0 < last["rewrites_raised"] < last["rewrites_lowered"] + last["rewrites_raised"] < 1
    for at, name in enumerate(("tof_3", "mod5_4")):
        circuit = min((env.best()[at] for env in run.envs), key=lambda found: found.cost).circuit
        assert last[f"best_depth/{name}"] == circuit.depth
        assert last[f"best_cx/{name}"] == (circuit.kinds == 2).sum()
        assert last[f"max_steps/{name}"] == run.envs[0]._caps[at].cap
        assert last[f"buffer_circuits/{name}"] > 20
    summary = journal.summary()
    assert summary["counts"]["steps"] == 2400
    assert summary["counts"]["rewrites"] == sum(metrics["rewrites"] for metrics in said)
    used = [rule["applied"] for rule in summary["most_used_rules"]]
    assert used == sorted(used, reverse=True)
    assert len(used) == 10
    assert last["most_used_share"] == sum(used) / summary["counts"]["rewrites"]
    assert summary["circuits"]["tof_3"]["best"]["cost"] == last["best_cost/tof_3"]
    json.dumps(summary, allow_nan=False)


def test_a_run_is_finished_once_no_circuit_became_smaller_for_its_patience_and_says_when_each_was_found(
    tmp_path,
):
    for patience, is_finished in ((0, False), (900, True), (901, False)):
        folder = tmp_path / str(patience)
        journal, _, _ = noted(folder, patience=patience)
        last = max(file.last("env_steps") for file in journal._files)
        journal.note([], int(last) + 900, 60.0)
        assert journal.is_finished() == is_finished
        summary = journal.summary()
        assert ("ended" in summary["said"]) == is_finished
        for name in ("tof_3", "mod5_4"):
            at_random = summary["circuits"][name]["at_random"]
            costs = [each["cost"] for each in at_random["improvements"]]
            assert costs == sorted(costs, reverse=True)
            assert at_random["cost"] == (costs or [summary["circuits"][name]["original"]["cost"]])[-1]
            improvement = json.loads((folder / "best" / f"{name}.json").read_text())["improvements"][-1]
            found_at = {what: improvement[what] for what in ("env_steps", "wall_s")}
            assert summary["circuits"][name]["found_at"] == found_at
            cost = summary["circuits"][name]["best"]["cost"]
            assert f"cost {cost:g}, found after {found_at['env_steps']:,.0f} steps" in summary["said"][name]


def test_a_run_that_is_resumed_after_its_patience_was_used_up_gets_it_anew_and_an_interrupted_one_does_not(
    tmp_path,
):
    journal, _, _ = noted(tmp_path, patience=900)
    last = int(max(file.last("env_steps") for file in journal._files))
    for first, is_finished in ((last + 1300, False), (last + 900, True)):
        resumed = journal_of(tmp_path, patience=900)
        resumed.note([], first, 60.0)
        assert resumed.is_finished() == is_finished
    resumed = journal_of(tmp_path, patience=900)
    for more, is_finished in ((0, False), (899, False), (900, True)):
        resumed.note([], last + 1300 + more, 61.0)
        assert resumed.is_finished() == is_finished


def test_a_picture_is_shown_when_the_best_is_new_and_only_then(tmp_path):
    journal, _, _ = noted(tmp_path)
    pictures = journal.pictures()
    assert set(pictures) == {"best/tof_3", "best/mod5_4"}
    smaller = read(tmp_path / "best" / "tof_3.qasm").circuit
    counts = f"45 -> {len(smaller)} gates, 18 -> {(smaller.kinds == 2).sum()} cx"
    counts += f", {benchmark('tof_3').depth} -> {smaller.depth} depth"
    assert np.array_equal(pictures["best/tof_3"], as_pixels(smaller.canonical(), title=f"tof_3: {counts}"))
    assert journal.pictures() == {}
    assert journal.note([], 9999, 99.0)["best_cost/tof_3"] == len(smaller)
    assert journal.pictures() == {}


def test_a_journal_goes_on_from_its_folder_and_tells_environments_that_begin_anew(tmp_path):
    first, said, _ = noted(tmp_path)
    assert first.note([], 2500, 16.0)["best_cost/mod5_4"] == said[-1]["best_cost/mod5_4"]
    (tmp_path / "best" / "tof_3.qasm").write_text("of a process that was killed")
    again = journal_of(tmp_path)
    assert read(tmp_path / "best" / "tof_3.qasm").circuit == again._files[0].best.found.circuit
    assert again.note([], 2500, 16.0)["best_cost/tof_3"] == said[-1]["best_cost/tof_3"]
    env = CircuitEnv(**BOTH)
    env.reset(seed=3)
    env.receive(again.before())
    assert [found.cost for found in env.best()] == [said[-1][f"best_cost/{n}"] for n in ("tof_3", "mod5_4")]
    assert again.pictures() == {}
    assert journal_of(tmp_path / "new").before() == []


def test_a_best_that_is_no_equal_of_its_original_ends_the_run(tmp_path):
    journal, run = journal_of(tmp_path), Together(1, **BOTH)
    run.play(400)
    (news,) = decode_messages((run.envs[0].publish(),))
    told = news.starts[0].circuits[0]
    shorter = Circuit.from_gates(5, unpacked(5, told.packed).gates()[:-1])
    false = told._replace(cost=told.cost - 1, packed=packed(shorter))
    starts = (StartMessage((false,), 20, (1, 1, 1)), news.starts[1])
    with pytest.raises(
        TrainingError, match=r"a best circuit that cannot be repeated: tof_3: its .* another circuit"
    ):
        journal.note([encode_message(EnvMessage(starts, None))], 1, 1.0)
    assert list((tmp_path / "best").iterdir()) == []


def test_what_cannot_be_compared_as_a_whole_is_said(tmp_path):
    wide = tmp_path / "wide.qasm"
    pair = "h q[{0}]; h q[{0}]; t q[{0}]; cx q[{0}], q[{1}]; h q[{1}];\n"
    body = "".join(pair.format(k, k + 1) for k in range(59))
    wide.write_text(f'OPENQASM 2.0;\ninclude "qelib1.inc";\nqreg q[60];\n{body}')
    journal = journal_of(tmp_path, circuit=str(wide))
    run = Together(1, circuit=str(wide))
    run.play(30)
    journal.note(run.exchange(), 30, 1.0)
    said = journal.summary()["circuits"]["wide"]
    assert said["best"]["cost"] < said["original"]["cost"]
    assert said["verified"].startswith("by its rewrites, each of a verified rule; not compared as a whole: ")


def test_comparisons_that_take_long_take_a_tenth_of_a_run_and_are_made_up_for(tmp_path, monkeypatch):
    clock, times = [0.0], []

    def slow(a, b):
        times.append(clock[0])
        clock[0] += 20.0
        return verify(a, b)

    monkeypatch.setattr(journal_module, "verify", slow)
    monkeypatch.setattr(
        journal_module, "time", SimpleNamespace(monotonic=lambda: clock[0], process_time=time.process_time)
    )
    only = {"circuit": "tof_3", "episode": {"min_steps": 60}}
    journal, run = journal_of(tmp_path, **only), Together(4, **only)
    path = tmp_path / "best" / "tof_3.json"
    said = []
    for _ in range(6):
        run.play(60)
        journal.note(run.exchange(), 1, 1.0)
        said.append(json.loads(path.read_text())["verified"])
    assert times == [0.0]
    assert "equal up to a phase" in said[0]
    assert said[-1] == journal_module.LATER
    again = journal_of(tmp_path, **only)  # of a process that was killed: it is not forgotten
    clock[0] = 200.0
    journal.note([], 2, 2.0)
    assert times == [0.0, 200.0]
    assert "equal up to a phase" in json.loads(path.read_text())["verified"]
    assert "equal up to a phase" in again.summary()["circuits"]["tof_3"]["verified"]


def test_a_comparison_that_was_left_for_later_and_fails_ends_the_run_and_is_in_the_file(
    tmp_path, monkeypatch
):
    journal, run = journal_of(tmp_path, circuit="tof_3"), Together(1, circuit="tof_3")
    journal._files[0]._not_before = float("inf")
    run.play(400)
    journal.note(run.exchange(), 1, 1.0)
    monkeypatch.setattr(journal_module, "verify", lambda a, b: Verdict(False, "made up", 1.0))
    with pytest.raises(TrainingError, match="made up"):
        journal.summary()
    said = json.loads((tmp_path / "best" / "tof_3.json").read_text())["verified"]
    assert said.startswith("it is not equal: tof_3: ")


def test_the_file_of_another_circuit_or_a_damaged_one_is_not_overwritten(tmp_path):
    noted(tmp_path, 3)
    path = tmp_path / "best" / "tof_3.json"
    whole = path.read_text()
    found = json.loads(whole)
    for text, sentence in (
        (whole[:-9], "cannot be read"),
        (json.dumps({**found, "rules": "0"}), "belongs to another circuit or other rules than this run"),
        (json.dumps({**found, "original": found["smaller"]}), "belongs to another circuit or other rules"),
        (
            json.dumps({**found, "rewrites": found["rewrites"][:-1]}),
            "is damaged: tof_3: its .* another circuit",
        ),
    ):
        path.write_text(text)
        with pytest.raises(RunFolderError, match=sentence):
            journal_of(tmp_path)
        assert path.read_text() == text


def test_circuits_of_files_have_names_for_files_and_metrics(tmp_path):
    assert labels(["a/my one.qasm", "b/my one.qasm", "gf2^4_mult", "x.y.qasm", "my_one_2"]) == [
        "my_one",
        "my_one_2",
        "gf2^4_mult",
        "x.y",
        "my_one_2_2",
    ]
    journal = journal_of(tmp_path, circuit=[qasm(tmp_path, "h q[0]; h q[0]; x q[1];")])
    assert journal.note([], 1, 1.0)["best_cost/mine"] == 3


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("given", "no smaller circuit found"),
        ("merge", "cost 45 -> 39 by merging rotations; rewriting found nothing"),
    ],
)
def test_a_run_that_found_nothing_says_what_merging_had_saved(start, said):
    assert said in _without_rewrites(starts("tof_3", len, None, start)[0])
