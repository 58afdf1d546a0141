"""Which processes run, and those whose parent has ended: a process may take in all it started, however deep.

Only on Linux can it take them in: elsewhere they go to the system's first process. Imports nothing heavy.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_LONGEST_S = 1.0  # a killed process that the kernel keeps waiting (a dead disk) is not waited for longer


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
