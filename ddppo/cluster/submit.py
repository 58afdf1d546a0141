"""From runs that are ready in their folders to jobs in SLURM's queue, by submitit."""

import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from ddppo.cluster import slurm
from ddppo.cluster.driver import Driver
from ddppo.cluster.jobs import Book, Job
from ddppo.cluster.resources import in_arrays, rank_layout, sbatch_parameters
from ddppo.config import Config, SlurmLauncherConfig


@dataclass(frozen=True, slots=True)
class Ready:
    """A run whose config.yaml is written and that waits for its job."""

    run_dir: Path
    config: Config
    launcher: SlurmLauncherConfig


def submit(book: Book, runs: Sequence[Ready]) -> dict[str, str]:
    """Submit a job for every run, equal ones as arrays, and enter them in the book.

    Returns why, by run folder, for those that SLURM refused; the others are submitted all the same.
    """
    refused: dict[str, str] = {}
    name = f"ddppo-{book.sweep_dir.name}"
    asked = []
    for run in runs:
        layout = rank_layout(run.config.dist.world_size, run.launcher)
        parameters = sbatch_parameters(layout, run.launcher, name)
        asked.append((parameters | {"max_num_timeout": run.launcher.max_num_timeout}, (layout, run)))
    for parameters, members in in_arrays(asked, slurm.max_array_size()):
        executor = submitit.SlurmExecutor(
            folder=book.sweep_dir / ".submitit" / "%j",
            max_num_timeout=parameters["max_num_timeout"],
            python=f"exec {shlex.quote(sys.executable)}",
        )
        executor.update_parameters(**{k: v for k, v in parameters.items() if k != "max_num_timeout"})
        try:
            submitted = executor.submit_array(
                [Driver(run.run_dir.resolve(), layout) for layout, run in members]
            )
        except (FailedJobError, FailedSubmissionError) as e:
            refused |= {run.run_dir.name: f"sbatch refused the job: {_reason(e)}" for _, run in members}
            continue
        jobs = [
            Job(
                job_id=job.job_id,
                run=run.run_dir.name,
                world_size=run.config.dist.world_size,
                log=os.path.relpath(job.paths.stdout, book.sweep_dir),
                submitted_at=time.time(),
            )
            for job, (_, run) in zip(submitted, members, strict=True)
        ]
        book.add(jobs, os.environ.get("SLURM_CONF"))
    return refused


def _reason(error: Exception) -> str:
    """Return sbatch's own words out of submitit's message, in one line."""
    lines = [line.strip() for line in f"{error}".splitlines() if "sbatch: error" in line]
    return " ".join(lines).replace("sbatch: error: ", "") or " ".join(str(error).split())[-300:]
