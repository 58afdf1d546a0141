"""One rank's life, top to bottom: join, build, restore, begin, loop, end.

`python -m ddppo.loop.rank <run folder>` is a rank under an outer torchrun; our own launcher starts ddppo.launch.rank,
which comes here. Ranks read the resolved config.yaml of the folder; none of them parses a command line.
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

from ddppo.collectives.group import Group
from ddppo.config import stored
from ddppo.config.settings import Config
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
from ddppo.loop.backend import choose_backend
from ddppo.loop.build import TrainState, build, named
from ddppo.loop.env_messages import make_exchange
from ddppo.loop.evaluation import Scoring
from ddppo.loop.iteration import Iterations, Loop
from ddppo.loop.saving import Saving
from ddppo.ppo.losses import statistic_names
from ddppo.processes import limits
from ddppo.processes.signals import StopRequest, end_of_time, stop_signals_kill
from ddppo.records import checkpoint
from ddppo.records.profiling import make_profiler
from ddppo.records.recorder import NullRecorder, Recorder, ResumePoint
from ddppo.records.reporting import Reporter
from ddppo.records.run_folder import RunFolder
from ddppo.records.timing import IterationClock
from ddppo.terminal import unbroken_streams, warn


class Rank:
    """What one rank owns, and the order in which it begins, loops and ends."""

    def __init__(self, config: Config, run_dir: Path, group: Group, device: torch.device) -> None:
        self.config = config
        self.run_dir = run_dir
        self.group = group
        self.parts = build(config, group, device)
        self.progress = TrainState()
        self.scoring = Scoring(self.parts)
        self.groups = (group, *self.parts.topology.groups)
        self.reporter = Reporter(
            self.groups,
            self.parts.layout,
            config.log.episode_window,
            named(self.parts),
            statistic_names(config.ppo),
        )
        self.saving = Saving(run_dir, self.parts, self.progress, self.scoring, self.reporter.window)
        self.is_cut_short = False

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state; before `run`."""
        self.saving.restore(state)

    def run(self) -> int | None:
        """Train until total_steps, or until a rank asks to stop; leave summary.json behind either way.

        Returns the signal that asked this rank to stop, if one did, be it too late to cut the run short.
        """
        with StopRequest(end_of_time(self.config.run.max_minutes)) as stop:
            self._serve(stop) if self.serves else self._train(stop)
        return stop.signal

    @property
    def serves(self) -> bool:
        """Whether this rank has no part in the loop: it goes at its own pace and does what others ask for."""
        topology = find(self.config.dist.topology)
        return topology.own_pace and not self.parts.layout.role(self.group.rank).learns

    def _serve(self, stop: StopRequest) -> None:
        try:
            choose_backend(self.parts, self.progress, only_cpp=True)
            stop.listen()
            self.parts.topology.serve(stop)
        finally:
            self.parts.topology.close()

    def _train(self, stop: StopRequest) -> None:
        recorder: Recorder | NullRecorder = NullRecorder()
        try:
            choose_backend(self.parts, self.progress)
            if self.group.rank == 0:
                recorder = self._recorder()
            loop = self._begin(recorder)
            gc.freeze()  # what is here stays: looking through it for garbage took 3 % of a short iteration
            stop.listen()  # from here on there is something to save, and until summary.json is written
            status = loop.run(stop)
            failed, lost = loop.failed, loop.lost
            self.is_cut_short = status == "stopped"
        except BaseException as e:
            with suppress(Exception):  # what comes on top of a fault would hide it
                self._end(recorder, "failed")
            if isinstance(e, (NonFiniteError, StorageError)):
                raise self.saving.with_last(e) from e
            raise
        self._end(recorder, status, failed, is_whole=lost is None)
        if lost is not None:
            raise lost

    def _recorder(self) -> Recorder:
        parts, progress = self.parts, self.progress
        return Recorder(
            self.config,
            parts.shape,
            self.run_dir,
            parts.derived,
            ResumePoint(progress.iteration, progress.env_steps, progress.wall_s, self.saving.unrecorded),
            journal=parts.spec.journal,
            sampler=parts.sampler,
        )

    def _begin(self, recorder: Recorder | NullRecorder) -> Loop:
        """Start the environments, and return the loop with its clock at zero."""
        exchange = make_exchange(self.parts, self.group, recorder.earlier_messages)
        self.saving.begin_environments(exchange)
        num_profiled = self.config.log.profile_iterations if self.group.rank == 0 else 0
        profiler = make_profiler(num_profiled, self.run_dir / "profile")
        self.group.barrier()  # nobody's first iteration begins while another rank still builds
        iterations = Iterations(
            self.parts,
            self.progress,
            clock=IterationClock(self.groups, self.parts.device, profiler.phase),
            saving=self.saving,
            exchange=exchange,
            reporter=self.reporter,
        )
        return Loop(iterations, self.scoring, self.saving, recorder, profiler)

    def _end(
        self,
        recorder: Recorder | NullRecorder,
        status: str,
        failed: Sequence[dict[str, str]] = (),
        *,
        is_whole: bool = True,
    ) -> None:
        """Write the summary, with the steps after training that failed, and give back what the rank holds.

        is_whole: whether all ranks are there to be told of the end.
        """
        try:
            if status == "failed":
                with suppress(StorageError):
                    self.saving.writer.wait()
            recorder.close(
                status,
                params_hash=self.parts.parameters.digest(),
                compiled_from=self.progress.compiled_from,
                best=self.scoring.best,
                target=self.scoring.target,
                failed=failed,
            )
        finally:
            gc.unfreeze()
            if status != "failed" and is_whole:
                self.parts.topology.finish()
            self.parts.topology.close()


def train_rank(
    run_dir: Path, enter: Callable[[float], dist.Store] = rendezvous_store, if_cut_short: int = 0
) -> int | None:
    """Train as the rank that the environment variables say this process is (rank 0 of 1 without any).

    `enter` returns the ranks' store, within as many seconds as it is given. Returns the signal that asked this rank to
    stop, or ends with the exit code `if_cut_short`, unless that is 0, where a stop came before the run was complete.
    """
    config = stored.load_config(run_dir / "config.yaml")
    group, device = join(config, enter)
    restored: int | None = None
    while True:
        worker = _made(config, run_dir, group, device)
        if restored is not None:
            worker.parts.topology.learner.guard.restored = restored
        try:
            stop_signal = worker.run()
        except NonFiniteError as e:
            config, restored = go_back(worker, e)
        else:
            group.close()  # not after a fault: a peer may be gone, and leaving politely would wait for it
            if worker.is_cut_short and if_cut_short:
                leave(if_cut_short)
            return stop_signal


def _made(config: Config, run_dir: Path, group: Group, device: torch.device) -> Rank:
    """Return a rank's worker, as its last checkpoint has it where the run goes on."""
    worker = Rank(config, run_dir, group, device)
    if (
        config.resume is not None and not worker.serves
    ):  # whom the learner tells all, and who may start at any time
        path = checkpoint.last(run_dir / "checkpoints")
        assert path is not None, f"the door checked that {run_dir} holds a checkpoint"
        worker.restore(checkpoint.load(path))
    return worker


def go_back(worker: Rank, error: NonFiniteError) -> tuple[Config, int]:
    """Make the run folder ready to go on from its last checkpoint; return the configuration, and the ways back so far.

    All ranks come here alike. Raises `error` where on_nonfinite does not want that, or not once more.
    """
    guard, folder = worker.parts.topology.learner.guard, RunFolder(worker.run_dir)
    if guard.mode != "restore" or guard.restored == guard.most:
        raise error
    restored = guard.restored + 1
    if worker.group.rank == 0:
        folder.begin(worker.config)
        where = f"to iteration {folder.last_iteration}" if folder.has_checkpoint else "to the beginning"
        said = str(error).partition(";")[0]
        steps = f"step sizes times {guard.factor**restored:g}"
        warn(f"{said}; going back {where}, {steps} (way back {restored} of {guard.most})")
    worker.group.barrier()
    return folder.config(), restored


@unbroken_streams()
def run_rank(
    run_dir: Path, enter: Callable[[float], dist.Store] = rendezvous_store, if_cut_short: int = 0
) -> NoReturn:
    """Train as a rank among others and leave; exit code LOST_PEERS if the fault was another's, else MAY_PASS or 1.

    `enter` returns the ranks' store, if it is not the one that torchrun's environment variables describe.
    """
    rank, exit_code = os.environ.get("RANK", "0"), 1
    stop_signals_kill(signal.SIGINT)  # until the loop can stop in good order
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
            words = first_sentence(e)  # of the network's faults the stack says nothing more
        said = f"\n{traceback.format_exc()}" if words is None else f" {words}"
        print(f"rank {rank} failed:{said}", file=sys.stderr, flush=True)
    else:
        exit_code = 0
    leave(exit_code)


def run_launched_rank(run_dir: Path) -> NoReturn:
    """Train as a rank that start_ranks started and leave."""
    run_rank(run_dir, launchers_store)


if __name__ == "__main__":
    run_rank(Path(sys.argv[1]))
