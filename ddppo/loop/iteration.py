"""One iteration of a rank, from the rollout to the report: what `ddppo.loop.iteration` repeats."""

import dataclasses
import math
import sys

import torch

from ddppo.algorithms.task_sampler import EpisodeResults
from ddppo.distributed.topologies.base import Collected, RankContext
from ddppo.errors import CollectiveError, EvaluationFailed
from ddppo.loop.build import TrainState, fingerprint
from ddppo.loop.env_messages import NoExchange
from ddppo.loop.evaluation import Scoring
from ddppo.loop.saving import Saving
from ddppo.package import command
from ddppo.processes.signals import StopRequest
from ddppo.records.metrics import USER_PREFIX, IterationReport
from ddppo.records.profiling import NullProfiler
from ddppo.records.recorder import NullRecorder, Recorder
from ddppo.records.reporting import LocalIteration, LoopRequests, Reporter
from ddppo.records.timing import IterationClock
from ddppo.records.user_metrics import UserMetrics
from ddppo.terminal import warn


class Iterations:
    """The iterations of this rank, timed by `clock` from where it was made on."""

    def __init__(
        self,
        parts: RankContext,
        progress: TrainState,
        *,
        clock: IterationClock,
        saving: Saving,
        exchange: NoExchange,
        reporter: Reporter,
    ) -> None:
        self.parts = parts
        self.progress = progress
        self.clock = clock
        self._saving = saving
        self._exchange = exchange
        self._reporter = reporter
        # In this process, in code of the task's.
        self._steps_tasks = parts.derived["env_backend"] in ("auto", "sync", "gym_vector")
        self._user_metrics = UserMetrics(parts.config.log.metrics, parts.group)

    def next(self, stop: StopRequest) -> tuple[IterationReport, list[bytes], LoopRequests]:
        """One iteration: all ranks start it with equal parameters and end it with equal parameters.

        Returns its report, what environments published in it, and what the ranks ask of the loop.
        """
        parts, progress, program = self.parts, self.progress, self.parts.topology
        config, group, clock, iteration = parts.config, parts.group, self.clock, progress.iteration + 1
        group.begin(iteration)
        sampler = parts.sampler
        with clock.phase("rollout"):
            if sampler.every_iteration:
                program.reset(sampler.sample(iteration))
            collected = program.collect(iteration)
        if self._steps_tasks:
            stop.listen_again()
        group.barrier()  # what a rank spends here it spends on the slowest rollout
        with clock.phase("learn"):
            update = program.learn(collected, iteration, progress.env_steps / config.ppo.total_steps)
            results = self._results(collected)
        messages = self._exchange.meet()
        sampler.update(results, messages)
        own = self._user_metrics.reduce(iteration, collected)
        compare = config.dist.check_every > 0 and iteration % config.dist.check_every == 0
        times = clock.lap()
        progress.wall_s += times.t_iter
        local = LocalIteration(
            iteration=iteration,
            times=times,
            collected=collected,
            update=update,
            requests=LoopRequests(
                stop=stop.requested or program.is_asked_to_stop(), save=self._saving.is_due()
            ),
            params_hash=fingerprint(parts) if compare else 0,
            measured=program.measured(),
            own_pace=program.own_pace_reports(),
        )
        report, requests = self._reporter.reduce(
            local, env_steps_before=progress.env_steps, wall_s=progress.wall_s
        )
        progress.iteration, progress.env_steps = iteration, report.env_steps
        more = {USER_PREFIX + name: x for name, x in own.items()} | sampler.metrics()
        if results is not None and len(known := results.achieved[~results.achieved.isnan()]):
            more["rollout/success_rate"] = known.mean().item()
        if more:
            report = dataclasses.replace(report, global_metrics=report.global_metrics | more)
        return report, messages, requests

    def _results(self, collected: Collected) -> EpisodeResults | None:
        """Return what came of all environments' episodes, where they tell whether they achieved their tasks.

        All ranks call it.
        """
        rollout = collected.rollout
        if rollout is None or rollout.achieved is None:
            return None
        of_mine = torch.stack([rollout.achieved.double(), rollout.valid.any(0).double()]).cpu()
        achieved, was_played = (
            self.parts.group.gather(of_mine).transpose(0, 1).flatten(1)
        )  # [W, 2, E] -> [2, N]
        return EpisodeResults(achieved, was_played)


# -- The loop of a rank: iterations until total_steps are done or a rank asks to stop, and what is due between them.


class Loop:
    """Repeats iterations, evaluates, records and saves, on all ranks at the same iterations.

    failed: steps after training that failed, as summary.json tells of them. lost: what this rank met where another was
    lost in the final evaluation.
    """

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
        self.failed: list[dict[str, str]] = []
        self.lost: CollectiveError | None = None

    def run(self, stop: StopRequest) -> str:
        """Return how it ended: completed or stopped."""
        config, progress = self._config, self._progress
        if progress.env_steps >= config.ppo.total_steps:  # it lacks its final evaluation, or its summary only
            return self._ended(self._saving.unrecorded, stop)
        next_eval = _next_multiple(progress.env_steps, config.eval.every_steps)
        next_save = _next_multiple(progress.env_steps, config.checkpoint.every_steps)
        while True:
            with self._profiler.iteration():
                report, messages, requests = self._iterations.next(stop)
            if progress.env_steps >= config.ppo.total_steps:
                self._parts.sampler.conclude()
                report = self._recorder.add_task_metrics(report, messages)
                if config.eval.final_episodes:
                    with self._clock.checkpoint():
                        self._saving.save_before_evaluation(report)
                    return self._ended(report, stop)
                self._recorder.record(report, None, is_last=True)
                self._save()
                self._saving.writer.wait()
                return "completed"
            if progress.env_steps >= next_eval and not requests.stop:
                report = self._with_evaluation(report)
                next_eval = _next_multiple(progress.env_steps, config.eval.every_steps)
            self._recorder.record(report, messages, is_last=False)
            self._saving.writer.check()
            if requests.stop or requests.save or progress.env_steps >= next_save:
                self._save()
                next_save = _next_multiple(progress.env_steps, config.checkpoint.every_steps)
            if requests.stop:
                self._saving.writer.wait()
                return "stopped"

    def _ended(self, report: IterationReport | None, stop: StopRequest) -> str:
        """Evaluate a run that has nothing left to learn and is on the disk; record and save what that says.

        report: of the last iteration, None where it was recorded together with an evaluation that is done again.
        """
        progress, num_episodes = self._progress, self._config.eval.final_episodes
        of_no_rank: tuple[dict[str, float], ...] = ({},) * self._parts.shape.world_size
        scores = IterationReport(progress.iteration, progress.env_steps, progress.wall_s, of_no_rank, {})
        try:
            if num_episodes:
                scores = self._scored(scores, num_episodes, stop)
        except EvaluationFailed as e:
            self._note_failure(str(e), e.trace)
            is_cut_short = e.signal is not None
        except CollectiveError as e:
            # A rank was lost in its episodes, or hangs. With dist.on_lost=restart new ranks evaluate again.
            self._note_failure(str(e))
            self.lost, is_cut_short = e, False
        else:
            is_cut_short = False
        if report is None:
            self._recorder.set_final_evaluation(scores)
        else:
            metrics = {**report.global_metrics, **scores.global_metrics}
            self._recorder.record(dataclasses.replace(report, global_metrics=metrics), None, is_last=True)
            self._saving.writer.check()
            if not self.failed:
                self._saving.save_after_evaluation()
        self._saving.writer.wait()
        return "stopped" if is_cut_short else "completed"

    def _note_failure(self, why: str, trace: str = "") -> None:
        if trace:
            print(trace, file=sys.stderr, flush=True)
        again = command(
            "ddppo.evaluate", f"run={self._saving.run_dir}", f"episodes={self._config.eval.final_episodes}"
        )
        self.failed.append({"step": "the final evaluation", "why": why, "command": again})

    def _with_evaluation(self, report: IterationReport) -> IterationReport:
        """Return the report with an evaluation's metrics; without, and a warning, where that failed."""
        try:
            return self._scored(report, self._config.eval.episodes)
        except EvaluationFailed as e:
            if e.signal is not None:
                raise KeyboardInterrupt from e
            if self._config.eval.on_error == "stop":
                raise (e.__cause__ if isinstance(e.__cause__, Exception) else e) from None
            if e.trace:
                print(e.trace, file=sys.stderr, flush=True)
            if self._parts.group.rank == 0:
                warn(
                    f"the evaluation after {report.env_steps:,} steps failed, and training goes on without its scores "
                    f"(eval.on_error=stop would end it): {e}"
                )
            return report

    def _scored(
        self, report: IterationReport, num_episodes: int, stop: StopRequest | None = None
    ) -> IterationReport:
        """Return the report with eval/* added; the time it takes is on evaluation's own clock.

        stop: of the final evaluation, which its signal cuts short. Raises EvaluationFailed on all ranks alike.
        """
        program, is_last = self._parts.topology, stop is not None
        program.rest()
        failure: EvaluationFailed | None = None
        metrics: dict[str, float] = {}
        with self._clock.excluded():
            is_in_them = self._scoring.evaluator.in_training_envs
            if is_last and self._config.env.urls and program.env is not None and not is_in_them:
                program.env.close()  # evaluation takes their slots
            try:
                metrics, is_best = self._scoring.score(
                    num_episodes,
                    self._progress.env_steps,
                    report.wall_s,
                    is_last=is_last,
                    options=self._parts.sampler.eval_options(),
                    stop=stop,
                )
            except EvaluationFailed as e:  # raised behind the clock's block, which knows of none
                failure, is_best = e, False
            if is_best:
                self._saving.save_best()
            # Else the others' next iteration would book rank 0's copying as waiting.
            self._parts.group.barrier()
        if failure is not None:
            raise failure
        return dataclasses.replace(report, global_metrics={**report.global_metrics, **metrics})

    def _save(self) -> None:
        with self._clock.checkpoint():
            self._saving.save()


def _next_multiple(steps: int, every: int) -> float:
    """Return the first multiple of `every` above `steps`; infinity for every = 0."""
    return (steps // every + 1) * every if every else math.inf
