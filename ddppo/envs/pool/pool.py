"""Batches of scalar environments stepped by a few processes (pool): each steps its share of them in turn.

Observations and actions pass through shared memory; the processes are `Crew`'s.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ddppo.config import EnvConfig
from ddppo.envs.faults import EnvNames
from ddppo.envs.pool.crew import Crew
from ddppo.envs.pool.line import RESET, STEP
from ddppo.envs.pool.process import Worker
from ddppo.envs.same_step import SameStepEnvs
from ddppo.envs.vec_env import EnvSpec, Options
from ddppo.errors import EnvError, EnvWorkerLost


def make_pool(
    env: EnvConfig, spec: EnvSpec, names: EnvNames, timeout_s: float, *, cores: int, max_restarts: int = 0
) -> SameStepEnvs:
    """Step environments in env.num_workers processes, or as many as keep `cores` busy. Raises EnvError."""
    return SameStepEnvs(Pool(env, spec, names, timeout_s, cores, max_restarts), spec, names)


class Pool(Crew):
    """A stepper of environments in processes of its own, told what to do all together or one by one."""

    def take_options(self, options: Options) -> None:
        self._options = [dict(each) for each in options]  # for a process that takes a lost one's place
        self.call("take_options", {i: (own,) for i, own in enumerate(self._options)})

    def reset(self, seeds: Sequence[int]) -> None:
        assert self._memory is not None
        self._doing = RESET
        self._memory.seeds[:] = seeds
        for past in self._pasts or ():
            past.began()
        self._ask_all()

    def step(self, actions: np.ndarray) -> None:
        assert self._memory is not None
        self._doing = STEP
        if self._pasts is not None:
            for k, worker in enumerate(self.workers):
                self._note(k, actions[worker.part])
        self._memory.actions[...] = actions
        self._ask_all()

    def ask(self, k: int, actions: np.ndarray) -> None:
        """Have worker `k` step its environments with the task's own actions, and return at once."""
        assert self._memory is not None
        self._doing = STEP
        self._note(k, actions)
        worker = self.workers[k]
        self._memory.actions[worker.part] = actions
        self.valid[worker.part] = True
        self._ask(worker)

    def made_anew(self) -> list[int]:
        found, self._made_anew = self._made_anew, []
        return found

    def call(self, method: str, arguments: Mapping[int, tuple]) -> dict[int, Any]:
        answers: dict[int, Any] = {}
        asked: dict[int, dict[int, tuple]] = {}
        errors: list[EnvError] = []
        for k, worker in enumerate(self.workers):
            first, end = worker.part.start, worker.part.stop
            mine = {i - first: arguments[i] for i in range(first, end) if i in arguments}
            if mine:
                asked[k] = mine
                with suppress(EnvWorkerLost):  # as is found below
                    worker.call(method, mine)
        for k, mine in asked.items():
            try:
                found = self._called(k, method, mine)
            except EnvError as e:
                if isinstance(e, EnvWorkerLost):
                    raise
                errors.append(e)
            else:
                answers |= {self.workers[k].part.start + i: answer for i, answer in found.items()}
        if errors:
            raise errors[0]
        return answers

    def _called(self, k: int, method: str, mine: dict[int, tuple]) -> dict[int, Any]:
        """Return what worker `k` answers to a call; {} where it was lost, which the next step finds."""
        begun = time.monotonic()
        try:
            try:
                found = self.workers[k].called()
            except EnvWorkerLost as lost:
                self._come_back(k, lost)
                self.workers[k].call(method, mine)
                found = self.workers[k].called()
        except EnvWorkerLost as lost:
            self._leave(self.workers[k], lost)
            return {}
        if self._pasts is not None:
            past, num_envs = self._pasts[k], self.workers[k].part.stop - self.workers[k].part.start
            if method == "state" and len(found) == num_envs:
                past.saved([found[i] for i in range(num_envs)], time.monotonic() - begun)
            elif method == "restore" and len(mine) == num_envs:
                past.saved([mine[i][0] for i in range(num_envs)], 0.0)
            elif method != "state":
                past.called((method, mine))
        return found

    def _note(self, k: int, actions: np.ndarray) -> None:
        """Note that worker `k` is to step with these actions, and save its environments if it is time."""
        if self._pasts is None:
            return
        past, worker = self._pasts[k], self.workers[k]
        if past.is_long:
            every: dict[int, tuple] = dict.fromkeys(range(worker.part.stop - worker.part.start), ())
            try:
                with suppress(EnvWorkerLost):
                    worker.call("state", every)
                self._called(k, "state", every)
            except EnvWorkerLost:
                raise
            except EnvError:
                past.cannot_be_saved()
        past.stepped(actions, self.answers.rows[worker.part])

    def _ask_all(self) -> None:
        self.valid[:] = True
        for worker in self.workers:
            self._ask(worker)
        self._wait_for_all()

    def _ask(self, worker: Worker) -> None:
        worker.num_steps = 0 if self._doing == RESET else worker.num_steps + 1
        with suppress(ConnectionError):  # it is gone, as `answer` finds
            worker.line.send(self._doing)
