"""Signals that ask a run to stop, processes that end with their parent, and the processes that a task leaves behind.

    SIGINT: Ctrl-C.
    SIGTERM: docker, kubernetes, timeout and SLURM.
    SIGUSR1, SIGUSR2: schedulers. Our own launcher sends SIGUSR2 to its ranks.
    SIGHUP: a terminal that is closed.

All ask for the same: finish the iteration, save it and end. So does the end of run.max_minutes. Imports no torch.
"""

import atexit
import ctypes
import gc
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

# Of schedulers, which may start the command again.
_REQUEUE = (
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_STOPS = (*_REQUEUE, signal.SIGHUP)  # and SIGINT, which Python itself turns into an exception
_LOOK_S = 0.2  # between two checks whether the parent lives, on systems that do not signal its end
_BEGAN = "DDPPO_BEGAN"  # environment variable of a command's processes: an instant, as `now_here` writes it
_install = signal.signal  # kept, for StopRequest replaces signal.signal
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the former counts time in suspend too

# -- The time of a command.


def note_beginning() -> None:
    """Note that a command begins now. Its processes count run.max_minutes from here."""
    os.environ[_BEGAN] = now_here()


def end_of_time(max_minutes: float | None) -> float | None:
    """Return when the command's time is over, on this machine's clock; None for never.

    A rank on another machine than the command's counts from this call.
    """
    if max_minutes is None:
        return None
    return time.clock_gettime(_CLOCK) - (seconds_since(os.environ.get(_BEGAN, "")) or 0.0) + 60 * max_minutes


def is_over(end: float | None) -> bool:
    return end is not None and time.clock_gettime(_CLOCK) >= end


def now_here() -> str:
    """Return this instant as a text for processes of this machine, until its next boot. Nothing sets this clock."""
    return f"{time.clock_gettime(_CLOCK)} {_boot()}"


def seconds_since(instant: str) -> float | None:
    """Return the seconds since an instant of `now_here`; None for one of another machine or of before the last boot."""
    seconds, _, boot = instant.partition(" ")
    return time.clock_gettime(_CLOCK) - float(seconds) if boot == _boot() else None


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def asks_for_requeue(number: int) -> bool:
    """Return whether a scheduler may start the command again after this signal, or after its time (0)."""
    return number in (0, *_REQUEUE)


# -- Requests to stop.


class StopRequest:
    """A request to stop at the end of the iteration, by a signal or by the time. A second Ctrl-C stops at once.

    The handlers are installed from `listen` to the end of `with`. The request is this process's alone: ranks act on it
    only when all have agreed (loop/iteration.py). SIGHUP stays ignored if it was (nohup). SIGTERM does not: ranks under
    SLURM ignore it only until they can save.

    A task may install handlers of its own in any step, and would take the signals. While ours are installed,
    `signal.signal` only remembers other handlers. A library in C does not call it: hence `listen_again`.

    Args:
        ends_at: the time of a request without a signal, as `end_of_time` returns it; None for never.
    """

    def __init__(self, ends_at: float | None = None) -> None:
        self.signal: int | None = None  # the first signal
        self._ends_at = ends_at
        self._previous: dict[int, Callable | int | None] = {}
        self._others: dict[int, Any] = {}  # handlers that a task set, which are not installed
        self._process = os.getpid()

    @property
    def requested(self) -> bool:
        return self.signal is not None or is_over(self._ends_at)

    def __enter__(self) -> "StopRequest":
        return self

    def listen(self) -> None:
        for number in (signal.SIGINT, *_STOPS):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = _install(number, self._on_signal)
        # From here on a task's own handlers are only remembered.
        setattr(signal, "signal", self._keep)  # noqa: B010 (mypy lets no function be replaced)

    def listen_again(self) -> None:
        for number in self._previous:
            _install(number, self._on_signal)

    def _keep(self, number: int, handler: Any) -> Any:
        """Replace signal.signal. A process that a task forked gets the original."""
        if number not in self._previous or os.getpid() != self._process:
            return _install(number, handler)
        before = self._others.get(number, self._previous[number])
        self._others[number] = handler
        warn_once(
            f"the task sets a handler of {signal.Signals(number).name}: it is not used while the run trains, which "
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
    """Make SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 raise Stopped, once, unless they are ignored (nohup)."""
    # Handlers of the caller come back at the end of the block.
    before = {number: signal.getsignal(number) for number in _STOPS}

    def stop(number: int, frame: object) -> NoReturn:
        for each in before:  # a second one would interrupt the cleanup after the first
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
    """Make SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and `also` end this process silently, unless they are ignored.

    For a process that has nothing to save yet. It may wait inside torch, where Python runs no handler.
    """
    for number in (*_STOPS, *also):
        if signal.getsignal(number) is not signal.SIG_IGN:
            _install(number, signal.SIG_DFL)


def leave_signals_to_the_rank() -> None:
    """Do nothing at a signal that asks to stop; for processes of environments, and servers that fork them.

    A terminal sends a signal to a rank and its environments together. The rank decides when to stop, and these
    processes end with it. A handler that does nothing is not inherited by programs that a task starts; SIG_IGN would
    be, and the task could not terminate them.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)


@contextmanager
def interrupts_kill() -> Iterator[None]:
    """Make Ctrl-C end this process at once inside the block, which waits inside torch: Python runs no handler there."""
    # Only the main thread may set handlers, and a handler that is not Python's stays.
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    _install(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        _install(signal.SIGINT, signal.default_int_handler)


# -- Ending with the parent.


def die_with_parent(parent: int | None = None) -> None:
    """Make this process end with the process that started it, even if that is killed by kill -9.

    Linux does it; elsewhere a thread checks a few times a second. parent: the process id of that process. If it has
    ended already, this process ends now.
    """
    if sys.platform == "linux":
        _ask_linux(signal.SIGKILL)
    else:
        _Looking.begin(parent or os.getppid())
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def live_on() -> None:
    """Undo `die_with_parent`."""
    if sys.platform == "linux":
        _ask_linux(0)
    _Looking.parent = None


def _ask_linux(number: int) -> None:
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, number)


class _Looking:
    """A thread that checks a few times a second whether this process's parent is still `parent`."""

    parent: int | None = None
    process: int | None = None  # the process that has the thread: a fork has none

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


# -- Orphans: processes that outlive the process that started them.
#
# On Linux a process can become the parent of all orphans among its descendants, and end them. Elsewhere the system's
# first process becomes their parent.

_PR_SET_CHILD_SUBREAPER = 36
_LONGEST_S = 1.0  # to wait for a killed process: the kernel may hold it longer, on a dead disk
_PATIENCE_S = 1.0  # for threads of a task, which may be about to end


def runs(pid: int) -> bool:
    """Return whether a process runs. A zombie does not: it ended, and waits for its parent to read its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        if sys.platform == "linux":
            return False
    try:  # without /proc a zombie counts as running
        os.kill(pid, 0)
    except OSError as e:
        return isinstance(e, PermissionError)
    return True


def take_in_orphans() -> None:
    """Become the parent of all orphans among the descendants, even after a double fork or setsid. On Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_children(but: Collection[int] = ()) -> int:
    """Kill all child processes except `but`, and the orphans that these leave in turn; return their number."""
    if sys.platform != "linux":
        return 0
    # Orphans of the killed children become children of this process: repeat until there are none.
    num_ended, end = 0, time.monotonic() + _LONGEST_S
    while (children := _children(but)) and time.monotonic() < end:
        for pid in children:
            os.kill(pid, signal.SIGKILL)  # no other process gets a child's id before waitpid
        for pid in children:
            while not os.waitpid(pid, os.WNOHANG)[0] and time.monotonic() < end:
                time.sleep(0.001)
        num_ended += sum(children.values())
    return num_ended


def _children(but: Collection[int]) -> dict[int, bool]:
    """Return the child processes except `but`, and whether each runs; a zombie is still to be waited for."""
    own, found = os.getpid(), {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in but:
            with suppress(OSError, ValueError):  # the process has ended meanwhile
                state, parent, *_ = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
                if int(parent) == own:
                    found[int(name)] = state != b"Z"
    return found


# -- The end of a command: threads and processes of a task do not keep it alive.


@contextmanager
def ends_without_waiting(module: str = "ddppo.") -> Iterator[None]:
    """End the process behind the block, even if a task left threads or processes running: Python would wait for them.

    Only if the process is a command of ours, with a module name that begins with `module`. A program that calls the
    command's `main` goes on.
    """
    try:
        yield
    except SystemExit as e:
        _end_with_what_is_left(module, e.code)
        raise
    _end_with_what_is_left(module, None)


def is_program(module: str) -> bool:
    """Return whether the program of this process is a module of ours with a name that begins so, not a user's.

    sys.argv says nothing about that: a program may set it for a command's `main`, as tests do.
    """
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    name = Path(file or "").name.replace("ddppo-", "ddppo.") if spec is None else spec.name
    return f"{name}.".startswith(module)


def _end_with_what_is_left(module: str, code: object) -> None:
    if not is_program(module):
        return
    threads, processes = threads_left(), [each for each in _started() if not each.daemon]
    if not (processes or threads):
        # Python's own end looks through all objects for garbage three times: with torch .2 s each time. Once is enough,
        # and not at all if the collector was never turned on, as no task's code ran (ddppo/__init__.py).
        if gc.isenabled():
            gc.collect()
        gc.freeze()
        return
    names = {each.name for each in (*threads, *processes) if not each.name.startswith("ThreadPoolExecutor")}
    if names:  # idle threads of an executor need no warning
        number = f"{len(threads)} threads and {len(processes)} processes"
        warn(f"the task left {number} running ({', '.join(sorted(names)[:5])}): they end with this program")
    # The parts of Python's own end that do not wait for threads.
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
    """Return whether a thread or process is joblib's: its launcher ends them with the program."""
    return type(it).__module__.startswith("joblib.")


def end_processes_left() -> None:
    """Kill the processes that a task started by multiprocessing: Python would wait for their end."""
    for process in _started():
        process.kill()


def threads_left() -> list[threading.Thread]:
    """Return the threads for which Python would wait at the end. They get a second to end first."""
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
