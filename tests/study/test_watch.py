import fcntl
import json
import shutil
import sys
import time

import pytest

from ddppo.errors import ConfigError
from ddppo.study import watch as watching
from ddppo.study.read.run_folders import read_run
from ddppo.study.report import ReportOptions
from ddppo.study.watch import PlannedRun, SweepProgress, expected, progress, watch
from tests.study.scaling_folders import change_summary, make_run, write_run
from tests.support import run

NAMES = [f"dist.world_size-{w}_seed-{seed}" for w in (1, 2) for seed in (0, 1)]
COMMAND = """
hydra:
  sweeper: {params: {dist.world_size: "1,2"}}
  overrides: {task: ["seed=0,1", sweep=here]}
  job: {config: {override_dirname: {kv_sep: "-", item_sep: _, exclude_keys: [sweep]}}}
dist: {world_size: 1}
ppo: {total_steps: 480}
"""


class Sweep:
    """A sweep of four runs that goes on a step at a time, as its command would leave it."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "multirun.yaml").write_text(COMMAND)
        self.lock = (folder / ".lock").open("w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)

    def begin(self, name, env_steps=0):
        (self.folder / name).mkdir()
        (self.folder / name / "config.yaml").write_text("ppo: {total_steps: 480}\n")
        lines = [json.dumps({"env_steps": env_steps})] * 2
        (self.folder / name / "metrics.jsonl").write_text("\n".join(lines) + "\n")

    def complete(self, name):
        if (self.folder / name).exists():
            shutil.rmtree(self.folder / name)
        world_size, seed = int(name[16]), int(name[-1])
        write_run(self.folder / name, world_size, seed, t_iter=0.5 / world_size)
        self.note(name, "completed")

    def note(self, name, outcome, why=""):
        with (self.folder / "sweep.jsonl").open("a") as file:
            file.write(
                json.dumps({"run": name, "outcome": outcome, "why": why, "at": time.time() + 1}) + "\n"
            )

    def end(self):
        self.lock.close()


@pytest.fixture
def running(tmp_path):
    sweep = Sweep(tmp_path)
    yield sweep
    sweep.end()


def test_a_sweep_says_what_is_planned_what_is_done_and_what_runs(running):
    running.complete(NAMES[0])
    running.begin(NAMES[1], env_steps=240)
    running.note(NAMES[2], "failed", "no such task")
    now = progress(running.folder)
    assert (now.num_planned, now.done, now.ended) == (4, {NAMES[0]}, False)
    assert [(job.name, job.since > 0, job.part_done, job.failed) for job in now.missing] == [
        (NAMES[1], True, 0.5, ""),
        (NAMES[2], False, 0.0, "no such task"),
        (NAMES[3], False, 0.0, ""),
    ]


def test_of_a_sweeper_that_draws_its_runs_what_is_complete_is_known(running, monkeypatch):
    drawn = COMMAND.replace('"1,2"', '"interval(1, 4)"')
    (running.folder / "multirun.yaml").write_text(drawn)
    running.complete(NAMES[0])
    running.begin(NAMES[1])
    now = progress(running.folder)
    assert now == SweepProgress(0, frozenset(NAMES[:1]), (), ended=False)
    pages = []
    monkeypatch.setattr(time, "sleep", lambda seconds: running.end())
    monkeypatch.setattr(watching.os, "nice", lambda by: None)
    watch(ReportOptions(path=str(running.folder), watch=True), pages.append)
    assert pages[0].startswith("Complete: 1: ")


def test_a_run_that_was_stopped_is_not_complete(running):
    running.complete(NAMES[0])
    change_summary(running.folder / NAMES[0], status="stopped")
    (job, *_) = progress(running.folder).missing
    assert job.name == NAMES[0]


def test_a_sweep_has_ended_when_every_run_came_to_something_or_its_command_is_gone(running):
    assert not progress(running.folder).ended
    for name in NAMES[:3]:
        running.complete(name)
    running.note(NAMES[3], "failed", "no such task")
    assert progress(running.folder).ended
    (running.folder / "sweep.jsonl").unlink()
    assert not progress(running.folder).ended
    running.end()
    assert progress(running.folder).ended
    running.note(NAMES[3], "submitted")  # a job in a queue needs no command
    assert not progress(running.folder).ended


def test_what_is_missing_is_expected_in_turn_after_what_runs():
    waiting = PlannedRun("b", 1), PlannedRun("c", 1)
    now = SweepProgress(4, frozenset("x"), (*waiting, PlannedRun("a", 1, since=100.0, part_done=0.5)), False)
    runs = [made(1, 40.0), made(1, 42.0), made(1, 60.0)]
    assert expected(now, runs, at=110.0) == {"a": 142.0, "b": 184.0, "c": 226.0}


def test_two_that_run_at_once_share_what_waits():
    jobs = (
        PlannedRun("a", 1, since=100.0),
        PlannedRun("b", 1, since=105.0),
        PlannedRun("c", 1),
        PlannedRun("d", 1),
    )
    assert expected(SweepProgress(4, frozenset(), jobs, False), [made(1, 10.0)], at=106.0) == {
        "a": 110.0,
        "b": 115.0,
        "c": 120.0,
        "d": 125.0,
    }


def test_a_w_that_has_not_run_yet_is_expected_by_the_law_of_those_that_have():
    runs = [made(1, 80.0), made(2, 40.0)]
    now = SweepProgress(3, frozenset(), (PlannedRun("a", 4),), False)
    assert expected(now, runs, at=0.0) == {"a": pytest.approx(20.0)}
    assert expected(now, runs[:1], at=0.0) == {"a": pytest.approx(80.0)}  # one W tells nothing of another


def test_before_a_run_has_ended_the_first_is_expected_by_what_it_has_done():
    jobs = PlannedRun("a", 1, since=100.0, part_done=0.25), PlannedRun("b", 1)
    assert expected(SweepProgress(2, frozenset(), jobs, False), [], at=110.0) == {"a": 140.0}
    assert expected(SweepProgress(2, frozenset(), (PlannedRun("b", 1),), False), [], at=110.0) == {}


def made(world_size, seconds):
    return make_run(world_size, fps=320 / seconds, parts=None)


def test_the_page_keeps_up_with_a_sweep_and_ends_with_it(running, monkeypatch):
    pages, read = [], []
    page = running.folder / "report" / "report.html"

    def look(seconds):
        if page.exists():
            pages.append(page.read_text())
        if len(pages) == 1:
            running.begin(NAMES[0], env_steps=120)
        elif 2 <= len(pages) <= 5:
            running.complete(NAMES[len(pages) - 2])

    def reading(path):
        read.append(path.name)
        return read_run(path)

    monkeypatch.setattr(time, "sleep", look)
    monkeypatch.setattr(watching.os, "nice", lambda by: None)
    monkeypatch.setattr(watching, "_MAX_LOAD", 1e9)
    monkeypatch.setattr("ddppo.study.read.run_folders.read_run", reading)
    report, _ = watch(ReportOptions(path=str(running.folder), watch=True), lambda text: None)
    assert "Nothing is complete yet." in pages[0]
    assert "Nothing is complete yet, the first is expected at" in pages[1]
    assert "Complete: 1 of 4 runs, the last is expected at" in pages[2]
    assert all('http-equiv="refresh"' in text for text in pages)
    assert NAMES[3] in pages[2]
    assert "resume=" not in pages[1]  # of what runs nothing is left out
    assert [len(each.study.runs) for each in report.studies] == [4]
    last = page.read_text()
    assert "http-equiv" not in last
    assert "is expected" not in last
    assert read == [*NAMES[:3], *NAMES]  # none twice, until the last report reads all


def test_ctrl_c_leaves_a_page_that_no_longer_reloads(running, monkeypatch):
    running.complete(NAMES[0])

    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    monkeypatch.setattr(watching.os, "nice", lambda by: None)
    _, folder = watch(ReportOptions(path=str(running.folder), watch=True), lambda text: None)
    page = (folder / "report.html").read_text()
    assert "Watched until" in page
    assert "http-equiv" not in page


def test_only_the_folder_of_a_sweep_is_watched(tmp_path, monkeypatch):
    monkeypatch.setattr(watching.os, "nice", lambda by: None)
    (tmp_path / "a.csv").write_text("world_size,fps\n1,10\n")
    with pytest.raises(ConfigError, match="watch=true needs the folder of a sweep"):
        watch(ReportOptions(path=str(tmp_path / "a.csv")), print)
    with pytest.raises(ConfigError, match="has no run that can be reported"):
        watch(ReportOptions(path=str(tmp_path)), print)


def test_the_planned_runs_of_a_real_sweep_are_those_that_it_makes(tmp_path):
    command = [sys.executable, "-m", "ddppo.train", "-m", "experiment=scaling/slept_env", f"sweep={tmp_path}"]
    small = [
        "dist.world_size=1,2",
        "seed=0,3",
        "ppo.total_steps=32",
        "ppo.rollout_steps=2",
        "eval.final_episodes=0",
    ]
    done = run([*command, *small, "env.num_envs=4", "env.kwargs.step_time_s=0"], tmp_path)
    assert done.code == 0, done.stderr
    watching._planned.cache_clear()
    now = progress(tmp_path)
    assert now.num_planned == 4
    assert now.done == {path.parent.name for path in tmp_path.glob("*/summary.json")}
    assert now.missing == ()
