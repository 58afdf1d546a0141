"""What a curriculum is, and the one that leaves all to chance."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ddppo.errors import ConfigError


class Curriculum(Protocol):
    """Says which task comes next, and changes its mind in `record` alone.

    It is made of its tasks, the tier of each by name: `MyCurriculum({"make-a-bucket": "warm-up", ...})`, and of
    curriculum.settings as keyword arguments. Every rank of a run has one, is told the same in the same order and hands
    `choose` the same random stream, and so hears the same. A round is an iteration: the tasks of its groups are chosen
    before it, one after another, and all that came of them is recorded after it.
    """

    def choose(self, rng: np.random.Generator, *, besides: Sequence[str] = ()) -> str:
        """Return the task of the next group. besides: those of this round's other groups, chosen already.

        Changes nothing but `rng`.
        """
        ...

    def record(self, rates: Mapping[str, float]) -> None:
        """Note that a round ended. rates: of each task tried in it the share in [0, 1] of rollouts that achieved it.

        Rollouts that failed for reasons of the world's count neither way; a task of which all did is left out, and a
        round that leaves out all is not recorded.
        """
        ...

    def state(self) -> dict[str, Any]:
        """Return all that `record` has changed: numbers, strings, lists and dicts, for a checkpoint."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`, as whoever handed it over would have. Raises RunFolderError."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return numbers by name."""
        ...

    def table(self) -> str:
        """Return what is known of every task, as lines of text."""
        ...


def least_often(tasks: Sequence[str], besides: Sequence[str]) -> list[str]:
    """Return those of `tasks` that are least often in `besides`: others first, then all once more."""
    counts = [besides.count(task) for task in tasks]
    return [task for task, count in zip(tasks, counts, strict=True) if count == min(counts)]


class UniformCurriculum:
    """Tasks at random. To compare with, and where all tasks are alike."""

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
