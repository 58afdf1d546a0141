"""One sweep on a cluster: plan the runs, submit what is left to do, wait, and say how each ended."""

import os
from collections.abc import Sequence
from pathlib import Path

from ddppo import config as configuration
from ddppo.cluster import local, slurm
from ddppo.cluster.jobs import Book, Job, Status
from ddppo.cluster.submit import Ready, submit
from ddppo.cluster.watch import cancel, watch
from ddppo.config import Config, SlurmLauncherConfig
from ddppo.errors import ConfigError, TrainingError
from ddppo.run import start, sweep

Result = float | Exception | None  # what a sweeper optimises, nothing, or why the run failed


def launch(
    sweep_dir: Path,
    launcher: SlurmLauncherConfig,
    runs: Sequence[tuple[Path, tuple[Config, SlurmLauncherConfig] | ConfigError]],
) -> list[Result]:
    """Bring every run to its end and return what came of each, in order; with wait=false, submit them.

    A run is a folder with its settings and its launcher's, or with what is wrong with them. Jobs that an earlier call
    submitted and that are still active are waited for, not submitted again. Ctrl-C cancels all. Raises ClusterError
    where there is no cluster.
    """
    if launcher.local_cluster:
        os.environ["SLURM_CONF"] = str(local.conf_path())
    slurm.query([])  # is there a cluster?
    sweep_dir.mkdir(parents=True, exist_ok=True)
    book = Book(sweep_dir)
    active = {status.job.run for status in book.statuses() if status.outcome is None}
    results: dict[Path, Result] = {}
    objectives: dict[Path, str] = {}
    ready: list[Ready] = []
    for run_dir, composed in runs:
        try:
            if isinstance(composed, ConfigError):
                raise composed
            config, own_launcher = composed
            objectives[run_dir] = config.objective
            if run_dir.name in active:
                _check_same(run_dir, config, book.jobs[run_dir.name].job_id)
                print(f"-- {run_dir.name}: job {book.jobs[run_dir.name].job_id} is under way", flush=True)
            elif (entry := _entered(run_dir, config)).completed:
                results[run_dir] = _ended(sweep_dir, run_dir, config.objective, "skipped", entry.remark)
            else:
                ready.append(Ready(run_dir, entry.config, own_launcher))
        except ConfigError as e:
            results[run_dir] = _failed(sweep_dir, run_dir, e)
    jobs: list[Job] = []
    try:
        refused = submit(book, ready)
        for run_dir, _ in runs:
            if run_dir.name in refused:
                results[run_dir] = _failed(sweep_dir, run_dir, TrainingError(refused[run_dir.name]))
        waiting = [run_dir for run_dir, _ in runs if run_dir not in results]
        jobs = [book.jobs[run_dir.name] for run_dir in waiting]
        if not launcher.wait:
            for run_dir in waiting:
                sweep.note(sweep_dir, run_dir, "submitted", f"job {book.jobs[run_dir.name].job_id}")
            print(f"look by: python -m ddppo.jobs {sweep_dir}", flush=True)
            return [results.get(run_dir) for run_dir, _ in runs]
        statuses = watch(book, jobs, launcher.poll_s) if jobs else []
    except KeyboardInterrupt:
        submitted = [book.jobs[run.name] for run, _ in runs if run.name in book.jobs and run not in results]
        cancel(submitted)
        print(f"\ncancelled {len(submitted)} jobs", flush=True)
        raise
    for run_dir, status in zip(waiting, statuses, strict=True):
        results[run_dir] = _result(sweep_dir, run_dir, objectives[run_dir], status)
    return [results[run_dir] for run_dir, _ in runs]


def _check_same(run_dir: Path, config: Config, job_id: str) -> None:
    if different := sweep.differences(configuration.load(run_dir / "config.yaml"), config):
        raise ConfigError(
            f"job {job_id} is under way with other settings ({', '.join(different[:3])}): cancel it first, by "
            f"python -m ddppo.jobs {run_dir.parent} cancel=true, or use another sweep folder"
        )


def _entered(run_dir: Path, config: Config) -> sweep.Entry:
    if not sweep.is_complete(run_dir, config):
        start.check(config)
    with start.held(run_dir):
        entry = sweep.enter(run_dir, config)
        print(f"-- {run_dir.name}{': ' + entry.remark if entry.remark else ''}", flush=True)
        if not entry.completed:
            start.write_config(entry.config, run_dir)
    return entry


def _result(sweep_dir: Path, run_dir: Path, objective: str, status: Status) -> Result:
    if status.outcome == "completed":
        return _ended(sweep_dir, run_dir, objective, "completed", "")
    return _failed(sweep_dir, run_dir, TrainingError(status.why))


def _ended(sweep_dir: Path, run_dir: Path, objective: str, outcome: str, why: str) -> float | None:
    summary = sweep.completed_summary(run_dir)
    assert summary is not None, f"{run_dir} was complete a moment ago"
    sweep.note(sweep_dir, run_dir, outcome, why)
    return sweep.objective(summary, objective)


def _failed(sweep_dir: Path, run_dir: Path, error: Exception) -> Exception:
    sweep.note(sweep_dir, run_dir, "failed", str(error))
    return error
