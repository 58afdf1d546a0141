"""One curriculum for groups that are played at once, in one program (groups.py)."""

import threading
from collections.abc import Mapping
from typing import Any

from ddppo.domains.text.curriculum.contract import Curriculum
from ddppo.errors import ConfigError
from ddppo.seeding import derived_seed, stream


class SharedCurriculum:
    """A curriculum for groups of several tasks, pools or threads: each call takes effect as a whole.

    Group k has the seed and the random stream of iteration k of a training run with one group. Without a curriculum
    there are only the seeds.
    """

    def __init__(self, curriculum: Curriculum | None, seed: int = 0) -> None:
        self.curriculum = curriculum
        self._seed = seed
        self._lock = threading.Lock()
        self._num_groups = 0
        self._under_way: dict[int, str] = {}  # tasks of groups that are being played, by their numbers

    def begin(self, task: str | None) -> tuple[int, str | None, int]:
        """Return number, task and seed of a new group; the curriculum chooses the task if it is None."""
        with self._lock:
            self._num_groups += 1
            if task is None and self.curriculum is not None:
                rng = stream(self._seed, "curriculum", self._num_groups)
                task = self.curriculum.choose(rng, besides=tuple(self._under_way.values()))
            if task is not None:
                self._under_way[self._num_groups] = task
            return self._num_groups, task, derived_seed(self._seed, "group", 0, self._num_groups)

    def end(self, number: int) -> None:
        """Note that a group is no longer played."""
        with self._lock:
            self._under_way.pop(number, None)

    def record(self, task: str | None, rate: float) -> None:
        """Record a try of a task. Nothing else changes the curriculum. Raises ConfigError without one."""
        with self._lock:
            if self.curriculum is None or task is None:
                raise ConfigError(
                    "record_group_result: the servers name no tasks with tiers, so there is no curriculum: leave it out"
                )
            self.curriculum.record({task: rate})

    def state(self) -> dict[str, Any]:
        """Return the state as plain values, to continue from by `restore`."""
        with self._lock:
            own = None if self.curriculum is None else self.curriculum.state()
            return {"num_groups": self._num_groups, "curriculum": own}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a result of `state`. Raises RunFolderError if it does not fit the tasks."""
        with self._lock:
            if self.curriculum is not None:
                self.curriculum.restore(state["curriculum"])
            self._num_groups = state["num_groups"]

    def table(self) -> str:
        """Return the state of every task as lines of text; "" without a curriculum."""
        with self._lock:
            return "" if self.curriculum is None else self.curriculum.table()
