"""One rank's life, top to bottom: join, build, then collect, learn, report, evaluate and save until the end.

`python -m ddppo.run.worker <run folder>` is a rank under an outer torchrun; our own launcher starts ddppo.run.rank,
which comes here. Ranks read the resolved config.yaml of the folder; none of them parses a command line.
"""

import dataclasses
import gc
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from ddppo import config as configuration
from ddppo.collectives import Group
from ddppo.config import Config
from ddppo.distributed.launch import (
    join,
    launchers_store,
    leave,
)
from ddppo.errors import (
    LOST_PEERS,
    MAY_PASS,
    CollectiveError,
    ConfigError,
    EnvRaised,
    EnvWorkerLost,
    NonFiniteError,
    StorageError,
    TrainingError,
)
from ddppo.ppo.collector import Collector
from ddppo.ppo.native.step import NativeStep
from ddppo.ppo.text import TextCollector
from ddppo.run import checkpoint
from ddppo.run.checkpoints import exactness
from ddppo.run.checkpoints.environments import Environments
from ddppo.run.checkpoints.writer import Writer
from ddppo.run.compilation import Compilation
from ddppo.run.evaluation import Policy
from ddppo.run.exchange import NoExchange, make_exchange
from ddppo.run.folder import RunFolder
from ddppo.run.parts import build
from ddppo.run.profiling import make_profiler
from ddppo.run.records.metrics import OF_CURRICULUM, IterationReport
from ddppo.run.records.recorder import NullRecorder, Recorder
from ddppo.run.reporting import Agreed, LocalIteration, Reporter
from ddppo.run.scoring import Scoring
from ddppo.run.timing import IterationClock
from ddppo.signals import StopRequest, end_of_time, stop_signals_kill
from ddppo.terminal import unbroken_streams, warn
from ddppo.topologies import find


class Worker:
    """What one rank owns, and the loop over iterations."""

    def __init__(self, config: Config, run_dir: Path, group: Group, device: torch.device) -> None:
        self.config = config
        self.run_dir = run_dir
        self.group = group
        self.device = device
        self.parts = build(config, group, device)
        policy = Policy(self.parts.model, self.parts.obs_normalizer, self.parts.spec)
        collector = self.parts.program.collector
        of_text = collector if isinstance(collector, TextCollector) else None
        self.scoring = Scoring(
            config, policy, group, self.parts.players, of_text, self.parts.shape.local_num_shards
        )
        self.groups = (group, *self.parts.program.groups)
        compared = "parameters" if self.parts.program.rounds is None else "parameters or the curriculum"
        if self.parts.program.campaign is not None:
            compared = "parameters or the search"
        self.reporter = Reporter(self.groups, self.parts.layout, config.log.episode_window, compared)
        self.profiler = make_profiler(
            config.log.profile_iterations if group.rank == 0 else 0, run_dir / "profile"
        )
        self.clock = IterationClock(self.groups, device)
        self.exchange = NoExchange()
        self.environments = self._environments()
        self.of_environments: dict[str, Any] | None = None  # what those of a resumed run were in the midst of
        self.writer = Writer(run_dir / "checkpoints", config.checkpoint.keep)
        self.saved_at = time.monotonic()
        self._yaml = configuration.to_yaml(dataclasses.replace(config, resume=None))  # whoever began it
        self.compilation: Compilation | None = None
        self.compiled_from: int | None = None  # the first iteration whose steps were compiled
        self.is_cut_short = False
        self.iteration = 0
        self.env_steps = 0
        self.wall_before = 0.0

    def _environments(self) -> Environments:
        if exactness.is_between_episodes(self.config, self.parts.spec):
            return Environments(self.parts, self.group, "")
        why_not, doubt = exactness.why_left_out(self.config), None
        if why_not is None and self.group.rank == 0:
            doubt = exactness.why_inexact(self.config.env)
        return Environments(self.parts, self.group, why_not, doubt)

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> int | None:
        """Train until total_steps, or until a rank asks to stop; leave summary.json behind either way.

        Returns the signal that asked this rank to stop, if one did, be it too late to cut the run short.
        """
        with StopRequest(end_of_time(self.config.run.max_minutes)) as stop:
            self._serve(stop) if self.serves else self._run(stop)
        return stop.signal

    @property
    def serves(self) -> bool:
        """Whether this rank has no part in the loop: it goes at its own pace and does what others ask for."""
        topology = find(self.config.dist.topology)
        return topology.own_pace and not self.parts.layout.role(self.group.rank).learns

    def _serve(self, stop: StopRequest) -> None:
        try:
            self._begin_compilation()
            stop.listen()
            self.parts.program.serve(stop)
        finally:
            if self.compilation is not None:
                self.compilation.close()
            self.parts.program.close()

    def _run(self, stop: StopRequest) -> None:
        recorder: Recorder | NullRecorder = NullRecorder()
        try:
            self._begin_compilation()
            if self.group.rank == 0:
                recorder = self._recorder()
            self.exchange = make_exchange(self.parts, self.group, recorder.known)
            self._begin_environments()
            self.group.barrier()  # nobody's first iteration begins while another rank still builds
            self.clock = IterationClock(self.groups, self.device, self.profiler.phase)
            gc.freeze()  # what is here stays: looking through it for garbage took 3 % of a short iteration
            stop.listen()  # from here on there is something to save, and until summary.json is written
            status = self._loop(recorder, stop)
            self.is_cut_short = status == "stopped"
        except BaseException as e:
            with suppress(Exception):  # what comes on top of a fault would hide it
                self._close(recorder, "failed")
            if isinstance(e, (NonFiniteError, StorageError)):
                last = checkpoint.last(self.run_dir / "checkpoints")
                said = f"The last good checkpoint is {last}" if last else "There is no checkpoint yet"
                if isinstance(e, StorageError):
                    said += f"; once that can be written, go on with resume={self.run_dir}" * (
                        last is not None
                    )
                raise type(e)(f"{e}. {said}") from e
            raise
        self._close(recorder, status)

    def _begin_environments(self) -> None:
        """Start the environments anew, or in the midst of what the checkpoint says."""
        state, self.of_environments = self.of_environments, None
        why = self.environments.begin(lambda: self.parts.program.reset(self.iteration), state)
        if state is None or why is not None:
            self.exchange.begin()
        is_told = find(self.config.dist.topology).own_pace  # by its program
        if why is not None and self.group.rank == 0 and not is_told:
            warn(f"the run goes on approximately, its environments with new episodes: {why}")

    def _begin_compilation(self) -> None:
        iterations = -(-(self.config.ppo.total_steps - self.env_steps) // self.parts.shape.batch_size)
        role = self.parts.layout.role(self.group.rank)
        self.compilation = Compilation(
            self.config,
            self.parts.spec,
            self.parts.model,
            self.parts.learner,
            self.group,
            learners=self.parts.program.learners,
            sync_name=self.parts.program.sync.name,
            num_steps=iterations * self.parts.shape.num_epochs * self.parts.shape.num_minibatches,
            goes_on=self.compiled_from is not None,
            idle=not (role.acts or role.learns),
        )
        begin = self.compilation.begin_native if self.serves else self.compilation.begin
        self._switch(self.iteration + 1, compiled=begin())
        self.parts.derived["step"] = self.compilation.kind
        collector = self.parts.program.collector
        if isinstance(collector, Collector) and isinstance(self.compilation.step, NativeStep):
            collector.act_by(self.compilation.step.network)

    def _switch(self, iteration: int, *, compiled: bool) -> None:
        """Take the compiled step from `iteration` on, or the eager one."""
        if not compiled:
            self.compiled_from = None
        elif self.compilation is not None and self.compilation.step is not None:
            self.parts.learner.step = self.compilation.step
            self.compiled_from = self.compiled_from or iteration

    def _recorder(self) -> Recorder:
        position = {"iteration": self.iteration, "env_steps": self.env_steps}
        return Recorder(
            self.config,
            self.parts.shape,
            self.run_dir,
            self.parts.derived,
            **position,
            wall_s=self.wall_before,
            journal=self.parts.spec.journal,
            rounds=self.parts.program.rounds,
            campaign=self.parts.program.campaign,
        )

    def _close(self, recorder: Recorder | NullRecorder, status: str) -> None:
        try:
            if status == "failed":
                with suppress(StorageError):
                    self.writer.wait()
            recorder.close(
                status,
                params_hash=self.parts.parameters.digest(),
                compiled_from=self.compiled_from,
                best=self.scoring.best,
                target=self.scoring.target,
            )
        finally:
            gc.unfreeze()
            if self.compilation is not None:
                self.compilation.close()
            if status != "failed":
                self.parts.program.finish()
            self.parts.program.close()

    def _loop(self, recorder: Recorder | NullRecorder, stop: StopRequest) -> str:
        config = self.config
        if self.env_steps >= config.ppo.total_steps:  # killed after its last checkpoint, before its summary
            report = IterationReport(
                self.iteration, self.env_steps, self.wall_before, ({},) * self.parts.shape.world_size, {}
            )
            if config.eval.final_episodes:
                report = self._with_evaluation(report, config.eval.final_episodes, is_last=True)
            recorder.conclude(report)
            return "completed"
        next_eval = _next_multiple(self.env_steps, config.eval.every_steps)
        next_save = _next_multiple(self.env_steps, config.checkpoint.every_steps)
        while True:
            with self.profiler.iteration():
                report, news, agreed = self._iterate(stop)
            stopping = agreed.stopping
            is_last = self.env_steps >= config.ppo.total_steps
            if is_last:
                self.parts.program.conclude()
            if is_last and config.eval.final_episodes:
                if (
                    config.env.urls
                ):  # whose servers may be gone: a resumed run evaluates then, and has nothing to learn
                    self._save()
                report = self._with_evaluation(report, config.eval.final_episodes, is_last=True)
            elif self.env_steps >= next_eval and not stopping:
                report = self._with_evaluation(report, config.eval.episodes)
                next_eval = _next_multiple(self.env_steps, config.eval.every_steps)
            recorder.record(report, news, is_last=is_last)
            self.writer.check()
            if is_last or stopping or agreed.save_due or self.env_steps >= next_save:
                self._save()
                next_save = _next_multiple(self.env_steps, config.checkpoint.every_steps)
            if is_last or stopping:
                self.writer.wait()
                return "completed" if is_last else "stopped"

    def _iterate(self, stop: StopRequest) -> tuple[IterationReport, list[bytes], Agreed]:
        """One iteration: all ranks start it with equal parameters and end it with equal parameters.

        Returns its report, what environments published in it, and what the ranks agreed on.
        """
        config, iteration = self.config, self.iteration + 1
        self.group.begin(iteration)
        with self.clock.phase("rollout"):
            collected = self.parts.program.collect(iteration)
        self.group.barrier()  # what a rank spends here it spends on the slowest rollout
        with self.clock.phase("learn"):
            progress = self.env_steps / config.ppo.total_steps
            update = self.parts.program.learn(collected, iteration, progress)
        news = self.exchange.meet()
        self.parts.program.hear(news)
        compare = config.dist.check_every > 0 and iteration % config.dist.check_every == 0
        local = LocalIteration(
            iteration=iteration,
            times=self.clock.lap(),
            update=update,
            num_steps=collected.num_steps,
            episodes=collected.episodes,
            stop_requested=stop.requested or self.parts.program.is_asked_to_stop(),
            step_ready=self.compilation is not None and self.compilation.is_ready(),
            save_due=self._is_save_due(),
            params_hash=self._params_hash() if compare else 0,
            measured=self.parts.program.measured(),
            news=self.parts.program.news(),
        )
        report, agreed = self.reporter.exchange(
            local, env_steps_before=self.env_steps, wall_s=self.wall_before + self.clock.elapsed
        )
        if self.parts.program.rounds is not None:
            told = {OF_CURRICULUM + name: x for name, x in self.parts.program.rounds.metrics().items()}
            report = dataclasses.replace(report, global_metrics={**report.global_metrics, **told})
        if self.parts.program.campaign is not None:
            told = {f"search/{name}": x for name, x in self.parts.program.campaign.metrics().items()}
            report = dataclasses.replace(report, global_metrics={**report.global_metrics, **told})
        if agreed.step_ready and self.compiled_from is None:
            self._switch(iteration + 1, compiled=True)
        self.iteration, self.env_steps = iteration, report.env_steps
        return report, news, agreed

    def _params_hash(self) -> float:
        """Return 48 bits of the hash of the parameters, and of curriculum and search if any, exact in float64.

        NaN on a rank that does not hold them.
        """
        if self.group.rank not in self.parts.players:
            return math.nan
        digest = self.parts.parameters.digest()
        if self.parts.program.rounds is not None:
            digest = self.parts.program.rounds.digest(digest)
        if self.parts.program.campaign is not None:
            digest = self.parts.program.campaign.digest(digest)
        return int(digest[:12], 16)

    # -- evaluation ----------------------------------------------------------------------------------------------

    def _with_evaluation(
        self, report: IterationReport, num_episodes: int, *, is_last: bool = False
    ) -> IterationReport:
        """Return the report with eval/* added; the time it takes is on evaluation's own clock."""
        self.parts.program.rest()
        with self.clock.excluded():
            env = self.parts.program.env
            if is_last and self.config.env.urls and env is not None and not self.parts.spec.is_text:
                env.close()  # evaluation takes their slots
            metrics, is_best = self.scoring.score(
                num_episodes,
                self.env_steps,
                report.wall_s,
                is_last=is_last,
                options=self.parts.program.options(),
            )
            if is_best and self.group.rank == 0:
                self.writer.save_best(self._state())
            self.group.barrier()  # else the others' next iteration would book rank 0's copying as waiting
        return dataclasses.replace(report, global_metrics={**report.global_metrics, **metrics})

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Hand over to the writer what all that follows depends on; all ranks come here together."""
        self.saved_at = time.monotonic()
        with self.clock.checkpoint():
            environments = self.environments.state()
            if (
                self.group.rank == 0
            ):  # all are equal, and every random stream follows from the seed and counters
                self.writer.save_iteration(self.iteration, self._state() | {"environments": environments})

    def _is_save_due(self) -> bool:
        """Return whether rank 0, whose clock decides, is to save by the time that has passed."""
        minutes = self.config.checkpoint.every_minutes
        return self.group.rank == 0 and 0 < 60 * minutes <= time.monotonic() - self.saved_at

    def _state(self) -> dict[str, Any]:
        rounds = self.parts.program.rounds
        return {
            "config": self._yaml,
            "iteration": self.iteration,
            "env_steps": self.env_steps,
            "wall_s": self.wall_before + self.clock.elapsed,
            "compiled_from": self.compiled_from,
            "window": [list(episode) for episode in self.reporter.window],
            "best": self.scoring.best,
            "target": self.scoring.target,
            "curriculum": rounds.state() if rounds is not None else None,
            "program": self.parts.program.state(),
            "options": self.parts.program.options(),
            **self.parts.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state; environments start new episodes, unless theirs are in it and wanted."""
        self.parts.restore(state)
        if self.parts.program.rounds is not None:
            self.parts.program.rounds.restore(state["curriculum"])
        if (of_program := state.get("program")) is not None:
            self.parts.program.restore(of_program)
        self.of_environments = state["environments"]
        if why := exactness.missing(self.config, self.parts.spec, state):
            self.of_environments = {"missing": why}
        self.iteration, self.env_steps = state["iteration"], state["env_steps"]
        self.wall_before = state["wall_s"]
        self.compiled_from = state.get("compiled_from")
        self.reporter.window.extend((episode_return, length) for episode_return, length in state["window"])
        self.scoring.restore(state, self.run_dir / "checkpoints")
        self.writer.goes_on(self.scoring.best.get("env_steps"))


def _next_multiple(steps: int, every: int) -> float:
    """Return the first multiple of `every` above `steps`; infinity for every = 0."""
    return (steps // every + 1) * every if every else math.inf


def train_rank(run_dir: Path, store: dist.Store | None = None, if_cut_short: int = 0) -> int | None:
    """Train as the rank that the environment variables say this process is (rank 0 of 1 without any).

    `store` is the rendezvous if this process has entered it already. Returns the signal that asked this rank to stop,
    or ends with the exit code `if_cut_short`, unless that is 0, where a stop came before the run was complete.
    """
    config = configuration.load(run_dir / "config.yaml")
    group, device = join(config, store)
    restored: int | None = None
    while True:
        worker = _made(config, run_dir, group, device)
        if restored is not None:
            worker.parts.learner.tolerance.restored = restored
        try:
            stop_signal = worker.run()
        except NonFiniteError as e:
            config, restored = go_back(worker, e)
        else:
            group.close()  # not after a fault: a peer may be gone, and leaving politely would wait for it
            if worker.is_cut_short and if_cut_short:
                leave(if_cut_short)
            return stop_signal


def _made(config: Config, run_dir: Path, group: Group, device: torch.device) -> Worker:
    """Return a rank's worker, as its last checkpoint has it where the run goes on."""
    worker = Worker(config, run_dir, group, device)
    if (
        config.resume is not None and not worker.serves
    ):  # whom the learner tells all, and who may start at any time
        path = checkpoint.last(run_dir / "checkpoints")
        assert path is not None, f"the door checked that {run_dir} holds a checkpoint"
        worker.restore(checkpoint.load(path))
    return worker


def go_back(worker: Worker, error: NonFiniteError) -> tuple[Config, int]:
    """Make the run folder ready to go on from its last checkpoint; return the configuration, and the ways back so far.

    All ranks come here alike. Raises `error` where on_nonfinite does not want that, or not once more.
    """
    tolerance, folder = worker.parts.learner.tolerance, RunFolder(worker.run_dir)
    if tolerance.mode != "restore" or tolerance.restored == tolerance.most:
        raise error
    restored = tolerance.restored + 1
    if worker.group.rank == 0:
        folder.begin(worker.config)
        where = f"to iteration {folder.last_iteration}" if folder.has_checkpoint else "to the beginning"
        said = str(error).partition(";")[0]
        steps = f"step sizes times {tolerance.factor**restored:g}"
        warn(f"{said}; going back {where}, {steps} (way back {restored} of {tolerance.most})")
    worker.group.barrier()
    return folder.config(), restored


@unbroken_streams()
def run_rank(
    run_dir: Path, enter: Callable[[], dist.Store | None] = lambda: None, if_cut_short: int = 0
) -> NoReturn:
    """Train as a rank among others and leave; exit code LOST_PEERS if the fault was another's, else MAY_PASS or 1.

    `enter` returns the rendezvous, if it is not the one that torchrun's environment variables describe.
    """
    rank, exit_code = os.environ.get("RANK", "0"), 1
    stop_signals_kill(signal.SIGINT)  # until the loop can stop in good order
    try:
        train_rank(run_dir, enter(), if_cut_short)
    except (ConfigError, TrainingError) as e:
        print(f"rank {rank}: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
        exit_code = LOST_PEERS if isinstance(e, CollectiveError) else 1
        if isinstance(e, (EnvRaised, EnvWorkerLost)):
            exit_code = MAY_PASS
    except BaseException as e:
        exit_code = MAY_PASS if isinstance(e, (MemoryError, torch.OutOfMemoryError)) else 1
        print(f"rank {rank} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
    else:
        exit_code = 0
    leave(exit_code)


def run_launched_rank(run_dir: Path) -> NoReturn:
    """Train as a rank that start_ranks started and leave."""
    run_rank(run_dir, launchers_store)


if __name__ == "__main__":
    run_rank(Path(sys.argv[1]))
