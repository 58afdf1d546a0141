"""One process at a time in a folder. Imports no torch."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ddppo.errors import RunFolderError
from ddppo.files import stored
from ddppo.terminal import warn

_LOOK_EVERY_S = 0.2


@contextmanager
def held(folder: Path, *, patience_s: float = 0.0) -> Iterator[None]:
    """Hold a run's or a sweep's folder: two processes that write into one would ruin it.

    The hold goes with the process, however that ends. Raises RunFolderError if another process, on any machine that
    locks files on this file system, still has the folder after `patience_s` seconds, StorageError where there can be
    no folder.
    """
    end = time.monotonic() + patience_s
    with stored(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("a+")
    with lock as file:
        while not _take(file, folder):
            if time.monotonic() >= end:
                raise RunFolderError(f"{folder} is in use by another process: let that end first")
            time.sleep(_LOOK_EVERY_S)
        yield


def _take(file: IO[str], folder: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as e:
        warn(
            f"{folder}: the file system has no locks ({e.strerror}): nothing keeps a second command out of it"
        )
    return True
