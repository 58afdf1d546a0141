"""How many cores this process may use: its affinity, and what its control groups let it have."""

import math
import os
from collections.abc import Iterator
from pathlib import Path


def available_cores(root: Path = Path("/")) -> int:
    """Return how many cores this process may keep busy, at least 1; `root` is where /proc and /sys lie."""
    return at_most(len(allowed_cores()), cpu_quota(root))


def at_most(cores: int, quota: float) -> int:
    """Return the cores that a quota of processor time keeps busy: whole ones, at least 1."""
    return max(1, int(min(cores, quota)))


def allowed_cores() -> list[int]:
    """Return the numbers of the cores that this process may run on; all where the system does not tell."""
    return sorted(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def cpu_quota(root: Path = Path("/")) -> float:
    """Return how many cores' time this process gets: the least of its control groups and theirs, inf for all of it.

    Containers are limited so, and may run on every core of their machine.
    https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files (cpu.max: quota and period in us),
    https://docs.kernel.org/scheduler/sched-bwc.html (version 1: cpu.cfs_quota_us, -1 for none, and cpu.cfs_period_us)
    """
    return min((_quota(folder) for folder in control_groups(root)), default=math.inf)


def control_groups(root: Path, controller: str = "cpu") -> Iterator[Path]:
    """Yield the folders of the control groups that this process is in by `controller`, with those around them.

    A container may see its group under the name it has outside, where there is no such folder; the mount is it then.
    """
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
    quota, _, period = text_of(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = text_of(folder / "cpu.cfs_quota_us"), text_of(folder / "cpu.cfs_period_us")
    try:
        microseconds, per = int(quota), int(period)
    except ValueError:  # "max", or no such file
        return math.inf
    return microseconds / per if microseconds > 0 and per > 0 else math.inf


def text_of(path: Path) -> str:
    """Return what a file of the system says, nothing where there is no such file."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
