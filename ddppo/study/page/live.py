"""A page that keeps up with a sweep while it runs: what is there, what is missing, and when it will be there."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ddppo.errors import ConfigError, RunFolderError
from ddppo.study.page import files
from ddppo.study.page.html import Live
from ddppo.study.page.sweep import Progress, expected, progress
from ddppo.study.page.tables import Shown
from ddppo.study.read.run_folders import Known
from ddppo.study.report import Report, ReportOptions, compute, read

_LOOK_EVERY_S = 1.0
_REFRESH_S = 10  # of the page in a browser
_BUSY = 0.05  # of a core that reports may take from the runs that they measure


def watch(options: ReportOptions, say: Callable[[str], None]) -> tuple[Report, Path]:
    """Keep the report current until the sweep has ended or Ctrl-C; return the last report and its folder.

    `say` is told of every page. Raises ConfigError where there is no sweep, or it ended without a run to report.
    """
    sweep, folder = Path(options.path), files.folder_of(options)
    if not sweep.is_dir():
        raise RunFolderError(f"watch=true needs the folder of a sweep, {sweep} is none")
    with suppress(OSError):
        os.nice(19)  # the runs that are measured come first
    page = _Page(options, folder, sweep)
    rested = 0.0
    try:
        while not (now := progress(sweep)).ended:
            began = time.process_time()
            if time.monotonic() >= rested and page.show(now):
                say(f"{page.said} {folder / 'report.html'}")
                rested = time.monotonic() + (time.process_time() - began) / _BUSY
            time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        page.leave()
        return page.report, folder
    return files.make_report(options)


class _Page:
    """The page of one sweep; it is made again when something has changed."""

    def __init__(self, options: ReportOptions, folder: Path, sweep: Path) -> None:
        self.report = Report([], [], [], options)
        self.said = ""
        self._options, self._folder, self._sweep = options, folder, sweep
        self._shown: Progress | None = None
        self._known: Known = {}

    def show(self, now: Progress) -> bool:
        """Make the page of `now`, if it says anything new; only runs that are new are read."""
        before, self._shown = self._shown, now
        if now == before:
            return False
        trouble = []
        if now.done and (before is None or now.done != before.done):
            try:
                self.report = compute(self._options, read(self._options, known=self._known))
            except ConfigError as e:
                trouble = [f"There is no report yet: {e}."]
        to_come = {str(self._sweep / job.name) for job in now.to_come}
        self.report = replace(
            self.report, left_out=[item for item in self.report.left_out if item.path not in to_come]
        )
        live = self._live(now, trouble)
        self.said = live.sentences[0]
        files.write(self.report, self._folder, live)
        return True

    def leave(self) -> None:
        """Make the page that stays when the watch ends before the sweep does."""
        said = f"Watched until {_clock(time.time())}. The sweep may have gone on: make the report again to see more."
        files.write(self.report, self._folder, Live([said]))

    def _live(self, now: Progress, trouble: Sequence[str]) -> Live:
        ends = expected(now, [run for _, run in self._known.values()], time.time())
        done = (
            f"{len(now.done)} of {now.num_planned} runs are complete"
            if now.done
            else "Nothing is complete yet"
        )
        if len(ends) == len(now.to_come) > 0:
            done += f", the last is expected at {_clock(max(ends.values()))}"
        elif ends:
            done += f", the first is expected at {_clock(min(ends.values()))}"
        states = [
            [
                job.name,
                str(job.world_size),
                "running" if job.running else "waiting",
                _clock(ends.get(job.name)),
            ]
            for job in now.to_come
        ]
        states += [
            [job.name, str(job.world_size), f"failed: {job.failed}", ""] for job in now.missing if job.failed
        ]
        sentences = [f"{done}. As of {_clock(time.time())}; the page loads itself again.", *trouble]
        return Live(sentences, Shown(["run", "W", "state", "expected"], states, text=True), _REFRESH_S)


def _clock(at: float | None) -> str:
    """Return a time of day, with the date if it is not today's."""
    if at is None:
        return ""
    form = "%H:%M:%S" if time.strftime("%j", time.localtime(at)) == time.strftime("%j") else "%a %d %b %H:%M"
    return time.strftime(form, time.localtime(at))
