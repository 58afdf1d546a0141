"""One iteration of a rank, from the rollout to the report: what `ddppo.run.loop.loop` repeats."""

import dataclasses

import torch

from ddppo.algorithms.task_sampler import EpisodeResults
from ddppo.distributed.programs.contract import Collected
from ddppo.distributed.programs.kit import RankContext
from ddppo.processes.signals import StopRequest
from ddppo.run.checkpoints.saving import Saving
from ddppo.run.loop.exchange import NoExchange
from ddppo.run.loop.progress import Progress
from ddppo.run.loop.replicas import fingerprint
from ddppo.run.measuring.own_metrics import OwnMetrics
from ddppo.run.measuring.reporting import Agreed, LocalIteration, Reporter
from ddppo.run.measuring.timing import IterationClock
from ddppo.run.records.metrics import OF_USER, IterationReport


class Iterations:
    """The iterations of this rank, timed by `clock` from where it was made on."""

    def __init__(
        self,
        parts: RankContext,
        progress: Progress,
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
        self._steps_tasks = parts.derived["env_backend"] in ("auto", "sync", "native")
        self._own_metrics = OwnMetrics(parts.config.log.metrics, parts.group)

    def next(self, stop: StopRequest) -> tuple[IterationReport, list[bytes], Agreed]:
        """One iteration: all ranks start it with equal parameters and end it with equal parameters.

        Returns its report, what environments published in it, and what the ranks agreed on.
        """
        parts, progress, program = self.parts, self.progress, self.parts.program
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
            save_due=self._saving.is_due(),
            params_hash=fingerprint(parts) if compare else 0,
            measured=program.measured(),
            news=program.news(),
        )
        report, agreed = self._reporter.exchange(
            local, env_steps_before=progress.env_steps, wall_s=progress.wall_s
        )
        progress.iteration, progress.env_steps = iteration, report.env_steps
        more = {OF_USER + name: x for name, x in own.items()} | sampler.metrics()
        if results is not None and len(known := results.achieved[~results.achieved.isnan()]):
            more["rollout/success_rate"] = known.mean().item()
        if more:
            report = dataclasses.replace(report, global_metrics=report.global_metrics | more)
        return report, messages, agreed

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
