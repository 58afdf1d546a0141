"""The rank's view of one process of a pool (`PoolWorker`), and how many processes are worth their cost.

`measure` times a step of one environment; `choose_num_workers` and `pool_pays` decide env.num_workers and env.backend.
"""

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
    Command,
    Replay,
    framed,
    receive_byte,
    receive_object,
)
from ddppo.envs.encoding.gym_spaces import sample_action
from ddppo.envs.guard import STEPPED, guarding
from ddppo.envs.single import RowEnv, make_row_env
from ddppo.envs.vec_env import EnvNames, EnvSpec, when_reset, when_stepped
from ddppo.errors import EnvError, EnvWorkerLost
from ddppo.processes.forking import ForkedProcess, ForkServer, ForkServerLost

# Seconds per step of the batch for messages between the rank and its pool: 20 us if every process has a core and is
# awake (experiments/env_backends), 160 us on two cores in training, where processes sleep while the rank acts (W8 of
# experiments/speed).
_POOL_S = 150e-6
_COMPUTES_ABOVE = 0.9  # an environment that computes for this share of its step "computes"; the rest is noise


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of a step of one environment, resets included."""

    total_s: float  # seconds
    busy_s: (
        float  # of these, seconds of computing; the rest it sleeps, or waits for something other than a core
    )


@guarding(STEPPED)
def measure(env: EnvConfig, spec: EnvSpec, measure_s: float = 0.05, min_steps: int = 5) -> StepCost:
    """Measure one environment with random actions, for at least measure_s seconds and min_steps steps."""
    row_env = make_row_env(env, spec, "an environment that was made to measure a step")
    try:
        row_env.action_space.seed(0)
        row, _ = row_env.reset(seed=0)
        row = _next_row(row_env, row)  # not measured: the first step may load something
        # Wall time without waiting for a busy core, and the CPU time of this process.
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
    """Return the smallest number of processes that steps a batch in the least possible time.

    Environments that compute get one process per core; environments that sleep or wait get up to one process each.
    """
    # The share of a step that needs a core.
    busy = cost.busy_s / cost.total_s
    if busy > _COMPUTES_ABOVE:
        return min(num_envs, cores)
    # Environments that one process can step in the time in which the cores compute for all of them.
    in_turn = max(1, int(num_envs * busy / cores))
    return -(-num_envs // in_turn)


def pool_pays(cost: StepCost, num_envs: int, num_workers: int) -> bool:
    """Return whether a pool saves more time of a step than its messages cost."""
    return num_envs * cost.total_s * (1 - 1 / num_workers) > _POOL_S


def _next_row(row_env: RowEnv, row: np.ndarray) -> np.ndarray:
    mask = row_env.layout.mask(row)
    row, _, terminated, truncated, _ = row_env.step(sample_action(row_env.action_space, mask))
    return row_env.reset()[0] if terminated or truncated else row


def _queued_s() -> float:
    """Return the seconds that this thread has waited for a busy core, 0 if the system does not report them."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError):
        return 0.0


# -- One process of a pool, as its rank sees it.


_LOOK_S = 1.0  # between two checks that a worker which does not answer still lives
_END_S = 5.0  # limit for a process that closed its socket to end


class PoolWorker:
    """A process of a pool, and the environments at `part` of the batch that it steps."""

    # The command, RESET or STEP, in which the process was lost that this one replaces; None after the first answer.
    replaces: bytes | None = None
    replay: Replay | None = None  # what it still has to repeat; None if its environments begin new episodes
    is_called = False  # results of a method call follow the next byte
    is_made = True  # it has reported that its environments are made
    num_steps = -1  # since the reset
    at: np.ndarray | None = None  # [8] in shared memory; at[0] is the index of the running environment
    spin_s = 0.0  # see `receive_byte`

    def __init__(self, server: ForkServer, names: EnvNames, part: slice, timeout_s: float) -> None:
        self.part = part
        self.names = EnvNames(names.indices[part], names.rank)
        self._of_pool = names
        self._timeout_s = timeout_s
        # The process gets its end of the socket as standard input.
        self.line, theirs = socket.socketpair()
        # The kernel's receive timeout: a poll() before every answer would cost microseconds.
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
        """Wait for its answer, one byte, until the time `end`. Raises EnvWorkerLost if it is lost or hangs."""
        while True:
            try:
                answer = receive_byte(self.line, self.spin_s)
            except BlockingIOError:
                # A program that an environment started may keep the socket open, so check the process itself.
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
        """Send a call of a method of its environments, arguments by index. Raises EnvWorkerLost."""
        with self._whole_message():
            self.line.sendall(CALL + framed((method, arguments)))

    def repeat(self, command: Command, actions: np.ndarray) -> None:
        """Send a command of a history again. `actions`: the pool's array of actions. Raises EnvWorkerLost."""
        if isinstance(command, tuple):
            self.is_called = True
            self.call(*command)
            return
        actions[self.part] = command
        with suppress(ConnectionError):  # it is gone: `answer` finds that
            self.line.send(STEP)

    def call_results(self) -> dict[int, Any]:
        """Return the results of a call. Raises the EnvError of a call that failed, or EnvWorkerLost."""
        answer = self.answer(time.monotonic() + self._timeout_s)
        answers = self.receive()
        if answer != DONE:
            raise answers
        return answers

    def receive(self) -> Any:
        """Return the object that follows the byte of an answer. Raises EnvWorkerLost."""
        with self._whole_message():
            content, _ = receive_object(self.line)
        return content

    @contextmanager
    def _whole_message(self) -> Iterator[None]:
        """Use the full timeout for a long message: the short one between two checks would interrupt it."""
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
        # With several environments in a process, a timeout may also be too short for all of them.
        longer = "it hangs, or its step needs longer"
        if len(self.names.indices) > 1:
            longer = f"it hangs, or a step of {self.names.all()}, one after another, needs longer"
        return EnvWorkerLost(f"{self._last_at()}: no answer within {self._timeout_s:g} s; {longer}")

    def _last_at(self) -> str:
        if self.at is None:
            return f"{self.names.all()}, {self.when}"
        return f"{self.names(int(self.at[0]))}, {self.when}"


def lost_server(names: EnvNames, when: str, lost: ForkServerLost) -> EnvError:
    text = f"{names.all()}, {when}: the process that their processes fork from {lost}"
    return EnvWorkerLost(text) if lost.was_killed else EnvError(text)
