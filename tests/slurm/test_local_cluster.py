"""A SLURM of one's own: up, down, and nothing left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddppo.cluster import slurm
from ddppo.errors import ClusterError
from tests.slurm.local_cluster import LocalCluster
from tests.support import run, wait_until


@pytest.fixture
def folder(cluster, tmp_path_factory, monkeypatch):
    """A short folder for a second cluster, beside the one of the other tests."""
    monkeypatch.setenv("SLURM_CONF", "/nowhere/slurm.conf")
    path = cluster.folder.with_name(f"{cluster.folder.name}2")
    yield path
    LocalCluster(path).stop()
    subprocess.run(["rm", "-r", "-f", str(path)], check=True)


def local(*arguments, **environ):
    return run([sys.executable, "-m", "tests.slurm.local_cluster", *arguments], Path(), **environ)


@pytest.mark.slow
def test_up_says_how_to_use_it_and_down_ends_daemons_and_jobs(cluster, folder):
    up = local("up", "nodes=3", "cpus=2", f"dir={folder}")
    assert up.code == 0, up.stderr
    assert f"export SLURM_CONF={folder}/slurm.conf" in up.stdout
    second = LocalCluster(folder)
    assert second.ask("sinfo", "--noheader", "--Node", "--partition=debug", "--format=%N %c").splitlines() == [
        "127.0.1.1 2", "127.0.1.2 2", "127.0.1.3 2",
    ]  # fmt: skip
    second.ask(
        "sbatch",
        "--nodes=3",
        "--output=/dev/null",
        "--chdir=/",
        "--wrap=srun sh -c 'trap \"\" TERM; sleep 600'",
    )
    wait_until(lambda: second.ask("squeue", "--noheader", "--steps").count(".0 ") == 1, "step")
    assert " wrap " in local("status", f"dir={folder}").stdout

    refused = local("up", f"dir={folder}")
    assert refused.code == 1
    assert f"error: the cluster in {folder} is up already" in refused.stderr

    assert local("down", f"dir={folder}").code == 0
    assert second.processes() == []
    assert local("status", f"dir={folder}").code == 1
    assert cluster.is_up()  # the other one has not noticed


def test_a_cluster_is_found_by_slurm_conf_or_in_the_default_folder_and_nowhere_else(cluster, monkeypatch):
    monkeypatch.setattr(slurm, "LOCAL", Path("/nowhere"))
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    assert slurm.local_conf() == cluster.conf
    monkeypatch.delenv("SLURM_CONF")
    monkeypatch.chdir(cluster.folder)
    with pytest.raises(ClusterError, match="start one with make slurm-up"):
        slurm.local_conf()
    monkeypatch.setattr(slurm, "LOCAL", cluster.folder)
    assert slurm.local_conf() == cluster.conf


def test_what_a_user_runs_beside_the_cluster_is_left_alone(cluster):
    outer_job = {"SLURM_CONF": str(cluster.conf), "SLURM_JOB_ID": "1", "SLURMD_NODENAME": "node1"}
    with subprocess.Popen(["sleep", "60"], env=os.environ | outer_job) as program:
        try:
            wait_until(lambda: Path(f"/proc/{program.pid}/comm").read_text() == "sleep\n", "program")
            assert program.pid not in cluster.processes()
        finally:
            program.kill()


def test_a_daemon_that_fails_shows_its_log_and_leaves_nothing(folder, monkeypatch, tmp_path):
    broken = tmp_path / "slurmctld"
    broken.write_text("#!/bin/sh\necho the controller broke >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    cluster = LocalCluster(folder, num_nodes=2)
    with pytest.raises(
        ClusterError, match=r"slurmctld ended with exit code 1\n(.*\n)*.*the controller broke"
    ):
        cluster.start()
    assert cluster.processes() == []
