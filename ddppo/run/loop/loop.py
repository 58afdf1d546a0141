"""The loop of a rank: iterations until total_steps are done or a rank asks to stop, and what is due between them."""

import dataclasses
import math

from ddppo.processes.signals import StopRequest
from ddppo.run.checkpoints.saving import Saving
from ddppo.run.evaluating.scoring import Scoring
from ddppo.run.loop.iteration import Iterations
from ddppo.run.measuring.profiling import NullProfiler
from ddppo.run.records.metrics import IterationReport
from ddppo.run.records.recorder import NullRecorder, Recorder


class Loop:
    """Repeats iterations, evaluates, records and saves, on all ranks at the same iterations."""

    def __init__(
        self,
        iterations: Iterations,
        scoring: Scoring,
        saving: Saving,
        recorder: Recorder | NullRecorder,
        profiler: NullProfiler,
    ) -> None:
        self._iterations = iterations
        self._parts = iterations.parts
        self._config = iterations.parts.config
        self._progress = iterations.progress
        self._clock = iterations.clock
        self._scoring = scoring
        self._saving = saving
        self._recorder = recorder
        self._profiler = profiler

    def run(self, stop: StopRequest) -> str:
        """Return how it ended: completed or stopped."""
        config, progress = self._config, self._progress
        if (
            progress.env_steps >= config.ppo.total_steps
        ):  # killed after its last checkpoint, before its summary
            self._conclude()
            return "completed"
        next_eval = _next_multiple(progress.env_steps, config.eval.every_steps)
        next_save = _next_multiple(progress.env_steps, config.checkpoint.every_steps)
        while True:
            with self._profiler.iteration():
                report, news, agreed = self._iterations.next(stop)
            is_last = progress.env_steps >= config.ppo.total_steps
            if is_last:
                report = self._with_last_evaluation(report)
            elif progress.env_steps >= next_eval and not agreed.stopping:
                report = self._with_evaluation(report, config.eval.episodes)
                next_eval = _next_multiple(progress.env_steps, config.eval.every_steps)
            self._recorder.record(report, news, is_last=is_last)
            self._saving.writer.check()
            if is_last or agreed.stopping or agreed.save_due or progress.env_steps >= next_save:
                self._save()
                next_save = _next_multiple(progress.env_steps, config.checkpoint.every_steps)
            if is_last or agreed.stopping:
                self._saving.writer.wait()
                return "completed" if is_last else "stopped"

    def _conclude(self) -> None:
        """Evaluate and record a run that has nothing left to learn."""
        progress = self._progress
        of_no_rank: tuple[dict[str, float], ...] = ({},) * self._parts.shape.world_size
        report = IterationReport(progress.iteration, progress.env_steps, progress.wall_s, of_no_rank, {})
        if self._config.eval.final_episodes:
            report = self._with_evaluation(report, self._config.eval.final_episodes, is_last=True)
        self._recorder.conclude(report)

    def _with_last_evaluation(self, report: IterationReport) -> IterationReport:
        """End the program's last iteration; return its report with the final evaluation's metrics, if there is one."""
        self._parts.program.conclude()
        if not self._config.eval.final_episodes:
            return report
        if self._config.env.urls:
            # Their servers may be gone: a resumed run evaluates then, and has nothing to learn.
            self._save()
        return self._with_evaluation(report, self._config.eval.final_episodes, is_last=True)

    def _with_evaluation(
        self, report: IterationReport, num_episodes: int, *, is_last: bool = False
    ) -> IterationReport:
        """Return the report with eval/* added; the time it takes is on evaluation's own clock."""
        program = self._parts.program
        program.rest()
        with self._clock.excluded():
            if is_last and self._config.env.urls and program.env is not None and not self._parts.spec.is_text:
                program.env.close()  # evaluation takes their slots
            metrics, is_best = self._scoring.score(
                num_episodes,
                self._progress.env_steps,
                report.wall_s,
                is_last=is_last,
                options=program.options(),
            )
            if is_best:
                self._saving.save_best()
            # Else the others' next iteration would book rank 0's copying as waiting.
            self._parts.group.barrier()
        return dataclasses.replace(report, global_metrics={**report.global_metrics, **metrics})

    def _save(self) -> None:
        with self._clock.checkpoint():
            self._saving.save()


def _next_multiple(steps: int, every: int) -> float:
    """Return the first multiple of `every` above `steps`; infinity for every = 0."""
    return (steps // every + 1) * every if every else math.inf
