"""Frames between the server and the process of a slot: a byte that says what it is, its size, and the content."""

import socket
import struct

from ddppo.processes.fork_server import exactly

HEAD = struct.Struct("!cI")
TASK = b"t"  # to a new process: what it is to make
READY, FAILED = b".", b"!"  # its answer; FAILED with the reason as text
LEFT = b"x"  # the client asked to end the session
RESET_ONCE, STEP_ONCE = b"r", b"s"  # bodies of HTTP requests; answered as JSON, or where that failed:
BAD, FAILED_STEP = b"b", b"f"  # for what the client, what the environment did wrong
# Requests and replies are of a kind of ddppo.serve.protocol, JSON or MSGPACK; errors are the kind in capitals.


def framed(what: bytes, content: bytes) -> bytes:
    return HEAD.pack(what, len(content)) + content


def hear(line: socket.socket) -> tuple[bytes, bytes]:
    """Return the next frame. Raises EOFError where the other side has ended."""
    what, size = HEAD.unpack(exactly(line, HEAD.size))
    return what, exactly(line, size)
