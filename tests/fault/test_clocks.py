"""No wait, limit, order or identity rests on the wall clock, which is set forth and back."""

import re
import sys

import pytest

from ddppo.launch import sweep_runs
from ddppo.processes import signals
from tests.fault.test_limits import SMALL
from tests.support import CHECKOUT, run, summary

LIMITED = (*SMALL, "ppo.total_steps=1000000000", "run.max_minutes=0.02")
# Where a stamp is only shown or written down, or `watch` draws what it shows.
STAMPS = {
    "ddppo/study/watch.py", "ddppo/study/runs/records.py", "ddppo/study/page/files.py",
    "ddppo/records/trackers.py", "ddppo/records/event_file.py", "ddppo/launch/sweep_runs.py",
}  # fmt: skip


def under(circumstance, *arguments, run_dir):
    return run([sys.executable, "-m", "tests.fault.circumstances", circumstance, *arguments], run_dir)


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("circumstance", ["clock_set=-3", "wall_clock=3"])
def test_a_clock_that_is_set_back_does_not_lengthen_the_time_of_a_run(tmp_path, world_size, circumstance):
    run_dir = tmp_path / "run"
    settings = (*LIMITED, f"dist.world_size={world_size}", f"hydra.run.dir={run_dir}")
    result = under(circumstance, *settings, run_dir=run_dir)
    assert result.code == 75
    assert result.stderr == f"run.max_minutes are over; go on with: python -m ddppo.train resume={run_dir}\n"
    assert summary(run_dir)["status"] == "stopped"


@pytest.mark.parametrize("circumstance", ["clock_set=3", "clock_set=-3"])
def test_a_clock_that_is_set_does_not_end_a_run_before_its_time(tmp_path, circumstance):
    run_dir = tmp_path / "run"
    result = under(circumstance, *SMALL, "run.max_minutes=60", f"hydra.run.dir={run_dir}", run_dir=run_dir)
    assert (result.code, result.stderr) == (0, "")


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_clock_that_is_set_during_a_sweep_loses_none_of_its_outcomes(tmp_path, hours):
    settings = ("-m", *SMALL, "seed=0,1", f"sweep={tmp_path / 'sweep'}")
    result = under(f"wall_clock={hours}", *settings, run_dir=tmp_path)
    assert (result.code, result.stderr) == (0, "")
    assert result.stdout.endswith("2 runs, 2 completed\n")


def test_outcomes_are_those_noted_since_in_the_order_of_the_journal(tmp_path, monkeypatch):
    times = iter([1000.0, 10.0, 5000.0])
    monkeypatch.setattr("ddppo.launch.sweep_runs.time.time", lambda: next(times))
    sweep_runs.note(tmp_path, tmp_path / "a", "completed")
    before = sweep_runs.FolderBefore.of(tmp_path)
    sweep_runs.note(tmp_path, tmp_path / "b", "failed", "a clock set back")
    sweep_runs.note(tmp_path, tmp_path / "b", "completed")
    assert [(entry.run, entry.outcome) for entry in sweep_runs.outcomes(tmp_path, before)] == [
        ("b", "completed")
    ]


def test_a_sweepers_results_are_told_if_they_are_others_than_before_whatever_their_time(tmp_path):
    results = tmp_path / "optimization_results.yaml"
    results.write_text("name: optuna\nbest_params: {seed: 1}\nbest_value: 3.0\n")
    before = sweep_runs.FolderBefore.of(tmp_path)
    assert "best:" not in sweep_runs.in_words([], tmp_path, before)
    results.write_text("name: optuna\nbest_params: {seed: 2}\nbest_value: 30.0\n")
    assert "best: 30.0 by seed=2" in sweep_runs.in_words([], tmp_path, before)


def test_an_instant_is_of_one_machine_until_it_boots_again(monkeypatch):
    instant = signals.now_here()
    assert 0 <= signals.seconds_since(instant) < 60
    assert signals.seconds_since("") is None
    monkeypatch.setattr(signals, "_boot", lambda: "another")
    assert signals.seconds_since(instant) is None


def test_a_rank_on_another_machine_counts_from_its_own_start(monkeypatch):
    monkeypatch.setenv("DDPPO_BEGAN", "0.000 of another machine")
    assert not signals.is_over(signals.end_of_time(1.0))
    monkeypatch.setenv("DDPPO_BEGAN", f"-61.0 {signals._boot()}")
    assert signals.is_over(signals.end_of_time(1.0))


def test_the_wall_clock_is_read_for_stamps_alone():
    found = set()
    for path in sorted((CHECKOUT / "ddppo").rglob("*.py")):
        if re.search(r"\btime\.time\(|st_mtime\b|getmtime", path.read_text()):
            found.add(path.relative_to(CHECKOUT).as_posix())
    assert found <= STAMPS
