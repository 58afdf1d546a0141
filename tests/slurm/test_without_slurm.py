"""What needs no SLURM: names of a rank's place, layouts, mistakes."""

import io
import shutil
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from ddppo.cluster import driver, slurm
from ddppo.cluster.rank import torchrun_variables
from ddppo.cluster.resources import RankLayout
from ddppo.config import stored
from ddppo.config.settings import Config, DistSettings, EnvConfig
from ddppo.errors import ClusterError, ConfigError, RunFolderError, TrainingError
from ddppo.launch.arguments import prepared_arguments
from ddppo.launch.mpi import tasks_per_node
from ddppo.records.run_folder import RunFolder, held, with_restarts
from tests.slurm.local_cluster import LocalCluster, _user
from tests.support import run


@pytest.mark.parametrize(
    ("text", "counts"), [("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("3,2(x2)", [3, 2, 2]), ("1(x10)", [1] * 10)]
)
def test_slurms_short_way_to_write_tasks_per_node_is_understood(text, counts):
    assert tasks_per_node(text) == counts


def test_what_is_no_count_of_tasks_is_refused():
    with pytest.raises(ValueError, match="SLURM_STEP_TASKS_PER_NODE=2x3"):
        tasks_per_node("2x3")


def test_a_task_of_slurm_becomes_a_rank_of_torchrun():
    step = {"SLURM_PROCID": "4", "SLURM_LOCALID": "0", "SLURM_NTASKS": "5", "SLURM_NODEID": "2"}
    step |= {"SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_CPUS_PER_TASK": "8"}
    assert torchrun_variables(step) == {
        "RANK": "4",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "5",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_WORLD_SIZE": "3",
        "DDPPO_CORES_PER_RANK": "8",
    }


@pytest.mark.parametrize(("world_size", "num_nodes", "ranks_per_node"), [(5, 2, 2), (2, 2, 2), (0, 1, 1)])
def test_a_layout_that_does_not_hold_the_ranks_or_leaves_a_node_idle_is_refused(
    world_size, num_nodes, ranks_per_node
):
    with pytest.raises(ConfigError, match=f"world_size={world_size}"):
        RankLayout(world_size, num_nodes, ranks_per_node, cpus_per_rank=1)


def test_gpus_are_asked_for_only_where_there_are_some():
    assert "gpus-per-node" not in RankLayout(2, 1, 2, cpus_per_rank=1).sbatch(90)
    layout = RankLayout(2, 1, 2, cpus_per_rank=1, gpus_per_node=2)
    assert layout.sbatch(90)["gpus-per-node"] == 2
    assert "--gpus-per-node=2" in layout.srun()


def test_a_folder_whose_sockets_would_have_too_long_names_is_refused():
    with pytest.raises(ConfigError, match="at most 50 characters"):
        LocalCluster(Path("/tmp") / ("x" * 60))


def test_without_slurm_the_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(ClusterError, match="slurmctld slurmd slurm-client munge"):
        LocalCluster(Path("/tmp/none")).start()


def test_a_user_without_a_home_or_a_name_is_told_that_a_local_slurm_needs_both(monkeypatch):
    def nobody(*args):
        raise KeyError("uid not found")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(
        ConfigError, match=r"slurm: this user has no home folder: set HOME, or add dir=<folder>"
    ):
        LocalCluster()
    with pytest.raises(ClusterError, match=r"user \d+ has no entry in /etc/passwd: add one"):
        _user()


@pytest.mark.parametrize(
    "arguments", [[], ["start"], ["down", "nodes=3"], ["up", "nodes=x"], ["up", "nodes=0"]]
)
def test_a_mistake_in_the_command_is_exit_code_2(arguments):
    result = run([sys.executable, "-m", "tests.slurm.local_cluster", *arguments], Path())
    assert result.code == 2
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr


def test_a_folder_with_other_files_is_left_alone(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/bin/{name}")
    with tempfile.TemporaryDirectory(prefix="ddother") as folder:
        (Path(folder) / "log").mkdir()
        with pytest.raises(ConfigError, match="holds other files"):
            LocalCluster(Path(folder)).start()
        assert (Path(folder) / "log").is_dir()


SRUN = """\
rank 1: CollectiveError: rank 1 lost its peers
srun: error: node1: tasks 0-1: Exited with exit code 3
srun: launch/slurm: _step_signal: Terminating StepId=1.0
srun: error: node2: task 3: {}
srun: error: node2: task 2: Exited with exit code 3
"""


@pytest.mark.parametrize(
    ("how", "said", "is_lost"),
    [
        ("Exited with exit code 1", "rank 3 on node2 ended with exit code 1", False),
        ("Killed", "rank 3 on node2 was ended by a signal (Killed)", True),
        (
            "Segmentation fault (core dumped)",
            "rank 3 on node2 was ended by a signal (Segmentation fault",
            True,
        ),
        ("Exited with exit code 3", "rank 0-1 on node1 ended with exit code 3", False),
    ],
)
def test_the_rank_that_others_lost_is_blamed_and_not_those_that_lost_it(how, said, is_lost, capsys):
    failures = []
    driver._pass_on(io.StringIO(SRUN.format(how)), failures)
    assert capsys.readouterr().err == SRUN.format(how)
    layout = RankLayout(4, 2, 2, cpus_per_rank=1)
    blame = driver.Driver(Path("run"), layout)._blame(failures)
    assert blame[0].startswith(said)
    assert blame[1] == is_lost


def test_a_step_that_did_not_start_is_no_ranks_fault():
    blame = driver.Driver(Path("run"), RankLayout(4, 2, 2, cpus_per_rank=1))._blame([])
    assert blame == ("srun could not start the ranks", False)


@pytest.mark.parametrize(("still_runs", "starts"), [(True, 2), (False, 1)])
def test_a_job_that_lost_a_rank_goes_on_with_its_run_unless_it_is_over(
    tmp_path, monkeypatch, still_runs, starts
):
    config = Config(env=EnvConfig(id="CartPole-v1"), dist=DistSettings(world_size=2, on_lost="restart"))
    RunFolder(tmp_path).begin(config)
    found = [[driver.Failure("1", "node2", "was ended by a signal (Killed)", None)], None]
    monkeypatch.setattr(driver, "_run_ranks", lambda *arguments: found.pop(0))
    monkeypatch.setattr(driver, "still_runs", lambda: still_runs)
    job = driver.Driver(tmp_path, RankLayout(2, 2, 1, cpus_per_rank=1))
    how = (
        nullcontext()
        if still_runs
        else pytest.raises(TrainingError, match="rank 1 on node2 was ended by a signal")
    )
    with how, driver._Signals() as signals:
        with_restarts(RunFolder(tmp_path), config, lambda _: job._run(signals))
    assert len(found) == 2 - starts
    assert RunFolder(tmp_path).num_restarts == starts - 1


def test_a_job_whose_run_another_process_trains_fails_and_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "_PATIENCE_S", 0.0)
    job = driver.Driver(tmp_path, RankLayout(1, 1, 1, cpus_per_rank=1))
    with held(tmp_path), pytest.raises(RunFolderError, match="in use by another process"):
        job()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"status": "completed"}'])
def test_a_run_whose_summary_is_broken_is_not_complete(tmp_path, text):
    (tmp_path / "config.yaml").write_text(stored.to_yaml(Config(env=EnvConfig(id="CartPole-v1"))))
    (tmp_path / "summary.json").write_text(text)
    assert not RunFolder(tmp_path).is_complete


def test_no_cluster_is_an_error_that_says_how_to_start_one(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setattr(slurm, "LOCAL", tmp_path)
    with pytest.raises(ClusterError, match="make slurm-up"):
        slurm.local_conf()


def test_whole_numbers_of_the_launcher_are_written_out():
    given = ["-m", "hydra.launcher.timeout_min=1e2"]
    assert prepared_arguments(given) == ["-m", "hydra.launcher.timeout_min=100"]
