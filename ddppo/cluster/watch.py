"""Waiting for jobs: a live table on a terminal, a line per change elsewhere."""

import sys
import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ddppo.cluster import slurm
from ddppo.cluster.jobs import Book, Job, Status, counts, table
from ddppo.errors import ClusterError

_SILENCE_S = 900.0  # a controller that restarts is away for minutes


def watch(book: Book, jobs: Sequence[Job], poll_s: float) -> list[Status]:
    """Wait until all `jobs` have ended and return what became of each.

    Raises ClusterError if SLURM does not answer for 15 minutes; the jobs go on. KeyboardInterrupt passes through.
    """
    show = _LiveTable(len(jobs)) if sys.stdout.isatty() else _Lines()
    answered = time.monotonic()
    with show:
        while True:
            try:
                statuses = book.statuses(jobs)
                answered = time.monotonic()
            except ClusterError as e:
                if time.monotonic() - answered > _SILENCE_S:
                    raise ClusterError(
                        f"{e}; the jobs may go on without us: look by python -m ddppo.jobs {book.sweep_dir}"
                    ) from e
                time.sleep(poll_s)
                continue
            show.update(statuses)
            if all(status.outcome is not None for status in statuses):
                return statuses
            time.sleep(poll_s)


def cancel(jobs: Sequence[Job]) -> None:
    """Take jobs out of the queue, running ones too."""
    slurm.cancel([job.job_id for job in jobs])


class _LiveTable:
    """The whole table, redrawn; of many jobs those that are active or failed come first."""

    def __init__(self, num_jobs: int) -> None:
        self._live = Live(console=Console(), refresh_per_second=4)
        self._num_jobs = num_jobs

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
        self._live.update(Group(table(first), Text(f"{counts(statuses)}{rest}; Ctrl-C cancels all")))


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
            said = f"{status.state}{' on ' + status.nodes if status.nodes else ''}"
            if self._last.get(status.job.run) != said:
                self._last[status.job.run] = said
                print(f"job {status.job.job_id} {status.job.run}: {said}", flush=True)
