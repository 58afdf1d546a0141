"""The memory of a tree of processes, as Linux tells it."""

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
