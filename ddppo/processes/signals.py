"""What asks a run to stop, and what ends a process with the one that started it. Imports nothing heavy.

SIGINT is Ctrl-C; SIGTERM comes from docker, kubernetes, timeout and SLURM, SIGUSR1 and SIGUSR2 from schedulers, the
latter from our own launchers too, SIGHUP from a terminal that goes away. All ask for the same: to finish the iteration,
save it and end. So does the end of the time that a command has.
"""

import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from ddppo.errors import Stopped
from ddppo.terminal import warn_once

_REQUEUE = (
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)  # of schedulers, which would start the command again
_OF_OTHERS = (*_REQUEUE, signal.SIGHUP)  # Python itself makes SIGINT an exception
_LOOK_S = 0.2  # between two looks at whether the parent lives, where the system does not tell
_BEGAN = "DDPPO_BEGAN"  # in the environment of a command's processes: an instant, as `now_here` writes it
_install = signal.signal
_CLOCK = getattr(
    time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC
)  # the former goes on while the machine is suspended


def note_beginning() -> None:
    """Note that a command begins now, from which its processes count its time."""
    os.environ[_BEGAN] = now_here()


def end_of_time(max_minutes: float | None) -> float | None:
    """Return when the command's time is over, by this machine's own clock; None for never.

    A rank on another machine than the command's counts from here on.
    """
    if max_minutes is None:
        return None
    return time.clock_gettime(_CLOCK) - (seconds_since(os.environ.get(_BEGAN, "")) or 0.0) + 60 * max_minutes


def is_over(end: float | None) -> bool:
    return end is not None and time.clock_gettime(_CLOCK) >= end


def now_here() -> str:
    """Return this instant for processes of this machine, until it boots again: nothing sets this clock."""
    return f"{time.clock_gettime(_CLOCK)} {_boot()}"


def seconds_since(instant: str) -> float | None:
    """Return how long an instant of `now_here` is ago; None if it is of another machine or before its last boot."""
    seconds, _, boot = instant.partition(" ")
    return time.clock_gettime(_CLOCK) - float(seconds) if boot == _boot() else None


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def asks_for_requeue(number: int) -> bool:
    """Return whether a signal, or 0 for the end of the time, is a scheduler's that would start the command again."""
    return number in (0, *_REQUEUE)


class StopRequest:
    """A signal asks for a stop at the end of the iteration; a second Ctrl-C stops at once.

    The handlers are in force from `listen` to the end of `with`. SIGHUP stays ignored where it was (nohup). SIGTERM
    does not: ranks under SLURM ignore it until they can save. The flag is this process's alone: ranks act on it only
    when all agree. ends_at: when it asks by itself, as `end_of_time` says; None for never.

    A task may install handlers of its own in any step, and would take the request. While ours are in force
    `signal.signal` keeps its handlers of these signals without installing them; `listen_again` is for libraries in C.
    """

    def __init__(self, ends_at: float | None = None) -> None:
        self.signal: int | None = None  # the first that came
        self._ends_at = ends_at
        self._previous: dict[int, Callable | int | None] = {}
        self._others: dict[int, Any] = {}  # handlers that a task set and that are not in force
        self._process = os.getpid()

    @property
    def requested(self) -> bool:
        return self.signal is not None or is_over(self._ends_at)

    def __enter__(self) -> "StopRequest":
        return self

    def listen(self) -> None:
        for number in (signal.SIGINT, *_OF_OTHERS):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = _install(number, self._on_signal)
        setattr(signal, "signal", self._keep)  # noqa: B010 (mypy lets no function be replaced)

    def listen_again(self) -> None:
        for number in self._previous:
            _install(number, self._on_signal)

    def _keep(self, number: int, handler: Any) -> Any:
        """Take the place of signal.signal."""
        if number not in self._previous or os.getpid() != self._process:  # a fork of the task's
            return _install(number, handler)
        before = self._others.get(number, self._previous[number])
        self._others[number] = handler
        warn_once(
            f"the task sets a handler of {signal.Signals(number).name}: it is not in force while the run trains, which "
            "finishes its iteration and saves at this signal"
        )
        return before

    def __exit__(self, *exc: object) -> None:
        if self._previous:
            setattr(signal, "signal", _install)  # noqa: B010
        for number, handler in self._previous.items():
            _install(number, handler)
        self._previous = {}

    def _on_signal(self, number: int, frame: object) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number


@contextmanager
def stop_signals_raise() -> Iterator[None]:
    """Have SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 raise Stopped, once, unless they are ignored (nohup)."""
    before = {number: signal.getsignal(number) for number in _OF_OTHERS}

    def stop(number: int, frame: object) -> NoReturn:
        for each in before:  # a second one would cut short what the first has begun
            _install(each, signal.SIG_IGN)
        raise Stopped(number)

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            _install(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            _install(number, handler)


def stop_signals_kill(*also: int) -> None:
    """Have SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and `also` end this process at once and silently, unless they are ignored.

    For a process that has nothing to save yet and may wait inside torch, where no handler of Python's runs.
    """
    for number in (*_OF_OTHERS, *also):
        if signal.getsignal(number) is not signal.SIG_IGN:
            _install(number, signal.SIG_DFL)


@contextmanager
def interrupts_kill() -> Iterator[None]:
    """Have Ctrl-C end this process at once inside the block: what waits in it is inside torch, deaf to Python's."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    _install(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        _install(signal.SIGINT, signal.default_int_handler)


def die_with_parent(parent: int | None = None) -> None:
    """Have this process end when the one that started it ends, by kill -9 even: by Linux, else by a thread that looks.

    `parent` is the process id of the one that started it: if it is gone already, this process ends here.
    """
    if sys.platform == "linux":
        _ask_linux(signal.SIGKILL)
    else:
        _Looking.begin(parent or os.getppid())
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def live_on() -> None:
    """Take back `die_with_parent`."""
    if sys.platform == "linux":
        _ask_linux(0)
    _Looking.parent = None


def _ask_linux(number: int) -> None:
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, number)


class _Looking:
    """The thread of a process that looks a few times a second whether its parent is still `parent`."""

    parent: int | None = None
    process: int | None = None  # whose thread it is: a fork has none

    @classmethod
    def begin(cls, parent: int) -> None:
        cls.parent = parent
        if cls.process != os.getpid():
            cls.process = os.getpid()
            threading.Thread(target=cls._look, name="ddppo parent", daemon=True).start()

    @classmethod
    def _look(cls) -> None:
        while cls.parent in (None, os.getppid()):
            time.sleep(_LOOK_S)
        os.kill(os.getpid(), signal.SIGKILL)
