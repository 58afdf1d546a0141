"""A pool with processes that answer one by one, so that no step waits for the slowest environment.

Used by distributed=central_inference. An observer is a process of the pool together with its environments.
"""

import select
import time

import numpy as np

from ddppo.config.settings import EnvConfig
from ddppo.envs.backends.pool import Pool
from ddppo.envs.backends.sync import SteppedEnvs
from ddppo.envs.encoding.gym_spaces import decode_actions
from ddppo.envs.vec_env import EnvNames, EnvSpec, EnvStep


class Observers(SteppedEnvs):
    """A batch of environments that is stepped observer by observer, with `ask`, `ready` and `answer`."""

    def __init__(
        self,
        env: EnvConfig,
        spec: EnvSpec,
        names: EnvNames,
        timeout_s: float,
        cores: int,
        max_restarts: int = 0,
    ) -> None:
        self._pool = Pool(env, spec, names, timeout_s, cores, max_restarts)
        super().__init__(self._pool, spec, names)
        self._timeout_s = timeout_s
        self._busy: set[int] = set()
        self.parts = [worker.part for worker in self._pool.workers]

    def ask(self, observer: int, actions: np.ndarray) -> None:
        """Tell an observer to step with the model's actions for its environments, and return at once."""
        self._busy.add(observer)
        self._pool.ask(observer, decode_actions(self._pool.action_space, actions))

    def ready(self, max_wait_s: float | None) -> list[int]:
        """Wait for the first answer, then up to max_wait_s for others (None: until all have answered).

        Returns the observers that answered. An observer that was lost and is replaced does not count as waiting. Raises
        the EnvError of an environment that failed, died or did not answer in time.
        """
        assert self._busy, "no observer was asked"
        # An answer of a replacement that still repeats its history does not count: wait again.
        while True:
            end = time.monotonic() + self._timeout_s
            there = [k for k in self._answering(max_wait_s, end) if self._pool.answer(k, end)]
            if there:
                self._busy.difference_update(there)
                return sorted(there)

    def _answering(self, max_wait_s: float | None, end: float) -> list[int]:
        """Return the observers that have sent an answer, or never will."""
        lines = {self._pool.workers[k].line.fileno(): k for k in self._busy}
        there: list[int] = []
        closes = None if max_wait_s is None else float("inf")  # time at which waiting for others ends
        while lines:
            # At most a second at a time, so that a dead process is noticed.
            limit = end if closes is None or not there else min(end, closes)
            found, _, _ = select.select(list(lines), [], [], max(0.0, min(1.0, limit - time.monotonic())))
            there.extend(lines.pop(fileno) for fileno in found)
            if found and closes == float("inf"):  # the first answer
                assert max_wait_s is not None
                closes = time.monotonic() + max_wait_s
            if there and closes is not None and time.monotonic() >= closes:
                break
            if not found:  # silence: some processes may be gone, or all too slow
                gone = [k for k in lines.values() if not self._pool.lives(k)]
                if gone or time.monotonic() > end:
                    there.extend(gone or lines.values())
                    break
        return there

    def answer(self, observer: int) -> EnvStep:
        """Return the step of an observer that was ready; `ended` counts from its first environment."""
        answers = self._pool.answers.part(self.parts[observer])
        (ended,) = (answers.terminated | answers.truncated).nonzero()
        return EnvStep(
            self._layout.obs(answers.rows), answers.rewards, answers.terminated, answers.truncated,
            self._pool.valid[self.parts[observer]], ended, self._layout.obs(answers.final_rows[ended]),
            self._layout.mask(answers.rows),
        )  # fmt: skip

    def step(self, actions: np.ndarray) -> EnvStep:
        raise AssertionError("observers are stepped one by one")
