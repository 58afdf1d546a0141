"""A run that lost a rank goes on from its last checkpoint, so often, no oftener; whoever failed otherwise ends it."""

import json
import os
import signal
import sys

import pytest
import torch

from ddppo.config.settings import Config, DistSettings, EnvConfig
from ddppo.errors import NonFiniteError, RankLost, Stopped
from ddppo.records import checkpoint
from ddppo.records.run_folder import RunFolder, with_restarts
from tests.fault.test_bad_endings import iterations, running, wait_for_iteration
from tests.support import PATIENCE_S, TINY, descendants, door, lines, rank_of, run, summary

LOST = RankLost("rank 1 of 2 ended with signal 9", "Go on with resume=run")
TASK = (
    "env=gym", "env.id=tests.distributed.counted:Counted-v0", "env.num_envs=4", "env.backend=sync",
    "ppo.rollout_steps=16", "ppo.num_epochs=1", "ppo.total_steps=320",
    "dist.world_size=2", "dist.on_lost=restart", "checkpoint.every_steps=1",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin(config())
    return folder


def config(**dist):
    return Config(
        env=EnvConfig(id="CartPole-v1"), dist=DistSettings(**{"world_size": 2, "on_lost": "restart"} | dist)
    )


def starts(*ends):
    """Return what does as a run's ranks: ends so each time that it is started."""
    ends = list(ends)

    def one(config):
        end = ends.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end

    return one


def test_ranks_are_started_again_until_they_end_well_and_every_time_is_noted(folder, capsys):
    assert with_restarts(folder, config(), starts(LOST, LOST, "done")) == "done"
    assert folder.num_restarts == 2
    said = "warning: rank 1 of 2 ended with signal 9; beginning anew, for there is no checkpoint (restart 2 of 3)\n"
    assert capsys.readouterr().err.endswith(said)


def test_they_go_on_from_the_last_whole_checkpoint(folder, capsys):
    for iteration in (7, 8, 9):
        checkpoint.save_iteration(folder.checkpoints, iteration, {"x": torch.zeros(99)}, keep=3)
    whole = folder.checkpoints / "iteration_00000009.pt"
    whole.write_bytes(whole.read_bytes()[:-9])
    with_restarts(folder, config(), starts(LOST, None))
    assert "; going on from iteration 8 (restart 1 of 3)" in capsys.readouterr().err
    assert folder.config().resume == str(folder.path)


def test_once_too_often_is_the_end(folder):
    with pytest.raises(RankLost, match=r"resume=run\. That was after dist\.max_restarts=2 restarts"):
        with_restarts(folder, config(max_restarts=2), starts(LOST, LOST, LOST, None))


@pytest.mark.parametrize("end", [NonFiniteError("a loss"), Stopped(15), MemoryError()])
def test_what_would_come_again_or_was_wanted_restarts_nothing(folder, end):
    with pytest.raises(type(end)):
        with_restarts(folder, config(), starts(end, None))
    assert folder.num_restarts == 0


def test_with_on_lost_stop_nothing_does(folder):
    with pytest.raises(RankLost):
        with_restarts(folder, config(on_lost="stop", max_restarts=3), starts(LOST, None))


def test_ranks_that_are_lost_twice_at_once_are_fewer_then_and_no_fewer_than_wanted(folder, capsys):
    wanted = config(world_size=4, min_workers=1, max_restarts=9)
    seen = []

    def lost(config):
        seen.append(config.dist.world_size)
        raise LOST

    with pytest.raises(RankLost):
        with_restarts(folder, wanted, lost)
    assert seen == [4, 4, 3, 2, 1, 1, 1, 1, 1, 1]
    assert folder.config().dist.world_size == 1
    said = [line for line in capsys.readouterr().err.splitlines() if "on 3 ranks (restart 2 of 9)" in line]
    assert len(said) == 1


def test_a_checkpoint_in_between_keeps_their_number(folder):
    numbers = iter((3, 5, 8))

    def lost(config):
        assert config.dist.world_size == 2
        if (number := next(numbers)) == 8:
            return
        checkpoint.save_iteration(folder.checkpoints, number, {"x": torch.zeros(9)}, keep=3)
        raise LOST

    with_restarts(folder, config(min_workers=1), lost)


@pytest.mark.slow
def test_a_rank_that_dies_again_and_again_leaves_the_run_to_fewer_with_the_same_bits(tmp_path):
    command = (
        *TINY, *TASK, "env.id=tests.fault.saboteurs:Dies-v0", "dist.world_size=4", "dist.min_workers=2",
        "dist.reduction=ordered", "dist.shards=4",
    )  # fmt: skip
    undisturbed = door(*command, run_dir=tmp_path / "undisturbed", FAULT_AFTER="1000000")
    result = door(*command, run_dir=tmp_path / "run", FAULTY_RANK="3", FAULT_AFTER="5")
    assert result.code == 0, result.stderr
    assert "rank 3 of 4 ended with signal 9" in result.stderr
    assert "beginning anew, for there is no checkpoint, on 2 ranks (restart 2 of 3)" in result.stderr
    found = summary(result.run_dir)
    assert (found["world_size"], found["restarts"], found["status"]) == (2, 2, "completed")
    assert found["params_hash"] == summary(undisturbed.run_dir)["params_hash"]
    assert [line["rank"] for line in lines(result.run_dir)] == [0, 1] * 5
    noted = [json.loads(line) for line in (result.run_dir / "restarts.jsonl").read_text().splitlines()]
    assert [line["world_size"] for line in noted] == [4, 2]


def test_an_environment_that_raises_once_costs_no_more_than_time(tmp_path):
    result = door(*TINY, *TASK, run_dir=tmp_path / "run", COUNTED=str(tmp_path), VICTIM="1:100:raises")
    assert result.code == 0, result.stderr
    assert "ConnectionResetError: the simulator of the test" in result.stderr
    said = (
        "rank 1 of 2 ended with exit code 4 and the others were stopped; its message is above; going on from"
    )
    assert said in result.stderr
    found = summary(result.run_dir)
    assert (found["env_steps"], found["restarts"]) == (320, 1)


@pytest.mark.slow
def test_a_rank_that_hangs_costs_a_run_of_a_sweep_no_more_than_time(tmp_path):
    command = [
        sys.executable,
        "-m",
        "ddppo.train",
        "-m",
        *TINY,
        *TASK,
        "dist.timeout_s=15",
        f"sweep={tmp_path / 'sweep'}",
    ]
    result = run(command, tmp_path, COUNTED=str(tmp_path), VICTIM="1:100:hangs")
    assert result.code == 0, result.stderr
    assert "rank 1 of 2 did not answer" in result.stderr
    assert "going on from iteration 3 (restart 1 of 3)" in result.stderr
    (run_dir,) = {path.parent for path in (tmp_path / "sweep").glob("*/summary.json")}
    assert (summary(run_dir)["restarts"], summary(run_dir)["env_steps"]) == (1, 320)


@pytest.mark.slow
def test_a_fork_server_that_is_lost_costs_no_more_than_time_either(tmp_path):
    """It dies of what kills it: a rank takes its parent along."""
    result = door(*TINY, *TASK, run_dir=tmp_path / "run", COUNTED=str(tmp_path), VICTIM="1:100:parent")
    assert result.code == 0, result.stderr
    assert (
        "the process that the 2 ranks were forked from ended with signal 9, and they with it; going on"
        in result.stderr
    )
    assert summary(result.run_dir)["restarts"] == 1


EXACT = (
    *TINY, "env=cartpole", "env.num_envs=4", "ppo.rollout_steps=16", "ppo.num_epochs=1", "ppo.normalize_rewards=true",
    "dist.world_size=2", "dist.on_lost=restart", "checkpoint.every_steps=320", "ppo.total_steps=64000",
)  # fmt: skip


@pytest.mark.slow
def test_a_run_that_lost_ranks_ends_with_the_bits_of_one_that_did_not(tmp_path):
    undisturbed = door(*EXACT, run_dir=tmp_path / "undisturbed")
    assert undisturbed.code == 0, undisturbed.stderr
    run_dir = tmp_path / "run"
    with running(*EXACT, run_dir=run_dir) as process:
        known: list[int] = []
        for victim in (1, 0):
            wait_for_iteration(run_dir, (iterations(run_dir) or [0])[-1] + 30, process)
            (pid,) = [pid for pid in descendants(str(run_dir)) if rank_of(pid) == victim and pid not in known]
            known = descendants(str(run_dir))
            os.kill(pid, signal.SIGKILL)
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, stderr
    found = summary(run_dir)
    assert found["restarts"] == 2
    assert found["params_hash"] == summary(undisturbed.run_dir)["params_hash"]
    returns, expected = (
        [line.get("rollout/return_mean") for line in lines(folder) if line["rank"] == 0]
        for folder in (run_dir, undisturbed.run_dir)
    )
    assert returns == expected
