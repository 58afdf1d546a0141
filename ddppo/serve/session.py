"""`Session` passes messages between a client's socket and the process of its slot; `protocols` bounds connections.

The server does not parse messages. It forwards frames, counts them, and limits their size, rate and number in flight.
It stops reading from a client at a limit, so that further messages wait in the client's own buffers. Worlds are not
trusted either: a world may send one answer for each request.

`protocols` adds bounds to uvicorn's protocols: it drops connections that send no complete request in time, that are too
many, that ping too fast, or that split messages into too many fragments.
"""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from functools import partial

from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from ddppo.serve.held import HeldSlot, SharedWire
from ddppo.serve.limits import Allowance, Limits
from ddppo.serve.protocol import JSON, MSGPACK
from ddppo.serve.slots.line import LEFT
from ddppo.serve.slots.wire import SlotWire
from ddppo.serve.slots.worlds import Slot

# Reasons why a session ended, beside those in words.
GONE = ""  # the client left
AS_ASKED = "as the client asked"
NORMAL, POLICY, INTERNAL, RESTART = 1000, 1008, 1011, 1012  # close codes of RFC 6455, section 7.4
_CLOSE_S = 1.0  # for the closing handshake
_PINGS_PER_S = 20.0
_MOST_FRAGMENTS = 1024  # of a message


class Session:
    """One client and one slot.

    Args:
        held: the slot of a session of POST /mcp, which this one shares; None for a slot of its own.
    """

    def __init__(
        self,
        socket: WebSocket,
        slot: Slot,
        limits: Limits,
        counts: Counter[str],
        held: HeldSlot | None = None,
    ) -> None:
        self.slot = slot
        self._socket = socket
        self._limits = limits
        self._counts = counts
        self._held = held
        self._num_in_flight = 0  # requests that the world has not answered
        self._room = asyncio.Semaphore(limits.max_in_flight)
        self._answers: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue()
        # Close code and reason, once the session is to end.
        self._stopped: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        # Times of time.monotonic(): the oldest request in flight, the last answer, the answer being sent.
        self._asked_at = self._answered_at = time.monotonic()
        self._sending_since: float | None = None

    async def run(self) -> str:
        """Forward messages until the session ends; return the reason, GONE if the client left."""
        wire: SlotWire | SharedWire
        if self._held is not None:
            wire = self._held.shared(self._on_frame, self._lost, partial(self.stop, NORMAL))
        else:
            wire = await SlotWire.of(
                self.slot.line, self._limits.max_message_bytes, self._on_frame, self._lost
            )
        # Two tasks, one for each direction. The session ends when one of them ends, or when `stop` is called.
        parts = [asyncio.ensure_future(self._from_client(wire)), asyncio.ensure_future(self._to_client())]
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
            wire.close()
        if why != GONE:
            with suppress(Exception):  # the client may be unable to take it; its slot is released in any case
                await asyncio.wait_for(self._socket.close(code, why[:120]), _CLOSE_S)
        return why

    def stop(self, code: int, why: str) -> None:
        if not self._stopped.done():
            self._stopped.set_result((code, why))

    def stop_if_overdue(self, now: float) -> None:
        limits = self._limits
        used_at = max(
            self._asked_at, self._answered_at, self._held.used_at if self._held is not None else 0.0
        )
        if self._sending_since is not None and now - self._sending_since > limits.send_s:
            self.stop(POLICY, f"an answer was not taken within {limits.send_s:g} s")
        elif self._num_in_flight and now - max(self._asked_at, self._answered_at) > limits.step_s:
            self.stop(INTERNAL, f"the environment gave no answer within {limits.step_s:g} s")
        elif not self._num_in_flight and now - used_at > limits.idle_s:
            self._counts["reaped"] += 1
            self.stop(POLICY, f"no request within {limits.idle_s:g} s")

    def _on_frame(self, what: bytes, content: bytes) -> None:
        """Handle a frame of the world."""
        if what == LEFT:
            self.stop(NORMAL, AS_ASKED)
            return
        # An answer without a request, or of an unknown kind: the world is broken or hostile.
        if self._num_in_flight == 0 or what.lower() not in (JSON, MSGPACK):
            self._lost("the environment's process sent an answer without a request")
            return
        now = time.monotonic()
        self._counts["messages"] += 1
        self._counts["errors"] += what.isupper()  # the kind of an error is in capitals (slots/line.py)
        self._counts["answer_s"] += now - max(self._asked_at, self._answered_at)  # type: ignore[assignment]
        self._num_in_flight -= 1
        self._answered_at = now
        self._answers.put_nowait((what.lower(), content))

    def _lost(self, why: str) -> None:
        self._counts["lost"] += not self._stopped.done()
        self.stop(INTERNAL, why)

    async def _from_client(self, wire: "SlotWire | SharedWire") -> tuple[int, str]:
        allowance = Allowance(self._limits.messages_per_s)
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return INTERNAL, GONE
            # Rate limit: nothing more is read meanwhile.
            now = time.monotonic()
            if (wait_s := allowance.wait_s(now)) > 0.0:
                self._counts["slowed"] += 1
                await asyncio.sleep(wait_s)
                now = time.monotonic()
            # Limit of requests in flight; `_to_client` releases it when an answer is sent.
            await self._room.acquire()
            if not self._num_in_flight:
                self._asked_at = now
            self._num_in_flight += 1
            if (content := message.get("bytes")) is None:
                wire.send(JSON, message["text"].encode())
            else:
                wire.send(MSGPACK, content)

    async def _to_client(self) -> tuple[int, str]:
        while True:
            kind, content = await self._answers.get()
            self._sending_since = time.monotonic()
            try:
                if kind == JSON:
                    await self._socket.send_text(content.decode(errors="replace"))
                else:
                    await self._socket.send_bytes(content)
            except (WebSocketDisconnect, OSError, RuntimeError):
                return INTERNAL, GONE
            self._sending_since = None
            self._room.release()


def protocols(
    limits: Limits, counts: Counter[str]
) -> tuple[type[H11Protocol], type[WebSocketsSansIOProtocol]]:
    """Return uvicorn's protocols for HTTP and WebSockets, with bounds."""

    class BoundedHttp(H11Protocol):
        """Drops connections above max_connections, and those that send no complete request within request_s."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            # Each connection costs memory and a file descriptor, even one that never asks for anything.
            if len(self.connections) > limits.max_connections:
                counts["dropped_crowd"] += 1
                transport.abort()
                return
            self._look()

        def _look(self) -> None:
            self._next_look = self.loop.call_later(limits.request_s, self._abort_if_waiting)

        def _abort_if_waiting(self) -> None:
            # Nothing to do if the connection has ended, or has become a WebSocket.
            transport = self.transport
            if transport.is_closing() or transport.get_protocol() is not self:
                return
            # No request yet, or its answer is sent, or its body is incomplete: the connection waits for its client.
            if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
                counts["dropped_late"] += 1
                transport.abort()
                return
            self._look()

        def connection_lost(self, exc: Exception | None) -> None:
            if hasattr(self, "_next_look"):
                self._next_look.cancel()
            super().connection_lost(exc)

    class BoundedWebSocket(WebSocketsSansIOProtocol):
        """Drops connections that ping too fast, or send a message in too many fragments."""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self._pings = Allowance(_PINGS_PER_S)

        def handle_ping(self) -> None:
            super().handle_ping()
            # A ping costs the server an answer, and is no message that the rate limit would count.
            if self._pings.wait_s(time.monotonic()) > 0.0:
                self._drop("pings")

        def handle_cont(self, event: Frame) -> None:
            super().handle_cont(event)
            # Fragments are kept until the message is complete.
            if len(self.frames) > _MOST_FRAGMENTS:
                self._drop("fragments")

        def _drop(self, why: str) -> None:
            if not self.transport.is_closing():
                counts[f"dropped_{why}"] += 1
                self.transport.abort()

    return BoundedHttp, BoundedWebSocket
