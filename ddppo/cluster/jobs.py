"""The jobs of a sweep: which were submitted for which run, what became of them, the table that shows it, and waiting.

`<sweep>/jobs.json` has the newest job of every run. What became of one is what SLURM says together with what its run
folder holds: a job that SLURM has forgotten, as it does without accounting, is judged by the folder alone.
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
_GRACE_S = 30.0  # slurmctld may not list a job at once after sbatch has returned
_LINE_BYTES = 2_000  # of metrics.jsonl, at most
_LONGEST_REASON = 2_000  # characters: a path of any length fits, a dump does not
_ERROR = re.compile(
    r"rank \d+: \w+|[\w.]*(Error|Exception)\b"
)  # a rank's own message, or a traceback's last line
_SILENCE_S = 900.0  # a controller that restarts is away for minutes
_VISIBLE_S = 60.0  # a file that a node wrote may take so long to be seen on another


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One submitted run: SLURM's id, the run's folder below the sweep, its log, and when (`signals.now_here`)."""

    job_id: str
    run: str
    world_size: int
    total_steps: int
    log: str
    submitted: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """A job as it is now. `state` is SLURM's word, or GONE; `outcome` is None while it is active."""

    job: SlurmJob
    state: str
    nodes: str = ""
    outcome: str | None = None  # completed or failed
    why: str = ""
    progress: Mapping[str, float] = field(default_factory=dict)

    @property
    def said(self) -> str:
        """Return the state, of an active job with SLURM's reason."""
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
                for entry in stored["jobs"]:
                    entry.pop(
                        "submitted_at", None
                    )  # of an earlier version: by a clock that is set now and then
                self.jobs = {entry["run"]: SlurmJob(**entry) for entry in stored["jobs"]}
                self.slurm_conf = stored["slurm_conf"]
            except (ValueError, TypeError, KeyError) as e:
                raise RunFolderError(
                    f"{path} is not readable: cancel the sweep's jobs by scancel, then move it away to submit anew"
                ) from e

    def use_cluster(self) -> None:
        """Have SLURM's commands mean the cluster that the jobs were submitted to."""
        if self.slurm_conf is not None:
            os.environ["SLURM_CONF"] = self.slurm_conf

    def check_cluster(self, runs: Iterable[str]) -> None:
        """Raise ConfigError if one of `runs` may have a job on another cluster than SLURM's commands mean now."""
        here = os.environ.get("SLURM_CONF")
        if self.slurm_conf != here and (known := [run for run in runs if run in self.jobs]):
            raise ConfigError(
                f"{self.sweep_dir} has jobs, such as {self.jobs[known[0]].job_id}, on the cluster of SLURM_CONF="
                f"{self.slurm_conf}, and this one is {here}: use another sweep folder, or move its jobs.json away if "
                "they have ended"
            )

    def add(self, jobs: Iterable[SlurmJob]) -> None:
        """Enter newly submitted jobs, each in place of the run's earlier one, and write the book."""
        self.jobs |= {job.run: job for job in jobs}
        self.slurm_conf = os.environ.get("SLURM_CONF")
        stored = {"slurm_conf": self.slurm_conf, "jobs": [asdict(job) for job in self.jobs.values()]}
        write_json(self.sweep_dir / _BOOK, stored)

    def statuses(self, jobs: Sequence[SlurmJob] | None = None) -> list[Status]:
        """Return what has become of `jobs`, or of all. Raises ClusterError where SLURM does not answer."""
        chosen = list(self.jobs.values()) if jobs is None else jobs
        infos = slurm.query([job.job_id for job in chosen])
        return [self._status(job, infos.get(job.job_id)) for job in chosen]

    def _status(self, job: SlurmJob, info: JobInfo | None) -> Status:
        run_dir = self.sweep_dir / job.run
        nodes, known = info.nodes if info else "", progress(run_dir, job.world_size)
        if info is not None and not info.has_ended:
            return Status(job, info.state, nodes, why=info.reason, progress=known)
        if run_dir.is_dir():
            os.listdir(run_dir)  # a network file system may else remember that there was no summary
        if (folder := RunFolder(run_dir)).is_complete:
            state = info.state if info else "COMPLETED"
            return Status(job, state, nodes, "completed", folder.failed_after_training, known)
        ago = seconds_since(job.submitted)
        if info is None and ago is not None and ago < _GRACE_S:
            return Status(job, "SUBMITTED", progress=known)
        state = info.state if info else "GONE"
        return Status(job, state, nodes, "failed", self._why(job, state), known)

    def _why(self, job: SlurmJob, state: str) -> str:
        said = {
            "GONE": "SLURM no longer knows the job, and its run has no whole summary.json",
            "COMPLETED": "the job ended well, but its run has no whole summary.json",
            "TIMEOUT": "out of time before all ranks had saved: a larger hydra.launcher.signal_s gives them longer",
            "OUT_OF_MEMORY": "out of memory: set a larger hydra.launcher.mem_gb_per_rank",
        }.get(state, f"SLURM says {state}")
        line = "" if state == "CANCELLED" else last_error(self.sweep_dir / job.log)
        return f"job {job.job_id}: {said}{'; ' + line if line else ''} (log: {self.sweep_dir / job.log})"


def progress(run_dir: Path, world_size: int) -> dict[str, float]:
    """Return env_steps, fps and return_mean from the end of a run's metrics.jsonl, as far as known."""
    found: dict[str, float] = {}
    names = {"env_steps": "env_steps", "rollout/fps": "fps", "rollout/return_mean": "return_mean"}
    for line in _end(run_dir / "metrics.jsonl", _LINE_BYTES * (world_size + 1)).splitlines():
        try:
            values = json.loads(line)
        except ValueError:  # the first and the last may be cut
            continue
        found |= {short: values[name] for name, short in names.items() if values.get(name) is not None}
    return found


def last_error(log: Path) -> str:
    """Return the line of a job's log that tells best what went wrong, or nothing."""
    lines = [line.strip() for line in tail(log, 300) if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    causes = [line for line in errors if "CollectiveError" not in line]  # what a lost rank's peers say
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
    """Return one row per job: id, run, W, state, nodes, progress, steps/s and return."""
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
            f"[{colour}]{status.said}[/{colour}]" if colour else status.said,
            status.nodes,
            done,
            _number(known, "fps", ",.0f"),
            _number(known, "return_mean", ".1f"),
        )
    return shown


def counts(statuses: Iterable[Status]) -> str:
    """Return e.g. '2 RUNNING, 1 PENDING'."""
    states = [status.state for status in statuses]
    return ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states), key=states.index))


def _number(known: Mapping[str, Any], name: str, form: str) -> str:
    return format(known[name], form) if name in known else ""


# -- waiting: a live table on a terminal, a line per change elsewhere ------------------------------------------------


def watch(book: Book, jobs: Sequence[SlurmJob], poll_s: float, *, hint: str) -> list[Status]:
    """Wait until all `jobs` have ended and return what became of each; `hint` says what Ctrl-C does.

    Raises ClusterError if SLURM does not answer for 15 minutes; the jobs go on. KeyboardInterrupt passes through.
    """
    show = _LiveTable(hint) if sys.stdout.isatty() else _Lines()
    latest: dict[str, Status] = {}
    doubted_since: dict[str, float] = {}
    answered = time.monotonic()
    with show:
        while open_jobs := [job for job in jobs if job.run not in latest or latest[job.run].outcome is None]:
            try:
                found = book.statuses(open_jobs)
                answered = time.monotonic()
            except ClusterError as e:
                if time.monotonic() - answered > _SILENCE_S:
                    raise ClusterError(
                        f"{e}; the jobs may go on without us: look by "
                        f"{command('ddppo.jobs', str(book.sweep_dir))}"
                    ) from e
                show.tell(f"SLURM does not answer, trying again: {e}")
                found = []
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
    """The whole table, redrawn; of many jobs those that are active or failed come first."""

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
    """One line whenever a job's state changes."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def __enter__(self) -> "_Lines":
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def update(self, statuses: Sequence[Status]) -> None:
        for status in statuses:
            said = f"{status.said}{' on ' + status.nodes if status.nodes else ''}"
            if self._last.get(status.job.run) != said:
                self._last[status.job.run] = said
                print(f"job {status.job.job_id} {status.job.run}: {said}", flush=True)

    def tell(self, text: str) -> None:
        print(text, flush=True)
