"""The verbs optimise and replay: what they find is verified, follows from the seed, and survives a stop."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from ddppo.config import stored
from ddppo.config.settings import Config, EnvConfig
from ddppo.config.variants import settings_of
from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits import optimise as optimising
from ddppo.domains.circuits.commands import run
from ddppo.domains.circuits.env_walk import AtRandom, Walk, policy_of_run, policy_walk, random_walk
from ddppo.domains.circuits.quantum import Circuit, Gate, X
from ddppo.domains.circuits.quantum.benchmarks import benchmark
from ddppo.domains.circuits.quantum.equivalence import Verdict, verify
from ddppo.domains.circuits.quantum.qasm_reader import as_qasm, read
from ddppo.domains.circuits.quantum.rewriting import Rewriter
from ddppo.domains.circuits.quantum.rules import parse
from ddppo.domains.circuits.task.env import CircuitEnv
from ddppo.domains.circuits.task.journal import BestFile
from ddppo.domains.circuits.walk import WalkProgress
from ddppo.domains.circuits.workers import BestSoFar, Budget, Workers, search
from ddppo.envs.probing.probe import probe
from ddppo.errors import ConfigError, StorageError, TrainingError
from ddppo.models.build import build_model
from ddppo.options import parse as parse_door
from ddppo.processes.signals import StopRequest
from ddppo.records.checkpoint import save_iteration
from tests.domains.circuits.circuit_play import qasm
from tests.support import CHECKOUT, PATIENCE_S, door

pytestmark = pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))

FOREVER = float("inf")


def optimise(circuit, out, *more):
    return run(["optimise", str(circuit), f"out={out}", "workers=2", *more])


def test_a_circuit_gets_smaller_and_anyone_can_repeat_how(tmp_path, capsys):
    out, rewrites, again = tmp_path / "smaller.qasm", tmp_path / "rewrites.json", tmp_path / "again.qasm"
    assert optimise("barenco_tof_3", out, "steps=3000", f"rewrites={rewrites}") == 0
    said = capsys.readouterr().out
    smaller = read(out).circuit
    assert len(smaller) < 46  # what merging rotations leaves
    assert verify(benchmark("barenco_tof_3"), smaller).is_equal
    assert "barenco_tof_3: 58 gates" in said
    assert "rotations merged: 46 gates" in said
    assert f"gate_count 58 -> {len(smaller)}\nequal up to a phase: all elements of the unitary" in said

    assert run(["replay", "barenco_tof_3", str(rewrites), f"out={again}"]) == 0
    assert "rewrites of the circuit with its rotations merged: " in capsys.readouterr().out
    assert again.read_text() == out.read_text()
    held = json.loads(rewrites.read_text())
    assert held["cost"] == held["gates"] == len(smaller)
    costs = [improvement["cost"] for improvement in held["improvements"]]
    assert costs == sorted(set(costs), reverse=True)
    assert costs[-1] == held["cost"]


def test_a_run_s_best_circuit_is_repeated_from_its_file(tmp_path, capsys):
    env = CircuitEnv("tof_3")
    walk = Walk([env], AtRandom(env, 2.0, np.random.default_rng(0)), [0])
    walk.go([], 500, FOREVER)
    (found,) = env.best()
    BestFile(tmp_path, "tof_3", env.starts[0], env.rewriter).improve(
        found, is_start=True, env_steps=1, wall_s=1.0
    )
    assert run(["replay", "tof_3", str(tmp_path / "tof_3.json")]) == 0
    said = capsys.readouterr().out
    assert f"after {len(found.rewrites)} rewrites: {len(found.circuit)} gates" in said
    assert "equal up to a phase" in said


@pytest.mark.parametrize("more", [["bias=0"], ["start=given", "cost=depth"]])
def test_by_steps_the_result_follows_from_the_seed(tmp_path, more):
    made = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        files = [f"rewrites={tmp_path / name}.json", f"seed={seed}"]
        assert optimise("barenco_tof_3", tmp_path / f"{name}.qasm", "steps=1500", *files, *more) == 0
        held = json.loads((tmp_path / f"{name}.json").read_text())
        made.append((held["rewrites"], (tmp_path / f"{name}.qasm").read_text()))
        assert run(["replay", "barenco_tof_3", str(tmp_path / f"{name}.json")]) == 0
    assert made[0] == made[1] != made[2]


def test_a_circuit_that_cannot_get_smaller_is_said_and_written_as_it_was_given(tmp_path, capsys):
    source, out = qasm(tmp_path, "h q[0];\ncx q[0],q[1];\n"), tmp_path / "out.qasm"
    assert optimise(source, out, "steps=200", f"rewrites={tmp_path / 'r.json'}") == 0
    assert "not made smaller: gate_count 2 is the least that was found" in capsys.readouterr().out
    assert read(out).circuit == read(source).circuit
    assert run(["replay", source, str(tmp_path / "r.json")]) == 0


def test_a_circuit_that_rotation_merging_takes_away_is_not_searched(tmp_path, capsys):
    source, out = qasm(tmp_path, "t q[0];\ntdg q[0];\n"), tmp_path / "out.qasm"
    assert optimise(source, out) == 0
    assert "gate_count 2 -> 0" in capsys.readouterr().out
    assert len(read(out).circuit) == 0


def test_merging_that_makes_the_cost_larger_is_left_out(tmp_path, capsys):
    body = "h q[0];\nh q[0];\nh q[0];\ncx q[0],q[1];\nrz(0.1) q[2];\ncx q[2],q[1];\n"
    assert optimise(qasm(tmp_path, body), tmp_path / "out.qasm", "steps=300", "cost=depth") == 0
    assert "rotations merged" not in capsys.readouterr().out


def test_what_is_not_equal_is_not_written(tmp_path, monkeypatch):
    wrong = Verdict(False, "an element of the unitary differs by 1", 1.0)
    monkeypatch.setattr("ddppo.domains.circuits.quantum.equivalence.verify", lambda *_, **__: wrong)
    with pytest.raises(TrainingError, match="a rule or the rewriting is wrong, and nothing was written"):
        optimise("tof_3", tmp_path / "out.qasm", "steps=100")
    assert list(tmp_path.iterdir()) == []


def test_a_circuit_too_large_to_compare_is_written_and_said_so(tmp_path, monkeypatch, capsys):
    def full(*_, **__):
        raise ConfigError("the circuits differ on 60 qubits")

    monkeypatch.setattr("ddppo.domains.circuits.quantum.equivalence.verify", full)
    assert optimise("tof_3", tmp_path / "out.qasm", "steps=100") == 0
    said = capsys.readouterr().out
    assert (
        "equal by its rewrites, which were repeated, each by a verified rule; not compared as a whole" in said
    )
    assert "the circuits differ on 60 qubits" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_search_and_what_was_found_is_verified_and_written(tmp_path, number):
    out = tmp_path / "out.qasm"
    command = [
        sys.executable,
        "-m",
        "ddppo.domains.circuits",
        "optimise",
        "tof_3",
        f"out={out}",
        "minutes=60",
        "workers=2",
        "beside_random=true",
    ]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if "Ctrl-C ends it early" in line:
                break
        process.send_signal(number)
        said = process.stdout.read()
        assert process.wait(PATIENCE_S) == 0
    assert "equal up to a phase" in said
    assert "at random: left out, because a signal ended the search above" in said
    assert len(read(out).circuit) <= 39


def test_without_a_run_no_torch_is_imported(tmp_path):
    command = [
        "-X",
        "importtime",
        "-m",
        "ddppo.domains.circuits",
        "optimise",
        "tof_3",
        f"out={tmp_path / 'o'}",
        "steps=10",
    ]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert " torch" not in done.stderr


class Counting:
    """A walk that counts what it is asked, and ends its process where it is told to."""

    def __init__(self, name, fails_at=10**9, how=None):
        self.name, self.fails_at, self.how, self.steps = name, fails_at, how, 0

    def go(self, news, num_steps, until):
        self.steps += num_steps
        if self.steps >= self.fails_at:
            if self.how is None:
                os.kill(os.getpid(), signal.SIGKILL)
            raise self.how("told")
        return WalkProgress(self.steps, self.steps, float(len(news)), None, [self.name])


def test_a_worker_that_is_killed_is_told_of_and_the_others_go_on(capfd):
    with Workers([lambda: Counting(b"a"), lambda: Counting(b"b", 20)]) as workers:
        assert [progress.cost for progress in workers.go(10, FOREVER).values()] == [0, 0]
        assert {number: progress.cost for number, progress in workers.go(10, FOREVER).items()} == {0: 2}
        assert "worker 1 ended (exit code -9): continuing without it" in capfd.readouterr().err
        assert workers.go(10, FOREVER)[0].messages == [b"a"]


def test_what_a_worker_raises_is_raised_and_losing_all_of_them_is_an_error():
    with (
        Workers([lambda: Counting(b"a", 1, ConfigError)]) as workers,
        pytest.raises(ConfigError, match="told"),
    ):
        workers.go(10, FOREVER)
    with (
        Workers([lambda: Counting(b"a", 1)]) as workers,
        pytest.raises(TrainingError, match="every worker was lost"),
    ):
        workers.go(10, FOREVER)


class Finding:
    """A walk that finds x x gone in its first round, at a cost of its own, and is killed in its second."""

    def __init__(self, cost):
        self.cost, self.rounds = cost, 0

    def go(self, news, num_steps, until):
        self.rounds += 1
        if self.rounds == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return WalkProgress(num_steps, 1, self.cost, ((0, 0),), [])


def searched(cost):
    start = Circuit.from_gates(1, [Gate(X, (0,))] * 2)
    best = BestSoFar(start, start, 2.0)
    with Workers([lambda: Finding(cost)]) as workers, StopRequest() as stop:
        return search(
            workers, best, Rewriter([parse("x 0; x 0 -> ")]), len, Budget(FOREVER, 20_000), stop
        ), best


def test_what_was_found_outlives_the_last_worker(capfd):
    tried, best = searched(0.0)
    assert (tried, len(best.circuit), best.rewrites) == (1, 0, ((0, 0),))
    assert "every worker was lost" in capfd.readouterr().err


def test_a_cost_that_does_not_follow_from_the_circuit_is_said():
    with pytest.raises(
        ConfigError, match=r"was 0\.5 in a worker and 0 here: it has to follow from the circuit"
    ):
        searched(0.5)


def test_what_cannot_be_written_in_the_end_is_printed(tmp_path, capsys, monkeypatch):
    def gone(circuit, out, gate_set):
        raise StorageError(f"{out} cannot be written: made up")

    job = optimising._job(parse_options(["mod5_4", f"out={tmp_path / 'o'}", "steps=1"]))
    monkeypatch.setattr(optimising, "write", gone)
    with pytest.raises(StorageError, match="made up"):
        optimising._finish(
            job, parse_options(["mod5_4", f"out={tmp_path / 'o'}"]), BestSoFar(job.start, job.start, 51.0)
        )
    assert capsys.readouterr().out.endswith(as_qasm(job.start))


def test_ctrl_c_while_it_is_verified_leaves_that_out_and_says_so(tmp_path, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(optimising.equivalence, "verify", interrupted)
    options = parse_options(["mod5_4", f"out={tmp_path / 'o'}"])
    job = optimising._job(options)
    assert optimising._finish(job, options, BestSoFar(job.start, job.start, 51.0)) == 0
    assert capsys.readouterr().out.endswith("not compared as a whole: interrupted\n")
    assert read(tmp_path / "o").circuit == job.start


def parse_options(arguments):
    return parse_door(optimising.OptimiseOptions, arguments, usage="", path="circuit")


def test_walks_tell_each_other_what_they_found():
    alone = {"circuit": "barenco_tof_3", "buffer": {"share": 4}}
    finder, listener = (random_walk(alone, bias, index, seed=0) for index, bias in enumerate((2.0, 0.0)))
    found = finder.go([], 2000, FOREVER)
    assert found.cost < 50
    assert listener.go([], 10, FOREVER).cost > found.cost
    heard = listener.go(found.messages, 0, FOREVER)
    assert heard.cost == found.cost


def test_no_step_is_taken_after_the_time_is_over():
    walk = random_walk({"circuit": "tof_3"}, 1.0, 0, seed=0)
    assert walk.go([], 100, time.monotonic()).num_steps == 0
    assert walk.go([], 100, FOREVER).num_steps == 100


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("optimise", "circuit= is missing"),
        ("optimise tof_3", "out= is missing"),
        ("optimise tof_3 out={folder}/x minutes=0", "minutes=0.0: must be greater than 0"),
        ("optimise tof_3 out={folder}/x minutes=1 steps=1", "both say how long"),
        ("optimise tof_3 out={folder}/x rewrites={folder}/x", "out= is the same file"),
        ("optimise tof_3 out={folder}/x steps=0", "steps=0: must be at least 1"),
        ("optimise tof_3 out={folder}/x workers=0", "workers=0: must be at least 1"),
        ("optimise tof_3 out={folder}/x bias=1000", "bias=1000.0: must be at most 50"),
        ("optimise tof_3 out={folder}/x start=middle", "start=middle: must be one of merge, given"),
        ("optimise tof_3 out={folder}/x cost=gates", r"cost=gates.* is no cost in nam: give one of gate_count"),
        ("optimise tof_3 out={folder}/x cost=my_pkg:cost", "cost=my_pkg:cost: cannot be imported"),
        ("optimise tof_3 out={folder}/x checkpoint=best", "checkpoint=best has no effect without run="),
        ("optimise tof_3 out={folder}/x rules={folder}/none", "rules=.*none: cannot be read"),
        ("optimise tof_3 out={folder}/none/x", "out=.*/none/x: there is no such folder"),
        ("optimise tof_3 out={folder}", "there is no such folder, or it is one itself"),
        ("optimise tof_3 out={folder}/x rewrites={folder}/none/x", "rewrites=.*/none/x: there is no such folder"),
        ("optimise {empty} out={folder}/x", "it has no gates, so there is nothing to make smaller"),
        ("optimise tof_3 out={folder}/x run={folder}", "run=.*: not a run folder, it has no config.yaml"),
        ("replay tof_3", "replay takes a circuit and a file of rewrites, and 0 files are given"),
        ("replay tof_3 {folder}/none", "rewrites=.*none: cannot be read"),
        ("replay tof_3 {empty}", "rewrites=.*: cannot be read"),
        ("replay tof_3 {folder}/list.json", "not a file of rewrites .TypeError"),
        ("replay tof_3 {folder}/none.json", "not a file of rewrites .KeyError"),
        ("replay tof_3 {folder}/start.json", "its start=end is none of merge, given"),
        ("replay tof_3 {folder}/wrong.json", "rewrites=.*: rewrite 1: rule 0 does not match at node 44"),
        ("replay tof_3 {folder}/other.json", "they start from another circuit: the file's `original` has 58 gates"),
        ("replay tof_3 {folder}/rules.json", "they were found with other rules than these"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_leaves_nothing(tmp_path, line, said):
    given = {
        "list.json": [],
        "none.json": {},
        "start.json": {"rewrites": [], "start": "end"},
        "wrong.json": {"rewrites": [[44, 0]]},
        "other.json": {"rewrites": [], "original": as_qasm(benchmark("barenco_tof_3"))},
        "rules.json": {"rewrites": [], "rules": "0"},
    }
    for name, held in given.items():
        (tmp_path / name).write_text(json.dumps(held))
    empty = qasm(tmp_path, "", "empty")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigError, match=said) as raised:
        run(line.format(folder=tmp_path, empty=empty).split())
    assert "\n" not in str(raised.value)
    assert sorted(tmp_path.iterdir()) == before


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A run folder of tof_3 with the checkpoint of a model that has not learned yet."""
    folder = tmp_path_factory.mktemp("run")
    task = EnvConfig(id="ddppo/Circuit-v0", kwargs={"circuit": "tof_3", "buffer": {"draw": "greedy"}})
    config = Config(env=task, model=settings_of("model", name="gnn", graph_width=16, graph_layers=2))
    (folder / "config.yaml").write_text(stored.to_yaml(config))
    model = build_model(probe(task), config.model, seed=0, dtype=torch.float32)
    save_iteration(folder / "checkpoints", 1, {"model": model.state_dict(), "iteration": 1}, keep=1)
    return folder


def test_a_run_s_policy_rewrites_a_circuit_of_another_size_and_never_does_nothing(run_folder, monkeypatch):
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)  # of this process, which tests others too
    found = policy_of_run(str(run_folder), "last", None)
    env = {**found.keywords, "circuit": "barenco_tof_3"}

    def walked():
        walk = policy_walk(env, found.config, found.checkpoint, 0, seed=0)
        return walk.go([], 640, FOREVER)._replace(cpu_s=0.0)

    progress = walked()
    assert progress.num_rewrites == progress.num_steps == 640
    assert progress == walked()
    assert found.keywords["buffer"] == {"draw": "greedy"}


def test_the_door_rewrites_by_a_run_s_policy(run_folder, tmp_path):
    out = tmp_path / "out.qasm"
    arguments = ["optimise", "tof_3", f"out={out}", f"run={run_folder}", "steps=200", "workers=2"]
    done = door(*arguments, module="ddppo.domains.circuits", run_dir=tmp_path)
    assert done.code == 0, done.stderr
    assert "2 workers rewrite by the run's policy for 200 steps each" in done.stdout
    assert "equal up to a phase" in done.stdout
    assert len(read(out).circuit) <= 39


def test_a_checkpoint_of_other_rules_is_refused_in_the_words_of_its_run(run_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    few = tmp_path / "few.rules"
    run(["rules", f"out={few}", "spaces=1:3:h+x", "steps=1"])
    found = policy_of_run(str(run_folder), "last", None)
    env = {**found.keywords, "circuit": "tof_3", "rules": str(few)}
    with pytest.raises(
        ConfigError, match="checkpoint of iteration 1 does not fit ddppo/Circuit-v0 and model"
    ):
        policy_walk(env, found.config, found.checkpoint, 0, seed=0)
