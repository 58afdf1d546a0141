"""What a run asks of SLURM, and what is said of its job, without a SLURM."""

import json
import os
import signal
from dataclasses import replace

import pytest

from ddppo.cluster import jobs as cluster_jobs
from ddppo.cluster.jobs import Book, SlurmJob, counts, last_error, progress, table, watch
from ddppo.cluster.resources import (
    SlurmLauncherConfig,
    check_learner,
    in_arrays,
    job_name,
    rank_layout,
    sbatch_parameters,
)
from ddppo.cluster.slurm import JobInfo
from ddppo.cluster.submit import launch
from ddppo.config import stored
from ddppo.config.settings import Config, EnvConfig
from ddppo.config.variants import settings_of
from ddppo.errors import ClusterError, ConfigError, RunFolderError, Stopped
from ddppo.processes.signals import now_here
from ddppo.records.run_folder import SCHEMA_VERSION


@pytest.mark.parametrize(
    ("world_size", "num_nodes", "ranks_per_node"),
    [(1, 1, 1), (4, 1, 4), (5, 2, 3), (8, 2, 4), (9, 3, 3), (32, 8, 4)],
)
def test_a_run_gets_the_fewest_nodes_that_hold_its_ranks(world_size, num_nodes, ranks_per_node):
    layout = rank_layout(world_size, SlurmLauncherConfig(ranks_per_node=4))
    assert (layout.num_nodes, layout.ranks_per_node) == (num_nodes, ranks_per_node)


def test_resources_follow_the_world_size():
    launcher = SlurmLauncherConfig(
        ranks_per_node=4, cpus_per_rank=3, gpus_per_rank=1, mem_gb_per_rank=1.5, partition="gpu"
    )
    small, large = (sbatch_parameters(rank_layout(w, launcher), launcher, "sweep") for w in (2, 16))
    assert small["additional_parameters"] | {"signal": ""} == {
        "nodes": 1, "ntasks": 2, "ntasks-per-node": 2, "cpus-per-task": 3, "gpus-per-node": 2, "mem": "3072M",
        "requeue": True, "signal": "",
    }  # fmt: skip
    more = large["additional_parameters"]
    assert (more["nodes"], more["ntasks"], more["gpus-per-node"], more["mem"]) == (4, 16, 4, "6144M")
    assert small["partition"] == "gpu"
    assert "account" not in small


def test_a_learner_with_resources_of_its_own_is_the_first_of_two_components():
    launcher = SlurmLauncherConfig(
        ranks_per_node=4, cpus_per_rank=2, mem_gb_per_rank=1, partition="cpu", account="me", learner_gpus=1,
        learner_cpus=8, learner_partition="gpu",
    )  # fmt: skip
    layout = rank_layout(7, launcher)
    parameters = sbatch_parameters(layout, launcher, "sweep")
    assert parameters["partition"] == "gpu"
    assert parameters["additional_parameters"] == {
        "nodes": 1, "ntasks": 1, "ntasks-per-node": 1, "cpus-per-task": 8, "gpus-per-node": 1, "mem": "1024M",
        "requeue": True, "signal": "B:USR2@120",
    }  # fmt: skip
    assert parameters["setup"] == [
        "#SBATCH hetjob", "#SBATCH --nodes=2", "#SBATCH --ntasks=6", "#SBATCH --ntasks-per-node=3",
        "#SBATCH --cpus-per-task=2", "#SBATCH --time=60", "#SBATCH --partition=cpu", "#SBATCH --account=me",
        "#SBATCH --mem=3072M", "trap '' USR2",
    ]  # fmt: skip
    command = " ".join(layout.srun(["python", "x"]))
    assert command.count("python x") == 2
    assert "--het-group=0 python x : --nodes=2" in command


@pytest.mark.parametrize(("topology", "world_size"), [("ddp", 4), ("multi_learner", 4), ("ddp", 1)])
def test_it_is_refused_where_rank_0_does_what_others_do(topology, world_size):
    config = Config(dist=settings_of("dist", topology=topology, world_size=world_size))
    check_learner(config, SlurmLauncherConfig())
    with pytest.raises(ConfigError, match="rank 0 is no learner among ranks of other roles"):
        check_learner(config, SlurmLauncherConfig(learner_cpus=2))


def test_one_at_a_time_holds_within_an_array_and_between_arrays():
    launcher = SlurmLauncherConfig(one_at_a_time=True)
    parameters = sbatch_parameters(rank_layout(1, launcher), launcher, "sweep")
    assert parameters["array_parallelism"] == 1
    assert parameters["additional_parameters"]["dependency"] == "singleton"
    launcher.additional_parameters = {"dependency": "afterok:1"}
    parameters = sbatch_parameters(rank_layout(1, launcher), launcher, "sweep")
    assert parameters["additional_parameters"]["dependency"] == "singleton,afterok:1"


def test_sweeps_of_one_name_in_two_places_do_not_wait_for_each_other(tmp_path):
    assert job_name(tmp_path / "a" / "mine") != job_name(tmp_path / "b" / "mine")


@pytest.mark.parametrize(
    ("launcher", "said"),
    [
        (
            SlurmLauncherConfig(timeout_min=3),
            "timeout_min=3 leaves a job no time to train.*at least 4 minutes",
        ),
        (
            SlurmLauncherConfig(additional_parameters={"cpus_per_task": 2}),
            "cpus_per_task=2 is set by the launcher",
        ),
        (SlurmLauncherConfig(additional_parameters={"signal": "USR1"}), "signal=USR1 is set by the launcher"),
    ],
)
def test_settings_that_would_break_a_job_are_refused(launcher, said):
    with pytest.raises(ConfigError, match=said):
        sbatch_parameters(rank_layout(1, launcher), launcher, "sweep")


def test_equal_jobs_share_an_array_until_it_is_full():
    asked = [({"nodes": 1}, "a"), ({"nodes": 2}, "b"), ({"nodes": 1}, "c"), ({"nodes": 1}, "d")]
    assert in_arrays(asked, 1001) == [({"nodes": 1}, ["a", "c", "d"]), ({"nodes": 2}, ["b"])]
    assert len(in_arrays(asked, 0)) == 4  # a cluster without arrays
    assert in_arrays(asked, 2) == [({"nodes": 1}, ["a", "c"]), ({"nodes": 1}, ["d"]), ({"nodes": 2}, ["b"])]


def entry(job_id, run, submitted=""):
    return SlurmJob(job_id, run, world_size=2, total_steps=1000, log=f"{run}.log", submitted=submitted)


@pytest.fixture
def book(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_CONF", raising=False)
    book = Book(tmp_path)
    book.add([entry("12_3", "run")])
    (tmp_path / "run").mkdir()
    return book


def known(monkeypatch, *infos):
    monkeypatch.setattr(cluster_jobs.slurm, "query", lambda ids: {info.job_id: info for info in infos})


def complete(book):
    config = Config(env=EnvConfig(id="CartPole-v1"))
    summary = {"schema_version": SCHEMA_VERSION, "status": "completed", "env_steps": config.ppo.total_steps}
    (book.sweep_dir / "run" / "config.yaml").write_text(stored.to_yaml(config))
    (book.sweep_dir / "run" / "summary.json").write_text(json.dumps(summary))


def test_an_active_job_has_no_outcome_yet(book, monkeypatch):
    known(monkeypatch, JobInfo("12_3", "PENDING", "Resources", ""))
    (status,) = book.statuses()
    assert (status.state, status.outcome, status.why) == ("PENDING", None, "Resources")


def test_a_job_that_slurm_has_forgotten_is_judged_by_its_run_folder(book, monkeypatch):
    known(monkeypatch)
    (status,) = book.statuses()
    assert (status.state, status.outcome) == ("GONE", "failed")
    assert "no complete summary.json" in status.why
    complete(book)
    assert book.statuses()[0].outcome == "completed"


def test_a_job_that_slurm_does_not_list_yet_is_not_given_up(book, monkeypatch):
    known(monkeypatch)
    book.add([entry("13", "run", submitted=now_here())])
    (status,) = book.statuses()
    assert (status.state, status.outcome) == ("SUBMITTED", None)


def test_slurms_word_alone_does_not_make_a_run_complete(book, monkeypatch):
    known(monkeypatch, JobInfo("12_3", "COMPLETED", "", "node1"))
    (status,) = book.statuses()
    assert status.outcome == "failed"
    complete(book)
    assert book.statuses()[0].outcome == "completed"


def test_a_failed_job_is_told_with_the_rank_s_own_words(book, monkeypatch):
    known(monkeypatch, JobInfo("12_3", "FAILED", "NonZeroExitCode", "node1"))
    log = "rank 1: CollectiveError: lost its peers\nsubmitit ERROR - Submitted job triggered an exception\nbye\n"
    (book.sweep_dir / "run.log").write_text("starting\n" + log)
    (status,) = book.statuses()
    assert "FAILED" in status.why
    assert "rank 1: CollectiveError: lost its peers" in status.why
    assert str(book.sweep_dir / "run.log") in status.why


def test_a_book_reads_back_as_it_was_written_and_a_new_job_replaces_a_run_s_old_one(book, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    book.add([entry("14", "run"), entry("15", "other")])
    again = Book(book.sweep_dir)
    assert {job.run: job.job_id for job in again.jobs.values()} == {"run": "14", "other": "15"}
    assert again.slurm_conf == "/etc/slurm.conf"


def test_jobs_of_another_cluster_are_not_taken_for_gone(book, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", "/elsewhere/slurm.conf")
    book.check_cluster(["a run without a job"])
    with pytest.raises(ConfigError, match=r"has jobs, such as 12_3, on the cluster"):
        book.check_cluster(["run"])


def test_a_book_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "jobs.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"jobs\.json is not readable"):
        Book(tmp_path)


def test_progress_is_read_from_the_last_whole_line(book):
    run_dir = book.sweep_dir / "run"
    assert progress(run_dir, 1) == {}
    line = {"iteration": 1, "rank": 0, "env_steps": 256, "rollout/fps": 1000.0, "rollout/return_mean": 20.5}
    second = {**line, "iteration": 2, "env_steps": 512}
    text = "\n".join(json.dumps(entry) for entry in (line, second)) + '\n{"iteration": 3, "env_st'
    (run_dir / "metrics.jsonl").write_text(text)
    assert progress(run_dir, 1) == {"env_steps": 512, "fps": 1000.0, "return_mean": 20.5}


def test_the_table_has_a_row_for_each_job(book, monkeypatch):
    known(monkeypatch, JobInfo("12_3", "RUNNING", "", "node1"))
    statuses = book.statuses()
    assert table(statuses).row_count == 1
    assert counts([*statuses, *statuses]) == "2 RUNNING"


def test_a_job_that_ended_well_is_given_time_until_its_summary_is_seen(book, monkeypatch):
    known(monkeypatch, JobInfo("12_3", "COMPLETED", "", "node1"))
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        if len(looks) == 3:
            complete(book)

    monkeypatch.setattr("ddppo.cluster.jobs.time.sleep", sleep)
    (status,) = watch(book, list(book.jobs.values()), 1.0, hint="")
    assert status.outcome == "completed"
    assert len(looks) == 3


def test_a_controller_that_is_away_for_a_while_is_waited_for(book, monkeypatch, capsys):
    complete(book)
    answers = iter([ClusterError("no slurmctld"), ClusterError("no slurmctld"), {}])

    def query(job_ids):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(cluster_jobs.slurm, "query", query)
    monkeypatch.setattr("ddppo.cluster.jobs.time.sleep", lambda seconds: None)
    (status,) = watch(book, list(book.jobs.values()), 1.0, hint="")
    assert status.outcome == "completed"
    assert "SLURM does not answer, trying again: no slurmctld" in capsys.readouterr().out


def test_a_controller_that_stays_away_ends_the_wait(book, monkeypatch):
    def query(job_ids):
        raise ClusterError("no slurmctld")

    clock = iter(range(0, 10**6, 300))
    monkeypatch.setattr(cluster_jobs.slurm, "query", query)
    monkeypatch.setattr("ddppo.cluster.jobs.time.sleep", lambda seconds: None)
    monkeypatch.setattr("ddppo.cluster.jobs.time.monotonic", lambda: next(clock))
    with pytest.raises(ClusterError, match=r"the jobs may still run: see python -m ddppo\.jobs"):
        watch(book, list(book.jobs.values()), 1.0, hint="")


def test_two_different_runs_with_one_folder_are_both_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("ddppo.cluster.submit.submit", lambda *a: pytest.fail("a job was submitted"))
    config = Config(env=EnvConfig(id="CartPole-v1"))
    launcher = SlurmLauncherConfig()
    runs = [(tmp_path / "run", (replace(config, seed=seed), launcher)) for seed in (0, 1, 1)]
    results = launch(tmp_path, launcher, runs)
    assert all(isinstance(result, ConfigError) for result in results)
    assert "two runs of this sweep have one folder (seed=0, now 1)" in str(results[0])


def test_a_sweep_s_jobs_are_cancelled_on_their_own_cluster(book, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", "/the/sweep/slurm.conf")
    book.add([entry("14", "run")])
    monkeypatch.setenv("SLURM_CONF", "/another/slurm.conf")
    asked = []
    monkeypatch.setattr(
        cluster_jobs.slurm, "cancel", lambda ids: asked.append((os.environ["SLURM_CONF"], ids))
    )
    monkeypatch.setattr("ddppo.cluster.submit._Plan", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    launcher = SlurmLauncherConfig()
    config = Config(env=EnvConfig(id="CartPole-v1"))
    with pytest.raises(KeyboardInterrupt):
        launch(book.sweep_dir, launcher, [(book.sweep_dir / "run", (config, launcher))])
    assert asked == [("/the/sweep/slurm.conf", ["14"])]


def test_a_sweep_s_jobs_go_on_where_the_process_that_waits_for_them_is_stopped(book, monkeypatch):
    book.add([entry("14", "run")])
    monkeypatch.setattr(cluster_jobs.slurm, "cancel", lambda ids: pytest.fail(f"{ids} were cancelled"))
    stopped = Stopped(signal.SIGHUP)  # by a terminal that goes away, say
    monkeypatch.setattr("ddppo.cluster.submit._Plan", lambda *a: (_ for _ in ()).throw(stopped))
    launcher = SlurmLauncherConfig()
    config = Config(env=EnvConfig(id="CartPole-v1"))
    with pytest.raises(Stopped):
        launch(book.sweep_dir, launcher, [(book.sweep_dir / "run", (config, launcher))])


def test_a_reason_is_told_with_the_whole_of_a_long_path(tmp_path):
    log = tmp_path / "run.log"
    path = "/".join(["a_folder_of_a_sweep"] * 20)
    log.write_text(f"rank 0: RunFolderError: {path}/checkpoints is truncated\n")
    assert last_error(log).endswith(f"{path}/checkpoints is truncated")
    log.write_text(f"rank 0: ValueError: {'number ' * 10_000}\n")
    assert len(last_error(log)) <= 2_000
    assert last_error(log).endswith("number ...")
