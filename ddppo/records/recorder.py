"""The recorder of rank 0: it writes metrics.jsonl and summary.json, and shows the run in viewers.

The two files are the run's results: a disk that refuses them ends the run. Viewers are TensorBoard, trackers and the
terminal: one that fails is switched off with a warning.
"""

import dataclasses
import shutil
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from ddppo.algorithms.task_sampler import SamplerRecords, TaskSampler
from ddppo.config.settings import Config, EnvConfig
from ddppo.envs.vec_env import explained, make_journal
from ddppo.errors import ConfigError, EnvOutputError, TrainingError, near
from ddppo.files import move_aside, write_json
from ddppo.package import command
from ddppo.records.jsonl import JsonlWriter, drop_after, read_reports
from ddppo.records.metrics import TASK_PREFIX, IterationReport
from ddppo.records.progress_display import Throttle, make_display
from ddppo.records.run_folder import RunFolder
from ddppo.records.summary import SummaryBuilder
from ddppo.records.tensorboard import TensorBoardWriter
from ddppo.records.terminal_text import closing, header
from ddppo.records.trackers import Tracker, open_tracker
from ddppo.scaling import BatchShape
from ddppo.terminal import warn

TABLE_INTERVAL_S = 120.0
NO_ENDING: Mapping[str, Any] = MappingProxyType({})


class NullRecorder:
    """The recorder of ranks other than 0: it writes nothing."""

    def earlier_messages(self) -> list[bytes]:
        return []

    def add_task_metrics(self, report: IterationReport, messages: list[bytes]) -> IterationReport:
        return report

    def is_finished(self) -> bool:
        return False

    def record(self, report: IterationReport, messages: list[bytes] | None, *, is_last: bool) -> None:
        pass

    def set_final_evaluation(self, report: IterationReport) -> None:
        pass

    def close(
        self, status: str, *, params_hash: str, compiled_from: int | None, best: dict[str, float],
        target: dict[str, float], failed: Sequence[dict[str, str]] = (), ending: Mapping[str, Any] = NO_ENDING,
    ) -> None:  # fmt: skip
        pass


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """How far a run has come when its recorder opens: all zero for a new run."""

    iteration: int = 0
    env_steps: int = 0
    wall_s: float = 0.0
    unrecorded: IterationReport | None = None
    """The report of `iteration`, if the run was saved between its last iteration and its final evaluation.

    metrics.jsonl may lack this report, or have it without the evaluation. A resumed run evaluates again.
    """


class Recorder:
    """Records a run in its folder and shows it on the terminal. Rank 0 has one.

    A resumed run continues the files of its folder; iterations behind the resume point are removed from them, so that
    no step is counted twice.
    """

    def __init__(
        self,
        config: Config,
        shape: BatchShape,
        run_dir: Path,
        derived: Mapping[str, Any],  # facts that only the process knows: num_parameters, device, threads, ...
        resume_point: ResumePoint = ResumePoint(),  # frozen
        *,
        journal: str | None = None,  # import path of the task's journal, if it has one
        sampler: TaskSampler | None = None,
    ) -> None:
        self.config = config
        self.run_dir = run_dir
        self.journal = TaskJournal(config.env, journal, run_dir) if journal else None
        self.sampler_records = SamplerRecords() if sampler is None else sampler.open_records(run_dir)
        self._table_is_due = Throttle(TABLE_INTERVAL_S)
        self._table_is_due()  # the first table comes after one interval, once the sampler knows something
        self.final_eval: dict[str, float] | None = None
        self.quiet = config.log.progress == "none"

        # 1. The results: metrics.jsonl, cut back to the resume point, and the summary, which counts its lines.
        self.summary = SummaryBuilder(config, shape, derived, config.log.warmup_iterations)
        self._unrecorded: IterationReport | None = None  # in the summary's counts, but yet to be written
        self._recorded_to = (
            0  # an earlier start wrote this iteration and its evaluation: do not write it again
        )
        env_steps, wall_s = resume_point.env_steps, resume_point.wall_s
        is_resumed, is_over = resume_point.iteration > 0, env_steps >= config.training.total_steps
        metrics_path = run_dir / "metrics.jsonl"
        if is_resumed:
            drop_after(metrics_path, resume_point.iteration)
            self._restore_summary(metrics_path, resume_point.unrecorded, is_over=is_over)
            move_aside(run_dir / "summary.json")
            if self._unrecorded is not None:
                # TensorBoard's curves may have this iteration without its evaluation: remove it there too.
                env_steps, wall_s = env_steps - 1, wall_s - 1e-3
        self.metrics = JsonlWriter(metrics_path)

        # 2. The viewers.
        self._switched_off: set[str] = set()
        self.display = make_display(config.log.progress, config.training.total_steps)
        self.tensorboard: TensorBoardWriter | None = None
        if config.log.tensorboard:
            self._view("TensorBoard", self._open_tensorboard, env_steps if is_resumed else None, wall_s)
        self.trackers: dict[str, Tracker] = {}
        for name in config.log.trackers:
            self._view(name, self._open_tracker, name, resumed=is_resumed)
        if not self.quiet:
            print(header(config, shape, {**derived, "run_dir": run_dir}, _columns()), flush=True)
        self._view("the progress display", self.display.start)

        # 3. A run that continues beyond its former end: write the report of that end now.
        if self._unrecorded is not None and not is_over:
            self.record(self._unrecorded, None, is_last=False)

    def _restore_summary(self, path: Path, unrecorded: IterationReport | None, *, is_over: bool) -> None:
        """Count the iterations in metrics.jsonl, and `unrecorded` if the file lacks it or will have it anew."""
        if unrecorded is not None:
            last = next(iter(deque(read_reports(path) if path.exists() else (), maxlen=1)), None)
            self._unrecorded = unrecorded
            if last is not None and last.iteration == unrecorded.iteration:
                has_evaluation = any(name.startswith("eval/") for name in last.global_metrics)
                if is_over and not has_evaluation:
                    # The line is written again, with the evaluation that is still to come.
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

    def _abandon_tensorboard(self) -> None:
        if self.tensorboard is not None:
            with suppress(OSError):
                self.tensorboard.abandon()

    def _open_tracker(self, name: str, *, resumed: bool) -> None:
        self.trackers[name] = open_tracker(name, self.config, self.run_dir, resumed=resumed)

    def _view(self, viewer: str, call: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Call a viewer; if it fails, warn once and never call it again: a chart is no reason to end a run."""
        if viewer in self._switched_off:
            return
        try:
            call(*args, **kwargs)
        except (Exception, SystemExit) as e:  # rich raises SystemExit if its output pipe is closed
            self._switched_off.add(viewer)
            if viewer == "TensorBoard":
                self._abandon_tensorboard()
            warn(f"{viewer} failed and is switched off, the run goes on: {type(e).__name__}: {e}")

    # -- During training.

    def earlier_messages(self) -> list[bytes]:
        """Return the environment messages that the task's journal kept from earlier starts of the run."""
        return self.journal.before() if self.journal is not None else []

    def add_task_metrics(self, report: IterationReport, messages: list[bytes]) -> IterationReport:
        """Hand the iteration's environment messages to the task's journal; return the report with task/* added."""
        return report if self.journal is None else self.journal.note(report, messages)

    def is_finished(self) -> bool:
        """Return whether the task's journal asks to complete the run now, because nothing is left to gain."""
        return self.journal is not None and self.journal.is_finished()

    def record(self, report: IterationReport, messages: list[bytes] | None, *, is_last: bool) -> None:
        """Write and show one iteration.

        Args:
            report: the iteration.
            messages: from environments in this iteration; None if `add_task_metrics` was called already.
            is_last: whether the evaluation in `report` is the final one.
        """
        if is_last:
            self.set_final_evaluation(report)
        if report.iteration <= self._recorded_to:
            return
        if messages is not None:
            report = self.add_task_metrics(report, messages)
        self.sampler_records.note()
        # The results first: a disk that refuses them ends the run here.
        is_new = self._unrecorded is None or report.iteration > self._unrecorded.iteration
        if is_new:
            self.summary.add(report)
        self.metrics.write(report, is_new=is_new)
        # Then the viewers.
        if self.tensorboard is not None:
            self._view("TensorBoard", self.tensorboard.write, report)
            if self.journal is not None:
                self._view("the journal's pictures", self._show_pictures, report.env_steps)
        for name, tracker in self.trackers.items():
            self._view(name, tracker.write, report)
        for line in self.sampler_records.news():
            self._view("the progress display", self.display.say, line)
        self._view("the progress display", self.display.update, report, self.sampler_records.status())
        if not is_last and self._table_is_due():
            self._view("the task sampler's table", self._show_table)

    def _show_pictures(self, env_steps: int) -> None:
        assert self.journal is not None
        assert self.tensorboard is not None
        self.tensorboard.show(self.journal.pictures(), env_steps)

    def _show_table(self) -> None:
        if table := self.sampler_records.table():
            self.display.say(table)

    # -- At the end.

    def set_final_evaluation(self, report: IterationReport) -> None:
        """Make the report's evaluation, if it has one, the final one of summary.json."""
        scores = {k: v for k, v in report.global_metrics.items() if k.startswith("eval/")}
        self.final_eval = scores or None

    def close(
        self, status: str, *, params_hash: str, compiled_from: int | None, best: dict[str, float],
        target: dict[str, float], failed: Sequence[dict[str, str]] = (), ending: Mapping[str, Any] = NO_ENDING,
    ) -> None:  # fmt: skip
        """Write summary.json, close all files and print the results. Raises StorageError.

        Args:
            status: completed, stopped or failed.
            params_hash: of the final parameters.
            compiled_from: the first iteration in C++ or compiled by torch; None if all were eager.
            best: the scores of the best evaluation, {} if there is none.
            target: when target_return was reached (time_to_target_s, steps_to_target), {} if it was not.
            failed: steps after training that failed; a tracker that fails here is added to them.
            ending: why the run ended before total_steps (records/run_folder.py), {} if it did not.
        """
        self._view("the progress display", self.display.close)
        self._view("the task sampler's table", self._show_table)
        self.metrics.close()
        # Build the summary.
        reached = None
        if self.config.target_return is not None:
            not_reached = {"time_to_target_s": None, "steps_to_target": None}
            reached = {
                "return": self.config.target_return,
                "reached": bool(target),
                **(target or not_reached),
            }
        if self.journal is not None:
            self._view("the journal's summary", self._summarise_journal)
        self.summary.sampler_parts = self.sampler_records.summary()
        summary = self.summary.build(
            status=status,
            params_hash=params_hash,
            compiled_from=compiled_from,
            restarts=RunFolder(self.run_dir).num_restarts,
            final_eval=self.final_eval,
            best_eval=best or None,
            target=reached,
            failed=failed,
            ending=ending,
        )
        write_json(self.run_dir / "summary.json", summary)
        # Close the viewers. TensorBoard is last: its thread may hang for a while on a disk that hangs.
        for name, tracker in self.trackers.items():
            self._close_tracker(name, tracker, summary)
        if self.tensorboard is not None:
            self._view(
                "TensorBoard", self.tensorboard.close, self.final_eval, completed=status == "completed"
            )
        if not self.quiet:
            print(closing(summary, self.run_dir, _columns()), flush=True)

    def _summarise_journal(self) -> None:
        assert self.journal is not None
        self.summary.task = self.journal.summary()

    def _close_tracker(self, name: str, tracker: Tracker, summary: dict[str, Any]) -> None:
        """Close a tracker; if that fails in a completed run, note it in summary.json, with a command to repeat it."""
        if summary["status"] != "completed" or name in self._switched_off:
            self._view(name, tracker.close, summary)
            return
        try:
            tracker.close(summary)
        except (Exception, SystemExit) as e:
            summary["failed_after_training"].append(
                {
                    "step": f"the last upload to {name}",
                    "why": f"{type(e).__name__}: {' '.join(str(e).split())}",
                    "command": command("ddppo.train", f"resume={self.run_dir}"),
                }
            )
            write_json(self.run_dir / "summary.json", summary)


def _columns() -> int | None:
    """Return the width of the terminal; None where the output goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


# -- The journal of a task, if its environments publish messages.


T = TypeVar("T")


class TaskJournal:
    """The journal of the task (ddppo.envs.vec_env.Journal), with every answer checked: it is the user's own code.

    Raises EnvError, which names the journal and its method, if a method raises or returns something else than it
    should.
    """

    def __init__(self, env: EnvConfig, path: str, run_dir: Path) -> None:
        self._name = f"the journal {path}"
        self._journal = self._call("when it was made", lambda: make_journal(env, path, run_dir))

    def note(self, report: IterationReport, messages: list[bytes]) -> IterationReport:
        """Hand the messages of an iteration to the journal; return its report with task/* added."""
        metrics = self._call(
            "from note()", lambda: self._journal.note(messages, report.env_steps, report.wall_s)
        )
        self._check_metrics(metrics)
        task_metrics = {TASK_PREFIX + name: float(value) for name, value in metrics.items()}
        return dataclasses.replace(report, global_metrics={**report.global_metrics, **task_metrics})

    def pictures(self) -> dict[str, np.ndarray]:
        """Return the journal's pictures, uint8 `[height, width, 3]`, by name."""
        pictures = self._call("from pictures()", self._journal.pictures)
        for name, picture in pictures.items():
            if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
                raise self._wrong(
                    f"{picture.dtype} {picture.shape} as the picture {name}",
                    "it must be uint8 [height, width, 3]",
                )
        return pictures

    def before(self) -> list[bytes]:
        """Return the messages that the journal kept from earlier starts of the run."""
        messages = self._call("from before()", self._journal.before)
        if not (isinstance(messages, list) and all(isinstance(each, bytes) for each in messages)):
            raise self._wrong(
                f"{messages!r:.60} from before()", "it must be a list of bytes, [] where it knows nothing"
            )
        return messages

    def is_finished(self) -> bool:
        """Return whether the journal asks to complete the run; most journals never do."""
        return bool(self._call("from is_finished()", getattr(self._journal, "is_finished", bool)))

    def summary(self) -> dict[str, Any]:
        """Return the journal's part of summary.json."""
        summary = self._call("from summary()", self._journal.summary)
        if not (isinstance(summary, dict) and isinstance(summary.get("said", {}), dict)):
            raise self._wrong(
                f"{summary!r:.60} from summary()", 'it must be a dict, and so must "said" in it'
            )
        return summary

    def _check_metrics(self, metrics: dict[str, float]) -> None:
        if not isinstance(metrics, dict):
            raise self._wrong(f"{metrics!r:.60} from note()", "it must be a dict of numbers, {} for none")
        # Every metric must be listed, with unit and meaning, in the journal's own table.
        listed = self._journal.metrics
        for name, value in metrics.items():
            if name not in listed and name.partition("/")[0] not in listed:
                raise self._wrong(
                    f"the metric {name}", f"which its table `metrics` does not list{near(name, list(listed))}"
                )
            if not isinstance(value, int | float | np.number):
                raise self._wrong(f"{value!r} as the metric {name}", "it must be a number")

    def _call(self, when: str, call: Callable[[], T]) -> T:
        """Return call(); an exception of the journal's code becomes an EnvError that says when it was raised."""
        try:
            return call()
        except (ConfigError, TrainingError):  # it names its cause already
            raise
        except Exception as e:
            raise explained(self._name, when, e) from e

    def _wrong(self, found: str, rule: str) -> EnvOutputError:
        return EnvOutputError(f"{self._name} returned {found}: {rule}")
