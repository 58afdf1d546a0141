"""Which processes run, and those whose parent has ended: a process may take in all it started, however deep.

Also what a task leaves behind in a program that ends.

Only on Linux can it take them in: elsewhere they go to the system's first process. Imports nothing heavy.
"""

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ddppo.terminal import warn

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
