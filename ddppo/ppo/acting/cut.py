"""When a rollout ends before all of its steps are done."""

import time
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Cut:
    """Ends a rollout early, once it has least_steps, when enough others have ended theirs or its time is over.

    cells `[n]`, int64, are written by others meanwhile: each of them that is at least `number` tells of one that has
    ended; with `awaited` of them this one ends too. deadline: of time.perf_counter, infinity for none.
    """

    cells: np.ndarray
    number: int
    awaited: int
    least_steps: int
    deadline: float

    def __call__(self, num_steps: int) -> bool:
        """Return whether to end after so many steps. It waits for nobody."""
        if num_steps < self.least_steps:
            return False
        num_ended = int(np.count_nonzero(self.cells >= self.number))
        return num_ended >= self.awaited or time.perf_counter() >= self.deadline
