"""What the groups of an iteration play, the same on every rank."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ddppo.curriculum.contract import Curriculum
from ddppo.errors import RunFolderError, TrainingError
from ddppo.files import is_plain
from ddppo.seeding import derived_seed, stream
from ddppo.tracebacks import in_one_line


@dataclass(frozen=True, slots=True)
class Round:
    """What one group plays: seed and options that all its rollouts are reset with. task: None if nobody chose."""

    seed: int
    options: dict[str, Any] = field(default_factory=dict)
    task: str | None = None


class Rounds:
    """The groups of every iteration, 0 to num_groups - 1 over all ranks.

    Every rank has one, and calls `begin` before and `end` after each iteration; all say the same, for all are told the
    same and the streams depend on the run's seed alone. Without a curriculum the environment chooses its task by the
    group's seed.
    """

    def __init__(self, seed: int, num_groups: int, curriculum: Curriculum | None = None) -> None:
        self._seed = seed
        self._num_groups = num_groups
        self.curriculum = curriculum
        self._tasks: list[str] = []  # of the iteration under way

    def begin(self, iteration: int) -> list[Round]:
        """Return what each group plays in this iteration."""
        self._tasks = []
        seeds = [derived_seed(self._seed, "group", group, iteration) for group in range(self._num_groups)]
        if self.curriculum is None:
            return [Round(seed) for seed in seeds]
        rng = stream(self._seed, "curriculum", iteration)
        for _ in seeds:
            self._tasks.append(self.curriculum.choose(rng, besides=tuple(self._tasks)))
        return [Round(seed, {"task": task}, task) for seed, task in zip(seeds, self._tasks, strict=True)]

    def end(self, rates: Sequence[float | None]) -> None:
        """Note how the iteration went. rates: by group, the share of its rollouts that achieved; None if all failed."""
        if self.curriculum is None:
            return
        if len(rates) != len(self._tasks):
            raise TrainingError(f"{len(rates)} rates of {len(self._tasks)} groups")
        of_tasks: dict[str, list[float]] = {}
        for task, rate in zip(self._tasks, rates, strict=True):
            if rate is not None:
                of_tasks.setdefault(task, []).append(rate)
        if of_tasks:
            self.curriculum.record({task: sum(found) / len(found) for task, found in of_tasks.items()})
            self.state()  # what cannot be saved is told of now, and not when there is something to lose

    def metrics(self) -> dict[str, float]:
        """Return what the curriculum tells by numbers."""
        return self.curriculum.metrics() if self.curriculum is not None else {}

    def table(self) -> str:
        """Return what the curriculum tells by lines of text, "" without one."""
        return self.curriculum.table() if self.curriculum is not None else ""

    def state(self) -> dict[str, Any] | None:
        """Return what the curriculum has learned, for a checkpoint; None without one. Raises TrainingError."""
        if self.curriculum is None:
            return None
        state = self.curriculum.state()
        if type(state) is not dict or not is_plain(state):
            raise TrainingError(
                f"{type(self.curriculum).__name__}.state() returned {str(state)[:80]}, which checkpoints do not hold: "
                "return a dict with names for keys, of None, bool, int, float, str, lists and such dicts; of NumPy's "
                "numbers float(x) and int(x)"
            )
        return state

    def digest(self, before: str = "") -> str:
        """Return a hash, in hexadecimal digits, of the state and what came `before`; equal on ranks that agree."""
        return hashlib.sha256((before + json.dumps(self.state(), sort_keys=True)).encode()).hexdigest()

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go on from what `state` returned. Raises RunFolderError where that was another curriculum's."""
        if self.curriculum is None and state is None:
            return
        if self.curriculum is None or state is None:
            raise RunFolderError(
                "of the checkpoint and the run as it is now only one has a curriculum: go on with the tasks that the "
                "environment had, or begin a new run"
            )
        try:
            self.curriculum.restore(state)
        except RunFolderError:
            raise
        except Exception as e:  # what a class of a user's own may raise
            raise RunFolderError(
                f"{type(self.curriculum).__name__} cannot go on from the checkpoint's state: {in_one_line(e)}"
            ) from e
