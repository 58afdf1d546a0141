"""Everything rank 0 writes and shows: metrics.jsonl and summary.json, TensorBoard and the terminal.

The first two are the run's results, and a disk that refuses them ends it. The others only show them: one that fails is
switched off with a warning.
"""

import dataclasses
import shutil
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ddppo.algorithms.task_sampler import SamplerRecords, TaskSampler
from ddppo.config.settings import Config, EnvConfig
from ddppo.envs.vec_env import explained, make_journal
from ddppo.errors import ConfigError, EnvOutputError, TrainingError, near
from ddppo.files import move_aside, write_json
from ddppo.package import command
from ddppo.records.jsonl import JsonlWriter, drop_after, read_reports
from ddppo.records.metrics import OF_TASK, IterationReport
from ddppo.records.progress_display import Throttle, make_display
from ddppo.records.run_folder import RunFolder
from ddppo.records.summary import SummaryBuilder
from ddppo.records.tensorboard import TensorBoardWriter
from ddppo.records.terminal_text import closing, header
from ddppo.records.trackers import Tracker, open_tracker
from ddppo.scaling import BatchShape
from ddppo.terminal import warn

TABLE_INTERVAL_S = 120.0


class NullRecorder:
    """What the other ranks hold."""

    def noted(self, report: IterationReport, news: list[bytes]) -> IterationReport:
        return report

    def record(self, report: IterationReport, news: list[bytes] | None, *, is_last: bool) -> None:
        pass

    def known(self) -> list[bytes]:
        return []

    def conclude(self, report: IterationReport) -> None:
        pass

    def close(
        self, status: str, *, params_hash: str, compiled_from: int | None, best: dict[str, float],
        target: dict[str, float], failed: Sequence[dict[str, str]] = (),
    ) -> None:  # fmt: skip
        pass


class Recorder:
    """Opens the run folder's records, continuing those of a run resumed at an iteration without doubled steps.

    `derived` holds what only the process knows: num_parameters, device, threads. journal: the import path of the
    task's, if it has one. sampler: whose records are kept. unrecorded: the last report before `iteration`'s end, where
    the run was saved before its final evaluation: metrics.jsonl may lack it, or have it without the evaluation, which
    is then done again.
    """

    def __init__(
        self,
        config: Config,
        shape: BatchShape,
        run_dir: Path,
        derived: Mapping[str, Any],
        *,
        iteration: int,
        env_steps: int,
        wall_s: float,
        journal: str | None = None,
        sampler: TaskSampler | None = None,
        unrecorded: IterationReport | None = None,
    ) -> None:
        self.config = config
        self.run_dir = run_dir
        self.journal = TaskJournal(config.env, journal, run_dir) if journal else None
        self.of_sampler = SamplerRecords() if sampler is None else sampler.open_records(run_dir)
        self._table_is_due = Throttle(TABLE_INTERVAL_S)
        self._table_is_due()  # not before anything is known
        resumed = iteration > 0
        self.summary = SummaryBuilder(config, shape, derived, config.log.warmup_iterations)
        metrics_path = run_dir / "metrics.jsonl"
        self._unrecorded: IterationReport | None = None  # counted by the summary, and to be written
        self._recorded_to = (
            0  # the last iteration that a command before this one wrote, if it may be met again
        )
        is_over = env_steps >= config.ppo.total_steps
        if resumed:
            drop_after(metrics_path, iteration)
            self._restore(metrics_path, unrecorded, is_over=is_over)
            move_aside(run_dir / "summary.json")
            if self._unrecorded is not None:
                env_steps, wall_s = (
                    env_steps - 1,
                    wall_s - 1e-3,
                )  # curves have it without the evaluation, if at all
        self.metrics = JsonlWriter(metrics_path)
        self.final_eval: dict[str, float] | None = None
        self.quiet = config.log.progress == "none"
        self.display = make_display(config.log.progress, config.ppo.total_steps)
        self.tensorboard: TensorBoardWriter | None = None
        self._switched_off: set[str] = set()
        if config.log.tensorboard:
            self._view("TensorBoard", self._open_tensorboard, env_steps if resumed else None, wall_s)
        self.trackers: dict[str, Tracker] = {}
        for name in config.log.trackers:
            self._view(name, self._open_tracker, name, resumed=resumed)
        if not self.quiet:
            print(header(config, shape, {**derived, "run_dir": run_dir}, _columns()), flush=True)
        self._view("the progress display", self.display.start)
        if self._unrecorded is not None and not is_over:  # it goes on beyond that end
            self.record(self._unrecorded, None, is_last=False)

    def _restore(self, path: Path, unrecorded: IterationReport | None, *, is_over: bool) -> None:
        """Count what metrics.jsonl has of a resumed run, and the report that it lacks or that is written again."""
        if unrecorded is not None:
            last = next(iter(deque(read_reports(path) if path.exists() else (), maxlen=1)), None)
            self._unrecorded = unrecorded
            if last is not None and last.iteration == unrecorded.iteration:
                if is_over and not any(name.startswith("eval/") for name in last.global_metrics):
                    drop_after(path, unrecorded.iteration - 1)
                else:
                    self._unrecorded, self._recorded_to = None, unrecorded.iteration
        reports = read_reports(path) if path.exists() else iter(())
        self.summary.restore(chain(reports, [] if self._unrecorded is None else [self._unrecorded]))

    def _open_tensorboard(self, resumed_at_steps: int | None, resumed_at_wall_s: float) -> None:
        self.tensorboard = TensorBoardWriter(
            self.run_dir / "tensorboard",
            self.config,
            self.summary.world_size,
            resumed_at_steps=resumed_at_steps,
            resumed_at_wall_s=resumed_at_wall_s,
        )

    def _open_tracker(self, name: str, *, resumed: bool) -> None:
        self.trackers[name] = open_tracker(name, self.config, self.run_dir, resumed=resumed)

    def _view(self, viewer: str, call: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Have a viewer do something, unless it failed before; if it fails now, warn and never call it again."""
        if viewer in self._switched_off:
            return
        try:
            call(*args, **kwargs)
        except (Exception, SystemExit) as e:  # rich would end the program whose output nobody reads
            self._switched_off.add(viewer)
            warn(f"{viewer} failed and is switched off, the run goes on: {type(e).__name__}: {e}")

    def known(self) -> list[bytes]:
        """Return what the task's journal knows of before, as news."""
        return self.journal.before() if self.journal is not None else []

    def noted(self, report: IterationReport, news: list[bytes]) -> IterationReport:
        """Have the task's journal note what environments published; return the report with what it says."""
        return report if self.journal is None else self.journal.noted(report, news)

    def record(self, report: IterationReport, news: list[bytes] | None, *, is_last: bool) -> None:
        """Write and show one iteration; `is_last` makes its evaluation final. news: None where `noted` was called."""
        if is_last:
            self.conclude(report)
        if report.iteration <= self._recorded_to:
            return
        if news is not None:
            report = self.noted(report, news)
        self.of_sampler.note()
        is_new = self._unrecorded is None or report.iteration > self._unrecorded.iteration
        if is_new:
            self.summary.add(report)
        self.metrics.write(report, goes_on=is_new)
        if self.tensorboard is not None:
            self._view("TensorBoard", self.tensorboard.write, report)
            if self.journal is not None:
                self._view("the journal's pictures", self._show_pictures, report.env_steps)
        for name, tracker in self.trackers.items():
            self._view(name, tracker.write, report)
        self._view("the progress display", self.display.update, report)
        if not is_last and self._table_is_due():
            self._view("the task sampler's table", self._show_table)

    def _show_pictures(self, env_steps: int) -> None:
        assert self.journal is not None
        assert self.tensorboard is not None
        self.tensorboard.show(self.journal.pictures(), env_steps)

    def _show_table(self) -> None:
        if table := self.of_sampler.table():
            self.display.say(table)

    def _summarise_journal(self) -> None:
        assert self.journal is not None
        self.summary.task = self.journal.summary()

    def conclude(self, report: IterationReport) -> None:
        """Make the report's evaluation, if it has one, the final one."""
        scores = {k: v for k, v in report.global_metrics.items() if k.startswith("eval/")}
        self.final_eval = scores or None

    def close(
        self, status: str, *, params_hash: str, compiled_from: int | None, best: dict[str, float],
        target: dict[str, float], failed: Sequence[dict[str, str]] = (),
    ) -> None:  # fmt: skip
        """Write summary.json and close the files; status is completed, stopped or failed. Raises StorageError.

        `best` are the best evaluation's scores, `target` when target_return was reached; empty where there is none.
        failed: steps after training that failed, to which what fails here is added.
        """
        self._view("the progress display", self.display.close)
        self._view("the task sampler's table", self._show_table)
        self.metrics.close()
        reached = None
        if self.config.target_return is not None:
            nothing = {"time_to_target_s": None, "steps_to_target": None}
            reached = {"return": self.config.target_return, "reached": bool(target), **(target or nothing)}
        if self.journal is not None:
            self._view("the journal's summary", self._summarise_journal)
        self.summary.of_sampler = self.of_sampler.summary()
        summary = self.summary.build(
            status=status,
            params_hash=params_hash,
            compiled_from=compiled_from,
            restarts=RunFolder(self.run_dir).num_restarts,
            final_eval=self.final_eval,
            best_eval=best or None,
            target=reached,
            failed=failed,
        )
        write_json(self.run_dir / "summary.json", summary)
        for name, tracker in self.trackers.items():
            if status != "completed" or name in self._switched_off:
                self._view(name, tracker.close, summary)
                continue
            try:
                tracker.close(summary)
            except (Exception, SystemExit) as e:
                again = command("ddppo.train", f"resume={self.run_dir}")
                why = f"{type(e).__name__}: {' '.join(str(e).split())}"
                step = {"step": f"the last upload to {name}", "why": why, "command": again}
                summary["failed_after_training"].append(step)
                write_json(self.run_dir / "summary.json", summary)
        if self.tensorboard is not None:  # last: its thread may hang for a while on a disk that does
            self._view(
                "TensorBoard", self.tensorboard.close, self.final_eval, completed=status == "completed"
            )
        if not self.quiet:
            print(closing(summary, self.run_dir, _columns()), flush=True)


def _columns() -> int | None:
    """Return the width of the terminal; None where the output goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


# -- The journal of a task whose environments publish, as rank 0 keeps it: a user's own code, so answers are checked.


T = TypeVar("T")


class TaskJournal:
    """Raises EnvError, which names the journal, where it raises or returns what it should not."""

    def __init__(self, env: EnvConfig, path: str, run_dir: Path) -> None:
        self._name = f"the journal {path}"
        self._journal = self._explained("when it was made", lambda: make_journal(env, path, run_dir))

    def noted(self, report: IterationReport, news: list[bytes]) -> IterationReport:
        """Have the journal note the news of an iteration; return its report with task/* added."""
        metrics = self._explained(
            "from note()", lambda: self._journal.note(news, report.env_steps, report.wall_s)
        )
        self._check(metrics)
        named = {OF_TASK + name: float(value) for name, value in metrics.items()}
        return dataclasses.replace(report, global_metrics={**report.global_metrics, **named})

    def pictures(self) -> dict[str, np.ndarray]:
        pictures = self._explained("from pictures()", self._journal.pictures)
        for name, picture in pictures.items():
            if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
                raise self._wrong(
                    f"{picture.dtype} {picture.shape} as the picture {name}",
                    "it must be uint8 [height, width, 3]",
                )
        return pictures

    def before(self) -> list[bytes]:
        news = self._explained("from before()", self._journal.before)
        if not (isinstance(news, list) and all(isinstance(each, bytes) for each in news)):
            raise self._wrong(
                f"{news!r:.60} from before()", "it must be a list of bytes, [] where it knows nothing"
            )
        return news

    def summary(self) -> dict[str, Any]:
        summary = self._explained("from summary()", self._journal.summary)
        if not (isinstance(summary, dict) and isinstance(summary.get("said", {}), dict)):
            raise self._wrong(
                f"{summary!r:.60} from summary()", 'it must be a dict, and so must "said" in it'
            )
        return summary

    def _check(self, metrics: dict[str, float]) -> None:
        if not isinstance(metrics, dict):
            raise self._wrong(f"{metrics!r:.60} from note()", "it must be a dict of numbers, {} for none")
        listed = self._journal.metrics
        for name, value in metrics.items():
            if name not in listed and name.partition("/")[0] not in listed:
                raise self._wrong(
                    f"the metric {name}", f"which its table `metrics` does not list{near(name, list(listed))}"
                )
            if not isinstance(value, int | float | np.number):
                raise self._wrong(f"{value!r} as the metric {name}", "it must be a number")

    def _explained(self, when: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except (ConfigError, TrainingError):  # says what it is of
            raise
        except Exception as e:
            raise explained(self._name, when, e) from e

    def _wrong(self, found: str, wanted: str) -> EnvOutputError:
        return EnvOutputError(f"{self._name} returned {found}: {wanted}")
