"""Runs killed with -9 at random go on by the same command and end as if nothing had been."""

import os
import random
import shutil
import signal
import sys
import time

import pytest
import torch

from ddppo.records import checkpoint
from tests.distributed.test_exact_resume import assert_same, untimed
from tests.support import TINY, descendants, door, lines, run, started, summary, wait_until

SIZES = [
    "env.num_envs=4", "ppo.rollout_steps=16", "ppo.num_minibatches=2", "ppo.num_epochs=2", "ppo.total_steps=7680",
    "checkpoint.every_steps=64", "checkpoint.keep=2",
]  # fmt: skip
NUM_ITERATIONS = 120
TASKS = {
    "CartPole": ["env=cartpole"],
    "Pendulum with evaluations": [
        "env=pendulum", "ppo.normalize_obs=true", "ppo.normalize_rewards=true", "eval.every_steps=640",
        "eval.episodes=1",
    ],
    "2 ranks": ["env=cartpole", "dist.world_size=2", "env.backend=sync"],
}  # fmt: skip


def command(run_dir, *arguments):
    where = ["resume=auto", f"hydra.run.dir={run_dir}"]
    return [sys.executable, "-m", "ddppo.train", *TINY, *SIZES, *arguments, *where]


def killed(run_dir, at_line, *arguments):
    """Kill the run, parent and ranks, once it has written so many lines of metrics; return whether it had ended."""
    with started(command(run_dir, *arguments)) as process:
        wait_until(lambda: process.poll() is not None or len(lines(run_dir)) >= at_line, "line of metrics")
        time.sleep(random.random() * 0.02)  # any instant, not only those after a line
        has_ended = process.poll() is not None
        for pid in (process.pid, *descendants(str(run_dir))):
            os.kill(pid, signal.SIGKILL)
    return has_ended


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_run_killed_again_and_again_ends_as_the_undisturbed_one(tmp_path, task):
    whole, again = tmp_path / "whole", tmp_path / "again"
    result = run(command(whole, *TASKS[task]), whole)
    assert result.code == 0, result.stderr
    num_ranks = 2 if task == "2 ranks" else 1
    rng = random.Random(task)
    for at in sorted(rng.sample(range(1, NUM_ITERATIONS - 40), 3)):
        killed(again, at * num_ranks, *TASKS[task])
    result = run(command(again, *TASKS[task]), again)
    assert result.code == 0, result.stderr
    assert "approximately" not in result.stderr
    shutil.rmtree(whole / "tensorboard", ignore_errors=True)
    assert_same(whole, again)


def test_the_same_command_begins_goes_on_and_then_says_that_all_is_done(tmp_path):
    run_dir = tmp_path / "run"
    assert run(command(run_dir, *TASKS["CartPole"]), run_dir).code == 0
    before = (run_dir / "metrics.jsonl").read_bytes(), (run_dir / "summary.json").read_bytes()
    again = run(command(run_dir, *TASKS["CartPole"]), run_dir)
    assert (again.code, again.stderr) == (0, "")
    assert again.stdout == f"the run in {run_dir} is complete: nothing is left to do\n"
    assert before == ((run_dir / "metrics.jsonl").read_bytes(), (run_dir / "summary.json").read_bytes())
    more = run(command(run_dir, *TASKS["CartPole"], "ppo.total_steps=7808"), run_dir)
    assert more.code == 0, more.stderr
    assert summary(run_dir)["env_steps"] == 7808


def test_a_checkpoint_of_before_there_were_states_is_gone_on_from_if_that_is_said(tmp_path):
    run_dir = tmp_path / "run"
    assert door(*TINY, *SIZES, "ppo.total_steps=128", run_dir=run_dir).code == 0
    for path in (run_dir / "checkpoints").glob("iteration_*.pt"):
        state = torch.load(path, weights_only=True) | {"version": 1}
        state["environments"] = None
        torch.save(state, path)
    resume = [sys.executable, "-m", "ddppo.train", f"resume={run_dir}", "ppo.total_steps=192"]
    refused = run(resume, run_dir)
    assert refused.code == 2
    assert (
        "an earlier ddppo wrote it, without states of environments: resume_state=approximate"
        in refused.stderr
    )
    again = run([*resume, "resume_state=approximate"], run_dir)
    assert again.code == 0, again.stderr
    assert (
        again.stderr.count("warning: the run goes on approximately, its environments with new episodes") == 1
    )
    assert len(lines(run_dir)) == 3


def test_checkpoints_are_written_by_the_clock(tmp_path):
    how = ["env=cartpole", "checkpoint.every_steps=0", "checkpoint.every_minutes=1e-6", "checkpoint.keep=999"]
    result = door(*TINY, *SIZES, *how, "dist.world_size=2", "ppo.total_steps=640", run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    saved = sorted((tmp_path / "run" / "checkpoints").glob("iteration_*.pt"))
    assert [checkpoint.iteration_of(path) for path in saved] == list(range(1, 11))
    of_ranks = [line["time/t_checkpoint"] for line in lines(tmp_path / "run")]
    assert of_ranks[:2] == [0, 0]  # nothing had been saved
    assert min(of_ranks[2:]) > 0
    for line in lines(tmp_path / "run"):
        assert line["time/t_checkpoint"] <= line["time/t_other"] + 1e-3


@pytest.mark.slow
def test_what_was_learned_is_the_same_whatever_is_saved_and_when(tmp_path):
    hashes = set()
    for name, how in {"all": ["checkpoint.every_steps=64"], "none": ["checkpoint.every_steps=0"]}.items():
        assert door(*TINY, *SIZES, *how, "ppo.total_steps=640", run_dir=tmp_path / name).code == 0
        hashes.add(summary(tmp_path / name)["params_hash"])
    assert len(hashes) == 1
    assert untimed(lines(tmp_path / "all")[-1]) == untimed(lines(tmp_path / "none")[-1])
