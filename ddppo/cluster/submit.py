"""From runs that are ready in their folders to jobs in SLURM's queue, by submitit."""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError
from submitit.helpers import clean_env

from ddppo.cluster.driver import Driver
from ddppo.cluster.jobs import Book, Job
from ddppo.cluster.resources import in_arrays, job_name, rank_layout, sbatch_parameters
from ddppo.config import Config, SlurmLauncherConfig
from ddppo.processes.signals import now_here


@dataclass(frozen=True, slots=True)
class Ready:
    """A run whose config.yaml is written and that waits for its job; `name` is its folder's below the sweep's."""

    name: str
    run_dir: Path
    config: Config
    launcher: SlurmLauncherConfig


def submit(book: Book, runs: Sequence[Ready], max_array_size: int) -> dict[str, str]:
    """Submit a job for every run, equal ones as arrays, and enter them in the book.

    Returns why, by name, for those that SLURM refused; the others are submitted all the same.
    """
    refused: dict[str, str] = {}
    asked = []
    for run in runs:
        layout = rank_layout(run.config.dist.world_size, run.launcher)
        parameters = sbatch_parameters(layout, run.launcher, job_name(book.sweep_dir))
        alone = run.name if layout.learner is not None else ""  # SLURM has no arrays of heterogeneous jobs
        asked.append(((run.launcher.max_num_timeout, parameters, alone), (layout, run)))
    for (max_num_timeout, parameters, _), members in in_arrays(asked, max_array_size):
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


def _entry(book: Book, run: Ready, job: submitit.Job) -> Job:
    return Job(
        job_id=job.job_id,
        run=run.name,
        world_size=run.config.dist.world_size,
        total_steps=run.config.ppo.total_steps,
        log=os.path.relpath(job.paths.stdout, book.sweep_dir),
        submitted=now_here(),
    )


@contextmanager
def _outside_any_job() -> Iterator[None]:
    """Submit as if from a shell: sbatch would hand on SLURM_* of a job that we run in, and heed SBATCH_* above ours."""
    conf = os.environ.get("SLURM_CONF")
    with clean_env():
        if conf is not None:
            os.environ["SLURM_CONF"] = conf
        yield


def _reason(error: Exception) -> str:
    """Return sbatch's own words out of submitit's message, in one line."""
    lines = [line.strip() for line in f"{error}".splitlines() if "sbatch: error" in line]
    return " ".join(lines).replace("sbatch: error: ", "") or " ".join(str(error).split())[-300:]
