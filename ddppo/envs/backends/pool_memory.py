"""Messages and shared memory between a rank and the processes of its pool, and the history for replays.

Over a pair of sockets, one byte asks for a reset or a step and one byte answers. A call of a method follows the byte
CALL, its results the byte DONE, an error the byte FAILED. Actions, observations and rewards are in shared memory
(`SharedArrays`). The end of the socket's stream means that the other side is gone.
"""

import mmap
import pickle
import socket
import struct
import time
import zlib
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from ddppo.config.settings import EnvConfig
from ddppo.envs.backends.sync import Answers, answer_layout
from ddppo.envs.vec_env import EnvSpec
from ddppo.processes.fork_server import exactly
from ddppo.processes.machine import unnamed_file

RESET, STEP = b"r", b"s"  # commands; the end of the stream asks the process to end
CALL = b"c"  # command: a method's name and arguments follow
DONE, FAILED = b".", b"!"  # answers; an EnvError follows FAILED
_SIZE = struct.Struct("!Q")
_LINE = 64  # bytes of a cache line


@dataclass(frozen=True, slots=True)
class MeasureTask:
    """The first message to a process: make one environment, step it for a moment, and answer with a StepCost."""

    env: EnvConfig
    spec: EnvSpec


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """The first message to a process of the pool: make these environments."""

    env: EnvConfig
    spec: EnvSpec
    names: list[str]  # one per environment
    options: list[dict[str, Any]] | None = None  # of every reset, one per environment


@dataclass(frozen=True, slots=True)
class ArraysShape:
    """The sizes and types that determine the layout of the shared memory."""

    num_envs: int
    num_workers: int
    row_dtype: np.dtype  # RowLayout.dtype
    action_space: gym.Space  # of the task
    spin_s: float  # see `receive_byte`


class SharedArrays:
    """Arrays in one file that all processes of a pool map into their memory.

    actions: `[E, *action_space.shape]`, of the next step
    seeds: `[E]`, of the next reset
    at: `[num_workers, 8]`; at[k, 0] is the running environment, counted from the first of worker k
    answers: results of the last step
    """

    def __init__(self, file: int, shape: ArraysShape) -> None:
        layout = _layout(shape)
        self._map = mmap.mmap(file, _num_bytes(layout))
        # Each array starts at a cache line. A worker's entry of `at` fills a line, because it is written all the time.
        arrays, start = [], 0
        for size, dtype in layout:
            arrays.append(np.ndarray(size, dtype, self._map, start))
            start += _in_lines(arrays[-1].nbytes)
        self.actions, self.seeds, self.at, *answers = arrays
        self.answers = Answers(*answers)


def create(shape: ArraysShape) -> int:
    """Return an open file for SharedArrays. Raises OSError if there is not enough memory."""
    return unnamed_file(_num_bytes(_layout(shape)))


def _layout(shape: ArraysShape) -> list[tuple[tuple[int, ...], np.dtype]]:
    actions = shape.action_space
    return [
        ((shape.num_envs, *(actions.shape or ())), np.dtype(actions.dtype)),
        ((shape.num_envs,), np.dtype(np.int64)),
        ((shape.num_workers, _LINE // 8), np.dtype(np.int64)),
        *answer_layout(shape.num_envs, shape.row_dtype),
    ]


def _num_bytes(layout: Sequence[tuple[tuple[int, ...], np.dtype]]) -> int:
    return sum(_in_lines(int(np.prod(size)) * dtype.itemsize) for size, dtype in layout)


def _in_lines(num_bytes: int) -> int:
    return -(-num_bytes // _LINE) * _LINE


def receive_byte(line: socket.socket, spin_s: float) -> bytes:
    """Return the next byte, b"" at the end of the stream. Asks again for `spin_s` seconds before it sleeps.

    Raises BlockingIOError after the socket's own timeout.
    """
    end = time.monotonic() + spin_s if spin_s else 0.0
    while time.monotonic() < end:
        with suppress(BlockingIOError):
            return line.recv(1, socket.MSG_DONTWAIT)
    return line.recv(1)


def send_object(line: socket.socket, what: Any, files: Sequence[int] = ()) -> None:
    """Send an object, and open files with it. Raises OSError if the other side is gone."""
    # File descriptors travel with the first bytes.
    content = framed(what)
    sent = socket.send_fds(line, [content], files)
    line.sendall(content[sent:])


def framed(what: Any) -> bytes:
    """Return the bytes of an object, as `receive_object` reads them."""
    content = pickle.dumps(what)
    return _SIZE.pack(len(content)) + content


def receive_object(line: socket.socket) -> tuple[Any, list[int]]:
    """Return the next object and the files that came with it. Raises EOFError if the other side is gone."""
    head, files, _, _ = socket.recv_fds(line, _SIZE.size, 1, socket.MSG_WAITALL)
    if len(head) < _SIZE.size:
        raise EOFError
    (size,) = _SIZE.unpack(head)
    return pickle.loads(exactly(line, size)), list(files)


# -- The history of a process, so that the process that replaces it can repeat it.


_SAVE_AFTER = 256  # commands after which environments are saved, more if saving takes long
_SAVING_SHARE = 0.01  # largest share of the time that saving may take
_LONGEST = 20_000  # commands without a saved state after which the history is dropped

Command = np.ndarray | tuple[str, dict[int, tuple]]  # the actions of a step, or a call of a method


@dataclass(slots=True)
class Replay:
    """The commands that a replacement still has to repeat after its reset, and a checksum to compare with."""

    commands: deque[Command]
    crc: int | None  # of the last rows that the rank received; None if it received none
    num_unseen: int  # commands at the end of which the rank received no rows

    def differs(self, rows: np.ndarray) -> bool:
        """Whether rows `[e]` differ from those that the rank received at this point of the history."""
        return len(self.commands) == self.num_unseen and self.crc not in (None, crc(rows))


class History:
    """The last known state of a process's environments (saved states, or seeds of a reset), and the commands since.

    Repeating the commands leads to the present state, if nothing else influences the environments.
    """

    def __init__(self) -> None:
        self._states: list[Any] | None = None
        self._commands: list[Command] = []
        self._num_commands = 0  # since the start
        self._lost_at = -1  # number of commands at the last loss
        self._crc: int | None = None  # checksum of the rows before the last step
        self._is_known = self._can_be_saved = True
        self._saved_at = self._save_s = 0.0

    def began(self) -> None:
        """Record a reset with seeds: the history starts here."""
        self._states, self._commands, self._crc = None, [], None
        self._num_commands += 1
        self._is_known = True

    def stepped(self, actions: np.ndarray, rows: np.ndarray) -> None:
        """Record a step that is about to run, and the rows `[e]` before it."""
        self._crc = crc(rows)
        self.called(actions)

    def called(self, command: Command) -> None:
        """Record a command."""
        self._num_commands += 1
        if self._is_known:
            self._commands.append(command)
            if len(self._commands) > _LONGEST:
                self.forget()

    def saved(self, states: list[Any], seconds: float) -> None:
        """Record the states of all environments, which took `seconds` to get: the history starts here."""
        self._states, self._commands = states, []
        self._saved_at, self._save_s = time.monotonic(), seconds
        self._is_known = True

    def cannot_be_saved(self) -> None:
        self._can_be_saved = False

    def forget(self) -> None:
        """Drop the history until the next reset: it leads nowhere."""
        self._is_known, self._commands, self._states = False, [], None

    @property
    def is_long(self) -> bool:
        """Whether the environments should be saved now, so that a replay stays short."""
        if len(self._commands) < _SAVE_AFTER or not self._can_be_saved:
            return False
        return time.monotonic() - self._saved_at > self._save_s / _SAVING_SHARE

    def replay(self, rows: np.ndarray | None) -> Replay | None:
        """Return the replay to the present state; None if it is unknown, or if it led to the same loss before.

        rows: `[e]`, the last ones that the rank received; None if the loss was in a step.
        """
        if not self._is_known or self._lost_at == self._num_commands:
            return None
        self._lost_at = self._num_commands
        commands: deque[Command] = deque(self._commands)
        # The reset has random seeds; the saved states replace its result.
        if self._states is not None:
            commands.appendleft(("restore", {i: (state,) for i, state in enumerate(self._states)}))
        if rows is not None:
            return Replay(commands, crc(rows), 0)
        return Replay(commands, self._crc, 1)


def crc(rows: np.ndarray) -> int:
    """Return a checksum of the bytes of rows `[e]`."""
    return zlib.crc32(np.ascontiguousarray(rows).tobytes())
