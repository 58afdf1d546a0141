"""Files that are whole at every moment: the old one, the new one, or none, even if the process is killed.

If the operating system refuses, functions here raise StorageError with the path and the reason, and leave no temporary
file. `remove_leftovers` removes those of processes that were killed.
"""

import errno
import json
import math
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ddppo.errors import StorageError
from ddppo.terminal import warn_once

# Errors of calls that a file system does not have.
_NO_SUCH_CALL = (
    errno.EINVAL,
    errno.ENOTSUP,
    errno.ENOSYS,
)
_PLAIN = (type(None), bool, int, float, str)  # exactly these types: NumPy's numbers derive from some of them


@contextmanager
def stored(path: Path) -> Iterator[None]:
    """Turn an OSError in the block, which writes `path`, into a StorageError that names the path."""
    try:
        yield
    except OSError as e:
        raise StorageError.of(path, e) from e


@contextmanager
def replacing(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Yield a temporary file beside `path`. If the block succeeds, sync it and rename it to `path`."""
    temporary = path.with_name(f".{os.getpid()}.tmp")
    with stored(path):
        try:
            with temporary.open(mode, encoding=None if "b" in mode else "utf-8") as file:
                yield file
                file.flush()
                _sync(file, path)
            os.replace(temporary, path)
        except BaseException:
            # The disk is read-only; the file is hidden, and removed at the next start.
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def _sync(file: IO[Any], path: Path) -> None:
    try:
        os.fsync(file.fileno())
    except OSError as e:
        if e.errno not in _NO_SUCH_CALL:
            raise
        warn_once(
            f"{path.parent}: the file system cannot say when a file is on its disk (fsync: {e.strerror}): a power "
            "cut may cost the last checkpoints"
        )


def write_text(path: Path, text: str) -> None:
    """Write a text file that is whole at every moment."""
    with replacing(path) as file:
        file.write(text)


def is_plain(value: Any) -> bool:
    """Return whether JSON and checkpoints return `value` unchanged: None, numbers, str, lists, dicts with str keys."""
    if type(value) is dict:
        return all(type(key) is str for key in value) and all(map(is_plain, value.values()))
    return all(map(is_plain, value)) if type(value) is list else type(value) in _PLAIN


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON, NaN and infinity as null."""
    write_text(path, json.dumps(jsonable(value), indent=2, allow_nan=False) + "\n")


def jsonable(value: Any) -> Any:
    """Return `value` in JSON's types: NaN and infinity as null, NumPy scalars as numbers, paths as text."""
    # Containers first, then scalars; the last resort is their text.
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if hasattr(value, "item") and callable(value.item):  # NumPy scalars
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)


def move_aside(path: Path, *, label: str = "") -> Path | None:
    """Rename a file or folder to the first free name `<stem><label>.<number><suffix>` beside it; return that name.

    Returns None if the path does not exist.
    """
    if not path.exists():
        return None
    kept = free_name(path, label)
    with stored(kept):
        try:
            path.rename(kept)
        except OSError as e:
            if e.errno != errno.EXDEV:  # overlayfs cannot rename a folder of an image's lower layer
                raise
            shutil.move(path, kept)
    return kept


def keep_copy(path: Path) -> None:
    """Copy a file to the first free name beside it: `<stem>.<number><suffix>`."""
    if path.exists():
        # A hard link copies nothing; `replacing` later renames another file to `path`.
        kept = free_name(path)
        try:
            os.link(path, kept)
        except OSError:  # the file system has no links, or is full: then the copy raises
            with replacing(kept, "wb") as file:
                file.write(path.read_bytes())


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of processes that were killed. Call it only while this process holds the folder."""
    with stored(folder):
        for path in folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)


def free_name(path: Path, label: str = "") -> Path:
    """Return the first of `<stem><label>.1<suffix>`, `.2`, ... beside `path` that does not exist."""
    number = 1
    while (kept := path.with_name(f"{path.stem}{label}.{number}{path.suffix}")).exists():
        number += 1
    return kept


def users_temporary_folder() -> Path:
    """Return this user's part of the temporary folder, made if need be. Raises OSError if others can write to it."""
    folder = Path(tempfile.gettempdir()) / f"ddppo-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "other users can write to it", str(folder))
    return folder
