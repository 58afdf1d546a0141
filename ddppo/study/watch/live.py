"""A page that keeps up with a sweep while it runs: what is there, what is missing, and when it will be there."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ddppo.errors import ConfigError, RunFolderError
from ddppo.study.page import files
from ddppo.study.page.html import Live
from ddppo.study.page.tables import Shown
from ddppo.study.read.run_folders import Known
from ddppo.study.report import Report, ReportOptions, compute, read
from ddppo.study.watch.sweep import SweepProgress, expected, progress

_LOOK_EVERY_S = 1.0
_REFRESH_S = 10  # of the page in a browser
_BUSY = 0.05  # of a core that reports may take from the runs that they measure


def watch(options: ReportOptions, say: Callable[[str], None]) -> tuple[Report, Path]:
    """Keep the report current until the sweep has ended or Ctrl-C; return the last report and its folder.

    `say` is told of every page. Raises ConfigError where there is no sweep, or it ended without a run to report.
    """
    sweep, folder = Path(options.path), files.folder_of(options)
    if options.others:
        raise RunFolderError(f"watch=true follows one sweep: leave {' '.join(options.others)} out")
    if not sweep.is_dir():
        raise RunFolderError(f"watch=true needs the folder of a sweep, {sweep} is none")
    with suppress(OSError):
        os.nice(19)  # the runs that are measured come first
    report, shown, rested, known = Report([], [], [], options), None, 0.0, Known()
    try:
        while not (now := progress(sweep)).ended:
            if now != shown and time.monotonic() >= rested:
                began, trouble = time.process_time(), ""
                if now.done and (shown is None or now.done != shown.done):
                    try:
                        report = compute(options, read(options, known=known))
                    except ConfigError as e:
                        trouble = f"There is no report yet: {e}."
                ends = expected(now, [run for _, run in known.values()], time.time())
                files.write(_without(report, now), folder, _told(now, ends, trouble))
                say(f"{_in_short(now, ends)}: {folder / 'report.html'}")
                shown, rested = now, time.monotonic() + (time.process_time() - began) / _BUSY
            time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        said = f"Watched until {_clock(time.time())}. The sweep may have gone on: make the report again to see more."
        files.write(report, folder, Live([said]))
        return report, folder
    return files.make_report(options)


def _without(report: Report, now: SweepProgress) -> Report:
    """Return the report without the runs among what is left out that have only not ended yet."""
    to_come = {job.name for job in now.to_come}
    left_out = [item for item in report.left_out if Path(item.path).name not in to_come]
    return replace(report, left_out=left_out)


def _told(now: SweepProgress, ends: dict[str, float], trouble: str) -> Live:
    """Return what the page says of the sweep."""
    missing = [
        [job.name, str(job.world_size), "running" if job.since else "waiting", _clock(ends.get(job.name))]
        for job in now.to_come
    ]
    missing += [
        [job.name, str(job.world_size), f"failed: {job.failed}", ""] for job in now.missing if job.failed
    ]
    first = f"{_in_short(now, ends)}. As of {_clock(time.time())}; the page loads itself again."
    table = Shown(["run", "W", "state", "expected"], missing, text=True)
    return Live([first, trouble] if trouble else [first], table, _REFRESH_S)


def _in_short(now: SweepProgress, ends: dict[str, float]) -> str:
    planned = f" of {now.num_planned} runs" if now.num_planned else ""
    done = f"Complete: {len(now.done)}{planned}" if now.done else "Nothing is complete yet"
    if len(ends) == len(now.to_come) > 0:
        return f"{done}, the last is expected at {_clock(max(ends.values()))}"
    return f"{done}, the first is expected at {_clock(min(ends.values()))}" if ends else done


def _clock(at: float | None) -> str:
    """Return a time of day, with the date if it is not today's."""
    if at is None:
        return ""
    today = time.strftime("%j", time.localtime(at)) == time.strftime("%j")
    return time.strftime("%H:%M:%S" if today else "%a %d %b %H:%M", time.localtime(at))
