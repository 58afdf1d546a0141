"""The server's routes: /ws (a session), /health, /metrics and /schema.

A client is refused at the handshake, by an HTTP answer (ASGI's websocket.http.response): 401 without the token, 403
from a web page, 503 where all slots are held. Whoever is connected has a slot.
"""

import asyncio
import hmac
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, Request, Response, WebSocket
from starlette.websockets import WebSocketDisconnect

from ddppo.envs.remote.messages import FIELDS, PROTOCOL, plain_spec
from ddppo.serve.limits import Limits
from ddppo.serve.session import GONE, RESTART, Session
from ddppo.serve.slots import PoolExhausted, Slot, SlotNotReady, SlotPool
from ddppo.spaces import EnvSpec

_LOOK_S = 0.25  # between two looks for overdue sessions
_LEAVE_S = 5.0
_LEAVING_S = 0.5  # a client waits so long for slots whose holders left a moment ago, before it is refused

log = logging.getLogger(__name__)


class Server:
    """What the routes share."""

    def __init__(self, pool: SlotPool, spec: EnvSpec, limits: Limits, token: str | None) -> None:
        self.pool = pool
        self.spec = spec
        self.limits = limits
        self.counts: Counter[str] = Counter()
        self.sessions: set[Session] = set()
        self._token = None if token is None else token.encode()
        self._waiters = ThreadPoolExecutor(
            pool.size, "slot"
        )  # as many as can wait for a slot that is being made
        self._is_leaving = False

    def refusal(self, connection: WebSocket | Request) -> Response | None:
        """Return what to answer to who may not connect: without the token, or a web page of another's."""
        given = connection.headers.get("authorization", "").encode()
        if self._token is not None and not hmac.compare_digest(given, b"Bearer " + self._token):
            self.counts["refused_token"] += 1
            return _json(401, {"error": "the header Authorization: Bearer <token> is missing or wrong"})
        if "origin" in connection.headers:
            self.counts["refused_origin"] += 1
            return _json(403, {"error": "web pages may not connect"})
        return None

    async def session(self, socket: WebSocket) -> None:
        """Lend a client a slot until its session ends, however it ends."""
        answer = self.refusal(socket)
        slot = None
        if answer is None:
            slot, answer = await self._slot()
        if slot is None:
            assert answer is not None
            log.info("refused %s: %s", socket.client, bytes(answer.body).decode())
            await socket.send_denial_response(answer)
            return
        why = GONE
        try:
            await socket.accept()
            session = Session(socket, slot, self.limits, self.counts)
            self.sessions.add(session)
            try:
                why = await session.run()
            finally:
                self.sessions.discard(session)
        except WebSocketDisconnect:
            pass  # before it was accepted
        finally:
            self.pool.release(slot)
            self.counts["sessions"] += 1
        if why != GONE:
            log.warning("session of %s on slot %d ended: %s", socket.client, slot.index, why)

    async def _slot(self) -> tuple[Slot | None, Response | None]:
        try:
            end = time.monotonic() + _LEAVING_S
            while True:
                try:
                    return await self._acquired(), None
                except PoolExhausted:
                    if time.monotonic() > end:
                        raise
                await asyncio.sleep(_LEAVING_S / 10)
        except PoolExhausted as e:
            self.counts["refused_full"] += 1
            numbers = {"held": e.num_held, "size": e.size}
            return None, _json(503, {"error": str(e), **numbers}, {"retry-after": "1"})
        except SlotNotReady as e:
            self.counts["refused_not_ready"] += 1
            numbers = {"held": self.pool.num_held, "size": self.pool.size}
            return None, _json(503, {"error": str(e), **numbers}, {"retry-after": "5"})

    async def _acquired(self) -> Slot:
        if self._is_leaving:
            raise SlotNotReady("the server is stopping")
        if self.pool.num_free:
            with suppress(SlotNotReady):  # another was quicker; one is still being made
                return self.pool.acquire()
        acquired = asyncio.get_running_loop().run_in_executor(
            self._waiters, self.pool.acquire, self.limits.ready_s
        )
        try:
            return await asyncio.shield(acquired)
        except asyncio.CancelledError:
            acquired.add_done_callback(self._give_back)
            raise

    def _give_back(self, acquired: "asyncio.Future[Slot]") -> None:
        if not acquired.cancelled() and acquired.exception() is None:
            self.pool.release(acquired.result())

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            now = time.monotonic()
            for session in list(self.sessions):
                session.stop_if_overdue(now)

    async def leave(self) -> None:
        """End all sessions, within 5 s, and the pool."""
        self._is_leaving = True
        for session in list(self.sessions):
            session.stop(RESTART, "the server is stopping")
        end = time.monotonic() + _LEAVE_S
        while self.sessions and time.monotonic() < end:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(self.pool.close)
        self._waiters.shutdown(wait=False, cancel_futures=True)

    def metrics(self) -> str:
        """Return the numbers in Prometheus's text format, version 0.0.4."""
        pool, counts = self.pool, self.counts
        refused = {reason: counts[f"refused_{reason}"] for reason in ("full", "not_ready", "token", "origin")}
        table: list[tuple[str, str, str, Any]] = [
            ("slots", "gauge", "slots of the pool", pool.size),
            ("slots_held", "gauge", "slots that a session holds", pool.num_held),
            ("slots_free", "gauge", "slots ready to be lent", pool.num_free),
            ("sessions_ended_total", "counter", "sessions that ended", counts["sessions"]),
            ("sessions_idle_total", "counter", "sessions ended because nothing was asked", counts["reaped"]),
            ("sessions_refused_total", "counter", "clients refused at the handshake", refused),
            ("messages_total", "counter", "requests answered", counts["messages"]),
            ("errors_total", "counter", "requests answered with an error", counts["errors"]),
            ("slowed_total", "counter", "requests that waited for the rate limit", counts["slowed"]),
            ("worlds_lost_total", "counter", "processes that ended before their session", counts["lost"]),
            ("worlds_replaced_total", "counter", "processes that took another's place", pool.num_replaced),
        ]
        lines = []
        for name, kind, meaning, value in table:
            lines += [f"# HELP ddppo_{name} {meaning}", f"# TYPE ddppo_{name} {kind}"]
            if isinstance(value, dict):
                lines += [f'ddppo_{name}{{reason="{key}"}} {number}' for key, number in value.items()]
            else:
                lines.append(f"ddppo_{name} {value}")
        return "\n".join(lines) + "\n"


def make_app(
    pool: SlotPool, spec: EnvSpec, limits: Limits, token: str | None = None, name: str = ""
) -> FastAPI:
    """Return the ASGI application, of environments of this name. It closes the pool when it ends."""
    server = Server(pool, spec, limits, token)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.ensure_future(server.watch())
        try:
            yield
        finally:
            watching.cancel()
            await server.leave()

    app = FastAPI(title="ddppo environments", lifespan=life, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.server = server
    app.add_api_websocket_route("/ws", server.session)

    @app.get("/health")
    async def health() -> Response:
        numbers = {"size": pool.size, "held": pool.num_held, "free": pool.num_free}
        status = "unhealthy" if pool.trouble else "healthy"  # the cause is in the log, not for everybody
        return _json(503 if pool.trouble else 200, {"status": status, **numbers})

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        refused = server.refusal(request)
        return refused or Response(server.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/schema")
    async def schema(request: Request) -> Response:
        operations = {op: sorted(fields) for op, fields in FIELDS.items()}
        said = {"protocol": PROTOCOL, "env": name, "spec": plain_spec(spec), "requests": operations}
        return server.refusal(request) or _json(200, said)

    return app


def _json(status: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(content), status, headers, "application/json")
