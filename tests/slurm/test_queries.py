"""What SLURM tells of jobs, asked on a real cluster."""

import os

import pytest

from ddppo.cluster import slurm
from ddppo.cluster.slurm import JobInfo
from ddppo.errors import ClusterError
from tests.slurm.jobs import wait_for_end
from tests.support import wait_until


def sbatch(*arguments):
    return slurm.command("sbatch", "--parsable", "--output=/dev/null", *arguments).strip()


@pytest.fixture
def sacct(tmp_path, monkeypatch):
    """Puts a sacct on the PATH that knows what the test says."""

    def put(text):
        script = tmp_path / "bin" / "sacct"
        script.parent.mkdir()
        script.write_text(f"#!/bin/sh\ncat << END\n{text}END\n")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", str(script.parent), prepend=os.pathsep)

    return put


def test_each_element_of_an_array_is_known_by_its_own_id(jobs):
    array = sbatch("--array=0-2", "--nodes=2", "--wrap=exit $SLURM_ARRAY_TASK_ID")
    ids = [f"{array}_{i}" for i in range(3)]
    wait_for_end(*ids)
    infos = slurm.query(ids)
    assert sorted(infos) == ids
    assert [infos[i].state for i in ids] == ["COMPLETED", "FAILED", "FAILED"]
    assert [infos[i].reason for i in ids] == ["", "NonZeroExitCode", "NonZeroExitCode"]
    assert infos[ids[0]].nodes == "127.0.1.[1-2]"


def test_a_job_that_waits_says_why_and_has_not_ended(jobs):
    job = sbatch("--begin=now+1hour", "--wrap=true")
    wait_until(lambda: slurm.query([job])[job].reason == "BeginTime", "reason")
    assert slurm.query([job])[job] == JobInfo(job, "PENDING", "BeginTime", "")
    assert not slurm.query([job])[job].has_ended
    slurm.cancel([job])
    wait_for_end(job)
    assert slurm.query([job])[job].state == "CANCELLED"
    slurm.cancel([job])  # nothing is left to do, which is no error


def test_a_long_list_of_nodes_is_whole(jobs):
    job = sbatch("--nodelist=127.0.1.1,127.0.1.3", "--nodes=2", "--wrap=true")
    wait_for_end(job)
    assert slurm.query([job])[job].nodes == "127.0.1.[1,3]"


def test_a_job_that_nobody_knows_is_absent_where_the_cluster_keeps_no_accounts(jobs):
    assert slurm.query(["1", "2_0"]) == {}
    assert slurm.query([]) == {}


def test_a_job_that_squeue_has_forgotten_is_looked_up_in_the_accounts(jobs, sacct):
    known = sbatch("--wrap=exit 3")
    wait_for_end(known)
    sacct("1|CANCELLED by 1000|None|None assigned\n2_0|FAILED|NonZeroExitCode|n[1-2]\n9|FAILED||\n")
    assert slurm.query([known, "1", "2_0", "2_1"]) == {
        known: JobInfo(known, "FAILED", "NonZeroExitCode", "127.0.1.1"),
        "1": JobInfo("1", "CANCELLED", "", ""),
        "2_0": JobInfo("2_0", "FAILED", "NonZeroExitCode", "n[1-2]"),
    }


def test_an_answer_that_makes_no_sense_is_an_error_that_shows_it(jobs, sacct):
    sacct("sacct: what was the question\n")
    with pytest.raises(ClusterError, match="what was the question"):
        slurm.query(["1"])


def test_filters_that_the_user_has_set_hide_no_job(jobs, monkeypatch):
    job = sbatch("--begin=now+1hour", "--wrap=true")
    for name in ("SQUEUE_PARTITION", "SQUEUE_NAMES", "SQUEUE_FORMAT", "SCANCEL_NAME", "SLURM_CLUSTERS"):
        monkeypatch.setenv(name, "nowhere")
    assert slurm.query([job])[job].state == "PENDING"
    slurm.cancel([job])
    wait_for_end(job)


def test_the_largest_array_is_what_the_cluster_says(jobs):
    assert slurm.max_array_size() == 1001


def test_a_command_that_fails_is_an_error_with_what_it_said(jobs):
    with pytest.raises(ClusterError, match=r"sbatch ended with exit code 1: .*invalid partition"):
        sbatch("--partition=none", "--wrap=true")


def test_a_slurm_that_is_not_there_is_an_error_that_says_so(jobs, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="there is no squeue here"):
        slurm.query(["1"])
