"""The loop of a rank: collect, learn, report; and in between evaluate, record and save.

`Loop.iterate` is one iteration, the same for every topology, algorithm and task:

    collect     the topology steps environments and acts: T steps of each environment into one rollout
    barrier     every rank waits here for the slowest rollout
    learn       advantages, K epochs of M minibatches, one gradient sum per minibatch (ppo/learner.py)
    messages    environments that publish something hand it to all others
    report      one gather turns the ranks' numbers into one report, and into what all ranks do next
"""

import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ddppo.algorithms.task_sampler import EpisodeResults
from ddppo.collectives.group import gather_bytes
from ddppo.device import peak_memory
from ddppo.distributed.topologies.base import Collected, RankContext
from ddppo.envs.vec_env import take_infos
from ddppo.errors import CollectiveError, EvaluationFailed, TrainingError
from ddppo.loop.build import TrainState, fingerprint
from ddppo.loop.checkpointer import Checkpointer
from ddppo.loop.env_messages import NoMessages
from ddppo.loop.evaluation import RunEvaluator
from ddppo.package import command
from ddppo.plugins import imported
from ddppo.ppo.rollout import EpisodeOutcome, OwnWriter, outcome_metrics
from ddppo.processes.signals import StopRequest
from ddppo.records import checkpoint
from ddppo.records.metrics import USER_PREFIX, IterationReport
from ddppo.records.profiling import NullProfiler
from ddppo.records.recorder import NullRecorder, Recorder
from ddppo.records.reporting import LocalIteration, LoopRequests, Reporter
from ddppo.records.run_folder import ending_by_callback, ending_by_evaluation, ending_by_task
from ddppo.records.timing import IterationClock
from ddppo.records.user_metrics import UserMetrics
from ddppo.terminal import warn


class Loop:
    """Iterations until total_steps are done or a rank asks to stop. All ranks evaluate and save after the same ones."""

    def __init__(
        self,
        context: RankContext,
        progress: TrainState,  # moves on with every iteration
        *,
        reporter: Reporter,
        recorder: Recorder | NullRecorder,
        evaluator: RunEvaluator,
        checkpointer: Checkpointer,
        env_messages: NoMessages,
        profiler: NullProfiler,
    ) -> None:
        self.context = context
        self.progress = progress
        self.clock = IterationClock(reporter.groups, context.device, profiler.phase)  # starts now
        self._reporter = reporter
        self._recorder = recorder
        self._evaluator = evaluator
        self._checkpointer = checkpointer
        self._env_messages = env_messages
        self._profiler = profiler
        self._user_metrics = UserMetrics(
            context.config.log.metrics, context.group, envs_log=context.env_config.backend == "device"
        )
        # These backends run the task's code in this process, where it may replace our signal handlers.
        self._runs_task_code = context.derived["env_backend"] in ("auto", "sync", "gym_vector", "device")
        self._rollout_writer: OwnWriter | None = None
        if (path := context.model.rollout_writer_class) is not None:
            writer_class = imported(path)
            self._rollout_writer = writer_class(
                context, checkpointer.run_dir, progress.iteration, progress.env_steps
            )
        self._callbacks: Any = None  # of the user, run.callbacks; else nothing of them is imported
        if context.config.run.has_callbacks:
            callbacks_class = imported("ddppo.records.callbacks:Callbacks")
            self._callbacks = callbacks_class(context.config, context.group, checkpointer.run_dir)
        self.failed: list[dict[str, str]] = []  # steps after training that failed, for summary.json
        self.lost: CollectiveError | None = None  # a rank was lost in the final evaluation

    def run(self, stop: StopRequest) -> str:
        """Return how it ended: completed or stopped."""
        config, progress, saver = self.context.config, self.progress, self._checkpointer
        total_steps = config.training.total_steps
        if (
            progress.env_steps >= total_steps or progress.ended
        ):  # resumed: it lacks its final evaluation or summary
            return self._finish(saver.unrecorded, stop)
        next_eval = _next_multiple(progress.env_steps, config.eval.every_steps)
        next_save = _next_multiple(progress.env_steps, config.checkpoint.every_steps)
        while True:
            with self._profiler.iteration():
                report, messages, requests = self.iterate(stop)

            # The last iteration: save first, so that a failing evaluation loses nothing.
            if progress.env_steps >= total_steps:
                self.context.sampler.conclude()
                report = self._recorder.add_task_metrics(report, messages)
                self._call_back("on_iteration", report)
                if config.eval.final_episodes:
                    with self.clock.checkpoint():
                        saver.save_before_evaluation(report)
                    return self._finish(report, stop)
                self._recorder.record(report, None, is_last=True)
                self._save()
                saver.writer.wait()
                return self._end("completed", report)

            # Between iterations: evaluate, record, save, each when it is due. `requests` are the same on all ranks.
            is_evaluated = progress.env_steps >= next_eval and not requests.stop
            if is_evaluated:
                report = self._evaluate_between(report)
                next_eval = _next_multiple(progress.env_steps, config.eval.every_steps)
            report = self._recorder.add_task_metrics(report, messages)
            self._recorder.record(report, None, is_last=False)
            saver.writer.check()
            asked = self._call_back("on_iteration", report)
            if is_evaluated and any(name.startswith("eval/") for name in report.global_metrics):
                progress.ended = ending_by_evaluation(
                    config, self._evaluator.last_mean, self._evaluator.evals_without_best
                )
                asked = {**asked, **self._call_back("on_evaluation", report)}
            if "stop" in asked and not progress.ended:
                progress.ended = ending_by_callback(asked["stop"])
            if requests.finish and not progress.ended:
                progress.ended = ending_by_task(config)
            if progress.ended and not requests.stop:
                return self._finish_early(report, stop)
            if requests.stop or requests.save or "save" in asked or progress.env_steps >= next_save:
                self._save()
                next_save = _next_multiple(progress.env_steps, config.checkpoint.every_steps)
                asked = self._call_back("on_checkpoint", report)
                if "stop" in asked and not requests.stop:
                    progress.ended = ending_by_callback(asked["stop"])
                    return self._finish_early(report, stop)
            if requests.stop:
                saver.writer.wait()
                return self._end("stopped", report)

    def iterate(self, stop: StopRequest) -> tuple[IterationReport, list[bytes], LoopRequests]:
        """Do one iteration. All ranks begin it with equal parameters and end it with equal parameters.

        Returns its report, the messages that environments published in it, and what any rank asks of the loop.
        """
        context, progress, clock = self.context, self.progress, self.clock
        config, group, topology, sampler = context.config, context.group, context.topology, context.sampler
        iteration = progress.iteration + 1
        group.begin(iteration)

        # 1. Collect T steps of every environment.
        share_done = progress.env_steps / config.training.total_steps
        context.algorithm.progress = share_done
        with clock.phase("rollout"):
            if sampler.every_iteration:  # of whole episodes: each iteration begins new ones
                topology.reset(sampler.sample(iteration))
            collected = topology.collect(iteration)
        if self._runs_task_code:
            stop.listen_again()

        # 2. Wait for the slowest rank. The time is charged to t_sync, not to the collectives that follow.
        group.barrier()

        # 3. Learn.
        with clock.phase("learn"):
            update = topology.learn(collected, iteration, share_done)
            results = self._episode_results(collected)
            outcomes = self._outcomes()
        if self._rollout_writer is not None:
            self._rollout_writer.write(iteration)

        # 4. Environments publish and receive; the task sampler learns from the episodes' results.
        messages = self._env_messages.exchange()
        sampler.update(results, messages)
        user_metrics = self._user_metrics.reduce(iteration, collected)

        # 5. Report: stop the clock, gather a row of every rank. Ranks compare a hash of their parameters now and then.
        compares = config.dist.check_every > 0 and iteration % config.dist.check_every == 0
        times = clock.lap()
        progress.wall_s += times.t_iter
        local = LocalIteration(
            iteration=iteration,
            times=times,
            collected=collected,
            update=update,
            requests=LoopRequests(
                stop=stop.requested or topology.is_asked_to_stop(),
                save=self._checkpointer.is_due(),
                finish=self._recorder.is_finished(),
            ),
            params_hash=fingerprint(context) if compares else 0,
            measured=topology.measured(),
            own_pace=topology.own_pace_reports(),
            infos=_sums_of_infos(take_infos(topology.env)),
            device_memory=peak_memory(context.device),
        )
        report, requests = self._reporter.reduce(
            local, env_steps_before=progress.env_steps, wall_s=progress.wall_s
        )
        progress.iteration, progress.env_steps = iteration, report.env_steps

        # 6. Metrics that are known on all ranks already.
        more = {USER_PREFIX + name: x for name, x in user_metrics.items()} | sampler.metrics()
        more |= outcome_metrics(outcomes, config.training.group_size)
        if results is not None and len(known := results.achieved[~results.achieved.isnan()]):
            more["rollout/success_rate"] = known.mean().item()
        if more:
            report = dataclasses.replace(report, global_metrics=report.global_metrics | more)
        return report, messages, requests

    def _episode_results(self, collected: Collected) -> EpisodeResults | None:
        """Return the results of all environments' episodes, if the task says whether an episode achieved its goal."""
        context, rollout = self.context, collected.rollout
        if context.model.collector_class is None:  # our own collectors report no results of episodes
            return None
        # Whichever rank holds the rollout of an environment fills its column [reported, achieved, was played].
        local = torch.zeros(3, context.shape.num_envs, dtype=torch.float64)
        if rollout is not None and rollout.achieved is not None:
            assert context.topology.collector is not None
            first, num_envs = context.topology.collector.first_env, len(rollout.achieved)
            columns = local[:, first : first + num_envs]
            columns[0] = 1
            columns[1] = rollout.achieved
            columns[2] = rollout.valid.any(0)
        of_all = context.group.gather(local).sum(0)  # [W, 3, N] -> [3, N]
        return EpisodeResults(of_all[1], of_all[2]) if of_all[0].all() else None

    def _outcomes(self) -> list[EpisodeOutcome]:
        """Return the outcomes of the episodes of all ranks, in the order of environments; [] if none are reported."""
        context = self.context
        if context.model.collector_class is None:  # our own collectors report none
            return []
        collect = getattr(context.topology.collector, "outcomes", list)
        own = json.dumps([dataclasses.asdict(outcome) for outcome in collect()])
        parts, _ = gather_bytes(context.group, own.encode())
        rows = [row for part in parts for row in json.loads(part)]
        return sorted((EpisodeOutcome(**row) for row in rows), key=lambda outcome: outcome.env_index)

    # -- Evaluation.

    def _evaluate(
        self, report: IterationReport, num_episodes: int, stop: StopRequest | None = None
    ) -> IterationReport:
        """Return the report with eval/* added. The time is on evaluation's own clock, not in t_iter.

        stop: given for the final evaluation, which a signal cuts short. Raises EvaluationFailed on all ranks at once.
        """
        topology, is_last = self.context.topology, stop is not None
        topology.rest()  # actors at their own pace pause
        failure: EvaluationFailed | None = None
        metrics: dict[str, float] = {}
        with self.clock.excluded():
            uses_training_envs = self._evaluator.evaluator.in_training_envs
            if (
                is_last
                and self.context.config.env.urls
                and topology.env is not None
                and not uses_training_envs
            ):
                topology.env.close()  # the server has as many slots as training takes: evaluation takes over these
            try:
                metrics, is_best = self._evaluator.score(
                    num_episodes,
                    self.progress.env_steps,
                    report.wall_s,
                    is_last=is_last,
                    options=self.context.sampler.eval_options(),
                    stop=stop,
                )
            except EvaluationFailed as e:  # raised after this block, which then has excluded its time
                failure, is_best = e, False
            else:
                self._evaluator.evaluator.write_rollouts(
                    self._checkpointer.run_dir, self.progress.iteration, self.progress.env_steps,
                    f"rank_{self.context.group.rank}",
                )  # fmt: skip
            if is_best:
                self._checkpointer.save_best()
            # Without this barrier other ranks would count rank 0's copying as waiting in their next iteration.
            self.context.group.barrier()
        if failure is not None:
            raise failure
        return dataclasses.replace(report, global_metrics={**report.global_metrics, **metrics})

    def _evaluate_between(self, report: IterationReport) -> IterationReport:
        """Evaluate while the run trains; a failure is a warning, unless eval.on_error=stop."""
        try:
            return self._evaluate(report, self.context.config.eval.episodes)
        except EvaluationFailed as e:
            if e.signal is not None:
                raise KeyboardInterrupt from e
            if self.context.config.eval.on_error == "stop":
                raise (e.__cause__ if isinstance(e.__cause__, Exception) else e) from None
            if e.trace:
                print(e.trace, file=sys.stderr, flush=True)
            if self.context.group.rank == 0:
                warn(
                    f"the evaluation after {report.env_steps:,} steps failed, and training goes on without its scores "
                    f"(eval.on_error=stop would end it): {e}"
                )
            return report

    def _finish(self, report: IterationReport | None, stop: StopRequest) -> str:
        """Evaluate after training, which is complete and saved; record and save the scores. Return how the run ended.

        report: of the last iteration; None if an earlier start recorded it, and only the evaluation is repeated. If the
        run ended early, it is recorded already, with an evaluation of its own.
        """
        progress, num_episodes = self.progress, self.context.config.eval.final_episodes
        no_rank_metrics: tuple[dict[str, float], ...] = ({},) * self.context.shape.world_size
        scores = IterationReport(progress.iteration, progress.env_steps, progress.wall_s, no_rank_metrics, {})
        is_cut_short = False
        try:
            if num_episodes:
                scores = self._evaluate(scores, num_episodes, stop)
        except EvaluationFailed as e:
            self._note_failure(str(e), e.trace)
            is_cut_short = e.signal is not None
        except CollectiveError as e:
            # A rank was lost in its episodes, or hangs. With dist.on_lost=restart new ranks evaluate again.
            self._note_failure(str(e))
            self.lost = e
        if report is None or progress.ended:
            self._recorder.set_final_evaluation(scores)
        else:
            metrics = {**report.global_metrics, **scores.global_metrics}
            self._recorder.record(dataclasses.replace(report, global_metrics=metrics), None, is_last=True)
        if report is not None:
            self._checkpointer.writer.check()
            if not self.failed:
                self._checkpointer.save_after_evaluation()
        self._checkpointer.writer.wait()
        before = {} if report is None else report.global_metrics
        last = dataclasses.replace(report or scores, global_metrics={**before, **scores.global_metrics})
        if scores.global_metrics:
            self._call_back("on_evaluation", last, is_trained=True)
        self._call_back("on_checkpoint", last, is_trained=True)
        return self._end("stopped" if is_cut_short else "completed", last)

    def _finish_early(self, report: IterationReport, stop: StopRequest) -> str:
        """Complete the run before total_steps: save it with the reason, then evaluate it. `report` is recorded."""
        self.context.sampler.conclude()
        with self.clock.checkpoint():
            self._checkpointer.save_before_evaluation(report)
        return self._finish(report, stop)

    def _end(self, status: str, report: IterationReport) -> str:
        """Call callbacks once more, and return how the run ended."""
        if self.lost is None:
            self._call_back("on_end", report, status=status, is_trained=status == "completed")
        return status

    # -- Callbacks.

    def _call_back(
        self, hook: str, report: IterationReport, *, status: str = "running", is_trained: bool = False
    ) -> dict[str, Any]:
        """Call a hook of the user's callbacks on rank 0; return on all ranks what they ask for. Takes no training time.

        Raises TrainingError on all ranks if a callback raised, once the run is saved. In a run that is trained and
        saved, it is a failure after training.
        """
        if self._callbacks is None:
            return {}
        checkpoint_path, learner = None, self.context.topology.learner
        share_done = self.progress.env_steps / self.context.config.training.total_steps
        with self.clock.excluded():
            if hook == "on_checkpoint":
                self._checkpointer.writer.wait()
                checkpoint_path = checkpoint.last(self._checkpointer.run_dir / "checkpoints")
            asked: dict[str, Any] = self._callbacks.call(
                hook,
                {
                    "iteration": report.iteration,
                    "env_steps": report.env_steps,
                    "wall_s": report.wall_s,
                    "status": status,
                    "metrics": {name: float(x) for name, x in report.scalars().items()},
                    "coefficients": learner.values_of_coefficients(share_done),
                    "checkpoint": None if checkpoint_path is None else str(checkpoint_path),
                },
            )
        for name, value in asked.get("set", {}).items():
            learner.set_coefficient(name, value)
        if (error := asked.get("error")) is None:
            return asked
        if is_trained:
            again = command("ddppo.train", f"resume={self._checkpointer.run_dir}")
            self.failed.append({"step": f"the callback {hook}", "why": error, "command": again})
            return {}
        if hook != "on_checkpoint":
            self._save()
        self._checkpointer.writer.wait()
        raise TrainingError(
            f"{error}. The run is saved; once the callback is mended, go on with resume={self._checkpointer.run_dir}"
        )

    def _note_failure(self, why: str, trace: str = "") -> None:
        """Note that the final evaluation failed, with the command that repeats it."""
        if trace:
            print(trace, file=sys.stderr, flush=True)
        num_episodes = self.context.config.eval.final_episodes
        again = command("ddppo.evaluate", f"run={self._checkpointer.run_dir}", f"episodes={num_episodes}")
        self.failed.append({"step": "the final evaluation", "why": why, "command": again})

    def _save(self) -> None:
        with self.clock.checkpoint():
            self._checkpointer.save()


def _sums_of_infos(infos: Mapping[int, Sequence[Mapping[str, float]]]) -> dict[str, tuple[float, int]]:
    """Return the sum of each number over episodes, and the number of episodes that have it."""
    sums: dict[str, tuple[float, int]] = {}
    for of_env in infos.values():
        for numbers in of_env:
            for name, x in numbers.items():
                total, count = sums.get(name, (0.0, 0))
                sums[name] = total + x, count + 1
    return sums


def _next_multiple(steps: int, every: int) -> float:
    """Return the first multiple of `every` above `steps`; infinity if `every` is 0."""
    return (steps // every + 1) * every if every else math.inf
