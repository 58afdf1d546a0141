"""Runs as SLURM jobs, on a real cluster: how they end, well and badly."""

import os
import shutil
import signal
from dataclasses import replace

import pytest

from ddppo.cluster import driver, slurm
from ddppo.cluster.resources import RankLayout
from ddppo.config.settings import EnvConfig, EvalConfig
from ddppo.errors import RunFolderError
from ddppo.records.run_folder import held
from ddppo.seeding import derived_seed
from tests.slurm.jobs import STEPS, config, iterations
from tests.support import PATIENCE_S, wait_until


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("num_nodes", "ranks_per_node"),
    [pytest.param(1, 1, marks=pytest.mark.slow), pytest.param(2, 1, marks=pytest.mark.slow), (2, 2)],
)
def test_a_job_trains_on_all_its_nodes(jobs, num_nodes, ranks_per_node):
    world_size = num_nodes * ranks_per_node
    layout = RankLayout(world_size, num_nodes, ranks_per_node, cpus_per_rank=1, interface="lo")
    job = jobs.submit(config(3, world_size), layout)
    job.wait_for_state("COMPLETED")
    assert job.summary["status"] == "completed"
    assert job.summary["world_size"] == world_size
    assert job.summary["derived"]["num_nodes"] == num_nodes
    assert job.iterations == [1, 2, 3]


def learner_and_others(num_others):
    return RankLayout(
        num_others, 2, 2, cpus_per_rank=1, interface="lo", learner=RankLayout(1, 1, 1, cpus_per_rank=2)
    )


def spread(settings, **dist):
    return replace(settings, dist=replace(settings.dist, topology="env_workers", **dist))


@pytest.mark.slow
def test_a_heterogeneous_job_gives_the_learner_a_node_of_its_own(jobs, forked_ranks):
    job = jobs.submit(spread(config(3, 5)), learner_and_others(4))
    job.wait_for_state("COMPLETED")
    assert job.summary["status"] == "completed"
    assert job.summary["derived"]["num_nodes"] == 3
    assert job.iterations == [1, 2, 3]
    assert slurm.query([job.id])[job.id].nodes == "127.0.1.1"  # of the first component


@pytest.mark.slow
def test_a_rank_killed_in_a_heterogeneous_job_is_named_and_ends_all(jobs):
    job = jobs.submit(spread(config(10**6, 5, step_time_s=0.001)), learner_and_others(4))
    job.wait_for_iteration(2)
    os.kill(job.ranks()[3], signal.SIGKILL)
    job.wait_for_state("FAILED")
    assert "RankLost: rank 3 on 127.0.1.3 was ended by a signal (Killed)" in job.log
    assert "all 5 ranks were stopped" in job.log
    assert not job.ranks()


def test_a_rank_that_raises_makes_the_job_failed_and_is_named(jobs, forked_ranks):
    broken = replace(config(10**6, 2), env=EnvConfig(id="tests.fault.saboteurs:Raises-v0", backend="sync"))
    job = jobs.submit(broken, RankLayout(2, 2, 1, cpus_per_rank=1, interface="lo"))
    job.wait_for_state("FAILED")
    assert "ZeroDivisionError: the task of the test broke" in job.log
    assert "RankLost: rank 1 on 127.0.1.2 ended with exit code 4" in job.log


@pytest.mark.slow
def test_a_job_whose_final_evaluation_fails_has_done_its_work_and_says_so(jobs, forked_ranks):
    kwargs = {"fault": "raise", "step": 5, "seed": derived_seed(0, "eval", 1)}
    env = EnvConfig(id="tests.fault.wrong_env:Wrong-v0", num_envs=4, backend="sync", kwargs=kwargs)
    settings = replace(config(3, 2), env=env, eval=EvalConfig(final_episodes=2))
    job = jobs.submit(settings, RankLayout(2, 2, 1, cpus_per_rank=1, interface="lo"))
    job.wait_for_state("COMPLETED")
    assert job.summary["status"] == "completed"
    assert job.iterations == [1, 2, 3]
    assert (
        f"warning: the run in {job.run_dir.resolve()} is complete, but the final evaluation failed: rank 1"
        in job.log
    )


@pytest.mark.slow
def test_a_killed_rank_makes_the_job_failed_within_30_s_and_is_named(jobs):
    job = jobs.submit(
        config(10**6, 4, step_time_s=0.001), RankLayout(4, 2, 2, cpus_per_rank=1, interface="lo")
    )
    job.wait_for_iteration(2)
    os.kill(job.ranks()[2], signal.SIGKILL)
    job.wait_for_state("FAILED")
    assert "RankLost: rank 2 on 127.0.1.2 was ended by a signal (Killed)" in job.log
    assert not job.ranks()


@pytest.mark.slow
def test_a_killed_rank_costs_the_job_no_more_than_time_where_it_may_restart(jobs):
    settings = config(40, 2, step_time_s=0.001)
    settings = replace(settings, dist=replace(settings.dist, on_lost="restart"))
    job = jobs.submit(settings, RankLayout(2, 2, 1, cpus_per_rank=1, interface="lo"))
    job.wait_for_iteration(2)
    os.kill(job.ranks()[1], signal.SIGKILL)
    job.wait_for_state("COMPLETED")
    assert job.summary["restarts"] == 1
    assert job.iterations == list(range(1, 41))


@pytest.mark.slow
def test_scancel_ends_the_ranks_and_the_hold_on_the_folder(jobs):
    job = jobs.submit(
        config(10**6, 2, step_time_s=0.001), RankLayout(2, 2, 1, cpus_per_rank=1, interface="lo")
    )
    job.wait_for_iteration(2)
    with pytest.raises(RunFolderError, match="in use by another process"), held(job.run_dir):
        pass
    slurm.cancel([job.id])
    wait_until(lambda: not job.ranks(), "end of the ranks")
    job.wait_for_state("CANCELLED")
    with held(job.run_dir, patience_s=PATIENCE_S):
        pass


@pytest.mark.slow
def test_a_driver_knows_whether_its_job_still_runs(jobs, forked_ranks, monkeypatch):
    job = jobs.submit(
        config(10**6, 2, step_time_s=0.001), RankLayout(2, 2, 1, cpus_per_rank=1, interface="lo")
    )
    job.wait_for_iteration(1)
    monkeypatch.setenv("SLURM_JOB_ID", job.id)
    assert driver.still_runs()
    slurm.cancel([job.id])
    assert not driver.still_runs()


def test_a_run_that_is_complete_is_not_run_again(jobs, forked_ranks):
    layout = RankLayout(1, 1, 1, cpus_per_rank=1)
    first = jobs.submit(config(2, 1), layout)
    first.wait_for_state("COMPLETED")
    before = contents(first.run_dir)
    assert {"metrics.jsonl", "summary.json", "iteration_00000002.pt"} <= {path.name for path in before}
    again = jobs.submit(config(2, 1), layout, run_dir=first.run_dir)
    again.wait_for_state("COMPLETED")
    assert contents(first.run_dir) == before


@pytest.mark.slow
def test_a_run_killed_before_its_first_checkpoint_begins_anew_and_keeps_what_was(jobs):
    job = jobs.submit(config(30, 2, step_time_s=0.002), RankLayout(2, 2, 1, cpus_per_rank=1, interface="lo"))
    job.wait_for_iteration(3)
    slurm.command("scontrol", "requeue", job.id)
    job.wait_for_state("PENDING")
    # Ranks may have had the time to save, and would not if their node were lost.
    shutil.rmtree(job.run_dir / "checkpoints", ignore_errors=True)
    done = job.wait_until_requeued()
    job.wait_for_state("COMPLETED")
    assert job.iterations == list(range(1, 31))
    assert iterations(job.run_dir, "metrics.superseded.jsonl") == list(range(1, done + 1))
    assert job.summary["env_steps"] == 30 * STEPS
