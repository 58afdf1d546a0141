"""The jobs of a sweep: the record of submitted jobs, their states, the table of them, and waiting for their end.

`<sweep>/jobs.json` holds the newest job of every run. The state of a job follows from SLURM and from its run folder.
A job that SLURM has forgotten, as it does without accounting, is judged by the folder alone.
"""

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ddppo.cluster import slurm
from ddppo.cluster.slurm import JobInfo
from ddppo.errors import ClusterError, ConfigError, RunFolderError
from ddppo.files import write_json
from ddppo.package import command
from ddppo.processes.signals import seconds_since
from ddppo.records.run_folder import RunFolder

_BOOK = "jobs.json"
_GRACE_S = 30.0  # slurmctld may not list a job so long after sbatch has returned
_LINE_BYTES = 2_000  # length of a line of metrics.jsonl, at most
_LONGEST_REASON = 2_000  # characters: enough for any path, too few for a dump
# The message of a rank, or the last line of a traceback.
_ERROR = re.compile(r"rank \d+: \w+|[\w.]*(Error|Exception)\b")
_SILENCE_S = 900.0  # after which a controller counts as gone; a restart takes minutes
_VISIBLE_S = 60.0  # until a file that one node wrote is visible on another


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One submitted run."""

    job_id: str
    run: str  # the run folder, relative to the sweep folder
    world_size: int
    total_steps: int
    log: str  # relative to the sweep folder
    submitted: str = ""  # time, as signals.now_here() returns it


@dataclass(frozen=True, slots=True)
class Status:
    """The current state of a job."""

    job: SlurmJob
    state: str  # SLURM's word, SUBMITTED, or GONE if SLURM no longer lists it
    nodes: str = ""
    outcome: str | None = None  # completed or failed; None while it is active
    why: str = ""  # why it waits or has failed
    progress: Mapping[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The state; for an active job with SLURM's reason."""
        return f"{self.state} ({self.why})" if self.outcome is None and self.why else self.state


class Book:
    """The jobs of one sweep folder."""

    def __init__(self, sweep_dir: Path) -> None:
        self.sweep_dir = sweep_dir
        self.jobs: dict[str, SlurmJob] = {}
        self.slurm_conf: str | None = None
        path = sweep_dir / _BOOK
        if path.exists():
            try:
                stored = json.loads(path.read_text())
                # An earlier version stored the wall clock, which may be changed during a run.
                for entry in stored["jobs"]:
                    entry.pop("submitted_at", None)
                self.jobs = {entry["run"]: SlurmJob(**entry) for entry in stored["jobs"]}
                self.slurm_conf = stored["slurm_conf"]
            except (ValueError, TypeError, KeyError) as e:
                raise RunFolderError(
                    f"{path} is not readable: cancel the sweep's jobs by scancel, then move it away to submit again"
                ) from e

    def use_cluster(self) -> None:
        """Point SLURM's commands to the cluster of these jobs."""
        if self.slurm_conf is not None:
            os.environ["SLURM_CONF"] = self.slurm_conf

    def check_cluster(self, runs: Iterable[str]) -> None:
        """Raise ConfigError if one of `runs` may have a job on another cluster than the current one."""
        here = os.environ.get("SLURM_CONF")
        if self.slurm_conf != here and (known := [run for run in runs if run in self.jobs]):
            raise ConfigError(
                f"{self.sweep_dir} has jobs, such as {self.jobs[known[0]].job_id}, on the cluster of SLURM_CONF="
                f"{self.slurm_conf}, and this one is {here}: use another sweep folder, or move its jobs.json away if "
                "they have ended"
            )

    def add(self, jobs: Iterable[SlurmJob]) -> None:
        """Record submitted jobs, each in place of the run's earlier one, and write jobs.json."""
        self.jobs |= {job.run: job for job in jobs}
        self.slurm_conf = os.environ.get("SLURM_CONF")
        stored = {"slurm_conf": self.slurm_conf, "jobs": [asdict(job) for job in self.jobs.values()]}
        write_json(self.sweep_dir / _BOOK, stored)

    def statuses(self, jobs: Sequence[SlurmJob] | None = None) -> list[Status]:
        """Return the states of `jobs`, or of all jobs. Raises ClusterError if SLURM does not answer."""
        chosen = list(self.jobs.values()) if jobs is None else jobs
        infos = slurm.query([job.job_id for job in chosen])
        return [self._status(job, infos.get(job.job_id)) for job in chosen]

    def _status(self, job: SlurmJob, info: JobInfo | None) -> Status:
        # 1. Active, by SLURM.
        run_dir = self.sweep_dir / job.run
        nodes, known = info.nodes if info else "", progress(run_dir, job.world_size)
        if info is not None and not info.has_ended:
            return Status(job, info.state, nodes, why=info.reason, progress=known)
        # 2. Complete, by the run folder. Listing it makes a network file system look for the summary again.
        if run_dir.is_dir():
            os.listdir(run_dir)
        if (folder := RunFolder(run_dir)).is_complete:
            state = info.state if info else "COMPLETED"
            return Status(job, state, nodes, "completed", folder.failed_after_training, known)
        # 3. Submitted a moment ago and not listed yet, or failed.
        ago = seconds_since(job.submitted)
        if info is None and ago is not None and ago < _GRACE_S:
            return Status(job, "SUBMITTED", progress=known)
        state = info.state if info else "GONE"
        return Status(job, state, nodes, "failed", self._why(job, state), known)

    def _why(self, job: SlurmJob, state: str) -> str:
        cause = {
            "GONE": "SLURM no longer lists the job, and its run has no complete summary.json",
            "COMPLETED": "the job succeeded, but its run has no complete summary.json",
            "TIMEOUT": "out of time before all ranks had saved: set a larger hydra.launcher.signal_s",
            "OUT_OF_MEMORY": "out of memory: set a larger hydra.launcher.mem_gb_per_rank",
        }.get(state, f"SLURM says {state}")
        line = "" if state == "CANCELLED" else last_error(self.sweep_dir / job.log)
        return f"job {job.job_id}: {cause}{'; ' + line if line else ''} (log: {self.sweep_dir / job.log})"


def progress(run_dir: Path, world_size: int) -> dict[str, float]:
    """Return env_steps, fps and return_mean from the end of a run's metrics.jsonl; a missing value is left out."""
    found: dict[str, float] = {}
    names = {"env_steps": "env_steps", "rollout/fps": "fps", "rollout/return_mean": "return_mean"}
    for line in _end(run_dir / "metrics.jsonl", _LINE_BYTES * (world_size + 1)).splitlines():
        try:
            values = json.loads(line)
        except ValueError:  # the first and the last line may be incomplete
            continue
        found |= {short: values[name] for name, short in names.items() if values.get(name) is not None}
    return found


def last_error(log: Path) -> str:
    """Return the line of a job's log that describes the error best; "" for an empty log."""
    # In this order: an error that is no CollectiveError, any error, the last line.
    lines = [line.strip() for line in tail(log, 300) if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    causes = [line for line in errors if "CollectiveError" not in line]  # raised by the peers of a lost rank
    best = (causes or errors or lines[-1:] or [""])[0]
    return best if len(best) <= _LONGEST_REASON else shorten(best, _LONGEST_REASON, placeholder=" ...")


def tail(log: Path, num_lines: int) -> list[str]:
    """Return the last lines of a file, [] if there is none."""
    return _end(log, 200 * (num_lines + 300)).splitlines()[-num_lines:]


def _end(path: Path, num_bytes: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - num_bytes))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def table(statuses: Sequence[Status]) -> Table:
    """Return a table with one row for each job: id, run, W, state, nodes, progress, steps/s and return."""
    # Long names wrap and numbers are on the right.
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("job", "run"):
        shown.add_column(name, overflow="fold")
    shown.add_column("W", justify="right")
    for name in ("state", "nodes"):
        shown.add_column(name, overflow="fold")
    for name in ("done", "steps/s", "return"):
        shown.add_column(name, justify="right")
    for status in statuses:
        known = status.progress
        done = f"{100 * known['env_steps'] / status.job.total_steps:.0f} %" if "env_steps" in known else ""
        colour = {"completed": "green", "failed": "red"}.get(status.outcome or "", "")
        shown.add_row(
            status.job.job_id,
            status.job.run,
            str(status.job.world_size),
            f"[{colour}]{status.label}[/{colour}]" if colour else status.label,
            status.nodes,
            done,
            _number(known, "fps", ",.0f"),
            _number(known, "return_mean", ".1f"),
        )
    return shown


def counts(statuses: Iterable[Status]) -> str:
    """Return the number of jobs in each state, such as '2 RUNNING, 1 PENDING'."""
    states = [status.state for status in statuses]
    return ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states), key=states.index))


def _number(known: Mapping[str, Any], name: str, form: str) -> str:
    return format(known[name], form) if name in known else ""


# -- waiting, with a live table on a terminal, and a line for each change elsewhere ----------------------------------


def watch(book: Book, jobs: Sequence[SlurmJob], poll_s: float, *, hint: str) -> list[Status]:
    """Wait until all `jobs` have ended; return their final states. `hint` is shown: it says what Ctrl-C does.

    Raises ClusterError if SLURM does not answer for 15 minutes; the jobs continue. KeyboardInterrupt passes through.
    """
    show = _LiveTable(hint) if sys.stdout.isatty() else _Lines()
    latest: dict[str, Status] = {}  # by run
    doubted_since: dict[str, float] = {}  # when a job first seemed to have ended without a summary
    answered = time.monotonic()
    with show:
        while open_jobs := [job for job in jobs if job.run not in latest or latest[job.run].outcome is None]:
            # 1. Ask for the jobs that have not ended.
            try:
                found = book.statuses(open_jobs)
                answered = time.monotonic()
            except ClusterError as e:
                if time.monotonic() - answered > _SILENCE_S:
                    raise ClusterError(
                        f"{e}; the jobs may still run: see {command('ddppo.jobs', str(book.sweep_dir))}"
                    ) from e
                show.tell(f"SLURM does not answer, trying again: {e}")
                found = []
            # 2. A job that ended without a summary may have written one that is not visible on this node yet.
            for status in found:
                if status.outcome == "failed" and status.state in ("COMPLETED", "GONE"):
                    since = doubted_since.setdefault(status.job.run, time.monotonic())
                    if time.monotonic() - since < _VISIBLE_S:
                        status = replace(status, outcome=None, why="its summary.json is not there yet")
                latest[status.job.run] = status
            show.update([latest[job.run] for job in jobs if job.run in latest])
            if any(job.run not in latest or latest[job.run].outcome is None for job in jobs):
                time.sleep(poll_s)
    return [latest[job.run] for job in jobs]


class _LiveTable:
    """The table of all jobs, redrawn. If it is too long, active and failed jobs come first."""

    def __init__(self, hint: str) -> None:
        self._live = Live(console=Console(), refresh_per_second=4)
        self._hint = hint

    def __enter__(self) -> "_LiveTable":
        self._live.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.__exit__(None, None, None)

    def update(self, statuses: Sequence[Status]) -> None:
        room = max(5, self._live.console.height - 4)
        rank = {None: 0, "failed": 1, "completed": 2}
        first = sorted(statuses, key=lambda status: rank[status.outcome])[:room]
        rest = f", {len(statuses) - len(first)} more not shown" if len(first) < len(statuses) else ""
        self._live.update(Group(table(first), Text(f"{counts(statuses)}{rest}; {self._hint}")))

    def tell(self, text: str) -> None:
        self._live.update(Text(text))


class _Lines:
    """One line for each change of a job's state."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def __enter__(self) -> "_Lines":
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def update(self, statuses: Sequence[Status]) -> None:
        for status in statuses:
            line = f"{status.label}{' on ' + status.nodes if status.nodes else ''}"
            if self._last.get(status.job.run) != line:
                self._last[status.job.run] = line
                print(f"job {status.job.job_id} {status.job.run}: {line}", flush=True)

    def tell(self, text: str) -> None:
        print(text, flush=True)
