"""The door `ddppo.bench`: what it refuses, what it would run, and one bench from end to end."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from ddppo import bench
from ddppo.errors import ConfigError, TrainingError
from ddppo.launch.arguments import composed
from ddppo.options import parted
from ddppo.processes.machine import descendants, memory_of
from ddppo.study.bench.command import BenchConfig
from ddppo.study.bench.command import bench as run_bench
from ddppo.study.bench.measured import Clock, Code, measure, other_code, this_code
from ddppo.study.bench.workloads import configurations, fixed, fixed_names
from tests.support import CHECKOUT, process_of

TINY = ("env=cartpole", "env.num_envs=2", "ppo.rollout_steps=8", "ppo.num_epochs=1", "ppo.num_minibatches=1")


@pytest.fixture
def call(monkeypatch, capsys):
    """Call the door in this process; returns (exit code, stdout, stderr)."""

    def call_door(*arguments):
        monkeypatch.setattr("sys.argv", ["bench.py", *arguments])
        with pytest.raises(SystemExit) as ended:
            bench.main()
        return ended.value.code, *capsys.readouterr()

    return call_door


@pytest.fixture
def no_runs(monkeypatch):
    def started(*arguments):
        raise AssertionError(f"something was run: {arguments}")

    monkeypatch.setattr("ddppo.study.bench.command.run_rounds", started)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("round=3", ["there is no setting round (did you mean rounds?)"]),
        ("ppo.gama=0.9", ["ppo.gama", "ppo.gamma"]),
        ("foo=1", ["foo"]),
        ("rounds=0", ["rounds=0", "at least 1"]),
        ("seconds=0", ["seconds=0", "greater than 0"]),
        ("workloads=W0", ["workloads=W0", "W1, W2, W3, W4, W5, W6, W7, W8, W9"]),
        ("workloads=", ["workloads=", "no value"]),
        ("world_sizes=0", ["world_sizes=0", "numbers of workers"]),
        ("world_sizes=two", ["world_sizes=two", "numbers of workers"]),
        ("world_sizes=11", ["dist.world_size=11", "env.num_envs=8"]),
        ("rules=week", ["rules=week", "strong, weak"]),
        ("workloads=W1 env=pendulum", ["workloads=W1 and env=pendulum", "give one of them"]),
        ("dist.world_size=2", ["dist.world_size=2", "use world_sizes="]),
        ("scaling=weak", ["scaling=weak", "use rules="]),
        ("ppo.total_steps=100", ["ppo.total_steps=100", "use seconds="]),
        ("hydra.sweep.dir=x", ["hydra.sweep.dir=x", "leave it out"]),
        ("-m", ["-m", "without dashes"]),
        ("out=result", ["out=result", ".json or .jsonl"]),
        ("out=a.json profile=true rounds=2", ["rounds=2 has no effect"]),
        ("against=HEAD profile=true", ["against= and profile= exclude one another"]),
        ("against=HEAD rounds=3", ["rounds=3", "rounds=5 or more"]),
        ("against=no_such_commit", ["against=no_such_commit", "neither a folder nor a commit"]),
        ("against=/tmp", ["against=/tmp", "without ddppo/train.py"]),
        ("compare=/no/a.json,/no/b.json", ["/no/b.json cannot be read"]),
        ("compare=/no/a.json", ["/no/a.json cannot be read"]),
        ("compare=a.json,b.json,c.json", ["give one file, or two"]),
        ("compare=a.json,b.json rounds=4", ["rounds= has no effect"]),
        ("compare=a.json,b.json seed=4", ["seed=4 has no effect"]),
    ],
)
def test_a_mistake_costs_one_paragraph_and_runs_nothing(call, no_runs, arguments, said):
    code, stdout, stderr = call(*arguments.split())
    assert code == 2
    assert stdout == ""
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
    for words in said:
        assert words in stderr


@pytest.mark.parametrize(("name", "package"), [("W3", "ale-py==0.12.1"), ("W4", "'gymnasium[mujoco]")])
def test_a_workload_whose_packages_are_not_installed_is_skipped_with_the_pip_command(
    call, no_runs, monkeypatch, name, package
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, stderr = call(f"workloads={name}")
    assert code == 2
    assert f"note: {name} is skipped, it needs pip install {package}" in stderr
    assert "error: nothing is left to measure" in stderr


@pytest.mark.parametrize("name", fixed_names())
def test_a_fixed_workload_is_the_preset_of_the_train_door(name):
    by_preset = composed([f"experiment=bench/{name.lower()}"])
    by_overrides = composed(fixed(name).overrides)
    assert replace(by_overrides, sweep=None) == replace(by_preset, sweep=None)  # which is another every time


def test_the_fixed_workloads_are_what_everybody_is_measured_on():
    def sizes(name):
        config = composed(fixed(name).overrides)
        ppo = config.training
        batch = (config.env.num_envs, ppo.rollout_steps, ppo.num_epochs, ppo.num_minibatches)
        return config.env.id, *batch, config.model.hidden_sizes, config.model.activation

    assert sizes("W1") == ("CartPole-v1", 8, 64, 2, 4, [64, 64], "tanh")
    assert sizes("W2") == ("CartPole-v1", 64, 128, 4, 4, [64, 64], "tanh")
    assert sizes("W3") == ("ALE/Pong-v5", 8, 128, 4, 4, [512], "relu")
    assert sizes("W5") == sizes("W6") == sizes("W9") == sizes("W1")
    assert sizes("W7") == ("ddppo/MaskedCartPole-v0", 16, 128, 4, 8, [64], "tanh")
    assert sizes("W8") == ("ddppo.study.bench.own:Hovering-v0", 8, 128, 4, 4, [64, 64], "tanh")
    assert sizes("W4") == ("HalfCheetah-v5", 8, 256, 10, 32, [64, 64], "tanh")


def test_at_one_rank_the_rules_are_the_same_and_measured_once():
    found = configurations(fixed("W1"), [1, 2], ["strong", "weak"])
    assert [each.name for each in found] == ["W1 W=1", "W1 W=2", "W1 W=2 weak"]
    assert composed(found[2].overrides).scaling.rule == "weak"


def test_settings_of_the_train_door_change_the_fixed_workloads():
    options, overrides = parted(BenchConfig, ["workloads=W1", "env.backend=gym_vector", "seed=3"])
    assert (options, overrides) == (["workloads=W1"], ["env.backend=gym_vector", "seed=3"])
    assert composed(fixed("W1", overrides).overrides).env.backend == "gym_vector"


def test_another_commit_is_checked_out_for_as_long_as_it_is_measured():
    if this_code().commit is None:
        pytest.skip("not a checkout")
    with other_code("HEAD") as code:
        assert (code.root / "ddppo" / "train.py").is_file()
        assert code.root != CHECKOUT
        assert code.commit == this_code().commit
        assert code.environ()["PYTHONPATH"].startswith(str(code.root))
    assert not code.root.exists()
    listed = subprocess.run(
        ["git", "worktree", "list"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert str(code.root) not in listed.stdout


def test_the_memory_of_a_tree_of_processes_holds_that_of_its_children():
    sleeper = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    )
    command = [sys.executable, "-c", sleeper]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "1\n"
        assert len(descendants(process.pid)) == 1
        both, child = memory_of(process.pid), memory_of(descendants(process.pid)[0])
        assert both.total_mb > child.total_mb > 1
        assert both.peak_mb >= child.peak_mb > 1
        process.communicate("\n")


def test_a_bench_from_end_to_end_measures_and_writes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", process_of)
    first = tmp_path / "first.json"
    options = {"world_sizes": "1", "seconds": 0.05, "warmup_s": 0.0}
    assert not run_bench(BenchConfig(**options, rounds=1, out=str(first)), [*TINY])
    whole = json.loads(first.read_text())
    (row,) = whole["medians"]
    assert row["configuration"] == "custom W=1"
    assert row["fps"] > 0
    assert 0 < row["of_env"] < 1
    assert sum(row["fractions"].values()) == pytest.approx(1)
    assert row["start_up_s"] > 0.1
    assert row["peak_rss_mb"] > 50
    assert whole["measurements"][0]["limits"]["collective_us"] > 0
    assert whole["machine"]["cores"] >= 1
    assert "custom W=1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "error", "said"),
    [
        ("print('error: a=1 is wrong', file=sys.stderr); sys.exit(2)", ConfigError, "^a=1 is wrong$"),
        ("print('rank 1 fell', file=sys.stderr); sys.exit(1)", TrainingError, "exit code 1: rank 1 fell"),
        ("os._exit(3)", TrainingError, "exit code 3: it said nothing"),
    ],
)
def test_what_a_run_says_that_ends_by_itself_is_passed_on(tmp_path, script, error, said):
    package = tmp_path / "ddppo"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(f"import os, sys\n{script}\n")
    with pytest.raises(error, match=said):
        measure(Code("made up", tmp_path), ["a=1"], Clock(0.0, 0.0))
