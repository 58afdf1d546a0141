"""How far is a sweep, and when will it end? A page that is updated while the sweep runs (`watch=true`).

The sweep's own records say how far it is: Hydra's multirun.yaml has the command, sweep.jsonl a line for each outcome,
and every run has a folder.
"""

import fcntl
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

from hydra._internal.config_loader_impl import get_overrides_dirname
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf

from ddppo.algorithms.known import training_section
from ddppo.config.compose import folder_name
from ddppo.errors import ConfigError, RunFolderError
from ddppo.study.page import files
from ddppo.study.page.html import Live
from ddppo.study.page.tables import Shown
from ddppo.study.predict.outlook import fps_of
from ddppo.study.predict.usl import fit_usl
from ddppo.study.read.record import Run
from ddppo.study.read.run_folders import Known
from ddppo.study.report import Report, ReportOptions, compute, read

_INTERVAL_S = 1.0  # between looks at the sweep
_REFRESH_S = 10  # between reloads of the page in a browser
_MAX_LOAD = 0.05  # of a core: a report must not slow down the runs that it measures


# -- How far the sweep is.


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run of a sweep that is not complete."""

    name: str
    world_size: int
    since: float = 0.0  # start, seconds since the epoch; 0 if it has not begun
    part_done: float = field(default=0.0, compare=False)  # of its environment steps
    quarters: int = 0  # of its environment steps done; the page is made again when this changes
    failed: str = ""  # the reason, "" if it has not failed


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """A sweep at one moment."""

    num_planned: int  # runs; 0 if unknown
    done: frozenset[str]  # names of complete runs
    missing: tuple[PlannedRun, ...]
    ended: bool  # no further run will complete

    @property
    def to_come(self) -> list[PlannedRun]:
        """The runs that may still complete, running ones first."""
        return sorted((job for job in self.missing if not job.failed), key=lambda job: not job.since)


def progress(sweep: Path) -> SweepProgress:
    """Return how far the sweep in this folder is."""
    command = sweep / "multirun.yaml"
    began = _written(command)
    jobs, outcomes = _planned(command, began), _outcomes(sweep / "sweep.jsonl", began)
    # Without a plan (a sweeper that draws its runs) every folder may be a run.
    names = jobs or [path.name for path in sweep.iterdir()]
    # Complete runs, and the state of each planned run that is not.
    done = {name for name in names if _is_complete(sweep / name / "summary.json")}
    missing = [
        _job(sweep / name, name, w, outcomes.get(name, {}), began)
        for name, w in jobs.items()
        if name not in done
    ]
    # A SLURM sweep has ended its command while jobs wait in the queue.
    queued = any(outcomes.get(job.name, {}).get("outcome") == "submitted" for job in missing)
    ended = all(job.failed for job in missing) if jobs else False
    return SweepProgress(
        len(jobs), frozenset(done), tuple(missing), ended or not (queued or _is_held(sweep / ".lock"))
    )


def _is_complete(summary: Path) -> bool:
    """Return whether the run is complete, from the second line of its summary.json."""
    try:
        with summary.open(encoding="utf-8") as file:
            return '"status": "completed"' in file.read(100)
    except (OSError, ValueError):
        return False


def _job(folder: Path, name: str, world_size: int, outcome: dict[str, Any], began: float) -> PlannedRun:
    """Return the state of a run that is not complete; files from before the command began do not count."""
    if outcome.get("outcome") == "failed":
        return PlannedRun(name, world_size, failed=str(outcome.get("why")))
    config, metrics = folder / "config.yaml", folder / "metrics.jsonl"
    # A job that waits in a queue has its config.yaml already: only metrics.jsonl shows that it runs.
    signs = (metrics,) if outcome.get("outcome") == "submitted" else (config, metrics)
    if max(map(_written, signs)) < began:
        return PlannedRun(name, world_size)
    part = _part_done(config, metrics)
    return PlannedRun(name, world_size, max(began, _written(config)), part, math.floor(4 * part))


def _written(path: Path) -> float:
    """Return the time of a file's last change, seconds since the epoch; 0 if there is no file."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _part_done(config: Path, metrics: Path) -> float:
    """Return the fraction of its environment steps that a run has done, 0 if unknown."""
    try:
        with metrics.open("rb") as file:
            file.seek(max(0, metrics.stat().st_size - 20_000))
            last = file.read().splitlines()[-2]  # the last line may be cut short
        settings: Any = OmegaConf.load(config)
        total_steps = settings[training_section(settings)].total_steps
        return min(1.0, json.loads(last)["env_steps"] / total_steps)
    except (OSError, ValueError, IndexError, KeyError, AttributeError):
        return 0.0


@lru_cache(maxsize=1)
def _planned(command: Path, written: float) -> dict[str, int]:
    """Return {folder: W} for all runs of the command, in order; {} if a sweeper chooses them on the way.

    written: the time of the command's last change, so that the cache holds one version of it.
    """
    if not written:
        return {}
    # Settings of the sweep come from its command and from the experiment (hydra.sweeper.params).
    config, parser = OmegaConf.load(command), OverridesParser.create()
    naming, params = config.hydra.job.config.override_dirname, config.hydra.sweeper.get("params") or {}
    given = [*(f"{key}={value}" for key, value in params.items()), *config.hydra.overrides.task]
    # Expand the command as Hydra does.
    try:
        (batch,) = BasicSweeper.split_arguments(parser.parse_overrides(given), None)
    except (HydraException, ValueError):
        return {}
    found = {}
    # Hydra names a run's folder after its overrides, without some keys.
    for job in map(parser.parse_overrides, batch):
        name = get_overrides_dirname(job, naming.exclude_keys, naming.item_sep, naming.kv_sep)
        sizes = [str(each.value()) for each in job if each.key_or_group == "dist.world_size"]
        found[folder_name(name, command.parent)] = int(sizes[0] if sizes else config.dist.world_size)
    return found


def _outcomes(journal: Path, began: float) -> dict[str, dict[str, Any]]:
    """Return the last outcome of each run since the command began, by name."""
    found = {}
    for line in journal.read_text().splitlines() if journal.exists() else ():
        try:
            entry = json.loads(line)
            if entry["at"] >= began:
                found[entry["run"]] = entry
        except (ValueError, KeyError, TypeError):  # a line cut short by a full disk
            continue
    return found


def _is_held(lock: Path) -> bool:
    """Return whether a command holds the sweep's lock, by trying to take it, shared, for an instant."""
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as e:  # another error: there is no such file, or the file system has no locks
        return isinstance(e, BlockingIOError)
    return False


# -- When the remaining runs will end.


def expected(now: SweepProgress, runs: Sequence[Run], at: float) -> dict[str, float]:
    """Return {run: its expected end} in seconds since the epoch, for the runs with a known duration.

    It is assumed that always as many runs run at once as now, `at`; the others follow in order.
    """
    # A lane is one of the places in which runs follow each other; its value is the time when it is free.
    lanes, found = [at] * max(1, sum(job.since > 0 for job in now.to_come)), {}
    for place, job in enumerate(now.to_come):
        seconds = _seconds(job.world_size, runs)
        # Without a complete run, extrapolate from the steps that this one has done.
        if math.isnan(seconds) and job.part_done > 0:
            seconds = (at - job.since) / job.part_done
        if math.isnan(seconds):
            break
        # A running job occupies its own lane; a waiting one takes the lane that is free first.
        lane = place if job.since else lanes.index(min(lanes))
        lanes[lane] = max(at, job.since + seconds) if job.since else lanes[lane] + seconds
        found[job.name] = lanes[lane]
    return found


def _seconds(world_size: int, runs: Sequence[Run]) -> float:
    """Return the expected duration of a run, NaN if unknown.

    It is the median of complete runs with this W, or else the duration at the nearest W, scaled by the scalability law
    fitted to the FPS so far.
    """
    if same := [_elapsed(run) for run in runs if run.world_size == world_size]:
        return median(same)
    if not runs:
        return math.nan
    # Scale the nearest W: its time outside training stays, its training time follows FPS.
    fps = fps_of(runs)
    nearest = min(fps, key=lambda w: abs(math.log(w / world_size)))
    slower = 1.0 if len(fps) == 1 else median(fps[nearest]) / fit_usl(fps).fps(world_size)
    return median(_elapsed(run) + (slower - 1) * run.wall_s for run in runs if run.world_size == nearest)


def _elapsed(run: Run) -> float:
    """Return the seconds from a run's start to its end, start-up and evaluation included."""
    try:
        start, end = map(datetime.fromisoformat, (run.origin.started_at, run.origin.finished_at))
    except ValueError:
        return run.wall_s
    return max(run.wall_s, (end - start).total_seconds())


# -- The page.


def watch(options: ReportOptions, say: Callable[[str], None]) -> tuple[Report, Path]:
    """Update the report until the sweep has ended or Ctrl-C; return the last report and its folder.

    say: called with a line for every new page. Raises ConfigError if there is no sweep, or none of its runs can be
    reported at its end.
    """
    sweep, folder = Path(options.path), files.folder_of(options)
    if options.others:
        raise RunFolderError(f"watch=true follows one sweep: leave {' '.join(options.others)} out")
    if not sweep.is_dir():
        raise RunFolderError(f"watch=true needs the folder of a sweep, and {sweep} is not a folder")
    with suppress(OSError):
        os.nice(19)  # the runs that are measured have priority
    # shown: the state on the page. rested: when the next page may be made.
    report, shown, rested, known = Report([], [], [], options), None, 0.0, Known()
    try:
        while not (now := progress(sweep)).ended:
            if now != shown and time.monotonic() >= rested:
                # Compute the report again only if a run has completed since the last page.
                began, trouble = time.process_time(), ""
                if now.done and (shown is None or now.done != shown.done):
                    try:
                        report = compute(options, read(options, known=known))
                    except ConfigError as e:
                        trouble = f"There is no report yet: {e}."
                ends = expected(now, [run for _, run in known.values()], time.time())
                files.write(_without(report, now), folder, _sweep_state(now, ends, trouble))
                say(f"{_in_short(now, ends)}: {folder / 'report.html'}")
                shown, rested = now, time.monotonic() + (time.process_time() - began) / _MAX_LOAD
            time.sleep(_INTERVAL_S)
    # Ctrl-C leaves a page without automatic reload.
    except KeyboardInterrupt:
        now_text = f"Watched until {_clock(time.time())}."
        files.write(
            report,
            folder,
            Live([f"{now_text} The sweep may have gone on: make the report again to see more."]),
        )
        return report, folder
    return files.make_report(options)


def _without(report: Report, now: SweepProgress) -> Report:
    """Return the report without runs that are left out only because they have not ended yet."""
    to_come = {job.name for job in now.to_come}
    left_out = [item for item in report.left_out if Path(item.path).name not in to_come]
    return replace(report, left_out=left_out)


def _sweep_state(now: SweepProgress, ends: dict[str, float], trouble: str) -> Live:
    """Return the part of the page about the sweep: a sentence, and a table of the missing runs."""
    missing = [
        [job.name, str(job.world_size), "running" if job.since else "waiting", _clock(ends.get(job.name))]
        for job in now.to_come
    ]
    missing += [
        [job.name, str(job.world_size), f"failed: {job.failed}", ""] for job in now.missing if job.failed
    ]
    first = f"{_in_short(now, ends)}. As of {_clock(time.time())}; the page reloads itself."
    table = Shown(["run", "W", "state", "expected"], missing, text=True)
    return Live([first, trouble] if trouble else [first], table, _REFRESH_S)


def _in_short(now: SweepProgress, ends: dict[str, float]) -> str:
    """Return how many runs are complete, and when the last (or the first known) of the others is expected."""
    planned = f" of {now.num_planned} runs" if now.num_planned else ""
    done = f"Complete: {len(now.done)}{planned}" if now.done else "Nothing is complete yet"
    if len(ends) == len(now.to_come) > 0:
        return f"{done}, the last is expected at {_clock(max(ends.values()))}"
    return f"{done}, the first is expected at {_clock(min(ends.values()))}" if ends else done


def _clock(at: float | None) -> str:
    """Return the time of day, with the date if it is another day; "" for None."""
    if at is None:
        return ""
    today = time.strftime("%j", time.localtime(at)) == time.strftime("%j")
    return time.strftime("%H:%M:%S" if today else "%a %d %b %H:%M", time.localtime(at))
