"""What asks a run to stop, and what ends a process with the one that started it. Imports nothing heavy.

SIGINT is Ctrl-C; SIGTERM comes from docker, kubernetes, timeout and SLURM, SIGHUP from a terminal that goes away,
SIGUSR2 from our own launchers. All ask for the same: to finish the iteration, save it and end.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from ddppo.errors import Stopped

_OF_OTHERS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)  # Python itself makes SIGINT an exception


class StopRequest:
    """A signal asks for a stop at the end of the iteration; a second Ctrl-C stops at once.

    The handlers are in force from `listen` to the end of `with`. SIGHUP stays ignored where it was (nohup). SIGTERM
    does not: ranks under SLURM ignore it until they can save. The flag is this process's alone: ranks act on it only
    when all agree.
    """

    def __init__(self) -> None:
        self.signal: int | None = None  # the first that came
        self._previous: dict[int, Callable | int | None] = {}

    @property
    def requested(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> "StopRequest":
        return self

    def listen(self) -> None:
        for number in (signal.SIGINT, *_OF_OTHERS):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._on_signal)

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: object) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number


@contextmanager
def stop_signals_raise() -> Iterator[None]:
    """Have SIGTERM, SIGHUP and SIGUSR2 raise Stopped, once, unless they are ignored (nohup)."""
    before = {number: signal.getsignal(number) for number in _OF_OTHERS}

    def stop(number: int, frame: object) -> NoReturn:
        for each in before:  # a second one would cut short what the first has begun
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_signals_kill(*also: int) -> None:
    """Have SIGTERM, SIGHUP, SIGUSR2 and `also` end this process at once and silently, unless they are ignored.

    For a process that has nothing to save yet and may wait inside torch, where no handler of Python's runs.
    """
    for number in (*_OF_OTHERS, *also):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def die_with_parent(parent: int | None = None) -> None:
    """Ask Linux to end this process when the one that started it ends, by kill -9 even.

    `parent` is the process id of the one that started it: if it is gone already, this process ends here.
    """
    _when_parent_ends(signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def live_on() -> None:
    """Take back `die_with_parent`."""
    _when_parent_ends(0)


def _when_parent_ends(number: int) -> None:
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, number)
