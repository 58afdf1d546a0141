"""A run that lost a rank goes on from its last checkpoint, so often, no oftener; whoever failed otherwise ends it."""

import sys

import pytest
import torch

from ddppo.config import Config, EnvConfig
from ddppo.config.settings import DistConfig
from ddppo.errors import NonFiniteError, RankLost, Stopped
from ddppo.run import checkpoint
from ddppo.run.folder import RunFolder
from ddppo.run.restarts import with_restarts
from tests.support import TINY, door, run, summary

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
        env=EnvConfig(id="CartPole-v1"), dist=DistConfig(world_size=2, **{"on_lost": "restart"} | dist)
    )


def starts(*ends):
    """Return what does as a run's ranks: ends so each time that it is started."""
    ends = list(ends)

    def one():
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


@pytest.mark.slow
def test_a_rank_that_hangs_costs_a_run_of_a_sweep_no_more_than_time(tmp_path):
    command = [
        sys.executable,
        "-m",
        "ddppo.train",
        "-m",
        *TINY,
        *TASK,
        "dist.timeout_s=4",
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
    result = door(*TINY, *TASK, run_dir=tmp_path / "run", COUNTED=str(tmp_path), VICTIM="0:100:parent")
    assert result.code == 0, result.stderr
    assert (
        "the process that the 2 ranks were forked from ended with signal 9, and they with it; going on"
        in result.stderr
    )
    assert summary(result.run_dir)["restarts"] == 1
