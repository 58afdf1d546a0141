"""Checkpoints written off the critical path: a copy is handed over, a thread serialises, syncs and renames it."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ddppo.files import stored
from ddppo.run import checkpoint

BEST = "best.pt"
PREVIOUS = (
    "best.previous.pt"  # the best that the newest checkpoint names, where a later one has taken its place
)


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
            checkpoint.save(self._folder / BEST, copy)

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
        best, beside = self._folder / BEST, self._folder / f".{os.getpid()}.previous.tmp"
        if not best.exists():
            return
        with stored(beside):
            beside.unlink(missing_ok=True)
            try:
                os.link(best, beside)
            except OSError:  # a file system without links
                beside.write_bytes(best.read_bytes())
            os.replace(beside, self._folder / PREVIOUS)


def copied(value: Any) -> Any:
    """Return `value` with copies on the CPU of all tensors in its dicts and lists."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(copied, value))
    return value
