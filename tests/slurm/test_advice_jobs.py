"""Advice on W that this machine does not have: its probes are jobs."""

import sys

import pytest

from tests.slurm.test_launcher import LAUNCHER, SMALL
from tests.support import CHECKOUT, run


@pytest.mark.slow
def test_probes_of_several_w_are_jobs_whose_runs_are_read_and_nothing_is_left(jobs, forked_ranks, tmp_path):
    before = set(CHECKOUT.iterdir())
    more = ("dist.world_size=1,2,4", "seed=0", "predict=16", "env.kwargs.step_time_s=0.001")
    done = run([sys.executable, "-m", "ddppo.advise", *SMALL, *LAUNCHER, *more], tmp_path)
    assert done.code == 0, done.stderr
    assert "-> W=4" in done.stdout
    assert "3 runs, 3 completed" in done.stderr
    assert "W=16" in done.stdout
    (command,) = (line for line in done.stdout.splitlines() if line.startswith("python -m ddppo.train"))
    assert "-m env=synthetic" in command or " -m " in command
    assert command.endswith("dist.world_size=4")
    assert set(CHECKOUT.iterdir()) == before


@pytest.mark.slow
def test_without_a_cluster_it_is_said_and_nothing_is_left(tmp_path):
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=nothing\n")
    before = set(CHECKOUT.iterdir())
    command = [sys.executable, "-m", "ddppo.advise", *SMALL, *LAUNCHER, "dist.world_size=1,2"]
    done = run(command, tmp_path, SLURM_CONF=str(conf))
    assert done.code == 1
    assert done.stderr.startswith("error: no SLURM cluster answers here")
    assert set(CHECKOUT.iterdir()) == before
