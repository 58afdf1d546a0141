"""Limits of the system in sentences: which limit an error met, its value, and the command that raises it.

    limits.allow_open_files()
    limits.met(error)
    # "OSError: ...: the limit of open files, 64 (ulimit -n), is reached: raise it, e.g. ulimit -n 1024"

Before a run: allow_open_files, too_low, little_memory, check_threads. After a fault: met, why, may_pass, after.
"""

import errno
import math
import re
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ddppo.processes.machine import allowed_cores, control_groups, text_of

_OPEN_FILES = (65_536, 10_240)  # the latter is the largest that macOS accepts
_LEAST_ADDRESSES = 1 << 30  # bytes; with 0.9 GB one library of torch or another aborts or hangs
# Memory of CartPole in a control group, shared pages counted once: 262, 412 and 482 MB at W=1, 2 and 4.
_RUN_BYTES, _SERVER_BYTES, _RANK_BYTES = 250e6, 80e6, 35e6
_NO_MEMORY = re.compile(
    r"failed to map segment|can't allocate memory|cannot allocate|bad_alloc|not enough memory|unable to mmap",
    re.I,
)
_NO_THREAD = re.compile(r"can't (start|create) (new )?thread|pthread_create", re.I)
_NO_FILE = re.compile(r"too many open files", re.I)
_NO_LONGER_FILE = re.compile(r"file too large", re.I)


def allow_open_files() -> None:
    """Raise this process's limit of open files as far as a user may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in _OPEN_FILES:
        wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            return
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return


def too_low(num_files: int = 0) -> str | None:
    """Return the sentence about a limit that is too low for any run, or for `num_files` open files; else None."""
    for what, least in ((resource.RLIMIT_AS, _LEAST_ADDRESSES), (resource.RLIMIT_NOFILE, num_files)):
        soft, _ = resource.getrlimit(what)
        if soft != resource.RLIM_INFINITY and soft < least:
            return _in_words(what, "is too low")
    return None


def little_memory(world_size: int) -> str | None:
    """Return a sentence if the control group has less memory than the smallest run of W ranks takes, else None."""
    has, takes = memory_limit(), _RUN_BYTES + (world_size > 1) * (_SERVER_BYTES + world_size * _RANK_BYTES)
    if has >= takes:
        return None
    return (
        f"the control group of this process leaves it {_size(has)} of memory, and a run of dist.world_size="
        f"{world_size} takes {_size(takes)} or more: the system may end it with signal 9; raise it, e.g. docker run "
        "--memory 2g"
    )


def check_threads() -> None:
    """Raise RuntimeError if this process cannot start a thread for every core: libraries would abort it silently."""
    # Start as many threads as torch and OpenBLAS will, and let them end.
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in allowed_cores()]
    try:
        for thread in threads:
            thread.start()
    finally:
        end.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()


def met(error: BaseException | None) -> str | None:
    """Return an error with the limit that it or one of its causes met, in a sentence; None for other errors."""
    # An exception may be raised from another one, which met the limit.
    cause, seen = error, set[int]()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if words := _limit_of(cause):
            message = next(iter(str(error).splitlines()), "")[:200]
            return f"{type(error).__name__}{': ' if message else ''}{message}: {words}"
        cause = cause.__cause__ or cause.__context__
    return None


def why(error: OSError) -> str:
    """Return why the system refused a file or a process, with the limit that was met, if any."""
    reason = error.strerror or str(error)
    if error.errno in (errno.EXDEV, errno.ENOTSUP, errno.ENOSYS):
        return f"{reason}: the file system cannot rename, by which files appear whole: use a folder on another one"
    return f"{reason}: {words}" if (words := _limit_of(error)) else reason


def may_pass(error: OSError) -> bool:
    """Return whether the system may grant later what it refused now: a process or memory, but not a longer file."""
    return error.errno in (errno.EAGAIN, errno.ENOMEM)


def after(code: int) -> str:
    """Return a sentence on the likely cause of an exit code (minus the number of a signal); "" if there is none."""
    if code == -signal.SIGKILL:
        most = memory_limit()
        has = "" if most == math.inf else f" (this process may use {_size(most)} of it, by its control group)"
        return f"Signal 9 is often the system's answer to too little memory{has}. "
    if code == -signal.SIGBUS:
        return "Signal 7 is often the system's answer to shared memory that is used up (df /dev/shm). "
    if code == -signal.SIGXCPU and (words := _reached(resource.RLIMIT_CPU)):
        return f"Signal {-code}: {words}. "
    if code in (-signal.SIGABRT, -signal.SIGSEGV) and (words := _reached(resource.RLIMIT_AS)):
        return f"Signal {-code} may be a library's answer to too little memory: {words}. "
    return ""


def memory_limit(root: Path = Path("/")) -> float:
    """Return the bytes of memory that the control groups of this process allow it; inf without a limit.

    https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files (memory.max)
    https://docs.kernel.org/admin-guide/cgroup-v1/memory.html (memory.limit_in_bytes)
    """
    return min(_numbers("memory", ("memory.max", "memory.limit_in_bytes"), root), default=math.inf)


def _limit_of(error: BaseException) -> str | None:
    """Return the sentence about the limit that an error met, found by its number or by its text."""
    number, text = getattr(error, "errno", None), str(error)
    # Open files, then the size of a file.
    if number == errno.EMFILE or _NO_FILE.search(text):
        return _reached(resource.RLIMIT_NOFILE)
    if number == errno.EFBIG or _NO_LONGER_FILE.search(text):
        return _reached(resource.RLIMIT_FSIZE)
    # Processes and threads: of the control group, then of the user.
    if number == errno.EAGAIN or _NO_THREAD.search(text):
        most = min(_numbers("pids", ("pids.max",)), default=math.inf)
        if most < math.inf:
            return (
                f"the limit of processes and threads of the control group, {most:g} (pids.max), is reached: raise it, "
                "e.g. docker run --pids-limit 1000"
            )
        # A thread's stack needs addresses.
        return _reached(resource.RLIMIT_AS) or _reached(resource.RLIMIT_NPROC)
    # Memory.
    if isinstance(error, MemoryError) or number == errno.ENOMEM or _NO_MEMORY.search(text):
        return _reached(resource.RLIMIT_AS) or _reached(resource.RLIMIT_DATA)
    return None


# Name of a limit, flag of the shell's ulimit, factor between the number and the shell's, and an example value.
_ULIMITS = {
    resource.RLIMIT_NOFILE: ("open files", "n", 1, 1024),
    resource.RLIMIT_FSIZE: ("a file's size", "f", 1024, "unlimited"),
    resource.RLIMIT_NPROC: ("processes and threads of this user", "u", 1, 4096),
    resource.RLIMIT_AS: ("address space", "v", 1024, "unlimited"),
    resource.RLIMIT_DATA: ("data", "d", 1024, "unlimited"),
    resource.RLIMIT_CPU: ("processor time", "t", 1, "unlimited"),
}


def _reached(what: int) -> str | None:
    """Return the sentence that a limit is reached; None if this process has no such limit."""
    soft, _ = resource.getrlimit(what)
    if soft == resource.RLIM_INFINITY:
        return None
    return _in_words(what, "is reached")


def _in_words(what: int, how: str) -> str:
    soft, _ = resource.getrlimit(what)
    name, flag, unit, more = _ULIMITS[what]
    number = f"{soft // unit:,}{' KB' if unit == 1024 else ''}"
    return f"the limit of {name}, {number} (ulimit -{flag}), {how}: raise it, e.g. ulimit -{flag} {more}"


def _numbers(controller: str, names: tuple[str, ...], root: Path = Path("/")) -> Iterator[float]:
    for folder in control_groups(root, controller):
        for name in names:
            text = text_of(folder / name)
            if text.isdigit() and int(text) < 1 << 60:  # version 1 has a huge number for "no limit"
                yield float(text)


def _size(number: float) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"
