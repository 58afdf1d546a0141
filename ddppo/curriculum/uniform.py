"""No curriculum: every task is as likely as any other, always."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ddppo.curriculum.contract import least_often
from ddppo.errors import ConfigError


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
