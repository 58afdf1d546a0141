"""What a rank and a process of its pool say to each other, and the memory that they share.

They speak over a pair of sockets: a byte asks for a reset or a step, a byte answers; a call of a method and its answers
follow such bytes. Actions, observations and the like
stand in the memory. Who reads the end of the line knows that the other is gone.
"""

import mmap
import os
import pickle
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from ddppo.config import EnvConfig
from ddppo.envs.same_step import Answers, answer_layout
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
