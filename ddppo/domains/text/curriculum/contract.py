"""The contract of a curriculum, and `UniformCurriculum`, which chooses tasks at random."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ddppo.errors import ConfigError


class Curriculum(Protocol):
    """Chooses the task of the next group of episodes. Only `record` changes its state.

    A class of your own is called with its tasks, the tier of each by name, `MyCurriculum({"make-a-bucket": "warm-up",
    ...})`, and with curriculum.settings as keyword arguments. Every rank has its own instance. All ranks make the same
    calls in the same order with the same random stream, and so choose the same tasks.

    A round is an iteration: `choose` is called once for each group before it, `record` once after it.
    """

    def choose(self, rng: np.random.Generator, *, besides: Sequence[str] = ()) -> str:
        """Return the task of the next group. Changes nothing but `rng`.

        Args:
            besides: tasks already chosen in this round, for other groups.
        """
        ...

    def record(self, rates: Mapping[str, float]) -> None:
        """Record the results of a round.

        Args:
            rates: for each task tried, the share in [0, 1] of its episodes that achieved it. Episodes that failed with
                their world are not counted. A task without counted episodes is left out, and so is a round.
        """
        ...

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as numbers, strings, lists and dicts."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a result of `state`. Raises RunFolderError if it does not fit the tasks."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return metrics by name, without the prefix curriculum/."""
        ...

    def table(self) -> str:
        """Return the state of every task as lines of text."""
        ...


def least_often(tasks: Sequence[str], besides: Sequence[str]) -> list[str]:
    """Return the tasks that occur least often in `besides`, so that a round repeats a task only after all others."""
    counts = [besides.count(task) for task in tasks]
    return [task for task, count in zip(tasks, counts, strict=True) if count == min(counts)]


class UniformCurriculum:
    """Chooses tasks at random: a baseline, and a choice for tasks of equal difficulty."""

    def __init__(self, tasks: Mapping[str, str]) -> None:
        if not tasks:
            raise ConfigError("a curriculum needs at least one task")
        self._tasks = list(tasks)
        self._round = 0

    def choose(self, rng: np.random.Generator, *, besides: Sequence[str] = ()) -> str:
        left = least_often(self._tasks, besides)
        return left[int(rng.integers(len(left)))]

    def record(self, rates: Mapping[str, float]) -> None:
        self._round += 1

    def state(self) -> dict[str, Any]:
        return {"round": self._round}

    def restore(self, state: dict[str, Any]) -> None:
        self._round = state["round"]

    def metrics(self) -> dict[str, float]:
        return {"round": self._round}

    def table(self) -> str:
        return f"round {self._round}: {len(self._tasks)} tasks, all equally likely"
