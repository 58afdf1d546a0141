"""Memory that processes share, and that of a tree of processes, as Linux tells it."""

import os
import secrets
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Memory:
    """total_mb: proportional set sizes of all processes, in which a page that n of them share counts 1/n in each.

    peak_mb: the largest resident set that one of them ever had. None where the kernel does not tell.
    """

    total_mb: float | None
    peak_mb: float | None


def unnamed_file(num_bytes: int) -> int:
    """Return an open file in memory, for processes to map that get it from this one.

    It has no name, so nothing is left of it however they end, and on Linux it is no part of /dev/shm, which is small in
    a container. Raises OSError where memory does not suffice, if the system tells before it is used.
    """
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("ddppo", os.MFD_CLOEXEC)
    else:
        # Without multiprocessing.shared_memory, which starts a process to mind the name.
        from _posixshmem import shm_open, shm_unlink  # type: ignore[import-not-found]

        name = f"/ddppo-{secrets.token_hex(8)}"  # macOS: 31 bytes at most
        file = shm_open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        shm_unlink(name)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, num_bytes)  # else a lack would show as SIGBUS where it is used
        else:
            os.ftruncate(file, num_bytes)  # macOS: once only
    except OSError:
        os.close(file)
        raise
    return file


def memory_of(pid: int) -> Memory:
    """Return the memory of a process and all that descend from it."""
    pids = [pid, *descendants(pid)]
    totals = [_kilobytes(Path(f"/proc/{each}/smaps_rollup"), "Pss:") for each in pids]
    peaks = [_kilobytes(Path(f"/proc/{each}/status"), "VmHWM:") for each in pids]
    known_totals, known_peaks = [t for t in totals if t], [p for p in peaks if p]
    return Memory(
        sum(known_totals) / 1e3 if known_totals else None, max(known_peaks) / 1e3 if known_peaks else None
    )


def descendants(pid: int) -> list[int]:
    """Return the processes that `pid` started, those that these started, and so on."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):  # it ended meanwhile
            continue
        children[parent].append(int(entry.name))
    found, left = [], [pid]
    while left:
        below = children[left.pop()]
        found += below
        left += below
    return found


def _kilobytes(path: Path, name: str) -> float | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((1.024 * float(line.split()[1]) for line in lines if line.startswith(name)), None)
