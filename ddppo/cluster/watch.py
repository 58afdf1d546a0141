"""Waiting for jobs: a live table on a terminal, a line per change elsewhere."""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ddppo.cluster.jobs import Book, Job, Status, counts, table
from ddppo.errors import ClusterError
from ddppo.package import command

_SILENCE_S = 900.0  # a controller that restarts is away for minutes
_VISIBLE_S = 60.0  # a file that a node wrote may take so long to be seen on another


def watch(book: Book, jobs: Sequence[Job], poll_s: float, *, hint: str) -> list[Status]:
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
