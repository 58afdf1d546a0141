"""What the process of a world may use: variables, files, processes, memory, and a folder of its own."""

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
