"""A real SLURM for the tests of this folder, and jobs on it."""

import os
import pwd
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.slurm.jobs import Jobs
from tests.slurm.local_cluster import PACKAGES, LocalCluster, missing_programs


@pytest.fixture(scope="session")
def cluster():
    """A cluster of 4 nodes; what runs in it is gone at the end of the session."""
    if missing := missing_programs():
        pytest.skip(f"SLURM is not installed, there is no {', '.join(missing)}: apt-get install {PACKAGES}")
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        pytest.skip(f"SLURM runs for users with a name, and user {os.getuid()} has none")
    folder = Path(tempfile.mkdtemp(prefix="ddslurm"))
    with LocalCluster(folder, num_nodes=4, cpus_per_node=8) as cluster:
        yield cluster
    shutil.rmtree(folder)


@pytest.fixture
def jobs(cluster, monkeypatch, tmp_path):
    """Submits runs to the cluster, and ends those that a test leaves."""
    for name in [name for name in os.environ if name.startswith(("SLURM", "SBATCH"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    submitter = Jobs(tmp_path, cluster)
    yield submitter
    submitter.cancel_all()
