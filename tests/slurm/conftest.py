"""A real SLURM for the tests of this folder, and jobs on it."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.slurm.jobs import Jobs
from tests.slurm.local_cluster import PACKAGES, LocalCluster, missing_programs
from tests.support import CHECKOUT, wait_until


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


@pytest.fixture(scope="session")
def server_of_ranks():
    """The socket of a process that forks ranks (forked/sitecustomize.py)."""
    path = Path(tempfile.mkdtemp(prefix="ddranks")) / "socket"
    program = [sys.executable, "-m", "tests.slurm.forked.sitecustomize", str(path)]
    # Read by torch when it is imported, as in tests/support.py.
    environ = os.environ | {"GOMP_SPINCOUNT": "1000", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    server = subprocess.Popen(program, cwd=CHECKOUT, env=environ)
    wait_until(lambda: path.exists() or server.poll() is not None, "server of ranks")
    yield path
    server.send_signal(signal.SIGTERM)
    assert server.wait() == -signal.SIGTERM
    shutil.rmtree(path.parent)


@pytest.fixture
def forked_ranks(server_of_ranks, monkeypatch):
    """Ranks of jobs that are submitted meanwhile are forked: for tests of what is said of runs, not of how they end."""
    folder = str(CHECKOUT / "tests" / "slurm" / "forked")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH")))))
    monkeypatch.setenv("DDPPO_TEST_RANKS", str(server_of_ranks))
