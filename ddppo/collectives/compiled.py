"""The compiled part of collectives through shared memory: built at install, or here at first use. Imports no torch.

The build hook of the package loads this file by its path, so it imports nothing of ddppo either.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

SOURCE = Path(__file__).with_name("shared_memory.c")
# No -march=native: a home folder may serve machines of several kinds.
_FLAGS = ("-std=c11", "-O3", "-fPIC", "-shared", "-Wall", "-Wextra")


class NotCompiled(Exception):
    """There is no compiled part and none can be made here; says why."""


def file_name() -> str:
    """Return the library's name, which is another whenever source, flags or kind of machine are."""
    key = "\0".join((SOURCE.read_text(), *_FLAGS, platform.machine(), *platform.libc_ver()))
    return f"shared_memory_{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library, compiled now unless it was before. Raises NotCompiled."""
    return ctypes.CDLL(str(prepare()))


@functools.cache
def prepare() -> Path:
    """Return the library's file: the installed one, that of the cache, or one compiled into it. Raises NotCompiled."""
    if sys.platform != "linux":
        raise NotCompiled(f"futexes are Linux's, and this is {sys.platform}")
    name = file_name()
    cache = _home_cache()
    for folder in (SOURCE.parent, cache):
        if (folder / name).is_file():
            return folder / name
    try:
        cache.mkdir(parents=True, exist_ok=True)
        return build(cache / name)
    except OSError:  # a home that is read-only, full or absent
        path = _temporary_cache() / name
        return path if path.is_file() else build(path)


def cache_folder() -> Path:
    """Return this user's folder for what was compiled, which can be written. Raises NotCompiled, OSError."""
    cache = _home_cache()
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
    return cache if os.access(cache, os.W_OK) else _temporary_cache()


def _home_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddppo"


def _temporary_cache() -> Path:
    """Return this user's one folder in the temporary one: runs do not leave one each. Raises NotCompiled, OSError."""
    folder = Path(tempfile.gettempdir()) / f"ddppo-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise NotCompiled(f"others can write to {folder}: what is loaded from there would be theirs")
    return folder


def is_available() -> bool:
    """Return whether there is a library, or now is."""
    try:
        prepare()
    except NotCompiled:
        return False
    return True


def build(path: Path) -> Path:
    """Compile the library to `path`, which appears whole however many do this at once. Raises NotCompiled, OSError."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "cc", "gcc", "clang"))), None)
    if compiler is None:
        raise NotCompiled("there is no C compiler (cc, gcc or clang) to build it with")
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    os.close(handle)
    try:
        command = [compiler, *_FLAGS, str(SOURCE), "-o", temporary]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise NotCompiled(f"{compiler} failed: {' '.join(done.stderr.split())[:300]}")
        os.chmod(temporary, 0o755)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return path
