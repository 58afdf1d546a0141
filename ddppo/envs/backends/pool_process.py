"""One process of a pool as its rank sees it, and what a step costs: how many processes pay."""

import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ddppo.config.settings import EnvConfig
from ddppo.envs.backends.pool_memory import (
    CALL,
    DONE,
    STEP,
    Replay,
    Told,
    framed,
    hear,
    receive_byte,
)
from ddppo.envs.encoding.gym_spaces import sample_action
from ddppo.envs.guard import STEPPED, guarding
from ddppo.envs.single import RowEnv, make_row_env
from ddppo.envs.vec_env import EnvNames, EnvSpec, when_reset, when_stepped
from ddppo.errors import EnvError, EnvWorkerLost
from ddppo.processes.forking import ForkedProcess, ForkServer, ForkServerLost

# Asking the processes of a pool and answering the rank: seconds per step of the batch. Measured by
# experiments/env_backends: 20 us where all have the cores to themselves, 100 us where each has to be woken.
_POOL_S = 75e-6
_COMPUTES_ABOVE = 0.9  # of its step; the rest is noise


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds that a step of one environment takes, resets included, and how many of them it computes.

    The rest it sleeps, or waits for something else than a core.
    """

    total_s: float
    busy_s: float


@guarding(STEPPED)
def measure(env: EnvConfig, spec: EnvSpec, measure_s: float = 0.05, min_steps: int = 5) -> StepCost:
    """Measure one environment with random actions, over measure_s and min_steps or more."""
    row_env = make_row_env(env, spec, "an environment that was made to measure a step")
    try:
        row_env.action_space.seed(0)
        row, _ = row_env.reset(seed=0)
        row = _next_row(row_env, row)  # the first may load something
        num_steps, start, computed_s, queued_s = 0, time.perf_counter(), time.process_time(), _queued_s()
        while num_steps < min_steps or time.perf_counter() - start < measure_s:
            row = _next_row(row_env, row)
            num_steps += 1
        total_s = time.perf_counter() - start - (_queued_s() - queued_s)
        busy_s = time.process_time() - computed_s
    finally:
        row_env.close()
    return StepCost(total_s / num_steps, busy_s / num_steps)


def choose_num_workers(cost: StepCost, num_envs: int, cores: int) -> int:
    """Return how few processes step a batch in the least time: what `cores` compute, or one environment's step.

    Environments that compute get a process per core, those that sleep or wait up to one each.
    """
    busy = cost.busy_s / cost.total_s
    if busy > _COMPUTES_ABOVE:
        return min(num_envs, cores)
    in_turn = max(1, int(num_envs * busy / cores))  # which one process steps while the cores compute for all
    return -(-num_envs // in_turn)


def pool_pays(cost: StepCost, num_envs: int, num_workers: int) -> bool:
    """Return whether what a pool of so many processes saves of a step in turn exceeds what asking it costs."""
    return num_envs * cost.total_s * (1 - 1 / num_workers) > _POOL_S


def _next_row(row_env: RowEnv, row: np.ndarray) -> np.ndarray:
    mask = row_env.layout.mask(row)
    row, _, terminated, truncated, _ = row_env.step(sample_action(row_env.action_space, mask))
    return row_env.reset()[0] if terminated or truncated else row


def _queued_s() -> float:
    """Return how long this thread has waited for a core that others had, where the system tells."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError):
        return 0.0


# -- One process of a pool as its rank sees it: the line to it, what it steps, how far it is, and how it was lost.


_LOOK_S = 1.0  # between two looks at a worker that does not answer
_END_S = 5.0  # for a process that closed the line to end


class PoolWorker:
    """A process of a pool and the environments that it steps: those at `part` of the batch, called `names`.

    replaces: what another was doing, RESET or STEP, that was lost and has this one for it; None once it has answered.
    replay: by which it comes to where that one was; None where its environments begin new episodes. is_called: whether
    answers follow the next byte. is_made: whether it has said so. at: `[8]` of the memory, whose first entry is the
    environment that runs. num_yields: as `receive_byte`.
    """

    replaces: bytes | None = None
    replay: Replay | None = None
    is_called = False
    is_made = True
    num_steps = -1  # since the reset
    at: np.ndarray | None = None
    num_yields = 0

    def __init__(self, server: ForkServer, names: EnvNames, part: slice, timeout_s: float) -> None:
        self.part = part
        self.names = EnvNames(names.indices[part], names.rank)
        self._of_pool = names
        self._timeout_s = timeout_s
        self.line, theirs = socket.socketpair()
        # The kernel's own receive timeout: polling before every answer would cost microseconds each.
        look_s = min(_LOOK_S, timeout_s)
        interval = struct.pack("ll", int(look_s), int(look_s % 1 * 1e6))
        self.line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
        with theirs:
            self.process: ForkedProcess = server.start(
                "ddppo.envs.backends.pool_worker", [], os.environ, title=f"ddppo {self.names.all()}",
                stdio=(theirs.fileno(), 1, 2),
            )  # fmt: skip

    @property
    def when(self) -> str:
        if self.num_steps < 0:
            return "when they were made"
        return when_stepped(self.num_steps) if self.num_steps else when_reset(0)

    def answer(self, end: float) -> bytes:
        """Return the byte that it answers, until the time `end`. Raises EnvWorkerLost where it is lost or stuck."""
        while True:
            try:
                answer = receive_byte(self.line, self.num_yields)
            except BlockingIOError:
                # A program that an environment has started may hold the line's other end open: look at the process.
                if not self.lives():
                    raise self.lost() from None
                if time.monotonic() > end:
                    raise self.stuck() from None
                continue
            except ConnectionError:
                answer = b""
            if not answer:
                raise self.lost() from None
            return answer

    def call(self, method: str, arguments: dict[int, tuple]) -> None:
        """Have it call a method of its environments at these places. Raises EnvWorkerLost."""
        with self._in_the_middle_of_a_sentence():
            self.line.sendall(CALL + framed((method, arguments)))

    def tell(self, what: Told, actions: np.ndarray) -> None:
        """Have it do what another was told; `actions` is where it finds those of a step. Raises EnvWorkerLost."""
        if isinstance(what, tuple):
            self.is_called = True
            self.call(*what)
            return
        actions[self.part] = what
        with suppress(ConnectionError):  # it is gone, as `answer` finds
            self.line.send(STEP)

    def called(self) -> dict[int, Any]:
        """Return what it answers to a call. Raises the EnvError of one that failed, EnvWorkerLost."""
        answer = self.answer(time.monotonic() + self._timeout_s)
        answers = self.hear()
        if answer != DONE:
            raise answers
        return answers

    def hear(self) -> Any:
        """Return what follows the byte of an answer. Raises EnvWorkerLost."""
        with self._in_the_middle_of_a_sentence():
            said, _ = hear(self.line)
        return said

    @contextmanager
    def _in_the_middle_of_a_sentence(self) -> Iterator[None]:
        """Limit how long a long message may take, which the timeout between two looks would cut short."""
        self.line.settimeout(self._timeout_s)
        try:
            yield
        except TimeoutError:
            raise self.stuck() from None
        except (EOFError, ConnectionError):
            raise self.lost() from None
        finally:
            self.line.settimeout(None)

    def lives(self) -> bool:
        return self._code(0.0) is None

    def _code(self, patience_s: float) -> int | None:
        try:
            return self.process.wait(patience_s) if patience_s else self.process.poll()
        except ForkServerLost as e:
            raise lost_server(self._of_pool, self.when, e) from None

    def lost(self) -> EnvWorkerLost:
        code = self._code(_END_S)
        return EnvWorkerLost(
            f"{self._last_at()}: the process of {self.names.all()} ended (exit code {code}); a "
            "negative exit code is a signal, -9 often the kernel's answer to too little memory"
        )

    def stuck(self) -> EnvWorkerLost:
        longer = "it hangs, or its step needs longer"
        if len(self.names.indices) > 1:
            longer = f"it hangs, or a step of {self.names.all()}, one after another, needs longer"
        return EnvWorkerLost(f"{self._last_at()}: no answer within {self._timeout_s:g} s; {longer}")

    def _last_at(self) -> str:
        if self.at is None:
            return f"{self.names.all()}, {self.when}"
        return f"{self.names(int(self.at[0]))}, {self.when}"


def lost_server(names: EnvNames, when: str, lost: ForkServerLost) -> EnvError:
    said = f"{names.all()}, {when}: the process that their processes fork from {lost}"
    return EnvWorkerLost(said) if lost.was_killed else EnvError(said)
