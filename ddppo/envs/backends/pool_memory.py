"""What a rank and a process of its pool say to each other, and the memory that they share.

They speak over a pair of sockets: a byte asks for a reset or a step, a byte answers; a call of a method and its answers
follow such bytes. Actions, observations and the like
stand in the memory. Who reads the end of the line knows that the other is gone.
"""

import mmap
import os
import pickle
import signal
import socket
import struct
import time
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from ddppo.config.settings import EnvConfig
from ddppo.envs.backends.sync import Answers, answer_layout
from ddppo.envs.vec_env import EnvSpec
from ddppo.processes.fork_server import exactly
from ddppo.processes.machine import unnamed_file

RESET, STEP = b"r", b"s"  # the end of the line asks to leave
CALL = b"c"  # a method's name and arguments follow
DONE, FAILED = b".", b"!"  # the EnvError follows
_SIZE = struct.Struct("!Q")
_LINE = 64  # bytes of a cache line


@dataclass(frozen=True, slots=True)
class ToMeasure:
    """What a process is to make and step for a moment, to answer with a StepCost."""

    env: EnvConfig
    spec: EnvSpec


@dataclass(frozen=True, slots=True)
class Task:
    """What a process of the pool is to make: environments of these names, and of each its resets' options, if any."""

    env: EnvConfig
    spec: EnvSpec
    names: list[str]
    options: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """What the memory of a pool follows from: its environments and processes, and the task's rows and actions.

    num_yields: see `receive_byte`.
    """

    num_envs: int
    num_workers: int
    row_dtype: np.dtype
    action_space: gym.Space
    num_yields: int


class Memory:
    """Arrays in one file that all processes of a pool map.

    actions: `[E, *action_space.shape]`. seeds: `[E]`. at: `[num_workers, 8]`, whose first entry is the environment,
    counted from the worker's first, that runs.
    """

    def __init__(self, file: int, shape: Shape) -> None:
        layout = _layout(shape)
        self._map = mmap.mmap(file, _num_bytes(layout))
        arrays, start = [], 0
        for size, dtype in layout:
            arrays.append(np.ndarray(size, dtype, self._map, start))
            start += _in_lines(arrays[-1].nbytes)
        self.actions, self.seeds, self.at, *answers = arrays
        self.answers = Answers(*answers)


def create(shape: Shape) -> int:
    """Return an open file for Memory. Raises OSError where memory does not suffice."""
    return unnamed_file(_num_bytes(_layout(shape)))


def _layout(shape: Shape) -> list[tuple[tuple[int, ...], np.dtype]]:
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


def receive_byte(line: socket.socket, num_yields: int) -> bytes:
    """Return the next byte, b"" at the end of the line; whoever waits yields its core so often before it sleeps.

    To be woken takes tens of us, to yield one that nobody else wants about one. Raises BlockingIOError after the line's
    own timeout.
    """
    for _ in range(num_yields):
        try:
            return line.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            os.sched_yield()
    return line.recv(1)


def tell(line: socket.socket, what: Any, files: Sequence[int] = ()) -> None:
    """Send an object, and open files with it. Raises OSError where the other is gone."""
    content = framed(what)
    sent = socket.send_fds(line, [content], files)
    line.sendall(content[sent:])


def framed(what: Any) -> bytes:
    """Return an object as `hear` reads it."""
    content = pickle.dumps(what)
    return _SIZE.pack(len(content)) + content


def hear(line: socket.socket) -> tuple[Any, list[int]]:
    """Return the next object and the files that came with it. Raises EOFError where the other is gone."""
    head, files, _, _ = socket.recv_fds(line, _SIZE.size, 1, socket.MSG_WAITALL)
    if len(head) < _SIZE.size:
        raise EOFError
    (size,) = _SIZE.unpack(head)
    return pickle.loads(exactly(line, size)), list(files)


# -- What a process of a pool was told, so that another can come to where it was if it is lost.


_SAVE_AFTER = 256  # steps, or more where saving takes long
_SAVING_SHARE = 0.01  # of the time, at most
_LONGEST = 20_000  # steps of who cannot be saved; then nobody comes to where it was

Told = np.ndarray | tuple[str, dict[int, tuple]]  # the actions of a step, or a call of a method


@dataclass(slots=True)
class Replay:
    """What a process that takes a lost one's place is told after its reset to come to where that one was.

    crc: of the last rows that were seen of that one, before the last `num_unseen` of what it was told; None of nothing.
    """

    told: deque[Told]
    crc: int | None
    num_unseen: int

    def leads_elsewhere(self, rows: np.ndarray) -> bool:
        """Whether rows `[e]`, with what is left to be told, are others than were seen."""
        return len(self.told) == self.num_unseen and self.crc not in (None, crc(rows))


class Past:
    """What the environments of a process were at last, by their own states or by the seeds of their reset, and since.

    Playing that again leads to where they were, if nothing else decides it.
    """

    def __init__(self) -> None:
        self._states: list[Any] | None = None
        self._told: list[Told] = []
        self._num_told = 0  # so far
        self._lost_at = -1
        self._crc: int | None = None  # of the rows before the last step
        self._is_known = self._can_be_saved = True
        self._saved_at = self._save_s = 0.0

    def began(self) -> None:
        """Note a reset by seeds, which whoever takes its place begins with."""
        self._states, self._told, self._crc = None, [], None
        self._num_told += 1
        self._is_known = True

    def stepped(self, actions: np.ndarray, rows: np.ndarray) -> None:
        """Note a step that is about to be done, and the rows `[e]` before it."""
        self._crc = crc(rows)
        self.called(actions)

    def called(self, what: Told) -> None:
        """Note what was done."""
        self._num_told += 1
        if self._is_known:
            self._told.append(what)
            if len(self._told) > _LONGEST:
                self.forget()

    def saved(self, states: list[Any], seconds: float) -> None:
        """Note the states of all, which took so long to have."""
        self._states, self._told = states, []
        self._saved_at, self._save_s = time.monotonic(), seconds
        self._is_known = True

    def cannot_be_saved(self) -> None:
        self._can_be_saved = False

    def forget(self) -> None:
        """Lead nobody to where they are, until the next reset."""
        self._is_known, self._told, self._states = False, [], None

    @property
    def is_long(self) -> bool:
        """Whether it is worth while to save, lest there be much to play again."""
        if len(self._told) < _SAVE_AFTER or not self._can_be_saved:
            return False
        return time.monotonic() - self._saved_at > self._save_s / _SAVING_SHARE

    def again(self, rows: np.ndarray | None) -> Replay | None:
        """Return what leads to where they were; None where nobody knows, or where it led to the same loss before.

        rows: `[e]`, the last that they handed over; None where they were about to hand over the next.
        """
        if not self._is_known or self._lost_at == self._num_told:
            return None
        self._lost_at = self._num_told
        told: deque[Told] = deque(self._told)
        if self._states is not None:
            told.appendleft(("restore", {i: (state,) for i, state in enumerate(self._states)}))
        if rows is not None:
            return Replay(told, crc(rows), 0)
        return Replay(told, self._crc, 1)


def crc(rows: np.ndarray) -> int:
    """Return a checksum of the bytes of rows `[e]`."""
    return zlib.crc32(np.ascontiguousarray(rows).tobytes())


# -- What the fork server of a pool imports last, for what the import does to it: its rank decides what signals mean.
#
# It ends with its rank, as do the processes that it forks.


def leave_signals_to_the_rank() -> None:
    """Do nothing at a signal that asks to stop; a rank and its environments may get it together.

    A handler that does nothing, unlike ignoring, is not handed on to programs that a task starts and may want to
    terminate.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _do_nothing)


def _do_nothing(number: int, frame: object) -> None:
    pass


leave_signals_to_the_rank()
