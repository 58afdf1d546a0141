"""A rank's part in checkpoints: their content, when one is due, and how a run goes on from one.

All parameters are equal on all ranks, and every random stream follows from the seed and counters. So rank 0's state
and every rank's environments (env_states.py) are the whole state of a run. `Writer` writes files off the critical
path: rank 0 hands over a copy, and a thread serialises, syncs and renames it.
"""

import dataclasses
import functools
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
from ddppo.loop import replay_state
from ddppo.loop.build import TrainState
from ddppo.loop.env_messages import NoMessages
from ddppo.loop.env_states import Environments, size_of, what_is_large
from ddppo.loop.evaluation import RunEvaluator
from ddppo.records import checkpoint
from ddppo.records.metrics import IterationReport
from ddppo.records.run_folder import ending_holds
from ddppo.terminal import warn

_LARGE = 16e6  # bytes; a larger part of a checkpoint, larger than what was learned, is worth a warning


class Checkpointer:
    """Saves a run and restores it."""

    def __init__(
        self,
        run_dir: Path,
        context: RankContext,
        progress: TrainState,
        evaluator: RunEvaluator,
        window: deque[tuple[float, int]],  # returns and lengths of the episodes that ended last
    ) -> None:
        self.run_dir = run_dir
        self.writer = Writer(run_dir / "checkpoints", context.config.checkpoint.keep)
        # Of a run saved before its final evaluation: its last report, perhaps not in metrics.jsonl yet.
        self.unrecorded: IterationReport | None = None
        self._folder = run_dir / "checkpoints"
        self._context = context
        self._progress = progress
        self._evaluator = evaluator
        self._window = window
        self._environments = _environments(context)
        self._restored_environments: dict[str, Any] | None = None  # of the checkpoint, until they begin
        self._saved_at = time.monotonic()
        self._environments_at_end: dict[str, Any] | None = None  # when training was complete
        self._replay_at_end: dict[str, Any] = {}
        self._has_warned = False  # of a large part

    @functools.cached_property
    def _config_yaml(self) -> str:
        """Made when it is first saved: it takes 30 ms, and rank 0 alone saves."""
        return to_yaml(dataclasses.replace(self._context.config, resume=None))

    # -- Saving. All ranks call these methods together.

    def is_due(self) -> bool:
        """Return whether checkpoint.every_minutes have passed, by the clock of rank 0; False on other ranks."""
        minutes = self._context.config.checkpoint.every_minutes
        return self._context.group.rank == 0 and 0 < 60 * minutes <= time.monotonic() - self._saved_at

    def save(self) -> None:
        """Hand the state of the run to the writer."""
        self._saved_at = time.monotonic()
        environments, replay = self._environments.state(), replay_state.gathered(self._context)
        if self._context.group.rank == 0:
            self._hand_over({"environments": environments}, replay)

    def save_before_evaluation(self, report: IterationReport) -> None:
        """Write the end of training to the disk, with the last iteration's report, and wait until it is there."""
        self._environments_at_end = self._environments.state()
        self._replay_at_end = replay_state.gathered(self._context)
        if self._context.group.rank == 0:
            plain_report = {
                **dataclasses.asdict(report),
                "rank_metrics": [_plain(metrics) for metrics in report.rank_metrics],
                "global_metrics": _plain(report.global_metrics),
            }
            more = {"environments": self._environments_at_end, "unrecorded": plain_report}
            self._hand_over(more, self._replay_at_end)
            self.writer.wait()
        self._context.group.barrier()  # no rank's evaluation begins, and may fail, before the file is whole

    def save_after_evaluation(self) -> None:
        """Save the end of training again, with the scores of the final evaluation."""
        if self._context.group.rank == 0:
            self._hand_over({"environments": self._environments_at_end}, self._replay_at_end)

    def save_best(self) -> None:
        """Hand the state of the run to the writer as that of the best policy so far."""
        if self._context.group.rank == 0:
            self.writer.save_best(self.state())

    def state(self) -> dict[str, Any]:
        """Return the content of a checkpoint, except the environments and the replay buffer."""
        context = self._context
        return {
            "config": self._config_yaml,
            "spaces": context.spec.spaces,
            **dataclasses.asdict(self._progress),  # iteration, env_steps, wall_s, compiled_from, ended
            "window": [list(episode) for episode in self._window],
            "best": self._evaluator.best,
            "target": self._evaluator.target,
            "evals_without_best": self._evaluator.evals_without_best,
            "sampler": context.sampler.state(),
            "program": context.topology.state(),  # "program": its name in files of before
            "options": context.sampler.eval_options(),
            **context.state(),  # model, Adam, learning rate, counts of NonFiniteGuard, normalisers, reference
        }

    def _hand_over(self, more: dict[str, Any], replay: dict[str, Any]) -> None:
        state = self.state() | more
        self._warn_if_large(state | replay)
        self.writer.save_iteration(self._progress.iteration, state, replay)

    def _warn_if_large(self, state: dict[str, Any]) -> None:
        """Warn once if a part takes far more room than the parameters and the optimizer."""
        if self._has_warned:
            return
        learned = sum(size_of(state.get(name)) for name in ("model", "optimizer", "reference"))
        for name in ("environments", "replay", "program", "sampler"):
            part = state.get(name) or {}
            size = size_of(part)
            if size < max(_LARGE, 2 * learned):
                continue
            self._has_warned = True
            if name == "environments":
                warn(
                    f"a checkpoint holds {size / 1e6:.0f} MB of states of {len(part['sizes'])} environments, mostly "
                    f"{what_is_large(part)}: checkpoint.environments=false leaves them out, and a resumed run begins "
                    "new episodes; a task with state() and restore() chooses what an episode needs"
                )
            elif name == "replay":
                warn(
                    f"a checkpoint holds {size / 1e6:.0f} MB of replay buffer: checkpoint.replay=false leaves it out, "
                    "and a resumed run begins with an empty one; algorithm.capacity makes it smaller"
                )
            else:
                owner = f"dist.topology={self._context.config.dist.topology}"
                owner = self._context.sampler.name if name == "sampler" else owner
                warn(f"a checkpoint holds {size / 1e6:.0f} MB of state of {owner}")

    # -- Restoring.

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state. Environments go on in `begin_environments`."""
        context, progress = self._context, self._progress
        context.restore(state)
        context.sampler.load(state_in(state, context.sampler))
        # Checkpoints of before kept the sampler's state under the topology's name.
        is_of_sampler = "sampler" not in state and context.sampler.called_before == "program"
        if not is_of_sampler and (of_topology := state.get("program")) is not None:
            context.topology.restore(of_topology)
        why_empty = replay_state.restore(context, state)
        if why_empty is not None and context.group.rank == 0:
            warn(f"the run goes on approximately, with an empty replay buffer: {why_empty}")
        self._restored_environments = state["environments"]
        if why := environments.missing(context.config, context.spec, state):
            self._restored_environments = {"missing": why}
        progress.iteration, progress.env_steps = state["iteration"], state["env_steps"]
        progress.wall_s, progress.compiled_from = state["wall_s"], state.get("compiled_from")
        ending = state.get("ended", {})
        progress.ended = ending if ending_holds(context.config, ending) else {}
        if (report := state.get("unrecorded")) is not None:
            self.unrecorded = IterationReport(**{**report, "rank_metrics": tuple(report["rank_metrics"])})
            self._environments_at_end = state["environments"]
            self._replay_at_end = {"replay": state["replay"]} if "replay" in state else {}
        self._window.extend((episode_return, length) for episode_return, length in state["window"])
        self._evaluator.restore(state, self._folder)
        self.writer.goes_on(self._evaluator.best.get("env_steps"))

    def begin_environments(self, env_messages: NoMessages) -> None:
        """Start the environments: within their episodes, if the restored checkpoint holds them, else anew."""
        context, state = self._context, self._restored_environments
        self._restored_environments = None
        with guarded(context.config.env.id, STEPPED):
            why_anew = self._environments.begin(self._reset, state)
        if state is None or why_anew is not None:
            env_messages.begin()
        warns_itself = find(context.config.dist.topology).own_pace
        if why_anew is not None and context.group.rank == 0 and not warns_itself:
            warn(
                f"the run goes on approximately, its environments with new episodes: {why_anew}. Episodes under way "
                "end uncounted, and what a task remembers from one to the next is lost"
            )

    def _reset(self) -> None:
        """Reset all environments, unless every iteration resets them anyway."""
        topology, sampler = self._context.topology, self._context.sampler
        if not sampler.every_iteration:
            topology.reset(sampler.sample(self._progress.iteration))

    def with_last(self, error: NonFiniteError | StorageError) -> NonFiniteError | StorageError:
        """Return the error with the last good checkpoint named in its message."""
        last = checkpoint.last(self._folder)
        hint = f"The last good checkpoint is {last}" if last else "There is no checkpoint yet"
        if isinstance(error, StorageError) and last is not None:
            hint += f"; once that can be written, go on with resume={self.run_dir}"
        return type(error)(f"{error}. {hint}")


def _plain(metrics: dict[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def _environments(context: RankContext) -> Environments:
    """Return the environments of this rank as checkpoints see them."""
    if context.sampler.every_iteration:  # whole episodes: there is nothing to save between iterations
        return Environments(context, context.group, "")
    why_not, doubt = environments.why_left_out(context.config), None
    if why_not is None and context.group.rank == 0:
        doubt = environments.why_inexact(context.config.env)
    return Environments(context, context.group, why_not, doubt)


# -- Writing files in a thread.


class Writer:
    """Writes one file at a time, in the order in which they are handed over, on rank 0.

    A fault of the disk is raised by the next call of any method, as a StorageError. Older files stay whole: a new file
    gets its name once it is synced.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep
        self._thread: threading.Thread | None = None
        self._fault: BaseException | None = None
        self._best: float | None = None  # env_steps of best.pt
        self._named: float | None = None  # env_steps of the best policy that the newest checkpoint names

    def goes_on(self, best: float | None) -> None:
        """Begin with a best.pt of `best` env_steps, which the newest checkpoint names; None if there is none."""
        self._best = self._named = best

    def save_iteration(
        self, iteration: int, state: dict[str, Any], unchanging: dict[str, Any] | None = None
    ) -> None:
        """Write a copy of `state` as the checkpoint of `iteration`, and delete all but the newest `keep`.

        unchanging: more of the state, perhaps large, that need not be copied.
        """
        self._named = state["best"].get("env_steps")

        def write(copy: dict[str, Any]) -> None:
            checkpoint.save_iteration(self._folder, iteration, copy | (unchanging or {}), self._keep)

        self._hand_over(state, write)

    def save_best(self, state: dict[str, Any]) -> None:
        """Write a copy of `state` as best.pt. One that the newest checkpoint names is kept as best.previous.pt."""
        keeps = self._best is not None and self._best == self._named
        self._best = state["env_steps"]

        def write(copy: dict[str, Any]) -> None:
            if keeps:
                self._keep_best()
            checkpoint.save(self._folder / checkpoint.BEST, copy)

        self._hand_over(state, write)

    def check(self) -> None:
        """Raise the fault of a write that has ended, if any."""
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    def wait(self) -> None:
        """Wait until everything is on the disk. Raises StorageError."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def _hand_over(self, state: dict[str, Any], write: Callable[[dict[str, Any]], Any]) -> None:
        self.wait()
        # A thread for each write, so that between writes the process has no thread and may fork.
        self._thread = threading.Thread(
            target=self._do, args=(write, copied(state)), name="checkpoint", daemon=True
        )
        self._thread.start()

    def _do(self, write: Callable[[dict[str, Any]], Any], copy: dict[str, Any]) -> None:
        try:
            write(copy)
        except BaseException as e:  # raised by the next call, in the main thread
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
