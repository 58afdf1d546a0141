"""A sweep on a cluster: plan the runs, submit jobs for those that are not complete, wait, and return their results.

`launch` is the entry; `_Plan` decides which runs need a job; `submit` groups them into arrays for submitit.
"""

import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError
from submitit.helpers import clean_env

from ddppo.cluster import slurm
from ddppo.cluster.driver import Driver
from ddppo.cluster.jobs import Book, SlurmJob, watch
from ddppo.cluster.resources import (
    SlurmLauncherConfig,
    check_learner,
    in_arrays,
    job_name,
    rank_layout,
    sbatch_parameters,
)
from ddppo.config import stored
from ddppo.config.settings import Config
from ddppo.errors import ClusterError, ConfigError, Stopped, TrainingError
from ddppo.launch import checks, sweep_runs
from ddppo.package import command
from ddppo.processes.signals import now_here
from ddppo.records.run_folder import RunFolder, held

Result = float | Exception | None  # the sweep's objective, the error of a failed run, or None without either
Composed = tuple[Config, SlurmLauncherConfig] | ConfigError


def launch(
    sweep_dir: Path, launcher: SlurmLauncherConfig, runs: Sequence[tuple[Path, Composed]]
) -> list[Result]:
    """Run all runs to their ends and return their results in order; with wait=false, only submit them.

    Jobs of an earlier call that are still active are waited for, and not submitted again. Ctrl-C cancels all. Raises
    ClusterError if a job is needed and there is no cluster.

    Args:
        runs: run folders, each with its configuration and launcher settings, or with the error in them.
    """
    # 1. Plan and submit, while this sweep folder is locked.
    results: dict[Path, Result] = {}
    try:
        with held(sweep_dir):
            plan = _Plan(sweep_dir, runs, results)
            if plan.wanted:
                _submit(plan, launcher)
        jobs = {
            run_dir: plan.book.jobs[plan.name(run_dir)] for run_dir in plan.wanted if run_dir not in results
        }
        # 2. Wait for the jobs, or return at once.
        if not launcher.wait:
            print(f"see: {command('ddppo.jobs', str(sweep_dir))}", flush=True)
            return [results.get(run_dir) for run_dir, _ in runs]
        statuses = watch(plan.book, list(jobs.values()), launcher.poll_s, hint="Ctrl-C cancels all")
    except Stopped:  # a signal ends this process, not the sweep: the jobs continue
        raise
    except KeyboardInterrupt:
        _cancel(sweep_dir, {_name(sweep_dir, run_dir) for run_dir, _ in runs if run_dir not in results})
        raise
    # 3. Record how each ended.
    for run_dir, status in zip(jobs, statuses, strict=True):
        if status.outcome == "completed":
            results[run_dir] = plan.ended(run_dir, "completed", "")
        else:
            results[run_dir] = plan.failed(run_dir, TrainingError(status.why))
    return [results[run_dir] for run_dir, _ in runs]


class _Plan:
    """Decides, before any job is submitted, which runs need one (`wanted`). The others get their results at once."""

    def __init__(
        self, sweep_dir: Path, runs: Sequence[tuple[Path, Composed]], results: dict[Path, Result]
    ) -> None:
        self.sweep_dir = sweep_dir
        self.book = Book(sweep_dir)
        self.wanted: dict[Path, tuple[Config, SlurmLauncherConfig]] = {}
        self._seen: dict[Path, Config] = {}
        self._results = results
        for run_dir, composed in runs:
            try:
                self._add(run_dir, composed)
            except ConfigError as e:
                results[run_dir] = self.failed(run_dir, e)

    def _add(self, run_dir: Path, composed: Composed) -> None:
        if isinstance(composed, ConfigError):
            raise composed
        config, launcher = composed
        check_learner(config, launcher)
        # Two runs with one folder: the same run twice is one run, two different ones are an error.
        if run_dir in self._seen:
            if different := sweep_runs.differences(self._seen[run_dir], config):
                self.wanted.pop(run_dir, None)  # neither of them may use the folder
                raise ConfigError(f"two runs of this sweep have one folder ({', '.join(different[:3])})")
            return
        self._seen[run_dir] = config
        # A run that is complete already is skipped.
        if sweep_runs.is_complete(run_dir, config):
            remark = sweep_runs.enter(run_dir, config).remark
            print(f"-- {self.name(run_dir)}: {remark}", flush=True)
            self._results[run_dir] = self.ended(run_dir, "skipped", remark)
        else:
            self.wanted[run_dir] = composed

    def name(self, run_dir: Path) -> str:
        return _name(self.sweep_dir, run_dir)

    def ended(self, run_dir: Path, outcome: str, why: str) -> float | None:
        """Record a complete run; return its objective."""
        summary = RunFolder(run_dir).summary()
        assert summary is not None, f"{run_dir} was complete a moment ago"
        after = RunFolder(run_dir).failed_after_training if outcome == "completed" else ""
        sweep_runs.note(self.sweep_dir, run_dir, outcome, why, after)
        return sweep_runs.objective(summary, self._seen[run_dir].objective)

    def failed(self, run_dir: Path, error: Exception) -> Exception:
        sweep_runs.note(self.sweep_dir, run_dir, "failed", str(error))
        return error

    def fail(self, run_dir: Path, error: Exception) -> None:
        self._results[run_dir] = self.failed(run_dir, error)


def _submit(plan: _Plan, launcher: SlurmLauncherConfig) -> None:
    """Submit the wanted runs that have no active job."""
    # 1. Check the cluster, before anything is written.
    if launcher.local_cluster:
        os.environ["SLURM_CONF"] = str(slurm.local_conf())
    try:
        max_array_size = slurm.max_array_size()
    except ClusterError as e:
        raise ClusterError(f"no SLURM cluster answers here (`make slurm-up` starts one to try): {e}") from e
    # 2. Prepare the run folders, except those with an active job.
    plan.book.check_cluster({plan.name(run_dir) for run_dir in plan.wanted})
    active = {status.job.run for status in plan.book.statuses() if status.outcome is None}
    ready: list[Ready] = []
    for run_dir, (config, own_launcher) in plan.wanted.items():
        name = plan.name(run_dir)
        try:
            if name in active:
                job_id = plan.book.jobs[name].job_id
                _check_same(run_dir, config, job_id)
                print(f"-- {name}: job {job_id} is under way", flush=True)
            else:
                ready.append(Ready(name, run_dir, _enter(name, run_dir, config), own_launcher))
        except ConfigError as e:
            plan.fail(run_dir, e)
    # 3. Submit, without interruption: a job that was submitted and not recorded would be lost.
    with _signals_blocked():
        refused = submit(plan.book, ready, max_array_size)
    for run in ready:
        if run.name in refused:
            plan.fail(run.run_dir, TrainingError(refused[run.name]))
        else:
            sweep_runs.note(
                plan.sweep_dir, run.run_dir, "submitted", f"job {plan.book.jobs[run.name].job_id}"
            )


def _check_same(run_dir: Path, config: Config, job_id: str) -> None:
    if different := sweep_runs.differences(stored.load_config(run_dir / "config.yaml"), config):
        raise ConfigError(
            f"job {job_id} is under way with other settings ({', '.join(different[:3])}): cancel it first, by "
            "python -m ddppo.jobs <sweep folder> cancel=true, or use another sweep folder"
        )


def _enter(name: str, run_dir: Path, config: Config) -> Config:
    """Check a run and write its folder; return its configuration as the job will read it."""
    if warning := checks.check(config):
        print(f"warning: {warning}", file=sys.stderr)
    with held(run_dir):
        entry = sweep_runs.enter(run_dir, config)
        print(f"-- {name}{': ' + entry.remark if entry.remark else ''}", flush=True)
        return RunFolder(run_dir).begin(config)


def _cancel(sweep_dir: Path, names: set[str]) -> None:
    with _signals_blocked():  # a second Ctrl-C would leave some jobs running
        book = Book(sweep_dir)
        book.use_cluster()
        jobs: list[SlurmJob] = [job for name, job in book.jobs.items() if name in names]
        slurm.cancel([job.job_id for job in jobs])
        print(f"\ncancelled {len(jobs)} jobs", flush=True)


def _name(sweep_dir: Path, run_dir: Path) -> str:
    return os.path.relpath(run_dir, sweep_dir)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Delay Ctrl-C and other signals to stop until the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# -- from runs that are ready to jobs in the queue -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """A run with its config.yaml that needs a job."""

    name: str  # the run folder, relative to the sweep folder
    run_dir: Path
    config: Config
    launcher: SlurmLauncherConfig


def submit(book: Book, runs: Sequence[Ready], max_array_size: int) -> dict[str, str]:
    """Submit a job for every run, equal ones as arrays, and record them in the book.

    Returns the reason, by name, for each run that SLURM refused; the others are submitted.
    """
    # 1. The options of each job; jobs with equal options share an array.
    refused: dict[str, str] = {}
    wanted = []
    for run in runs:
        layout = rank_layout(run.config.dist.world_size, run.launcher)
        parameters = sbatch_parameters(layout, run.launcher, job_name(book.sweep_dir))
        alone = run.name if layout.learner is not None else ""  # SLURM has no arrays of heterogeneous jobs
        wanted.append(((run.launcher.max_num_timeout, parameters, alone), (layout, run)))
    # 2. One call of sbatch for each array.
    for (max_num_timeout, parameters, _), members in in_arrays(wanted, max_array_size):
        executor = submitit.SlurmExecutor(
            folder=book.sweep_dir / ".submitit" / "%j",
            max_num_timeout=max_num_timeout,
            python=f"exec {shlex.quote(sys.executable)}",
        )
        executor.update_parameters(**parameters)
        try:
            with _outside_any_job():
                jobs = executor.submit_array(
                    [Driver(run.run_dir.resolve(), layout) for layout, run in members]
                )
        except (FailedJobError, FailedSubmissionError) as e:
            refused |= {run.name: f"sbatch refused the job: {_reason(e)}" for _, run in members}
            continue
        book.add(_entry(book, run, job) for job, (_, run) in zip(jobs, members, strict=True))
    return refused


def _entry(book: Book, run: Ready, job: submitit.Job) -> SlurmJob:
    return SlurmJob(
        job_id=job.job_id,
        run=run.name,
        world_size=run.config.dist.world_size,
        total_steps=run.config.training.total_steps,
        log=os.path.relpath(job.paths.stdout, book.sweep_dir),
        submitted=now_here(),
    )


@contextmanager
def _outside_any_job() -> Iterator[None]:
    """Hide the variables of a job that this process runs in.

    sbatch would pass SLURM_* on to the new job, and prefer SBATCH_* to its options.
    """
    conf = os.environ.get("SLURM_CONF")
    with clean_env():
        if conf is not None:
            os.environ["SLURM_CONF"] = conf
        yield


def _reason(error: Exception) -> str:
    """Return the message of sbatch from the error of submitit, in one line."""
    lines = [line.strip() for line in f"{error}".splitlines() if "sbatch: error" in line]
    return " ".join(lines).replace("sbatch: error: ", "") or " ".join(str(error).split())[-300:]
