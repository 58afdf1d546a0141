"""What one client may ask of a server, and what the process of a world may use of the machine."""

import ctypes
import os
import resource
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ddppo.processes.signals import die_with_parent, take_in_orphans

# What a program needs to run at all. HOME and TMPDIR are the world's own folder.
_VARIABLES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_*", "TZ", "*_NUM_THREADS")
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38


@dataclass(frozen=True, slots=True)
class Limits:
    """max_message_bytes: of a request or a reply. messages_per_s: of a session; what comes faster waits, unread.

    idle_s: a session without a request for so long is ended. step_s: a world that does not answer a request within it
    is ended with its session. send_s: so is one if its client does not take an answer. ready_s: how long a client may
    wait at the handshake while its slot is being made. max_in_flight: requests of a session that wait for answers.
    max_connections: all of them. request_s: a connection has to bring a whole request within it.
    """

    max_message_bytes: int = 2**20
    messages_per_s: float = 10_000.0
    idle_s: float = 300.0
    step_s: float = 60.0
    send_s: float = 10.0
    ready_s: float = 10.0
    max_in_flight: int = 16
    max_connections: int = 1024
    request_s: float = 10.0


class Allowance:
    """So many messages a second on average, a second's worth at once."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._left = per_s
        self._at: float | None = None

    def wait_s(self, now: float) -> float:
        """Take one message; return how long it has to wait."""
        if self._at is not None:
            self._left = min(self._per_s, self._left + (now - self._at) * self._per_s)
        self._at = now
        self._left -= 1.0
        return max(0.0, -self._left / self._per_s)


# -- what the process of a world may use -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Confinement:
    """max_files: open at once. max_file_mb: of one file. max_memory_mb: of addresses, which libraries take generously.

    max_processes: of the world's user, threads included; the kernel holds root to none. first_uid: the world of slot i
    is the user first_uid + i, which takes a server that is root: the kernel then keeps worlds from one another.
    """

    max_files: int = 256
    max_file_mb: int = 1024
    max_processes: int | None = None
    max_memory_mb: int | None = None
    first_uid: int | None = None


def confine(limits: Confinement, slot: int) -> None:
    """Take from this process what a world does not need, for good, and from all that it starts."""
    megabyte = 2**20
    table = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, limits.max_files),
        (resource.RLIMIT_FSIZE, limits.max_file_mb * megabyte),
    ]
    if limits.max_processes is not None:
        table.append((resource.RLIMIT_NPROC, limits.max_processes))
    if limits.max_memory_mb is not None:
        table.append((resource.RLIMIT_AS, limits.max_memory_mb * megabyte))
    for what, most in table:
        _, hard = resource.getrlimit(what)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))
    parent = os.getppid()
    if limits.first_uid is not None:
        user = limits.first_uid + slot
        os.setgroups([])
        os.setregid(user, user)  # and the saved one
        os.setreuid(user, user)
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # no setuid program makes it another user
        prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # others of its user read neither its memory nor its variables
    take_in_orphans()
    die_with_parent(parent)  # which another user forgets


def variables(of: Mapping[str, str], kept: Iterable[str], folder: str) -> dict[str, str]:
    """Return the environment variables of a world: those that programs need, its folder, and those `kept`."""
    names = (*_VARIABLES, *kept)
    own = {name: value for name, value in of.items() if any(fnmatchcase(name, each) for each in names)}
    return {"HOME": folder, "TMPDIR": folder} | own
