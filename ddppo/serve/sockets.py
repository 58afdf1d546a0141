"""What a connection may cost before and beside its messages: uvicorn's protocols, with bounds that they lack.

Whoever connects and sends no whole request in time, more connections than the server has room for, pings faster than
anybody needs, messages in splinters: the connection ends, and is counted.
"""

import asyncio
import time
from collections import Counter

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from ddppo.serve.limits import Allowance, Limits

_PINGS_PER_S = 20.0
_MOST_FRAGMENTS = 1024  # of a message


def protocols(
    limits: Limits, counts: Counter[str]
) -> tuple[type[H11Protocol], type[WebSocketsSansIOProtocol]]:
    """Return uvicorn's protocols within limits: of HTTP, and of WebSockets."""

    class BoundedHttp(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > limits.max_connections:
                counts["dropped_crowd"] += 1
                transport.abort()
                return
            self._look()

        def _look(self) -> None:
            self._next_look = self.loop.call_later(limits.request_s, self._abort_if_waiting)

        def _abort_if_waiting(self) -> None:
            transport = self.transport
            if transport.is_closing() or transport.get_protocol() is not self:
                return  # it has ended, or has become a WebSocket
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
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self._pings = Allowance(_PINGS_PER_S)

        def handle_ping(self) -> None:
            super().handle_ping()
            if self._pings.wait_s(time.monotonic()) > 0.0:
                self._drop("pings")

        def handle_cont(self, event: Frame) -> None:
            super().handle_cont(event)
            if len(self.frames) > _MOST_FRAGMENTS:
                self._drop("fragments")

        def _drop(self, why: str) -> None:
            if not self.transport.is_closing():
                counts[f"dropped_{why}"] += 1
                self.transport.abort()

    return BoundedHttp, BoundedWebSocket
