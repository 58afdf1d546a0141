"""Sweeps by hydra/launcher=slurm on a real cluster, started and looked at by the doors as a user does."""

import csv
import json
import os
import signal
import sys

import pytest

from ddppo.cluster import slurm
from tests.support import PATIENCE_S, TINY, lines, run, started, summary, wait_until

SMALL = (
    *TINY, "env=synthetic", "env.num_envs=32", "env.backend=sync", "ppo.rollout_steps=4", "ppo.num_epochs=1",
    "ppo.num_minibatches=1", "ppo.total_steps=256", "device=cpu",
)  # fmt: skip
LAUNCHER = ("hydra/launcher=slurm", "hydra.launcher.interface=lo", "hydra.launcher.poll_s=0.5")
ENDLESS = ("ppo.total_steps=100000000", "env.kwargs.step_time_s=0.01")


def command(folder, *arguments):
    return [sys.executable, "-m", "ddppo.train", "-m", *SMALL, *LAUNCHER, f"sweep={folder}", *arguments]


def sweep(folder, *arguments, **environ):
    return run(command(folder, *arguments), folder, **environ)


def look(folder, *arguments):
    return run([sys.executable, "-m", "ddppo.jobs", str(folder), *arguments], folder)


def book(folder):
    return {job["run"]: job["job_id"] for job in json.loads((folder / "jobs.json").read_text())["jobs"]}


def states(folder):
    return {info.state for info in slurm.query(book(folder).values()).values()}


@pytest.fixture
def folder(jobs, tmp_path):
    """A sweep folder whose jobs are gone after the test, on the cluster that SLURM_CONF names."""
    folder = tmp_path / "sweep"
    yield folder
    if (folder / "jobs.json").exists():
        slurm.cancel(book(folder).values())
        wait_until(
            lambda: all(i.has_ended for i in slurm.query(book(folder).values()).values()), "end of jobs"
        )


def test_without_a_cluster_nothing_is_written(tmp_path):
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=nothing\n")
    done = sweep(tmp_path / "sweep", "dist.world_size=1", SLURM_CONF=str(conf))
    assert done.code == 1
    assert done.stderr.startswith("error: no SLURM cluster answers here")
    assert done.stderr.count("\n") == 1
    assert not list((tmp_path / "sweep").glob("*/config.yaml"))


@pytest.mark.slow
def test_a_sweep_of_1_to_32_ranks_passes_on_4_nodes_and_is_not_run_twice(folder, forked_ranks):
    arguments = ("dist.world_size=1,8,32", "hydra.launcher.one_at_a_time=true")
    done = sweep(folder, *arguments)
    assert done.code == 0, done.stdout + done.stderr
    assert "3 runs, 3 completed" in done.stdout
    found = {s["world_size"]: s for s in (summary(folder / name) for name in book(folder))}
    assert sorted(found) == [1, 8, 32]
    assert all(s["env_steps"] == 256 and s["status"] == "completed" for s in found.values())
    assert {w: s["derived"]["num_nodes"] for w, s in found.items()} == {1: 1, 8: 1, 32: 4}
    assert {s["derived"]["num_hosts"] for s in found.values()} == {1}  # in truth the nodes are one machine
    submitted = book(folder)
    again = sweep(folder, *arguments, SLURM_CONF="/nowhere/slurm.conf")  # it needs no cluster any more
    assert again.code == 0
    assert "3 runs, 3 skipped" in again.stdout
    assert book(folder) == submitted


@pytest.mark.slow
def test_a_learner_with_cpus_of_its_own_makes_each_run_a_heterogeneous_job(folder, forked_ranks):
    done = sweep(folder, "distributed=env_workers", "seed=0,1", "hydra.launcher.learner_cpus=2")
    assert done.code == 0, done.stdout + done.stderr
    assert "2 runs, 2 completed" in done.stdout
    assert not any("_" in job_id for job_id in book(folder).values())  # SLURM has no arrays of them
    assert {summary(folder / name)["derived"]["num_nodes"] for name in book(folder)} == {2}


@pytest.mark.slow
def test_equal_jobs_are_one_array_and_a_failed_one_does_not_lose_the_others(folder, forked_ranks):
    model = "model.name=mlp,tests.fault.saboteurs:NaNModel"
    done = sweep(folder, "dist.world_size=2", "seed=0,1", model, FAULTY_RANK="1", FAULT_AFTER="0")
    assert done.code == 1
    ids = book(folder).values()
    assert {job_id.partition("_")[2] for job_id in ids} == {"0", "1", "2", "3"}
    assert len({job_id.partition("_")[0] for job_id in ids}) == 1
    infos = {name: slurm.query([job_id])[job_id].state for name, job_id in book(folder).items()}
    rows = csv.DictReader((folder / "runs.csv").read_text().splitlines())
    models = {row["folder"]: row["overrides"] for row in rows}
    assert {state for name, state in infos.items() if "NaN" in models[name]} == {"FAILED"}
    assert {state for name, state in infos.items() if "NaN" not in models[name]} == {"COMPLETED"}
    assert "4 runs, 2 completed, 2 failed" in done.stderr
    assert "NonFiniteError" in done.stderr
    assert "Traceback" not in done.stderr
    after = look(folder)
    assert after.code == 1
    assert "2 COMPLETED, 2 FAILED" in after.stdout


@pytest.mark.slow
def test_a_run_that_cannot_be_is_not_submitted_and_the_others_are_once_each(folder, forked_ranks):
    done = sweep(folder, "dist.world_size=33,1", "seed=0,0")
    assert done.code == 1
    assert "dist.world_size=33 does not divide the batch env.num_envs=32" in done.stderr
    assert len(book(folder)) == 1
    assert summary(folder / next(iter(book(folder))))["status"] == "completed"


@pytest.mark.slow
def test_ranks_that_do_not_fill_their_nodes_train_all_the_same_submitted_from_inside_a_job(
    folder, forked_ranks
):
    outer = {
        "SLURM_ARRAY_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "0",
        "SLURM_CPU_BIND": "cores",
        "SBATCH_PARTITION": "no",
    }
    done = sweep(folder, "dist.world_size=3", "env.num_envs=6", "hydra.launcher.ranks_per_node=2", **outer)
    assert done.code == 0, done.stdout + done.stderr
    (name,) = book(folder)
    found = summary(folder / name)
    assert (found["world_size"], found["derived"]["num_nodes"]) == (3, 2)
    assert len(found["per_rank"]) == 3


def test_what_sbatch_refuses_is_told_in_its_words(folder):
    done = sweep(folder, "dist.world_size=1", "hydra.launcher.partition=nowhere")
    assert done.code == 1
    assert "sbatch refused the job: invalid partition specified: nowhere" in done.stderr


@pytest.mark.slow
def test_a_sweep_left_alone_is_looked_at_taken_up_again_and_cancelled(folder):
    first = sweep(folder, *ENDLESS, "dist.world_size=1,2", "hydra.launcher.wait=false")
    assert first.code == 0, first.stderr
    assert f"python -m ddppo.jobs {folder}" in first.stdout
    submitted = book(folder)
    wait_until(lambda: all(lines(folder / name) for name in submitted), "metrics of both jobs")
    assert "2 RUNNING" in look(folder).stdout
    tailed = look(folder, "tail=dist.world_size-2")
    assert next(job_id for name, job_id in submitted.items() if "world_size-2" in name) in tailed.stdout
    config = folder / next(iter(submitted)) / "config.yaml"
    before = config.read_text()
    config.write_text(before.replace("gamma: 0.99", "gamma: 0.5"))  # as if a preset had changed since
    changed = sweep(folder, *ENDLESS, "dist.world_size=1,2", "hydra.launcher.wait=false")
    assert changed.code == 1
    assert "under way with other settings (ppo.gamma=0.5, now 0.99)" in changed.stderr
    config.write_text(before)
    with started(command(folder, *ENDLESS, "dist.world_size=1,2")) as process:
        told = [process.stdout.readline() for _ in range(4)]
        assert sum("is under way" in line for line in told) == 2
        assert book(folder) == submitted
        os.kill(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "cancelled 2 jobs" in stdout + stderr
    wait_until(lambda: states(folder) == {"CANCELLED"}, "end of the cancelled jobs")
    after = look(folder)
    assert after.code == 1
    assert "2 CANCELLED" in after.stdout


@pytest.mark.slow
def test_a_cancelled_job_is_reported_and_its_run_goes_on_by_the_same_command(folder):
    slow = (
        "dist.world_size=2",
        "env.kwargs.step_time_s=0.005",
        "ppo.total_steps=5120",
        "checkpoint.every_steps=128",
    )
    with started(command(folder, *slow)) as process:
        wait_until(lambda: (folder / "jobs.json").exists(), "job")
        (name, job_id), *_ = book(folder).items()
        wait_until(lambda: any((folder / name / "checkpoints").glob("iteration_*.pt")), "checkpoint")
        slurm.cancel([job_id])  # as somebody else might
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert f"job {job_id}: SLURM says CANCELLED" in stderr
    done = sweep(folder, *slow)
    assert done.code == 0, done.stderr
    assert "goes on at" in done.stdout
    assert [line["iteration"] for line in lines(folder / name) if line["rank"] == 0] == list(range(1, 41))
