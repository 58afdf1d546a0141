"""The server's end of a slot's line, on the event loop: it delivers complete frames."""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from ddppo.serve.slots.line import HEAD, framed


class SlotWire(asyncio.Protocol):
    """Reads and writes frames. A world is not trusted: a frame above most_bytes ends the line."""

    def __init__(
        self,
        most_bytes: int,
        # Called with kind and content of each frame; it checks both.
        on_frame: Callable[[bytes, bytes], None],
        on_end: Callable[[str], None],  # called once, with the reason why the line ended
    ) -> None:
        self._most_bytes = most_bytes
        self._on_frame = on_frame
        self._on_end = on_end
        self._received = b""  # the beginning of a frame that is not complete
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def of(
        cls, line: socket.socket, most_bytes: int,
        on_frame: Callable[[bytes, bytes], None], on_end: Callable[[str], None],
    ) -> "SlotWire":  # fmt: skip
        """Return the wire over a slot's line, and read from it from now on."""
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(lambda: cls(most_bytes, on_frame, on_end), sock=line)
        return wire

    def send(self, what: bytes, content: bytes) -> None:
        """Send a frame without waiting until it is read. The caller limits the number of unanswered frames."""
        assert self._transport is not None
        self._transport.write(framed(what, content))

    def close(self) -> None:
        """Close the line without calling on_end."""
        self._on_end = lambda why: None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        received = self._received + data if self._received else data
        at = 0
        while len(received) - at >= HEAD.size:
            what, size = HEAD.unpack_from(received, at)
            if size > self._most_bytes:
                self._on_end(f"an answer has {size} bytes, at most {self._most_bytes} are allowed")
                self.close()
                return
            end = at + HEAD.size + size
            if len(received) < end:
                break
            self._on_frame(what, received[at + HEAD.size : end])
            at = end
        self._received = received[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_end("the environment's process was lost")
