"""The life of one rank: join the others, build, restore, loop, leave. Read this file first, then iteration.py.

A rank is one process. Our launcher forks it (launch/local_ranks.py), torchrun starts it as
`python -m ddppo.loop.rank <run folder>`, and with dist.world_size=1 it is the process of the command, so that
`breakpoint()` works. Ranks read the resolved config.yaml of the run folder; none of them parses a command line.
"""

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from ddppo import imports_are_done
from ddppo.collectives.group import Group
from ddppo.config.settings import Config
from ddppo.config.stored import load_config
from ddppo.distributed.join import join, leave
from ddppo.distributed.network import launchers_store, rendezvous_store
from ddppo.distributed.topologies.known import find
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
    first_sentence,
    is_of_torch_distributed,
)
from ddppo.loop.build import TrainState, build, compared_content
from ddppo.loop.checkpointer import Checkpointer
from ddppo.loop.compute import choose_compute
from ddppo.loop.env_messages import make_env_messages
from ddppo.loop.evaluation import RunEvaluator
from ddppo.loop.iteration import Loop
from ddppo.plugins import imported
from ddppo.ppo.cpp.learner import CppStep
from ddppo.ppo.losses import statistic_names
from ddppo.processes import limits
from ddppo.processes.signals import StopRequest, end_of_time, is_over, stop_signals_kill
from ddppo.records import checkpoint
from ddppo.records.profiling import make_profiler
from ddppo.records.recorder import NullRecorder, Recorder, ResumePoint
from ddppo.records.reporting import Reporter
from ddppo.records.run_folder import RunFolder
from ddppo.terminal import unbroken_streams, warn


def train_rank(
    run_dir: Path, enter: Callable[[float], dist.Store] = rendezvous_store, if_cut_short: int = 0
) -> int | None:
    """Train as the rank that the environment variables RANK and WORLD_SIZE name; without them, rank 0 of 1.

    enter: returns the store through which ranks meet, within as many seconds as it is given. Returns the signal that
    asked this rank to stop, if any. If the run was cut short and `if_cut_short` is not 0, the process ends with that
    exit code instead.
    """
    imports_are_done()
    # 1. Join: read the configuration, meet the other ranks, choose the device.
    config = load_config(run_dir / "config.yaml")
    if config.env.backend == "device":
        imported("ddppo.envs.backends.device:take_probed")(config.env, run_dir)
    group, device = join(config, enter)
    num_restores = 0
    while True:
        # 2. Build environments, model, collector and learner. All ranks begin with the same parameters.
        rank = Rank(config, run_dir, group, device)
        # 3. Restore the last checkpoint. A rank that only serves gets everything from the learner instead.
        if config.resume is not None and not rank.only_serves:
            path = checkpoint.last(run_dir / "checkpoints")
            assert path is not None, f"the launcher checked that {run_dir} holds a checkpoint"
            rank.restore(checkpoint.load(path))
        if num_restores:
            rank.context.topology.learner.guard.restored = num_restores
        # 4. Loop until total_steps are done or a rank asks to stop.
        try:
            stop_signal = rank.run()
        except NonFiniteError as e:
            # on_nonfinite=restore: build anew, from the last checkpoint, with smaller steps.
            config, num_restores = _go_back(rank, e)
            continue
        # 5. Leave. Not after a fault: a peer may be gone, and leaving together would wait for it.
        group.close()
        if rank.is_cut_short and if_cut_short:
            leave(if_cut_short)
        return stop_signal


def _go_back(rank: "Rank", error: NonFiniteError) -> tuple[Config, int]:
    """Prepare the run folder to go on from its last checkpoint; return the configuration and the number of restores.

    All ranks come here together. Raises `error` unless on_nonfinite=restore allows one more restore.
    """
    guard, folder = rank.context.topology.learner.guard, RunFolder(rank.run_dir)
    if guard.mode != "restore" or guard.restored == guard.most:
        raise error
    num_restores = guard.restored + 1
    if rank.group.rank == 0:
        folder.begin(rank.config)
        where = f"to iteration {folder.last_iteration}" if folder.has_checkpoint else "to the beginning"
        cause = str(error).partition(";")[0]
        steps = f"step sizes times {guard.factor**num_restores:g}"
        warn(f"{cause}; going back {where}, {steps} (restore {num_restores} of {guard.most})")
    rank.group.barrier()
    return folder.config(), num_restores


class Rank:
    """Everything that one rank owns, built before the first iteration."""

    def __init__(self, config: Config, run_dir: Path, group: Group, device: torch.device) -> None:
        self.config = config
        self.run_dir = run_dir
        self.group = group
        self.context = build(config, group, device)
        self.progress = TrainState()
        self.evaluator = RunEvaluator(self.context)
        self.reporter = Reporter(
            (group, *self.context.topology.groups),
            self.context.layout,
            config.log.episode_window,
            compared_content(self.context),
            statistic_names(config.ppo) if self.context.algorithm.learner_class is not None else (),
            self.context.shape.local_num_shards,
        )
        self.checkpointer = Checkpointer(
            run_dir, self.context, self.progress, self.evaluator, self.reporter.window
        )
        self.is_cut_short = False
        self._stop_signal: int | None = None  # that ended the loop

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state; call it before `run`."""
        self.checkpointer.restore(state)

    def run(self) -> int | None:
        """Train until total_steps, or until a rank asks to stop. Either way summary.json is written.

        Returns the signal that asked this rank to stop, if any, even if it came too late to cut the run short.
        """
        with StopRequest(end_of_time(self.config.run.max_minutes)) as stop:
            self._serve(stop) if self.only_serves else self._train(stop)
        return stop.signal

    @property
    def only_serves(self) -> bool:
        """Whether this rank goes at its own pace and answers requests of the learner, instead of looping."""
        spec = find(self.config.dist.topology)
        return spec.own_pace and not self.context.layout.role(self.group.rank).learns

    def _serve(self, stop: StopRequest) -> None:
        try:
            choose_compute(self.context, self.progress, only_cpp=True)
            stop.listen()
            self.context.topology.serve(stop)
        finally:
            self.context.topology.close()

    def _train(self, stop: StopRequest) -> None:
        recorder: Recorder | NullRecorder = NullRecorder()
        try:
            # Eager PyTorch, torch.compile or C++: chosen once, alike on all ranks.
            choose_compute(self.context, self.progress)
            if isinstance(step := getattr(self.context.topology.learner, "step", None), CppStep):
                self.evaluator.use_cpp(step.network)
            if self.group.rank == 0:
                recorder = self._open_recorder()
            loop = self._begin(recorder)
            # Objects that exist now stay: looking through them for garbage took 3 % of a short iteration.
            gc.freeze()
            stop.listen()  # from here on a stop signal ends the loop after the iteration, with a checkpoint
            status = loop.run(stop)
            self._stop_signal = stop.signal
            self.is_cut_short = status == "stopped"
        except BaseException as e:
            with suppress(Exception):  # a second fault would hide the first
                self._end(recorder, "failed")
            if isinstance(e, (NonFiniteError, StorageError)):
                raise self.checkpointer.with_last(e) from e
            raise
        self._end(recorder, status, loop.failed, all_alive=loop.lost is None)
        if loop.lost is not None:
            raise loop.lost

    def _open_recorder(self) -> Recorder:
        context, progress = self.context, self.progress
        resume_point = ResumePoint(
            progress.iteration, progress.env_steps, progress.wall_s, self.checkpointer.unrecorded
        )
        return Recorder(
            self.config,
            context.shape,
            self.run_dir,
            context.derived,
            resume_point,
            journal=context.spec.journal,
            sampler=context.sampler,
        )

    def _begin(self, recorder: Recorder | NullRecorder) -> Loop:
        """Start the environments, and return the loop with its clock at zero."""
        env_messages = make_env_messages(self.context, recorder.earlier_messages)
        self.checkpointer.begin_environments(env_messages)
        num_profiled = self.config.log.profile_iterations if self.group.rank == 0 else 0
        profiler = make_profiler(num_profiled, self.run_dir / "profile")
        self.group.barrier()  # no rank begins its first iteration while another one still builds
        return Loop(
            self.context,
            self.progress,
            reporter=self.reporter,
            recorder=recorder,
            evaluator=self.evaluator,
            checkpointer=self.checkpointer,
            env_messages=env_messages,
            profiler=profiler,
        )

    def _end(
        self,
        recorder: Recorder | NullRecorder,
        status: str,  # completed, stopped or failed
        failed: Sequence[dict[str, str]] = (),  # steps after training that failed
        *,
        all_alive: bool = True,  # whether every rank can still be told that the run has ended
    ) -> None:
        """Write summary.json and close the environments."""
        try:
            if status == "failed":
                with suppress(StorageError):
                    self.checkpointer.writer.wait()
            recorder.close(
                status,
                params_hash=self.context.parameters.digest(),
                compiled_from=self.progress.compiled_from,
                best=self.evaluator.best,
                target=self.evaluator.target,
                failed=failed,
                ending=self.progress.ended or self._time_over(status),
            )
        finally:
            gc.unfreeze()
            if status != "failed" and all_alive:
                self.context.topology.finish()
            self.evaluator.close()
            self.context.topology.close()

    def _time_over(self, status: str) -> dict[str, Any]:
        """Return the reason of a run that run.max_minutes stopped; {} for any other."""
        limit = self.config.run.max_minutes
        if status != "stopped" or self._stop_signal is not None or not is_over(end_of_time(limit)):
            return {}
        return {"by": "max_minutes", "why": f"run.max_minutes={limit:g} are over"}


# -- A rank as a process of its own.


@unbroken_streams()
def run_rank(
    run_dir: Path, enter: Callable[[float], dist.Store] = rendezvous_store, if_cut_short: int = 0
) -> NoReturn:
    """Train as one rank of several, and end the process with an exit code that tells the launcher what to do.

    0: completed. LOST_PEERS: another rank was lost. MAY_PASS: a fault that may not come again, such as a lost
    environment process. 1: any other fault. enter: as in `train_rank`.
    """
    rank, exit_code = os.environ.get("RANK", "0"), 1
    stop_signals_kill(signal.SIGINT)  # until `StopRequest.listen`: before that there is nothing to save
    try:
        train_rank(run_dir, enter, if_cut_short)
    except (ConfigError, TrainingError) as e:
        print(f"rank {rank}: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
        exit_code = LOST_PEERS if isinstance(e, CollectiveError) else 1
        if isinstance(e, (EnvRaised, EnvWorkerLost)):
            exit_code = MAY_PASS
    except BaseException as e:
        exit_code = MAY_PASS if isinstance(e, (MemoryError, torch.OutOfMemoryError)) else 1
        words = limits.met(e)
        if words is None and is_of_torch_distributed(e):
            words = first_sentence(e)  # the rest is torch's own stack
        details = f"\n{traceback.format_exc()}" if words is None else f" {words}"
        print(f"rank {rank} failed:{details}", file=sys.stderr, flush=True)
    else:
        exit_code = 0
    leave(exit_code)


def run_launched_rank(run_dir: Path) -> NoReturn:
    """Train as a rank that our launcher started, and end the process."""
    run_rank(run_dir, launchers_store)


if __name__ == "__main__":
    run_rank(Path(sys.argv[1]))
