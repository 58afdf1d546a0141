"""The command `python -m ddppo.jobs`: shows the jobs of a sweep, waits for them, shows a log, or cancels them."""

import sys
from dataclasses import dataclass
from pathlib import Path

from omegaconf import MISSING
from rich.console import Console

from ddppo.cluster import slurm
from ddppo.cluster.jobs import Book, SlurmJob, Status, counts, table, tail, watch
from ddppo.config.fields import setting
from ddppo.errors import ConfigError, RunFolderError
from ddppo.package import command


@dataclass(slots=True)
class JobsConfig:
    folder: str = setting(MISSING, "the sweep folder; also as the first word")
    wait: bool = setting(False, "wait until all jobs have ended; after Ctrl-C the jobs continue")
    tail: str | None = setting(None, "print the end of one job's log: a job id, or part of a run's name")
    lines: int = setting(30, "how many lines of the log", low=1)
    cancel: bool = setting(False, "cancel all jobs that have not ended")
    poll_s: float = setting(3.0, "seconds between two queries of the queue", above=0)


def look(options: JobsConfig) -> bool:
    """Run the command; return whether a job failed. Raises ConfigError, ClusterError."""
    asked = [name for name in ("wait", "cancel", "tail") if getattr(options, name)]
    if len(asked) > 1:
        raise ConfigError(
            f"{' and '.join(f'{name}=' for name in asked)} exclude one another: give one at a time"
        )
    # 1. The recorded jobs, and the cluster that they run on.
    sweep_dir = Path(options.folder)
    book = Book(sweep_dir)
    if not book.jobs:
        raise RunFolderError(f"{options.folder}: no sweep of hydra/launcher=slurm, it has no jobs.json")
    book.use_cluster()
    # 2. One of: a log, cancelling, waiting, the table.
    if options.tail is not None:
        job = _chosen(book, options.tail)
        print(f"{job.job_id} {job.run}: {sweep_dir / job.log}")
        print("\n".join(tail(sweep_dir / job.log, options.lines)))
        return False
    statuses = book.statuses()
    if options.cancel:
        active = [status.job for status in statuses if status.outcome is None]
        slurm.cancel([job.job_id for job in active])
        print(f"cancelled {len(active)} jobs")
        return False
    if options.wait:
        statuses = watch(book, list(book.jobs.values()), options.poll_s, hint="Ctrl-C leaves, the jobs go on")
    return _show(statuses, sweep_dir)


def _show(statuses: list[Status], sweep_dir: Path) -> bool:
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table(statuses))
    failed = [status for status in statuses if status.outcome == "failed"]
    print(counts(statuses))
    for status in failed:
        print(f"  {status.job.run}: {status.why}")
    for status in statuses:
        if status.outcome == "completed" and status.why:
            print(f"  {status.job.run}: complete, but {status.why}")
    if failed:
        print(
            f"the same sweep command with sweep={sweep_dir} continues the failed runs and skips the complete ones"
        )
    elif all(status.outcome == "completed" for status in statuses):
        print(f"all complete: {command('ddppo.report', str(sweep_dir))}")
    return bool(failed)


def _chosen(book: Book, which: str) -> SlurmJob:
    found = [job for job in book.jobs.values() if which == job.job_id or which == job.run]
    found = found or [job for job in book.jobs.values() if which in job.run]
    if len(found) != 1:
        there = ", ".join(f"{job.job_id} {job.run}" for job in (found or book.jobs.values()))
        raise ConfigError(f"tail={which}: {len(found)} jobs match; there are {there}")
    return found[0]
