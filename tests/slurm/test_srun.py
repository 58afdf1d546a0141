"""`srun python -m ddppo.train`: the tasks of a step are the ranks of one run."""

import sys

import pytest

from tests.support import TINY, Program, run, summary

SMALL = [
    *TINY, "env=cartpole", "env.num_envs=4", "ppo.rollout_steps=16", "ppo.total_steps=128", "ppo.num_epochs=2",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "tasks"), [(1, 2), (2, 4)])
def test_the_tasks_of_a_step_are_the_ranks_of_one_run(jobs, tmp_path, nodes, tasks):
    step = ["srun", f"--nodes={nodes}", f"--ntasks={tasks}", sys.executable, "-m", "ddppo.train"]
    result = run(
        Program([*step, *SMALL, f"hydra.run.dir={tmp_path / 'run'}"]),
        tmp_path / "run",
        GLOO_SOCKET_IFNAME="lo",
    )
    assert result.code == 0, result.stderr
    of_run = summary(tmp_path / "run")
    assert [of_run["world_size"], of_run["derived"]["num_nodes"]] == [tasks, nodes]


@pytest.mark.slow
def test_rank_0_alone_speaks_of_a_mistake(jobs, tmp_path):
    step = ["srun", "--nodes=1", "--ntasks=2", sys.executable, "-m", "ddppo.train"]
    result = run(Program([*step, "dist.world_size=3", f"hydra.run.dir={tmp_path / 'run'}"]), tmp_path / "run")
    assert result.code == 2
    assert result.stderr.count("error: dist.world_size=3, but srun started 2 ranks: leave it out") == 1
