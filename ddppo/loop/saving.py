"""A rank's part in its run's checkpoints: what one holds, when it is due, and how the run goes on from it."""

import dataclasses
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ddppo.algorithms.task_sampler import state_in
from ddppo.config.stored import to_yaml
from ddppo.distributed.topologies.base import RankContext
from ddppo.distributed.topologies.known import find
from ddppo.envs.guard import STEPPED, guarded
from ddppo.errors import NonFiniteError, StorageError
from ddppo.files import stored
from ddppo.loop import env_states as environments
from ddppo.loop.build import TrainState
from ddppo.loop.env_messages import NoExchange
from ddppo.loop.env_states import Environments, size_of, what_is_large
from ddppo.loop.evaluation import Scoring
from ddppo.records import checkpoint
from ddppo.records.metrics import IterationReport
from ddppo.terminal import warn

_LARGE = 16e6  # bytes of a checkpoint that are worth a word


class Saving:
    """Saves a run and restores it. window: returns and lengths of the episodes that ended last.

    unrecorded: of a run that goes on, the report of its last iteration, where that was saved before the final
    evaluation and may not be in metrics.jsonl.
    """

    def __init__(
        self,
        run_dir: Path,
        parts: RankContext,
        progress: TrainState,
        scoring: Scoring,
        window: deque[tuple[float, int]],
    ) -> None:
        self.run_dir = run_dir
        self._folder = run_dir / "checkpoints"
        self._parts = parts
        self._progress = progress
        self._scoring = scoring
        self._window = window
        self._environments = _environments(parts)
        self._of_environments: dict[str, Any] | None = (
            None  # what those of a resumed run were in the midst of
        )
        self._yaml = to_yaml(dataclasses.replace(parts.config, resume=None))  # whoever began it
        self._saved_at = time.monotonic()
        self._before_evaluation: dict[str, Any] | None = None  # what environments were in the midst of
        self.unrecorded: IterationReport | None = None
        self._has_told = False  # what is large
        self.writer = Writer(self._folder, parts.config.checkpoint.keep)

    def is_due(self) -> bool:
        """Return whether rank 0, whose clock decides, is to save by the time that has passed."""
        minutes = self._parts.config.checkpoint.every_minutes
        return self._parts.group.rank == 0 and 0 < 60 * minutes <= time.monotonic() - self._saved_at

    def save(self) -> None:
        """Hand over to the writer what all that follows depends on; all ranks come here together."""
        self._saved_at = time.monotonic()
        environments = self._environments.state()
        # All are equal, and every random stream follows from the seed and counters.
        if self._parts.group.rank == 0:
            self._hand_over({"environments": environments})

    def save_before_evaluation(self, report: IterationReport) -> None:
        """Have the run's end on the disk, with the last iteration's report; all ranks come here, and leave together."""
        self._before_evaluation = self._environments.state()
        if self._parts.group.rank == 0:
            told = {
                **dataclasses.asdict(report),
                "rank_metrics": [_plain(metrics) for metrics in report.rank_metrics],
                "global_metrics": _plain(report.global_metrics),
            }
            self._hand_over({"environments": self._before_evaluation, "unrecorded": told})
            self.writer.wait()
        self._parts.group.barrier()  # no rank's evaluation begins, and may fail, before the file is whole

    def save_after_evaluation(self) -> None:
        """Save the same once more, with what the final evaluation said; of rank 0."""
        if self._parts.group.rank == 0:
            self._hand_over({"environments": self._before_evaluation})

    def _hand_over(self, more: dict[str, Any]) -> None:
        state = self.state() | more
        self._tell_large(state)
        self.writer.save_iteration(self._progress.iteration, state)

    def _tell_large(self, state: dict[str, Any]) -> None:
        """Warn once of a part that takes far more room than what was learned."""
        if self._has_told:
            return
        learned = sum(size_of(state.get(name)) for name in ("model", "optimizer", "reference"))
        for name in ("environments", "program", "sampler"):
            part = state.get(name) or {}
            size = size_of(part)
            if size < max(_LARGE, 2 * learned):
                continue
            self._has_told = True
            if name == "environments":
                num_envs = len(part["sizes"])
                warn(
                    f"a checkpoint holds {size / 1e6:.0f} MB of environments' state, of {num_envs} of them, mostly "
                    f"{what_is_large(part)}: checkpoint.environments=false leaves them out, and a resumed run begins "
                    "new episodes; a task with state() and restore() says itself what an episode needs"
                )
            else:
                whose = f"dist.topology={self._parts.config.dist.topology}"
                whose = self._parts.sampler.name if name == "sampler" else whose
                warn(f"a checkpoint holds {size / 1e6:.0f} MB of what {whose} goes on from")

    def save_best(self) -> None:
        """Hand over to the writer what is the best policy so far; of rank 0."""
        if self._parts.group.rank == 0:
            self.writer.save_best(self.state())

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds, but for what environments are in the midst of."""
        program = self._parts.topology
        return {
            "config": self._yaml,
            "spaces": self._parts.spec.spaces,
            **dataclasses.asdict(self._progress),
            "window": [list(episode) for episode in self._window],
            "best": self._scoring.best,
            "target": self._scoring.target,
            "sampler": self._parts.sampler.state(),
            "program": program.state(),
            "options": self._parts.sampler.eval_options(),
            **self._parts.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state; environments start new episodes, unless theirs are in it and wanted."""
        parts, progress = self._parts, self._progress
        parts.restore(state)
        parts.sampler.load(state_in(state, parts.sampler))
        is_of_sampler = "sampler" not in state and parts.sampler.called_before == "program"
        if not is_of_sampler and (of_program := state.get("program")) is not None:
            parts.topology.restore(of_program)
        self._of_environments = state["environments"]
        if why := environments.missing(parts.config, parts.spec, state):
            self._of_environments = {"missing": why}
        progress.iteration, progress.env_steps = state["iteration"], state["env_steps"]
        progress.wall_s, progress.compiled_from = state["wall_s"], state.get("compiled_from")
        if (report := state.get("unrecorded")) is not None:
            self.unrecorded = IterationReport(**{**report, "rank_metrics": tuple(report["rank_metrics"])})
            self._before_evaluation = state["environments"]
        self._window.extend((episode_return, length) for episode_return, length in state["window"])
        self._scoring.restore(state, self._folder)
        self.writer.goes_on(self._scoring.best.get("env_steps"))

    def begin_environments(self, exchange: NoExchange) -> None:
        """Start the environments anew, or in the midst of what the restored checkpoint says."""
        parts, (state, self._of_environments) = self._parts, (self._of_environments, None)
        with guarded(parts.config.env.id, STEPPED):
            why = self._environments.begin(self._reset, state)
        if state is None or why is not None:
            exchange.begin()
        is_told = find(parts.config.dist.topology).own_pace  # by its program
        if why is not None and parts.group.rank == 0 and not is_told:
            warn(
                f"the run goes on approximately, its environments with new episodes: {why}. Episodes under way end "
                "uncounted, and what a task remembers from one to the next is lost"
            )

    def _reset(self) -> None:
        """Start all environments anew, unless they begin anew in every iteration anyway."""
        program, sampler = self._parts.topology, self._parts.sampler
        if not sampler.every_iteration:
            program.reset(sampler.sample(self._progress.iteration))

    def with_last(self, error: NonFiniteError | StorageError) -> NonFiniteError | StorageError:
        """Return the error with the checkpoint named that is left to go on from."""
        last = checkpoint.last(self._folder)
        said = f"The last good checkpoint is {last}" if last else "There is no checkpoint yet"
        if isinstance(error, StorageError) and last is not None:
            said += f"; once that can be written, go on with resume={self.run_dir}"
        return type(error)(f"{error}. {said}")


def _plain(metrics: dict[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def _environments(parts: RankContext) -> Environments:
    if parts.sampler.every_iteration:
        return Environments(parts, parts.group, "")
    why_not, doubt = environments.why_left_out(parts.config), None
    if why_not is None and parts.group.rank == 0:
        doubt = environments.why_inexact(parts.config.env)
    return Environments(parts, parts.group, why_not, doubt)


# -- Checkpoints written off the critical path: a copy is handed over, a thread serialises, syncs and renames it.


class Writer:
    """Writes one file at a time, in the order in which they are handed over; of rank 0.

    A fault of the disk is raised by the next call of any method, as the StorageError that it is. What was written
    before stays whole: the new file has its name only once it is synced.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep
        self._thread: threading.Thread | None = None
        self._fault: BaseException | None = None
        self._best: float | None = None  # env_steps of best.pt
        self._named: float | None = None  # by the newest checkpoint, as the best

    def goes_on(self, best: float | None) -> None:
        """Know that the newest checkpoint names as the best what best.pt holds, of so many env_steps; None for none."""
        self._best = self._named = best

    def save_iteration(self, iteration: int, state: dict[str, Any]) -> None:
        """Write a copy of `state` as the checkpoint of `iteration`, and drop all but the newest."""
        self._named = state["best"].get("env_steps")
        self._hand_over(
            state, lambda copy: checkpoint.save_iteration(self._folder, iteration, copy, self._keep)
        )

    def save_best(self, state: dict[str, Any]) -> None:
        """Write a copy of `state` as best.pt; one that the newest checkpoint names stays beside it."""
        keeps = self._best is not None and self._best == self._named
        self._best = state["env_steps"]

        def write(copy: dict[str, Any]) -> None:
            if keeps:
                self._keep_best()
            checkpoint.save(self._folder / checkpoint.BEST, copy)

        self._hand_over(state, write)

    def check(self) -> None:
        """Raise what went wrong in a write that has ended."""
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    def wait(self) -> None:
        """Wait until all is on the disk. Raises StorageError."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def _hand_over(self, state: dict[str, Any], write: Callable[[dict[str, Any]], Any]) -> None:
        self.wait()
        # One for each write: where a process has threads, those of environments fork from a server that starts anew.
        self._thread = threading.Thread(
            target=self._do, args=(write, copied(state)), name="checkpoint", daemon=True
        )
        self._thread.start()

    def _do(self, write: Callable[[dict[str, Any]], Any], copy: dict[str, Any]) -> None:
        try:
            write(copy)
        except BaseException as e:  # raised where somebody sees it
            self._fault = e

    def _keep_best(self) -> None:
        best, beside = self._folder / checkpoint.BEST, self._folder / f".{os.getpid()}.previous.tmp"
        if not best.exists():
            return
        with stored(beside):
            beside.unlink(missing_ok=True)
            try:
                os.link(best, beside)
            except OSError:  # a file system without links
                beside.write_bytes(best.read_bytes())
            os.replace(beside, self._folder / checkpoint.PREVIOUS)


def copied(value: Any) -> Any:
    """Return `value` with copies on the CPU of all tensors in its dicts and lists."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(copied, value))
    return value
