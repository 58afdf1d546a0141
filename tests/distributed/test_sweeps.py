"""Sweeps: what is complete stays, what was interrupted goes on, what fails is listed and loses nothing else."""

import importlib.util
import os
import re
import signal
import sys

import pytest

from ddppo import train
from ddppo.launch import checks
from ddppo.records.run_folder import held
from tests.fault import saboteurs
from tests.support import CHECKOUT, PATIENCE_S, TINY, descendants, lines, run, started, summary, wait_until

SMALL = [*TINY, "env.num_envs=4", "ppo.rollout_steps=16", "ppo.total_steps=128", "ppo.num_epochs=2"]
SLOW = [
    *TINY, "env=synthetic", "env.num_envs=4", "env.backend=sync", "ppo.rollout_steps=16", "ppo.num_epochs=1",
    "env.kwargs.step_time_s=0.002", "ppo.total_steps=1280", "checkpoint.every_steps=256",
]  # fmt: skip
TRAIN = [sys.executable, "-m", "ddppo.train", "-m"]
NEEDS_TUNE = pytest.mark.skipif(
    importlib.util.find_spec("hydra_plugins.hydra_optuna_sweeper") is None
    or importlib.util.find_spec("hydra_plugins.hydra_joblib_launcher") is None,
    reason="needs the extra tune",
)


@pytest.fixture
def sweep(monkeypatch, capsys, tmp_path):
    """Run a sweep in this process; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(CHECKOUT)

    def run_sweep(*arguments):
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
        monkeypatch.setattr("sys.argv", ["train.py", "-m", *arguments, f"sweep={tmp_path}"])
        code = 0
        try:
            train.main()
        except SystemExit as e:
            code = e.code
        return code, *capsys.readouterr()

    return run_sweep


def run_dirs(sweep_dir):
    return sorted(path.parent for path in sweep_dir.glob("[!.]*/config.yaml"))


def by_seed(sweep_dir):
    return {path.name.rpartition("_")[2]: path for path in run_dirs(sweep_dir)}


def contents(folder):
    return {
        str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns)
        for p in folder.rglob("*")
        if p.is_file()
    }


def iterations(run_dir):
    return [line["iteration"] for line in lines(run_dir)]


@pytest.mark.slow
def test_the_same_command_keeps_what_is_complete_and_does_the_rest(sweep, tmp_path):
    code, stdout, stderr = sweep(*SMALL, "seed=range(3)")
    assert (code, stderr) == (0, "")
    assert f"sweep {tmp_path}: 3 runs, 3 completed" in stdout
    folders = by_seed(tmp_path)
    assert list(folders) == ["seed-0", "seed-1", "seed-2"]
    hashes = [summary(path)["params_hash"] for path in folders.values()]
    assert len(set(hashes)) == 3
    before = {name: contents(path) for name, path in folders.items()}
    broken = folders["seed-1"] / "summary.json"
    broken.write_bytes(broken.read_bytes()[:100])

    code, stdout, stderr = sweep(*SMALL, "seed=range(3)", "log.tensorboard=false", "dist.timeout_s=99")
    assert (code, stderr) == (0, "")
    assert f"sweep {tmp_path}: 3 runs, 1 completed, 2 skipped" in stdout
    assert by_seed(tmp_path) == folders
    for name in ("seed-0", "seed-2"):
        assert contents(folders[name]) == before[name]
    assert [summary(path)["params_hash"] for path in folders.values()] == hashes
    assert not (tmp_path / ".earlier").exists()
    after = contents(folders["seed-1"])
    assert after["metrics.jsonl"] == before["seed-1"]["metrics.jsonl"], "nothing is trained twice"
    assert after["summary.1.json"][0] == before["seed-1"]["summary.json"][0][:100]


def test_a_run_of_other_settings_is_moved_aside_whole(sweep, tmp_path):
    sweep(*SMALL, "seed=0")
    (run_dir,) = run_dirs(tmp_path)
    config = run_dir / "config.yaml"
    config.write_text(
        config.read_text().replace("gamma: 0.98", "gamma: 0.5")
    )  # as if a preset had been edited
    before = contents(run_dir)
    code, stdout, _ = sweep(*SMALL, "seed=0")
    assert code == 0
    assert f"its settings differ: ppo.gamma=0.5, now 0.98; moved to .earlier/{run_dir.name}.1" in stdout
    del before[".lock"]
    assert contents(tmp_path / ".earlier" / f"{run_dir.name}.1") == before
    assert summary(run_dir)["config"]["ppo"]["gamma"] == 0.98


@pytest.mark.slow
def test_ctrl_c_ends_the_sweep_and_the_same_command_goes_on_with_it(sweep, tmp_path):
    with started([*TRAIN, *SLOW, "seed=0,1", f"sweep={tmp_path}"]) as process:
        wait_until(
            lambda: by_seed(tmp_path) and len(iterations(by_seed(tmp_path)["seed-0"])) >= 2, "iteration 2"
        )
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert stderr == f"interrupted; the same command with sweep={tmp_path} continues the sweep\n"
    assert list(by_seed(tmp_path)) == ["seed-0"]
    assert summary(by_seed(tmp_path)["seed-0"])["status"] == "stopped"

    code, stdout, _ = sweep(*SLOW, "seed=0,1")
    assert code == 0
    assert "seed-0 (0): goes on at" in stdout
    assert "2 runs, 2 completed" in stdout
    for path in run_dirs(tmp_path):
        assert iterations(path) == list(range(1, 21))
        assert summary(path)["env_steps"] == 1280


def test_a_killed_run_goes_on_from_its_checkpoint_without_doubled_steps(sweep, tmp_path):
    with started([*TRAIN, *SLOW, "seed=0", f"sweep={tmp_path}"]) as process:
        wait_until(
            lambda: by_seed(tmp_path) and len(iterations(by_seed(tmp_path)["seed-0"])) >= 6, "iteration 6"
        )
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=PATIENCE_S)
    run_dir = by_seed(tmp_path)["seed-0"]
    assert not (run_dir / "summary.json").exists()
    code, stdout, _ = sweep(*SLOW, "seed=0")
    assert code == 0
    assert ": goes on at " in stdout
    assert "of 1,280 steps" in stdout
    assert iterations(run_dir) == list(range(1, 21))
    assert not (tmp_path / ".earlier").exists()


def test_what_fails_is_listed_after_all_others_ran(sweep, tmp_path, monkeypatch):
    monkeypatch.setattr(saboteurs, "IS_FAULTY", True)
    monkeypatch.setattr(saboteurs, "FAULT_AFTER", 150)  # more steps than the trial before training has
    tasks = "env.id=tests.fault.saboteurs:Raises-v0,tests.fault.saboteurs:TextObs-v0,CartPole-v1"
    code, stdout, stderr = sweep(*SMALL, "ppo.total_steps=1024", "env=gym", "env.backend=sync", tasks)
    assert code == 1
    told = stderr.splitlines()[-4:]
    assert told[0] == f"sweep {tmp_path}: 3 runs, 1 completed, 2 failed"
    assert told[1].endswith(" raised ZeroDivisionError in step 151: the task of the test broke")
    assert "observation space" in told[2]
    assert told[3].endswith(f"the same command with sweep={tmp_path} repeats these and skips complete runs")
    assert "saboteurs.py" in stderr  # the task's own traceback
    assert stderr.count("Traceback") == 1
    # A long name of a folder is short, so its runs are told apart by what not all have.
    assert re.search(r"^-- run_[0-9a-f]{8} \(env\.id=CartPole-v1\) \(2\)$", stdout, re.MULTILINE)
    assert re.match(r"  run_[0-9a-f]{8} \(env\.id=tests\.fault\.saboteurs:Raises-v0\): ", told[1])
    (whole,) = [s for s in map(summary, run_dirs(tmp_path)) if s["status"] == "completed"]
    assert whole["config"]["env"]["id"] == "CartPole-v1"


def test_a_killed_rank_fails_its_run_and_no_other(tmp_path):
    with started([*TRAIN, *SLOW, "dist.world_size=2,1", f"sweep={tmp_path}"]) as process:
        wait_until(lambda: any(lines(path) for path in run_dirs(tmp_path)), "iteration 1")
        (first,) = run_dirs(tmp_path)
        os.kill(descendants(str(first))[0], signal.SIGKILL)
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    told = stderr.splitlines()
    assert f"sweep {tmp_path}: 2 runs, 1 completed, 1 failed" in told
    assert any(line.startswith(f"  {first.name}: rank ") and "signal 9" in line for line in told)
    (second,) = set(run_dirs(tmp_path)) - {first}
    assert summary(second)["status"] == "completed"


def test_a_run_that_another_process_trains_is_left_alone(sweep, tmp_path):
    sweep(*SMALL, "seed=0")
    run_dir = by_seed(tmp_path)["seed-0"]
    (run_dir / "summary.json").unlink()
    before = contents(run_dir)
    with held(run_dir):
        code, _, stderr = sweep(*SMALL, "seed=0")
        assert code == 1
        assert f"{run_dir} is in use by another process" in stderr
        assert contents(run_dir) == before
    code, stdout, _ = sweep(*SMALL, "seed=0")
    assert code == 0
    assert "1 run, 1 completed" in stdout


def test_what_is_complete_is_skipped_also_where_it_would_be_refused(sweep, tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "available_cores", lambda: 2)
    code, _, stderr = sweep(*SMALL, "seed=0", "dist.world_size=1,4", "dist.oversubscribe=refuse")
    assert code == 1
    assert "dist.world_size=4 exceeds this machine's 2 cores, and dist.oversubscribe=refuse" in stderr
    assert "2 runs, 1 completed, 1 failed" in stderr
    assert len(run_dirs(tmp_path)) == 1  # what was refused left no folder
    monkeypatch.setattr(checks, "check", lambda *a, **k: pytest.fail("a complete run was checked"))
    assert sweep(*SMALL, "seed=0", "dist.world_size=1")[0] == 0


@pytest.mark.slow
@NEEDS_TUNE
def test_optuna_is_told_the_objective_and_repeats_a_study_from_its_folder(tmp_path):
    tiny = [
        "experiment=tune/cartpole", "eval.final_episodes=1", "eval.every_steps=0", "env.num_envs=4",
        "ppo.rollout_steps=16", "ppo.total_steps=64", "hydra.sweeper.n_trials=4", f"sweep={tmp_path}",
    ]  # fmt: skip
    failing = (
        "ppo.num_minibatches=choice(1,4096)"  # 4096 minibatches of 64 samples fail a trial, not the study
    )
    first = run([*TRAIN, *tiny, failing], tmp_path)
    assert first.code == 1
    assert "ppo.num_minibatches=4096 exceeds the batch" in first.stderr
    completed = [summary(path) for path in run_dirs(tmp_path)]
    assert 0 < len(completed) < 4
    best = max(s["eval"]["final"]["return_mean"] for s in completed)
    assert f"  best: {best} by " in first.stderr
    again = run([*TRAIN, *tiny, failing], tmp_path)
    assert f"4 runs, {4 - len(completed)} failed, {len(completed)} skipped" in again.stderr
    assert f"  best: {best} by " in again.stderr

    never = run(
        [*TRAIN, *tiny, "objective=time_to_target", "hydra.sweeper.direction=minimize"], tmp_path
    )  # no run comes near the target
    assert never.code == 0, never.stderr
    assert "  best: inf by " in never.stdout


@NEEDS_TUNE
def test_optuna_without_a_trial_that_worked_says_why_and_no_more(tmp_path):
    arguments = ["experiment=tune/cartpole", "hydra.sweeper.n_trials=2", "ppo.gamma=2", f"sweep={tmp_path}"]
    result = run([*TRAIN, *arguments], tmp_path)
    assert result.code == 1
    assert "2 runs, 2 failed" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
@NEEDS_TUNE
def test_joblib_runs_seeds_side_by_side_and_tells_the_same_at_the_end(tmp_path):
    arguments = [
        *SMALL, "env.backend=pool", "seed=0,1", "dist.world_size=1,5", "hydra/launcher=joblib",
        "hydra.launcher.n_jobs=2", f"sweep={tmp_path}",
    ]  # fmt: skip
    result = run([*TRAIN, *arguments], tmp_path)
    assert result.code == 1
    assert f"sweep {tmp_path}: 4 runs, 2 completed, 2 failed" in result.stderr
    assert "dist.world_size=5 does not divide the batch env.num_envs=4" in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(summary(path)["config"]["seed"] for path in run_dirs(tmp_path)) == [0, 1]


@pytest.mark.slow
@NEEDS_TUNE
def test_ctrl_c_ends_what_joblib_runs(tmp_path):
    arguments = [*SLOW, "seed=0,1", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", f"sweep={tmp_path}"]
    with started([*TRAIN, *arguments, "ppo.total_steps=100000000"]) as process:
        wait_until(lambda: any(iterations(path) for path in run_dirs(tmp_path)), "iteration 1")
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert stderr.startswith(f"interrupted; the same command with sweep={tmp_path} continues the sweep\n")
    for path in run_dirs(tmp_path):
        with held(path, patience_s=PATIENCE_S):  # by nobody any more: its process has ended
            pass


TUNED = [
    *SMALL, "hydra/sweeper=gp_ucb", "ppo.learning_rate=interval(1e-4,1e-2)", "eval.final_episodes=1",
    "hydra.sweeper.num_random=2", "hydra.sweeper.n_trials=4",
]  # fmt: skip


@pytest.mark.slow
def test_gp_ucb_is_told_the_objective_and_goes_on_from_its_folder(sweep, tmp_path):
    code, stdout, stderr = sweep(*TUNED)
    assert code == 0, stderr
    found = {path.name: summary(path) for path in run_dirs(tmp_path)}
    assert len(found) == 4
    best = max(s["eval"]["final"]["return_mean"] for s in found.values())
    assert f"  best: {best} by ppo.learning_rate=" in stdout
    before = (tmp_path / "trials.csv").read_text()

    code, stdout, stderr = sweep(*TUNED, "hydra.sweeper.n_trials=5")
    assert code == 0, stderr
    assert "5 runs, 1 completed, 4 skipped" in stdout
    assert found.keys() < {path.name for path in run_dirs(tmp_path)}
    assert (tmp_path / "trials.csv").read_text().startswith(before)


def test_a_run_that_fails_costs_gp_ucb_no_other(sweep, tmp_path):
    # 4096 minibatches of 64 samples fail a run, not the search.
    code, _, stderr = sweep(*TUNED, "ppo.num_minibatches=1,4096", "hydra.sweeper.n_trials=6")
    assert code == 1
    assert "ppo.num_minibatches=4096 exceeds the batch" in stderr
    assert "Traceback" not in stderr
    rows = (tmp_path / "trials.csv").read_text().splitlines()[1:]
    assert [",4096,," in row for row in rows] == [",4096," in row for row in rows]
    assert 0 < sum(",4096," in row for row in rows) < 6


@pytest.mark.slow
@NEEDS_TUNE
def test_gp_ucb_runs_several_at_once_by_joblib(tmp_path):
    arguments = [*TUNED, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweeper.n_jobs=2"]
    result = run([*TRAIN, *arguments, f"sweep={tmp_path}"], tmp_path)
    assert result.code == 0, result.stderr
    assert "4 runs, 4 completed" in result.stdout
    best = max(summary(path)["eval"]["final"]["return_mean"] for path in run_dirs(tmp_path))
    assert f"  best: {best} by " in result.stdout
