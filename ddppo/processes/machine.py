"""The cores that this process may use, files in memory that processes share, and the memory of a tree of processes."""

import math
import os
import secrets
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


def available_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may keep busy, at least 1. root: the folder of /proc and /sys."""
    return at_most(len(allowed_cores()), cpu_quota(root))


def at_most(cores: int, quota: float) -> int:
    """Return the whole cores that a quota of processor time keeps busy, at least 1."""
    return max(1, int(min(cores, quota)))


def allowed_cores() -> list[int]:
    """Return the numbers of the cores that this process may run on; all cores if the system has no affinity."""
    return sorted(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def cpu_quota(root: Path = Path("/")) -> float:
    """Return the quota of processor time in cores: the least of this process's control groups; inf without a limit.

    A container may run on every core of its machine and still have a quota.
    https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files (cpu.max: quota and period in us),
    https://docs.kernel.org/scheduler/sched-bwc.html (version 1: cpu.cfs_quota_us, -1 for none, and cpu.cfs_period_us)
    """
    return min((_quota(folder) for folder in control_groups(root)), default=math.inf)


def control_groups(root: Path, controller: str = "cpu") -> Iterator[Path]:
    """Yield the folders of this process's control groups of a `controller`, from the innermost to the outermost.

    A container may see the name that its group has outside, without such a folder: its group is the mount then.
    """
    # A line is "number:controllers:name". Version 2 has one line, without controllers.
    for line in text_of(root / "proc/self/cgroup").splitlines():
        controllers, _, name = line.partition(":")[2].partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        group = mount.joinpath(*(part for part in name.split("/") if part not in ("", "..")))
        while group != mount.parent:
            yield group
            group = group.parent


def _quota(folder: Path) -> float:
    # Version 2 has both numbers in one file, version 1 in two.
    quota, _, period = text_of(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = text_of(folder / "cpu.cfs_quota_us"), text_of(folder / "cpu.cfs_period_us")
    try:
        microseconds, per = int(quota), int(period)
    except ValueError:  # "max", or no such file
        return math.inf
    return microseconds / per if microseconds > 0 and per > 0 else math.inf


def text_of(path: Path) -> str:
    """Return the text of a file of the system; "" if there is no such file."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


# -- Memory that processes share, and the memory of a tree of processes (Linux).


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of a process and all its descendants; None if the kernel does not tell."""

    total_mb: float | None  # sum of proportional set sizes: a page that n processes share counts 1/n in each
    peak_mb: float | None  # the largest resident set that one of them ever had


def unnamed_file(num_bytes: int) -> int:
    """Return an open file in memory, which this process hands to others to map.

    It has no name, so nothing of it is left, however the processes end. On Linux it takes no space of /dev/shm, which
    is small in a container. Raises OSError if memory does not suffice and the system reports that at once.
    """
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("ddppo", os.MFD_CLOEXEC)
    else:
        # Not by multiprocessing.shared_memory: it starts a process that watches the name.
        from _posixshmem import shm_open, shm_unlink  # type: ignore[import-not-found]

        name = f"/ddppo-{secrets.token_hex(8)}"  # macOS: 31 bytes at most
        file = shm_open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        shm_unlink(name)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, num_bytes)  # else too little memory would be a SIGBUS later
        else:
            os.ftruncate(file, num_bytes)  # macOS: once only
    except OSError:
        os.close(file)
        raise
    return file


def memory_of(pid: int) -> MemoryUse:
    """Return the memory of a process and its descendants."""
    # Pss counts shared pages once over all processes; VmHWM is the peak of each.
    pids = [pid, *descendants(pid)]
    totals = [_kilobytes(Path(f"/proc/{each}/smaps_rollup"), "Pss:") for each in pids]
    peaks = [_kilobytes(Path(f"/proc/{each}/status"), "VmHWM:") for each in pids]
    known_totals, known_peaks = [t for t in totals if t], [p for p in peaks if p]
    return MemoryUse(
        sum(known_totals) / 1e3 if known_totals else None, max(known_peaks) / 1e3 if known_peaks else None
    )


def descendants(pid: int) -> list[int]:
    """Return the children of a process, their children, and so on."""
    # /proc/<pid>/stat names the parent: collect children, then walk down from `pid`.
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):  # the process ended meanwhile
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
