"""Frames between the server and the process of a slot: a byte for the kind, the size, and the content."""

import socket
import struct

from ddppo.processes.fork_server import exactly

HEAD = struct.Struct("!cI")
TASK = b"t"  # to a new process: the environment to make
READY, FAILED = b".", b"!"  # its answer; FAILED has the reason as text
LEFT = b"x"  # the client has ended the session
RESET_ONCE, STEP_ONCE = b"r", b"s"  # bodies of HTTP requests, answered as JSON, or by one of the following:
BAD, FAILED_STEP = b"b", b"f"  # a mistake of the client; an error of the environment
# Requests and answers of a session have the kind JSON or MSGPACK of ddppo.serve.protocol; errors have it in capitals.


def framed(what: bytes, content: bytes) -> bytes:
    return HEAD.pack(what, len(content)) + content


def read_frame(line: socket.socket) -> tuple[bytes, bytes]:
    """Return kind and content of the next frame. Raises EOFError if the other side has closed the line."""
    what, size = HEAD.unpack(exactly(line, HEAD.size))
    return what, exactly(line, size)
