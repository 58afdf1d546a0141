"""What a curriculum is, to whoever trains by one."""

from collections.abc import Collection
from typing import Any, Protocol

import numpy as np


class Curriculum(Protocol):
    """Says which task comes next, and changes its mind in `record` alone.

    It is made of its tasks, the tier of each by name: `MyCurriculum({"make-a-bucket": "warm-up", ...})`. A run has one:
    either one rank owns it, or every rank has its own, is told the same and hands `choose` the same random stream, and
    so hears the same. Tasks are chosen between iterations, never while one is under way.
    """

    def choose(self, rng: np.random.Generator, *, besides: Collection[str] = ()) -> str:
        """Return the task that comes next; one in `besides`, chosen for this round already, only if there is no other.

        Changes nothing but `rng`.
        """
        ...

    def record(self, task: str, rate: float) -> None:
        """Note that a round of `task` ended, of whose rollouts the share `rate` in [0, 1] achieved it.

        Rollouts that failed for reasons of the world's count neither way; a round in which all did is not recorded.
        """
        ...

    def chaos(self, task: str) -> float:
        """Return the chance in [0, 1] that a rollout of `task` has faults injected."""
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
