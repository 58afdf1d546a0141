"""Slots that clients hold between HTTP requests: the sessions of POST /mcp, in the form of OpenEnv 0.10.

    openenv/session/create {}                                 -> {"session_id"}
    tools/list {["session_id"]}                               -> {"tools"}
    tools/call {"name", "arguments", ["session_id"]}          -> {"content", "structuredContent", "data", "isError"}
    openenv/session/close {"session_id"}                      -> {"session_id", "closed"}

Each is a request of JSON-RPC 2.0, and so is its answer. A WebSocket at /ws?session_id=... shares the slot: it resets
and steps, while POST /mcp calls tools. A session ends when it is closed, or after idle_s without a request. Without a
session, a tool is called in a fresh world for one request.
"""

import asyncio
import json
import secrets
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any

from ddppo.serve.limits import Allowance, Limits
from ddppo.serve.openenv import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    NO_METHOD,
    PARSE_ERROR,
    SERVER_ERROR,
    RpcError,
    listed,
    rpc_answer,
    rpc_error,
    rpc_of,
    tools_for,
)
from ddppo.serve.protocol import JSON
from ddppo.serve.slots.pool import PoolExhausted, SlotNotReady
from ddppo.serve.slots.wire import SlotWire
from ddppo.serve.slots.worlds import Slot
from ddppo.spaces import EnvSpec

Taker = Callable[[bytes, bytes], None]  # of kind and content of an answer


class HeldSlot:
    """A slot of a session of POST /mcp. Make it by `HeldSlot.of`. A world answers in turn, so answers need no ids."""

    _wire: SlotWire

    def __init__(self, slot: Slot, limits: Limits) -> None:
        self.slot = slot
        self.used_at = time.monotonic()
        self.lost: str | None = None  # why the world has ended
        self.is_shared = False  # by a WebSocket
        self._limits = limits
        self._allowance = Allowance(limits.messages_per_s)
        self._takers: deque[Taker] = deque()  # of the answers to come
        self._num_asking = 0
        self._on_lost: Callable[[str], None] = _nothing  # of the WebSocket that shares it
        self._on_closed: Callable[[str], None] = _nothing
        self._futures: set[asyncio.Future[bytes]] = set()

    @classmethod
    async def of(cls, slot: Slot, limits: Limits) -> "HeldSlot":
        held = cls(slot, limits)
        held._wire = await SlotWire.of(slot.line, limits.max_message_bytes, held._on_frame, held._on_end)
        return held

    @property
    def is_asked(self) -> bool:
        """Whether a request has no answer yet; `step_s` bounds the time for it."""
        return self._num_asking > 0

    def send(self, kind: bytes, content: bytes, taker: Taker) -> None:
        self.used_at = time.monotonic()
        self._takers.append(taker)
        self._wire.send(kind, content)

    async def ask(self, content: bytes) -> bytes:
        """Send a message of OpenEnv in JSON and return the answer. Raises TimeoutError, ConnectionError, RpcError."""
        if self.lost is not None:
            raise ConnectionError(self.lost)
        if self._num_asking >= self._limits.max_in_flight:
            raise RpcError(SERVER_ERROR, f"the session has {self._num_asking} requests without an answer")
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def take(kind: bytes, content: bytes) -> None:
            if not answered.done():
                answered.set_result(content)

        self._num_asking += 1
        self._futures.add(answered)
        try:
            await asyncio.sleep(self._allowance.wait_s(time.monotonic()))
            self.send(JSON, content, take)
            return await asyncio.wait_for(answered, self._limits.step_s)
        finally:
            self._num_asking -= 1
            self._futures.discard(answered)

    def shared(
        self, on_frame: Taker, on_lost: Callable[[str], None], on_closed: Callable[[str], None]
    ) -> "SharedWire":
        """Return the wire of a WebSocket that shares the slot; of the two last, one is called if the slot ends."""
        self.is_shared, self._on_lost, self._on_closed = True, on_lost, on_closed
        return SharedWire(self, on_frame)

    def left(self) -> None:
        """End the sharing."""
        self.is_shared, self._on_lost, self._on_closed = False, _nothing, _nothing
        self.used_at = time.monotonic()

    def close(self) -> None:
        self._on_lost = self._on_closed
        self._wire.close()
        self._on_end("the session was closed")

    def _on_frame(self, kind: bytes, content: bytes) -> None:
        if not self._takers:
            self._on_end("the environment's process sent an answer without a request")
            self._wire.close()
            return
        self.used_at = time.monotonic()
        self._takers.popleft()(kind, content)

    def _on_end(self, why: str) -> None:
        if self.lost is None:
            self.lost = why
            self._on_lost(why)
        for answered in self._futures:
            if not answered.done():
                answered.set_exception(ConnectionError(why))


def _nothing(why: str) -> None:
    pass


class SharedWire:
    """A SlotWire's methods for a WebSocket that shares a held slot."""

    def __init__(self, held: HeldSlot, on_frame: Taker) -> None:
        self._held, self._on_frame = held, on_frame

    def send(self, what: bytes, content: bytes) -> None:
        self._held.send(what, content, self._on_frame)

    def close(self) -> None:
        self._held.left()


class HeldSlots:
    """The sessions of POST /mcp.

    Args:
        acquire: returns a slot. Raises PoolExhausted, SlotNotReady.
        release: takes a slot back.
        once: answers a message in a fresh world. Raises TimeoutError, ConnectionError, and as `acquire` does.
    """

    def __init__(
        self, spec: EnvSpec, limits: Limits, counts: Counter[str], acquire: Callable[[], Awaitable[Slot]],
        release: Callable[[Slot], None], once: Callable[[bytes], Awaitable[bytes]],
    ) -> None:  # fmt: skip
        self._tools = tools_for(spec)
        self._limits, self._counts = limits, counts
        self._acquire, self._release, self._once = acquire, release, once
        self._held: dict[str, HeldSlot] = {}

    def get(self, id: str) -> HeldSlot | None:
        return self._held.get(id)

    async def answer(self, body: bytes) -> dict[str, Any]:
        """Return the response to a request of JSON-RPC."""
        # The server itself has to parse these requests: they name the session whose world answers.
        id = None
        try:
            request = json.loads(body)
            id = request.get("id") if isinstance(request, dict) else None
            method, params = rpc_of(request)
            return (
                rpc_answer(id, await self._create())
                if method == "openenv/session/create"
                else (await self._of_session(request, method, params))
            )
        except RpcError as e:
            return rpc_error(id, e.rpc_code, str(e))
        except (ValueError, RecursionError) as e:
            return rpc_error(None, PARSE_ERROR, f"the request is not JSON: {type(e).__name__}")
        except (PoolExhausted, SlotNotReady) as e:
            numbers = (
                {"active_sessions": e.num_held, "max_sessions": e.size}
                if isinstance(e, PoolExhausted)
                else None
            )
            return rpc_error(id, SERVER_ERROR, str(e), numbers)
        except (TimeoutError, ConnectionError) as e:
            self._counts["lost"] += 1
            why = str(e) or f"the environment gave no answer within {self._limits.step_s:g} s"
            return rpc_error(id, INTERNAL_ERROR, why)

    async def _create(self) -> dict[str, Any]:
        slot = await self._acquire()
        try:
            held = await HeldSlot.of(slot, self._limits)
        except BaseException:
            self._release(slot)
            raise
        session_id = secrets.token_urlsafe(24)
        self._held[session_id] = held
        return {"session_id": session_id}

    async def _of_session(
        self, request: dict[str, Any], method: str, params: dict[str, Any]
    ) -> dict[str, Any]:
        id, given = request.get("id"), params.get("session_id")
        session_id = given if isinstance(given, str) else ""
        held = self._held.get(session_id)
        if given is not None and held is None:
            raise RpcError(INVALID_PARAMS, "there is no such session_id: it was closed, or has ended")
        if method == "openenv/session/close":
            if held is None:
                raise RpcError(INVALID_PARAMS, "openenv/session/close needs a session_id")
            self.end(session_id)
            return rpc_answer(id, {"session_id": session_id, "closed": True})
        if method == "tools/list":
            if held is not None:
                held.used_at = time.monotonic()
            return rpc_answer(id, listed(self._tools))
        if method != "tools/call":
            raise RpcError(
                NO_METHOD,
                f"there is no method {method[:40]!r}: use tools/list, tools/call, openenv/session/create or "
                "openenv/session/close",
            )
        message = json.dumps({"type": "mcp", "data": request}).encode()
        try:
            content = await (self._once(message) if held is None else held.ask(message))
        except (TimeoutError, ConnectionError):
            if held is not None:
                self.end(session_id)
            raise
        self._counts["messages"] += 1
        # A world is not trusted.
        try:
            answer = json.loads(content)["data"]
            assert isinstance(answer, dict)
        except (ValueError, KeyError, TypeError, AssertionError, RecursionError) as e:
            raise RpcError(INTERNAL_ERROR, "the environment's process gave no answer of JSON-RPC") from e
        self._counts["errors"] += "error" in answer
        return answer

    def end(self, session_id: str) -> None:
        """End a session, and release its slot. A second call does nothing."""
        if (held := self._held.pop(session_id, None)) is not None:
            held.close()
            self._counts["sessions"] += 1
            self._release(held.slot)

    def end_idle(self, now: float) -> None:
        for id, held in list(self._held.items()):
            is_used = held.is_shared or held.is_asked
            is_idle = not is_used and now - held.used_at > self._limits.idle_s
            self._counts["reaped"] += is_idle
            if is_idle or held.lost is not None:
                self.end(id)

    def end_all(self) -> None:
        for id in list(self._held):
            self.end(id)
