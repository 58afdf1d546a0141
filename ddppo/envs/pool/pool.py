"""Batches of scalar environments stepped by a few processes (pool): each steps its share of them in turn.

Observations and actions pass through shared memory. The processes fork from a server that has imported what they need;
they end with the rank however it ends, and leave nothing.
"""

import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

import gymnasium as gym
import numpy as np

from ddppo.config import EnvConfig
from ddppo.envs.faults import EnvNames, when_reset, when_stepped
from ddppo.envs.pool.line import (
    DONE,
    RESET,
    STEP,
    Memory,
    Shape,
    Task,
    ToMeasure,
    create,
    hear,
    receive_byte,
    tell,
)
from ddppo.envs.rows import RowLayout
from ddppo.envs.same_step import Answers, SameStepEnvs
from ddppo.envs.step_cost import choose_num_workers
from ddppo.envs.vec_env import EnvSpec
from ddppo.errors import EnvWorkerLost
from ddppo.forking import ForkedProcess, ForkServer, ForkServerLost

_CLOSE_S = 5.0  # for environments to close
_MEASURE_S = 10.0  # for an environment to be made and stepped a few times
_NUM_YIELDS = 500  # before who waits sleeps: longer than a rank acts; none where processes exceed cores
_LOOK_S = 1.0  # between two looks at a worker that does not answer
# fork_server comes last: until then a signal ends the server, which has nothing to lose.
_IMPORTS = ("ddppo.envs.pool.pool", "ddppo.envs.pool.fork_server")


def make_pool(
    env: EnvConfig, spec: EnvSpec, names: EnvNames, timeout_s: float, *, cores: int
) -> SameStepEnvs:
    """Step environments in env.num_workers processes, or as many as keep `cores` busy. Raises EnvError."""
    return SameStepEnvs(Pool(env, spec, names, timeout_s, cores), spec, names)


class Worker:
    """A process of a pool and the environments that it steps: those at `part` of the batch, called `names`."""

    def __init__(self, server: ForkServer, names: EnvNames, part: slice, look_s: float) -> None:
        self.part = part
        self.names = EnvNames(names.indices[part], names.rank)
        self.line, theirs = socket.socketpair()
        # The kernel's own receive timeout: polling before every answer would cost microseconds each.
        interval = struct.pack("ll", int(look_s), int(look_s % 1 * 1e6))
        self.line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
        with theirs:
            self.process: ForkedProcess = server.start(
                "ddppo.envs.pool.worker", [], os.environ, title=f"ddppo {self.names.all()}",
                stdio=(theirs.fileno(), 1, 2),
            )  # fmt: skip


class Pool:
    """A stepper of environments in processes of its own. Raises EnvWorkerLost where one dies or does not answer."""

    answers: Answers
    action_space: gym.Space

    def __init__(self, env: EnvConfig, spec: EnvSpec, names: EnvNames, timeout_s: float, cores: int) -> None:
        self._names = names
        self._timeout_s = timeout_s
        self._num_steps = 0
        self._when = "when they were made"
        self._num_yields = 0
        self._memory: Memory | None = None
        self.workers: list[Worker] = []
        self.server = ForkServer.forked() or ForkServer.started()
        try:
            self.server.have_imported(_IMPORTS)
            num_workers = env.num_workers or self._fitting_num_workers(env, spec, cores)
            self._num_yields = _NUM_YIELDS if num_workers <= cores else 0
            self._start(env, spec, num_workers)
        except ForkServerLost as e:
            self.close()
            raise self._lost_server(e) from None
        except OSError as e:
            self.close()
            raise EnvWorkerLost(f"{names.all()} cannot be made: {e.strerror}") from e
        except BaseException:
            self.close()
            raise

    def _fitting_num_workers(self, env: EnvConfig, spec: EnvSpec, cores: int) -> int:
        """Measure an environment in a process of its own, which it may end or hang in."""
        num_envs = len(self._names.indices)
        worker = Worker(self.server, self._names, slice(0, 1), min(_LOOK_S, self._timeout_s))
        try:
            tell(worker.line, ToMeasure(env, spec))
            self._answer(worker, time.monotonic() + min(_MEASURE_S, self._timeout_s))
            return choose_num_workers(hear(worker.line)[0], num_envs, cores)
        except (EnvWorkerLost, ConnectionError):
            return min(num_envs, cores)
        finally:
            worker.line.close()
            worker.process.kill()

    def _start(self, env: EnvConfig, spec: EnvSpec, num_workers: int) -> None:
        num_envs = len(self._names.indices)
        bounds = [num_envs * k // num_workers for k in range(num_workers + 1)]
        for low, high in pairwise(bounds):
            worker = Worker(self.server, self._names, slice(low, high), min(_LOOK_S, self._timeout_s))
            self.workers.append(worker)
            tell(worker.line, Task(env, spec, [worker.names(i) for i in range(high - low)]))
        self._wait_for_all()
        spaces = [hear(worker.line)[0] for worker in self.workers]
        self.action_space = spaces[0]
        shape = Shape(num_envs, num_workers, RowLayout(spec).dtype, self.action_space, self._num_yields)
        file = create(shape)
        try:
            self._memory = Memory(file, shape)
            for k, worker in enumerate(self.workers):
                tell(worker.line, (shape, k, worker.part), [file])
        finally:
            os.close(file)
        self.answers = self._memory.answers

    def reset(self, seeds: Sequence[int]) -> None:
        assert self._memory is not None
        self._num_steps, self._when = 0, when_reset(0)
        self._memory.seeds[:] = seeds
        self._ask_all(RESET)

    def step(self, actions: np.ndarray) -> None:
        assert self._memory is not None
        self._num_steps += 1
        self._when = when_stepped(self._num_steps)
        self._memory.actions[...] = actions
        self._ask_all(STEP)

    def ask(self, k: int, actions: np.ndarray) -> None:
        """Have worker `k` step its environments with the task's own actions, and return at once."""
        assert self._memory is not None
        worker = self.workers[k]
        self._memory.actions[worker.part] = actions
        with suppress(ConnectionError):  # it is gone, as `answer` finds
            worker.line.send(STEP)

    def answer(self, k: int) -> None:
        """Wait for the answer of worker `k`. Raises EnvError for a step that failed."""
        worker = self.workers[k]
        if self._answer(worker, time.monotonic() + self._timeout_s) != DONE:
            raise hear(worker.line)[0]

    def lives(self, k: int) -> bool:
        return self._code(self.workers[k], 0.0) is None

    def close(self) -> None:
        """Have every worker close its environments, and kill those that have not a few seconds later."""
        for worker in self.workers:
            worker.line.close()
        end = time.monotonic() + _CLOSE_S
        with suppress(ForkServerLost):  # and they with it
            for worker in self.workers:
                worker.process.wait(max(0.0, end - time.monotonic()))
        self.server.close()

    def _ask_all(self, what: bytes) -> None:
        for worker in self.workers:
            with suppress(ConnectionError):  # it is gone, as is found when its answer is waited for
                worker.line.send(what)
        self._wait_for_all()

    def _wait_for_all(self) -> None:
        """Wait for an answer of every worker. Raises the error of the first environment, as if stepped in turn."""
        end = time.monotonic() + self._timeout_s
        failed = [worker for worker in self.workers if self._answer(worker, end) != DONE]
        if failed:
            raise hear(failed[0].line)[0]

    def _answer(self, worker: Worker, end: float) -> bytes:
        while True:
            try:
                answer = receive_byte(worker.line, self._num_yields)
            except BlockingIOError:
                # A program that an environment has started may hold the line's other end open: look at the process.
                if self._code(worker, 0.0) is not None:
                    raise self._lost(worker) from None
                if time.monotonic() > end:
                    raise self._stuck(worker) from None
                continue
            except ConnectionError:
                answer = b""
            if not answer:
                raise self._lost(worker) from None
            return answer

    def _code(self, worker: Worker, patience_s: float) -> int | None:
        try:
            return worker.process.wait(patience_s) if patience_s else worker.process.poll()
        except ForkServerLost as e:
            raise self._lost_server(e) from None

    def _lost(self, worker: Worker) -> EnvWorkerLost:
        code = self._code(worker, _CLOSE_S)
        return EnvWorkerLost(
            f"{self._last_at(worker)}, {self._when}: the process of {worker.names.all()} ended (exit code {code}); a "
            "negative exit code is a signal, -9 often the kernel's answer to too little memory"
        )

    def _stuck(self, worker: Worker) -> EnvWorkerLost:
        longer = "it hangs, or its step needs longer"
        if len(worker.names.indices) > 1:
            longer = f"it hangs, or a step of {worker.names.all()}, one after another, needs longer"
        return EnvWorkerLost(
            f"{self._last_at(worker)}, {self._when}: no answer within {self._timeout_s:g} s; {longer}"
        )

    def _last_at(self, worker: Worker) -> str:
        if self._memory is None:
            return worker.names.all()
        return worker.names(int(self._memory.at[self.workers.index(worker), 0]))

    def _lost_server(self, lost: ForkServerLost) -> EnvWorkerLost:
        return EnvWorkerLost(
            f"{self._names.all()}, {self._when}: the process that their processes fork from ended (exit code "
            f"{lost.code}), and they with it"
        )
