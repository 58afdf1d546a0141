"""The server's end of a slot's line on the event loop: whole frames, as they come."""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from ddppo.serve.slots.line import HEAD, framed


class SlotWire(asyncio.Protocol):
    """on_frame is called with the kind and content of each frame, on_end once with why the line ended.

    A world is not trusted: a frame above most_bytes ends the line, and what to make of one is for on_frame to check.
    """

    def __init__(
        self, most_bytes: int, on_frame: Callable[[bytes, bytes], None], on_end: Callable[[str], None]
    ) -> None:
        self._most_bytes = most_bytes
        self._on_frame = on_frame
        self._on_end = on_end
        self._heard = b""
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def of(
        cls, line: socket.socket, most_bytes: int,
        on_frame: Callable[[bytes, bytes], None], on_end: Callable[[str], None],
    ) -> "SlotWire":  # fmt: skip
        """Take over a slot's line."""
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(lambda: cls(most_bytes, on_frame, on_end), sock=line)
        return wire

    def say(self, what: bytes, content: bytes) -> None:
        """Send a frame. Nobody waits until it is taken: how many are under way is the caller's to limit."""
        assert self._transport is not None
        self._transport.write(framed(what, content))

    def close(self) -> None:
        """End the line; on_end is not called any more."""
        self._on_end = lambda why: None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        heard = self._heard + data if self._heard else data
        at = 0
        while len(heard) - at >= HEAD.size:
            what, size = HEAD.unpack_from(heard, at)
            if size > self._most_bytes:
                self._on_end(f"an answer has {size} bytes, at most {self._most_bytes} go")
                self.close()
                return
            end = at + HEAD.size + size
            if len(heard) < end:
                break
            self._on_frame(what, heard[at + HEAD.size : end])
            at = end
        self._heard = heard[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_end("the environment's process was lost")
