"""One iteration of a rank, from the rollout to the report: what `ddppo.run.loop.loop` repeats."""

import dataclasses

from ddppo.processes.signals import StopRequest
from ddppo.run.checkpoints.saving import Saving
from ddppo.run.loop.exchange import NoExchange
from ddppo.run.loop.progress import Progress
from ddppo.run.loop.replicas import fingerprint
from ddppo.run.loop.steps import Steps
from ddppo.run.measuring.own_metrics import OwnMetrics
from ddppo.run.measuring.reporting import Agreed, LocalIteration, Reporter
from ddppo.run.measuring.timing import IterationClock
from ddppo.run.parts import Parts
from ddppo.run.records.metrics import OF_CURRICULUM, OF_SEARCH, OF_USER, IterationReport


class Iterations:
    """The iterations of this rank, timed by `clock` from where it was made on."""

    def __init__(
        self,
        parts: Parts,
        progress: Progress,
        *,
        clock: IterationClock,
        steps: Steps,
        saving: Saving,
        exchange: NoExchange,
        reporter: Reporter,
    ) -> None:
        self.parts = parts
        self.progress = progress
        self.clock = clock
        self._steps = steps
        self._saving = saving
        self._exchange = exchange
        self._reporter = reporter
        # In this process, in code of the task's.
        self._steps_tasks = parts.derived["env_backend"] in ("auto", "sync", "native")
        self._own_metrics = OwnMetrics(parts.config.log.metrics, parts.group)

    def next(self, stop: StopRequest) -> tuple[IterationReport, list[bytes], Agreed]:
        """One iteration: all ranks start it with equal parameters and end it with equal parameters.

        Returns its report, what environments published in it, and what the ranks agreed on.
        """
        parts, progress, program = self.parts, self.progress, self.parts.program
        config, group, clock, iteration = parts.config, parts.group, self.clock, progress.iteration + 1
        group.begin(iteration)
        with clock.phase("rollout"):
            collected = program.collect(iteration)
        if self._steps_tasks:
            stop.listen_again()
        group.barrier()  # what a rank spends here it spends on the slowest rollout
        with clock.phase("learn"):
            update = program.learn(collected, iteration, progress.env_steps / config.ppo.total_steps)
        news = self._exchange.meet()
        program.hear(news)
        own = self._own_metrics.reduced(iteration, collected)
        compare = config.dist.check_every > 0 and iteration % config.dist.check_every == 0
        times = clock.lap()
        progress.wall_s += times.t_iter
        local = LocalIteration(
            iteration=iteration,
            times=times,
            update=update,
            num_steps=collected.num_steps,
            episodes=collected.episodes,
            stop_requested=stop.requested or program.is_asked_to_stop(),
            step_ready=self._steps.is_ready(),
            save_due=self._saving.is_due(),
            params_hash=fingerprint(parts) if compare else 0,
            measured=program.measured(),
            news=program.news(),
        )
        report, agreed = self._reporter.exchange(
            local, env_steps_before=progress.env_steps, wall_s=progress.wall_s
        )
        if agreed.step_ready and progress.compiled_from is None:
            self._steps.take(iteration + 1)
        progress.iteration, progress.env_steps = iteration, report.env_steps
        return self._with_others(report, own), news, agreed

    def _with_others(self, report: IterationReport, own: dict[str, float]) -> IterationReport:
        """Return the report with the user's own metrics, and those of who chose what was played, if anybody did."""
        program = self.parts.program
        if program.rounds is None and program.campaign is None and not own:
            return report
        metrics = report.global_metrics | {OF_USER + name: x for name, x in own.items()}
        if program.rounds is not None:
            metrics |= {OF_CURRICULUM + name: x for name, x in program.rounds.metrics().items()}
        if program.campaign is not None:
            metrics |= {OF_SEARCH + name: x for name, x in program.campaign.metrics().items()}
        return dataclasses.replace(report, global_metrics=metrics)
