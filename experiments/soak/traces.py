"""What a run has on this machine while it lives, and what it leaves: processes, shared memory, temporary files."""

import ctypes
import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

from ddppo.processes.machine import descendants

_SHM = Path("/dev/shm")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def adopt_orphans() -> None:
    """Make what descends from this process its child when those in between are gone: none is lost from sight."""
    pr_set_child_subreaper = 36
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1)


def title(pid: int) -> str:
    """Return a process's command line, "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""


def role(pid: int) -> str:
    """Return what a process of a run is: rank 0, rank 1, ..., server (which ranks fork from), door, or else other.

    In a rank's pool there are environments, and the pool that they fork from.
    """
    name = title(pid)
    if found := re.search(r"^ddppo\.run\.rank .* (rank \d+) of \d+$", name):
        return found[1]
    if found := re.search(r"^ddppo\.processes\.forking for (\d+)$", name):
        return "server" if role(int(found[1])) == "door" else "pool"
    if name.startswith("ddppo environment"):
        return "environments"
    return "door" if "-m ddppo.train " in name else "other"


def living() -> list[int]:
    """Return what descends from this process and has not ended, but for a server of doors."""
    found, doors = [], f"ddppo.processes.forking for {os.getpid()}"
    for pid in descendants(os.getpid()):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX" and title(pid) != doors:
            found.append(pid)
    return found


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def memory_mb(pid: int) -> dict[str, float]:
    """Return the resident, proportional and anonymous memory of a process."""
    lines = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    )
    return {name.lower(): int(lines[name].split()[0]) * 1024 / 1e6 for name in ("Rss", "Pss", "Anonymous")}


class Traces:
    """Tells what a run left, whose temporary files go to `folder`; to be made before the run starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shm_before = set(os.listdir(_SHM))

    def environ(self) -> dict[str, str]:
        """Return the run's environment variables. torch's cache of compiled code, which is to stay, is elsewhere."""
        cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(self.folder.parent / "torch_cache"))
        return {**os.environ, "TMPDIR": str(self.folder), "TORCHINDUCTOR_CACHE_DIR": cache}

    def left(self, patience_s: float) -> tuple[list[str], float]:
        """Wait for all to be gone; return what is not, and for how many seconds something was there."""
        start = time.monotonic()
        while (found := self._found()) and time.monotonic() - start < patience_s:
            time.sleep(0.02)
        return found, time.monotonic() - start

    def _found(self) -> list[str]:
        processes = [f"process: {title(pid)}" for pid in living()]
        new = set(os.listdir(_SHM)) - self._shm_before
        shm = [str(_SHM / name) for name in new if not _is_mapped(_SHM / name)]
        return processes + shm + [f"temporary: {path.name}" for path in self.folder.iterdir()]


def end_all() -> None:
    """End whatever descends from this process."""
    for pid in living():
        os.kill(pid, signal.SIGKILL)


def _is_mapped(path: Path) -> bool:
    """Return whether a living process maps a file: a stranger's, once ours have ended. Semaphores change their name."""
    try:
        inode = f" {path.stat().st_ino} "
    except OSError:
        return True  # gone meanwhile
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(str(_SHM) in line and inode in line for line in (entry / "maps").read_text().splitlines()):
                return True
    return False
