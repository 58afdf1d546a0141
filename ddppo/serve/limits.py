"""The limits of a client (`Limits`), and of the process of a world (`Confinement`)."""

import ctypes
import os
import resource
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ddppo.processes.signals import die_with_parent, take_in_orphans

# Environment variables that programs need to run. HOME and TMPDIR are the world's own folder.
_VARIABLES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_*", "TZ", "*_NUM_THREADS")
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a client; times in seconds."""

    max_message_bytes: int = 2**20  # of a request or an answer
    messages_per_s: float = 10_000.0  # of a session; further messages wait unread
    idle_s: float = 300.0  # a session without a request for so long is ended
    step_s: float = 60.0  # a world that does not answer a request in this time is ended, with its session
    send_s: float = 10.0  # a client that does not take an answer in this time loses its session
    ready_s: float = 10.0  # a client may wait so long at the handshake while its slot is being made
    max_in_flight: int = 16  # requests of a session that wait for answers
    max_connections: int = 1024  # of the server
    request_s: float = 10.0  # a connection has to send a complete request in this time


class Allowance:
    """A rate limit by a token bucket: `per_s` messages a second on average, and `per_s` at once."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._left = per_s  # messages that may pass at once
        self._at: float | None = None  # of the last message

    def wait_s(self, now: float) -> float:
        """Count one message; return the seconds that it has to wait."""
        if self._at is not None:
            self._left = min(self._per_s, self._left + (now - self._at) * self._per_s)
        self._at = now
        self._left -= 1.0
        return max(0.0, -self._left / self._per_s)


# -- the limits of the process of a world ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Confinement:
    """The resources of the process of a world."""

    max_files: int = 256  # open at once
    max_file_mb: int = 1024  # size of a file
    max_processes: int | None = None  # of the world's user, threads included; the kernel does not limit root
    max_memory_mb: int | None = None  # address space, of which libraries reserve more than they use
    # The world of slot i runs as user first_uid + i, so that the kernel separates worlds. The server has to be root.
    first_uid: int | None = None


def confine(limits: Confinement, slot: int) -> None:
    """Limit this process, and all processes that it starts, for good."""
    # 1. Resource limits, never above the hard limits that hold already.
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
    # 2. Another user: groups first, because a process that is no longer root cannot drop them.
    parent = os.getppid()
    if limits.first_uid is not None:
        user = limits.first_uid + slot
        os.setgroups([])
        os.setregid(user, user)  # sets the saved ids as well
        os.setreuid(user, user)
    # 3. No way back to more rights.
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # setuid programs do not change the user
        prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # processes of the same user cannot read its memory or variables
    # 4. End with the server. This comes last: the kernel clears the death signal when the user changes.
    take_in_orphans()
    die_with_parent(parent)


def variables(of: Mapping[str, str], kept: Iterable[str], folder: str) -> dict[str, str]:
    """Return the environment variables of a world: those that programs need, those in `kept`, and its folder."""
    names = (*_VARIABLES, *kept)
    own = {name: value for name, value in of.items() if any(fnmatchcase(name, each) for each in names)}
    return {"HOME": folder, "TMPDIR": folder} | own
