"""Printing never ends a command: not a closed pipe, a closed terminal, a full disk or a narrow encoding. And warnings.

    with unbroken_streams():
        print(...)    # works with `| head -2`, after the terminal was closed, with PYTHONIOENCODING=ascii

Imports nothing heavy: every command and every rank begins with it.
"""

import ctypes
import errno
import io
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

# Errors of a pipe or terminal without a reader: no warning is due.
_NO_READER = (errno.EPIPE, errno.EIO, errno.EBADF)


class _Unbroken:
    """A text stream that never fails: after the first write that fails, it discards all text."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream or io.StringIO()
        self._broken = stream is None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)

    def write(self, text: str) -> int:
        try:
            return len(text) if self._broken else self._stream.write(text)
        except (OSError, ValueError) as e:  # ValueError: it was closed
            self._break(e)
            return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            if not self._broken:
                self._stream.flush()
        except (OSError, ValueError) as e:
            self._break(e)

    def close(self) -> None:
        """Only flush: a task may call this, and the whole process prints here."""
        self.flush()

    def _break(self, error: OSError | ValueError) -> None:
        self._broken = True
        # Else the interpreter would write again at its end, and fail.
        with suppress(OSError, ValueError, AttributeError):
            hole = os.open(os.devnull, os.O_WRONLY)
            os.dup2(hole, self._stream.fileno())
            os.close(hole)
        if isinstance(error, OSError) and error.errno not in _NO_READER and self is sys.stdout:
            warn(f"standard output cannot be written ({error.strerror}); continuing without it")


@contextmanager
def unbroken_streams() -> Iterator[None]:
    """Make sys.stdout and sys.stderr streams that never fail. Inside another such block, nothing changes.

    Characters that the encoding lacks become question marks. A closed or missing stream discards its text.
    """
    _fill_standard_descriptors()
    # A command may call another command's function: the outer block is enough.
    before = sys.stdout, sys.stderr
    if any(isinstance(stream, _Unbroken) for stream in before):
        yield
        return
    wrapped = [_Unbroken(_encodable(stream)) for stream in before]
    sys.stdout, sys.stderr = wrapped
    try:
        yield
    finally:
        for stream in wrapped:
            stream.flush()
        sys.stdout, sys.stderr = before


@contextmanager
def printed_to_stderr() -> Iterator[None]:
    """Send everything printed inside the block to stderr, so that only the command's own result is on stdout.

    This includes the output of a task's libraries in C, and of programs that it starts.
    """
    # Python's streams and file descriptor 1 itself, which libraries in C print to.
    streams = {id(stream): stream for stream in (sys.stdout, sys.__stdout__) if stream is not None}
    _flush(streams.values())
    stdout = os.dup(1)
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _flush(streams.values())
        ctypes.CDLL(None).fflush(None)  # the buffer of C's printf
        os.dup2(stdout, 1)
        os.close(stdout)


def _flush(streams: Iterable[Any]) -> None:
    for stream in streams:
        with suppress(OSError, ValueError):
            stream.flush()


def _fill_standard_descriptors() -> None:
    """Open the null device for each of 0, 1 and 2 that is closed.

    Otherwise the next file or socket would get that number, and child processes would print into it.
    """
    with suppress(OSError):
        while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(fd, True)
        os.close(fd)


def warn(text: str) -> None:
    """Print a warning on stderr."""
    print(f"warning: {text}", file=sys.stderr, flush=True)


def warn_once(text: str) -> None:
    """Print a warning that every rank, pool and evaluation of a run would print alike, once a run."""
    if is_first(text):
        warn(text)


def is_first(what: str) -> bool:
    """Return whether this is rank 0's first call with `what`. Processes that it starts later count it as made."""
    # Child processes inherit the environment, and with it the marks of earlier warnings.
    before = os.environ.get("DDPPO_WARNED", "").split()
    mark = f"{zlib.crc32(what.encode()):08x}"
    if mark in before or os.environ.get("RANK", "0") != "0":
        return False
    os.environ["DDPPO_WARNED"] = " ".join([*before, mark])
    return True


def _encodable(stream: Any) -> Any:
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors="replace")
    return stream
