"""One client's session: messages between its socket and the process of its slot, until either ends or is overdue.

The server reads no message: it passes frames on, counts them and limits their size, rate and number in flight. Nothing
more is read from a client whose limit is reached, so what it sends waits in its own buffers.
"""

import asyncio
import time
from collections import Counter
from contextlib import suppress

from starlette.websockets import WebSocket, WebSocketDisconnect

from ddppo.envs.remote.messages import JSON, MSGPACK
from ddppo.serve.limits import Allowance, Limits
from ddppo.serve.line import HEAD, LEFT, framed
from ddppo.serve.slots import Slot

GONE = ""  # the client left: nobody to tell
NORMAL, POLICY, INTERNAL, RESTART = 1000, 1008, 1011, 1012  # close codes of RFC 6455, section 7.4
_CLOSE_S = 1.0


class Session:
    def __init__(self, socket: WebSocket, slot: Slot, limits: Limits, counts: Counter[str]) -> None:
        self.slot = slot
        self._socket = socket
        self._limits = limits
        self._counts = counts
        self._num_in_flight = 0
        self._room = asyncio.Semaphore(limits.max_in_flight)
        self._stopped: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self._heard_at = self._answered_at = time.monotonic()
        self._sending_since: float | None = None

    async def run(self) -> str:
        """Pass messages on until the session ends; return why, GONE where the client left."""
        reader, writer = await asyncio.open_connection(
            sock=self.slot.line, limit=self._limits.max_message_bytes + HEAD.size
        )
        parts = [
            asyncio.ensure_future(self._from_client(writer)),
            asyncio.ensure_future(self._from_world(reader)),
        ]
        try:
            await asyncio.wait([*parts, self._stopped], return_when=asyncio.FIRST_COMPLETED)
            if self._stopped.done():
                code, why = self._stopped.result()
            else:
                code, why = next(part for part in parts if part.done()).result()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            writer.transport.abort()
        if why != GONE:
            with suppress(
                Exception
            ):  # the client may not take it any more; its slot is given back all the same
                await asyncio.wait_for(self._socket.close(code, why[:120]), _CLOSE_S)
        return why

    def stop(self, code: int, why: str) -> None:
        if not self._stopped.done():
            self._stopped.set_result((code, why))

    def stop_if_overdue(self, now: float) -> None:
        limits = self._limits
        if self._sending_since is not None and now - self._sending_since > limits.send_s:
            self.stop(POLICY, f"an answer was not taken within {limits.send_s:g} s")
        elif self._num_in_flight and now - max(self._heard_at, self._answered_at) > limits.step_s:
            self.stop(INTERNAL, f"the environment gave no answer within {limits.step_s:g} s")
        elif not self._num_in_flight and now - max(self._heard_at, self._answered_at) > limits.idle_s:
            self._counts["reaped"] += 1
            self.stop(POLICY, f"no request within {limits.idle_s:g} s")

    async def _from_client(self, writer: asyncio.StreamWriter) -> tuple[int, str]:
        allowance = Allowance(self._limits.messages_per_s)
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return INTERNAL, GONE
            now = time.monotonic()
            if (wait_s := allowance.wait_s(now)) > 0.0:
                self._counts["slowed"] += 1
                await asyncio.sleep(wait_s)
            await self._room.acquire()
            if not self._num_in_flight:
                self._heard_at = time.monotonic()
            self._num_in_flight += 1
            content = message.get("bytes")
            frame = framed(JSON, message["text"].encode()) if content is None else framed(MSGPACK, content)
            with suppress(ConnectionError):  # the other part sees the end of the line
                writer.write(frame)
                await writer.drain()

    async def _from_world(self, reader: asyncio.StreamReader) -> tuple[int, str]:
        while True:
            try:
                what, size = HEAD.unpack(await reader.readexactly(HEAD.size))
                if size > self._limits.max_message_bytes:
                    return (
                        INTERNAL,
                        f"an answer has {size} bytes, at most {self._limits.max_message_bytes} go",
                    )
                content = await reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionError):
                self._counts["lost"] += 1
                return INTERNAL, "the environment's process was lost"
            if what == LEFT:
                return NORMAL, "as the client asked"
            kind = what.lower()
            self._counts["messages"] += 1
            self._counts["errors"] += what != kind
            self._num_in_flight -= 1
            self._sending_since = self._answered_at = time.monotonic()
            try:
                if kind == JSON:
                    await self._socket.send_text(content.decode())
                else:
                    await self._socket.send_bytes(content)
            except (WebSocketDisconnect, OSError, RuntimeError):
                return INTERNAL, GONE
            self._sending_since = None
            self._room.release()
