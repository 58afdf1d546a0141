"""What a command says never ends it: a closed pipe, a terminal that is gone, a full disk, a narrow encoding.

    with unbroken_streams():
        print(...)    # of `| head -2`, of a terminal that was closed, under PYTHONIOENCODING=ascii

Imports nothing heavy: every door and every rank begins with it.
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

# What a listener leaves behind by leaving: nothing to tell anyone about.
_NOBODY_LISTENS = (errno.EPIPE, errno.EIO, errno.EBADF)


class _Unbroken:
    """A text stream that swallows what cannot be written, and is a hole from then on."""

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
        """Only flush: a task may close it, and it is the whole process's."""
        self.flush()

    def _break(self, error: OSError | ValueError) -> None:
        self._broken = True
        with suppress(OSError, ValueError, AttributeError):  # else the interpreter would try again at its end
            hole = os.open(os.devnull, os.O_WRONLY)
            os.dup2(hole, self._stream.fileno())
            os.close(hole)
        if isinstance(error, OSError) and error.errno not in _NOBODY_LISTENS and self is sys.stdout:
            warn(f"standard output cannot be written ({error.strerror}); going on without it")


@contextmanager
def unbroken_streams() -> Iterator[None]:
    """Make sys.stdout and sys.stderr streams to which a write never fails. Inside another such block, nothing changes.

    Characters that the encoding lacks are written as question marks. A stream that is closed or not there becomes a
    hole.
    """
    _fill_standard_descriptors()
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
    """Have all that is printed inside the block go to stderr, for what follows it is to stand alone on stdout.

    That is what a task prints, its libraries in C and the programs that it starts.
    """
    streams = {id(stream): stream for stream in (sys.stdout, sys.__stdout__) if stream is not None}
    _flush(streams.values())
    stdout = os.dup(1)
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _flush(streams.values())
        ctypes.CDLL(None).fflush(None)  # what C's printf keeps
        os.dup2(stdout, 1)
        os.close(stdout)


def _flush(streams: Iterable[Any]) -> None:
    for stream in streams:
        with suppress(OSError, ValueError):
            stream.flush()


def _fill_standard_descriptors() -> None:
    """Open the null device for each of 0, 1 and 2 that is closed: else the next file or socket opened gets its number.

    What processes inherit as their output would be that.
    """
    with suppress(OSError):
        while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(fd, True)
        os.close(fd)


def warn(text: str) -> None:
    """Say on stderr what is not as it should be but ends nothing."""
    print(f"warning: {text}", file=sys.stderr, flush=True)


def warn_once(text: str) -> None:
    """Warn unless a process of this run has: of what each of its ranks, pools and evaluations meets alike."""
    if is_first(text):
        warn(text)


def is_first(what: str) -> bool:
    """Return whether no process of this run has said `what` yet, and this is the one that says it: rank 0's."""
    said = os.environ.get("DDPPO_WARNED", "").split()
    mark = f"{zlib.crc32(what.encode()):08x}"
    if mark in said or os.environ.get("RANK", "0") != "0":
        return False
    os.environ["DDPPO_WARNED"] = " ".join([*said, mark])
    return True


def _encodable(stream: Any) -> Any:
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors="replace")
    return stream
