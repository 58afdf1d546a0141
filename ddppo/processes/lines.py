"""Lines between processes."""

import socket


def exactly(line: socket.socket, size: int) -> bytes:
    """Return the next `size` bytes. Raises EOFError where the other side has ended."""
    content = bytearray()
    while len(content) < size:
        part = line.recv(size - len(content))
        if not part:
            raise EOFError
        content += part
    return bytes(content)
