"""What asks a run to stop, and what ends a process with the one that started it. Imports nothing heavy.

SIGINT is Ctrl-C; SIGTERM comes from docker, kubernetes, timeout and SLURM, SIGUSR1 and SIGUSR2 from schedulers, the
latter from our own launchers too, SIGHUP from a terminal that goes away. All ask for the same: to finish the iteration,
save it and end. So does the end of the time that a command has.
"""

import atexit
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from ddppo.errors import Stopped
from ddppo.terminal import warn, warn_once

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


# -- Which processes run, and those whose parent has ended: a process may take in all it started, however deep.
#
# Also what a task leaves behind in a program that ends.
#
# Only on Linux can it take them in: elsewhere they go to the system's first process. Imports nothing heavy.


_PR_SET_CHILD_SUBREAPER = 36
_LONGEST_S = 1.0  # a killed process that the kernel keeps waiting (a dead disk) is not waited for longer

_PATIENCE_S = 1.0  # for threads of a task, which may be about to end


def runs(pid: int) -> bool:
    """Whether a process runs; one that has ended may wait long for whoever inherited it to take its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        if sys.platform == "linux":
            return False
    try:  # no /proc: one that has ended counts until its exit code is taken
        os.kill(pid, 0)
    except OSError as e:
        return isinstance(e, PermissionError)
    return True


def take_in_orphans() -> None:
    """Have this process be the parent of what its descendants leave behind: by a double fork, setsid, their own end."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_children(but: Collection[int] = ()) -> int:
    """Kill all child processes but those, and what these leave behind in turn; return how many that were."""
    if sys.platform != "linux":
        return 0
    num_ended, end = 0, time.monotonic() + _LONGEST_S
    while (children := _children(but)) and time.monotonic() < end:
        for pid in children:
            os.kill(pid, signal.SIGKILL)  # a child's number is nobody else's until it is waited for
        for pid in children:
            while not os.waitpid(pid, os.WNOHANG)[0] and time.monotonic() < end:
                time.sleep(0.001)
        num_ended += sum(children.values())
    return num_ended


def _children(but: Collection[int]) -> dict[int, bool]:
    """Return the child processes but those, and whether each runs: one that has ended is still to be waited for."""
    own, found = os.getpid(), {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in but:
            with suppress(OSError, ValueError):  # it has ended meanwhile
                state, parent, *_ = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
                if int(parent) == own:
                    found[int(name)] = state != b"Z"
    return found


@contextmanager
def ends_without_waiting(module: str = "ddppo.") -> Iterator[None]:
    """End a command of ours, whose module's name begins so, though a task left threads or processes running.

    Python would wait for them for ever. A program that calls the command's `main` is left as it is.
    """
    try:
        yield
    except SystemExit as e:
        _end_with_what_is_left(module, e.code)
        raise
    _end_with_what_is_left(module, None)


def is_program(module: str) -> bool:
    """Whether this process is a command of ours, and not a program that calls one: its module's name begins so."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = Path(sys.argv[0]).name.replace("ddppo-", "ddppo.") if spec is None else spec.name
    return f"{name}.".startswith(module)


def _end_with_what_is_left(module: str, code: object) -> None:
    if not is_program(module):
        return
    threads, processes = threads_left(), [each for each in _started() if not each.daemon]
    if not (processes or threads):
        return
    names = {each.name for each in (*threads, *processes) if not each.name.startswith("ThreadPoolExecutor")}
    if names:  # an executor's idle threads are no more than that
        number = f"{len(threads)} threads and {len(processes)} processes"
        warn(f"the task left {number} running ({', '.join(sorted(names)[:5])}): they end with this program")
    end_processes_left()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


def _started() -> list[Any]:
    multiprocessing: Any = sys.modules.get("multiprocessing")
    if multiprocessing is None:
        return []
    return [each for each in multiprocessing.active_children() if not _is_of_the_launcher(each)]


def _is_of_the_launcher(it: Any) -> bool:
    """Whether a thread or process is joblib's: its launcher ends them as the program ends."""
    return type(it).__module__.startswith("joblib.")


def end_processes_left() -> None:
    """End what a task started by multiprocessing and did not end: Python would wait for it, and a killed one not."""
    for process in _started():
        process.kill()


def threads_left() -> list[threading.Thread]:
    """Return the threads of tasks that a program's end waits for, once they have had a moment."""
    threads = [
        each
        for each in threading.enumerate()
        if not each.daemon
        and each not in (threading.main_thread(), threading.current_thread())
        and not _is_of_the_launcher(each)
    ]
    end = time.monotonic() + _PATIENCE_S
    for each in threads:
        each.join(max(0.0, end - time.monotonic()))
    return [each for each in threads if each.is_alive()]
