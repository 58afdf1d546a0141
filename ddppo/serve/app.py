"""The server's routes: /ws (a session), /reset, /step, /state and /mcp (one request each), /health, /metrics, /schema.

A client is refused at the handshake by an HTTP answer (ASGI's websocket.http.response): 401 without the token, 403
from a web page except the server's own at /play (playground.py), 503 if all slots are held. So every connected client
has a slot. A refusal is a line of JSON in the log.

Routes of OpenEnv without a session use a fresh world for one request:

POST /reset {"seed": 7}                        -> {"observation", "reward", "done"}
POST /step  {"action": {"action": 1}, "seed": 7} -> the same, after the first step of an episode with this seed
GET /state                                     -> {"episode_id", "step_count"} of an unused world

They answer 400 and 422 for mistakes of the client, 500 for errors of the environment, 503 if all slots are held. POST
/mcp calls tools (held.py); /metadata and /openapi.json describe the server to programs.
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
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response, WebSocket
from starlette.requests import ClientDisconnect
from starlette.websockets import WebSocketDisconnect

from ddppo.package import versions
from ddppo.serve import playground
from ddppo.serve.held import HeldSlot, HeldSlots
from ddppo.serve.limits import Limits
from ddppo.serve.openenv import action_schema, object_schema, tools_for
from ddppo.serve.protocol import FIELDS, JSON, PROTOCOL, plain_spec
from ddppo.serve.session import AS_ASKED, GONE, RESTART, Session
from ddppo.serve.slots.line import BAD, FAILED_STEP, RESET_ONCE, STEP_ONCE
from ddppo.serve.slots.pool import PoolExhausted, SlotNotReady, SlotPool
from ddppo.serve.slots.wire import SlotWire
from ddppo.serve.slots.worlds import Slot
from ddppo.spaces import ArraySpec, EnvSpec

ROUTES = {"/reset": RESET_ONCE, "/step": STEP_ONCE}
OPENENV_API = "1.0.0"  # the version of OpenEnv's HTTP routes, as its own servers state it
UNUSED = {"episode_id": None, "step_count": 0}
_STATUS = {BAD: 422, FAILED_STEP: 500}
_LOOK_S = 0.25  # interval of checks for overdue sessions
_LEAVE_S = 5.0  # for all sessions to end when the server stops
_LEAVING_S = 0.5  # before a client is refused, it waits for slots that are just being released

_REFUSALS = ("full", "not_ready", "token", "origin", "size", "late", "session")
_DROPS = ("crowd", "late", "pings", "fragments")

log = logging.getLogger(__name__)


async def ask_once(slot: Slot, what: bytes, body: bytes, limits: Limits) -> tuple[int, bytes]:
    """Send one request to a slot; return HTTP status and content. Raises TimeoutError, ConnectionError."""
    answered: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()

    def on_end(why: str) -> None:
        if not answered.done():
            answered.set_exception(ConnectionError(why))

    def on_frame(kind: bytes, content: bytes) -> None:
        if not answered.done():
            answered.set_result((kind, content))

    # One frame out, one frame in, within the time of a step.
    wire = await SlotWire.of(slot.line, limits.max_message_bytes, on_frame, on_end)
    try:
        wire.send(what, body)
        kind, content = await asyncio.wait_for(answered, limits.step_s)
        return _STATUS.get(kind, 200), content
    finally:
        wire.close()


def schemas(spec: EnvSpec) -> dict[str, Any]:
    """Return the JSON schemas of an action, an observation and a state, as OpenEnv's /schema has them."""
    parts = {"obs": _obs_schema(spec.obs)}
    if spec.mask_size is not None:
        parts["mask"] = {"type": "array"}
    return {
        "action": object_schema({"action": action_schema(spec.action)}),
        "observation": object_schema(parts),
        "state": object_schema(
            {"episode_id": {"type": ["string", "null"]}, "step_count": {"type": "integer"}}
        ),
    }


def _obs_schema(obs: ArraySpec | dict[str, ArraySpec]) -> dict[str, Any]:
    if isinstance(obs, dict):
        return object_schema({key: _obs_schema(part) for key, part in obs.items()})
    if obs.dtype == "text":
        return {"type": "string", "maxLength": obs.shape[0]}
    schema: dict[str, Any] = {"type": "number" if obs.is_float else "integer"}
    for size in reversed(obs.shape):
        schema = {"type": "array", "items": schema, "minItems": size, "maxItems": size}
    return schema


def described(name: str, spec: EnvSpec) -> dict[str, Any]:
    """Return what OpenEnv's /metadata says of the served environment, and the keys of its reset."""
    keys = ["seed", "episode_id", "options"] + (["task"] if spec.tasks is not None else [])
    return {
        "name": name,
        "description": f"{name}, an environment with actions of the kind {spec.action.kind}, served by ddppo",
        "version": versions().partition("\n")[0],
        "reset": keys,
        "tasks": list(spec.tasks or ()),
        "tools": [tool["function"]["name"] for tool in tools_for(spec)],
    }


class Server:
    """The state that all routes share: the pool of slots, the sessions, and counters."""

    def __init__(
        self,
        pool: SlotPool,
        spec: EnvSpec,
        limits: Limits,
        token: str | None,
        name: str = "",  # of the served environment
        *,
        has_playground: bool = False,  # whether its page is at /play
    ) -> None:
        self.pool = pool
        self.name = name
        self.has_playground = has_playground
        self.spec = spec
        self.limits = limits
        self.counts: Counter[str] = Counter()
        self.sessions: set[Session] = set()
        self._token = None if token is None else token.encode()
        # Threads in which clients wait for a slot that is being made; at most one for each slot.
        self._waiters = ThreadPoolExecutor(pool.size, "slot")
        self.held = HeldSlots(spec, limits, self.counts, self._acquire_soon, pool.release, self._once)
        self._is_stopping = False

    @property
    def has_token(self) -> bool:
        return self._token is not None

    def refusal(self, connection: WebSocket | Request) -> Response | None:
        """Return the answer to a client that may not connect, None if it may.

        Web pages may not: a page of any site, open in a browser on this machine, could otherwise use the server. The
        page of the playground may open sessions.
        """
        headers, may_be_page = connection.headers, self.has_playground and isinstance(connection, WebSocket)
        is_own_page = may_be_page and playground.is_own_page(headers)
        # compare_digest takes the same time for all wrong tokens, so that none can be guessed letter by letter.
        given = headers.get(
            "authorization", playground.authorization_of(headers) if is_own_page else ""
        ).encode()
        if self._token is not None and not hmac.compare_digest(given, b"Bearer " + self._token):
            error = "the header Authorization: Bearer <token> is missing or wrong"
            return self._refuse(connection, 401, "token", {"error": error})
        if "origin" in headers and not is_own_page:
            return self._refuse(connection, 403, "origin", {"error": "web pages may not connect"})
        return None

    def _refuse(
        self, connection: WebSocket | Request, status: int, reason: str, content: dict[str, Any],
        headers: dict[str, str] | None = None,
    ) -> Response:  # fmt: skip
        """Count and log a refusal; return the answer."""
        self.counts[f"refused_{reason}"] += 1
        client = connection.client
        event = {
            "event": "refused",
            "status": status,
            "reason": reason,
            "client": None if client is None else f"{client.host}:{client.port}",
            "path": connection.url.path[:100],
        }
        log.warning("%s", json.dumps(event | content))
        return _json(status, content, headers)

    async def session(self, socket: WebSocket) -> None:
        """Lend a client a slot until its session ends, for any reason."""
        # 1. Token and origin, then a slot. Without a slot there is no handshake.
        answer = self.refusal(socket)
        slot, held = None, None
        if answer is None and (session_id := socket.query_params.get("session_id")) is not None:
            held, answer = self._held_by(socket, session_id)
            slot = None if held is None else held.slot
        elif answer is None:
            slot, answer = await self._slot(socket)
        if slot is None:
            assert answer is not None
            await socket.send_denial_response(answer)
            return
        # 2. The session.
        why = GONE
        try:
            subprotocols = {playground.SUBPROTOCOL} & {*socket.scope.get("subprotocols", ())}
            await socket.accept(subprotocols.pop() if subprotocols and self.has_playground else None)
            session = Session(socket, slot, self.limits, self.counts, held)
            self.sessions.add(session)
            try:
                why = await session.run()
            finally:
                self.sessions.discard(session)
        except WebSocketDisconnect:
            pass  # the client left before it was accepted
        # 3. The slot goes back in every case, unless a session of POST /mcp holds it. One that ended early is logged.
        finally:
            if held is None:
                self.pool.release(slot)
                self.counts["sessions"] += 1
            elif why not in (GONE, AS_ASKED):
                self.held.end(str(session_id))
        if why not in (GONE, AS_ASKED):
            event = {"event": "ended", "client": f"{socket.client}", "slot": slot.index, "why": why}
            log.warning("%s", json.dumps(event))

    async def once(self, request: Request, what: bytes) -> Response:
        """Lend a client a slot for one request."""
        body = await self._body(request)
        if isinstance(body, Response):
            return body
        slot, answer = await self._slot(request)
        if slot is None:
            assert answer is not None
            return answer
        try:
            status, content = await ask_once(slot, what, body, self.limits)
        except (TimeoutError, ConnectionError) as e:
            self.counts["lost"] += 1
            why = str(e) or f"the environment gave no answer within {self.limits.step_s:g} s"
            return _json(500, {"detail": why, "code": "SESSION_ERROR"})
        finally:
            self.pool.release(slot)
        self.counts["messages"] += 1
        self.counts["errors"] += status != 200
        return Response(content, status, media_type="application/json")

    async def mcp(self, request: Request) -> Response:
        """Answer a request of JSON-RPC."""
        body = await self._body(request)
        return body if isinstance(body, Response) else _json(200, await self.held.answer(body))

    async def _once(self, message: bytes) -> bytes:
        """Answer one message of OpenEnv in a fresh world. Raises TimeoutError, ConnectionError, PoolExhausted."""
        slot = await self._acquire_soon()
        try:
            _, content = await ask_once(slot, JSON, message, self.limits)
            return content
        finally:
            self.pool.release(slot)

    async def _body(self, request: Request) -> bytes | Response:
        """Return the body of a request that is within its limits of size and time, else the refusal."""
        if (refused := self.refusal(request)) is not None:
            return refused
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.request_s):
                async for part in request.stream():
                    body += part
                    if len(body) > self.limits.max_message_bytes:
                        error = {"error": f"a request has at most {self.limits.max_message_bytes} bytes"}
                        return self._refuse(request, 413, "size", error, {"connection": "close"})
        except (TimeoutError, ClientDisconnect):
            error = {"error": f"the request was not sent within {self.limits.request_s:g} s"}
            return self._refuse(request, 408, "late", error, {"connection": "close"})
        return bytes(body)

    def _held_by(self, socket: WebSocket, session_id: str) -> tuple[HeldSlot | None, Response | None]:
        """Return the slot that a session of POST /mcp holds, or the refusal if another WebSocket shares it."""
        held = self.held.get(session_id)
        if held is None or held.is_shared:
            why = "there is no such session_id" if held is None else "another WebSocket shares this session"
            return None, self._refuse(socket, 404 if held is None else 409, "session", {"error": why})
        return held, None

    async def _acquire_soon(self) -> Slot:
        """Return a slot, after waiting for those that are just being released. Raises PoolExhausted, SlotNotReady."""
        end = time.monotonic() + _LEAVING_S
        while True:
            try:
                return await self._acquire()
            except PoolExhausted:
                if time.monotonic() > end:
                    raise
            await asyncio.sleep(_LEAVING_S / 10)

    async def _slot(self, connection: WebSocket | Request) -> tuple[Slot | None, Response | None]:
        """Return a slot, or the refusal if there is none."""
        try:
            return await self._acquire_soon(), None
        except PoolExhausted as e:
            content = {"error": str(e), "held": e.num_held, "size": e.size}
            return None, self._refuse(connection, 503, "full", content, {"retry-after": "1"})
        except SlotNotReady as e:
            content = {"error": str(e), "held": self.pool.num_held, "size": self.pool.size}
            return None, self._refuse(connection, 503, "not_ready", content, {"retry-after": "5"})

    async def _acquire(self) -> Slot:
        if self._is_stopping:
            raise SlotNotReady("the server is stopping")
        if self.pool.num_free:
            with suppress(SlotNotReady):  # another client was quicker
                return self.pool.acquire()
        # No slot is ready: wait in a thread. If the client leaves meanwhile, the slot must not stay acquired.
        acquired = asyncio.get_running_loop().run_in_executor(
            self._waiters, self.pool.acquire, self.limits.ready_s
        )
        try:
            return await asyncio.shield(acquired)
        except asyncio.CancelledError:
            acquired.add_done_callback(self._release)
            raise

    def _release(self, acquired: "asyncio.Future[Slot]") -> None:
        if not acquired.cancelled() and acquired.exception() is None:
            self.pool.release(acquired.result())

    async def watch(self) -> None:
        """End overdue sessions, for as long as the server runs."""
        while True:
            await asyncio.sleep(_LOOK_S)
            now = time.monotonic()
            for session in list(self.sessions):
                session.stop_if_overdue(now)
            self.held.end_idle(now)

    async def stop(self) -> None:
        """End all sessions, within 5 s, and the pool."""
        # 1. Refuse new sessions, and ask the open ones to end.
        self._is_stopping = True
        for session in list(self.sessions):
            session.stop(RESTART, "the server is stopping")
        self.held.end_all()
        # 2. Wait for them, then end all processes in any case.
        end = time.monotonic() + _LEAVE_S
        while self.sessions and time.monotonic() < end:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(self.pool.close)
        self._waiters.shutdown(wait=False, cancel_futures=True)

    def metrics(self) -> str:
        """Return all counters in Prometheus's text format, version 0.0.4.

        (https://prometheus.io/docs/instrumenting/exposition_formats/)
        """
        # Each metric: its name without the prefix, its type, its meaning, and its value or values by reason.
        pool, counts = self.pool, self.counts
        refused = {reason: counts[f"refused_{reason}"] for reason in _REFUSALS}
        dropped = {reason: counts[f"dropped_{reason}"] for reason in _DROPS}
        table: list[tuple[str, str, str, Any]] = [
            ("slots", "gauge", "slots of the pool", pool.size),
            ("slots_held", "gauge", "slots that a session holds", pool.num_held),
            ("slots_free", "gauge", "slots ready to be lent", pool.num_free),
            ("sessions_ended_total", "counter", "sessions that ended", counts["sessions"]),
            ("sessions_idle_total", "counter", "sessions ended because nothing was asked", counts["reaped"]),
            ("sessions_refused_total", "counter", "clients refused at the handshake", refused),
            ("connections_dropped_total", "counter", "connections ended for what they cost", dropped),
            ("messages_total", "counter", "requests answered", counts["messages"]),
            ("errors_total", "counter", "requests answered with an error", counts["errors"]),
            ("slowed_total", "counter", "requests that waited for the rate limit", counts["slowed"]),
            ("answer_seconds_total", "counter", "time that worlds took to answer", counts["answer_s"]),
            ("worlds_lost_total", "counter", "processes that ended before their session", counts["lost"]),
            ("worlds_replaced_total", "counter", "processes that took another's place", pool.num_replaced),
            ("orphans_ended_total", "counter", "processes that worlds left behind", pool.num_orphans),
        ]
        # Two lines of comments for each metric, then its value, or one for each reason.
        lines = []
        for name, kind, meaning, value in table:
            lines += [f"# HELP ddppo_{name} {meaning}", f"# TYPE ddppo_{name} {kind}"]
            if isinstance(value, dict):
                lines += [f'ddppo_{name}{{reason="{key}"}} {number}' for key, number in value.items()]
            else:
                lines.append(f"ddppo_{name} {value}")
        return "\n".join(lines) + "\n"


def make_app(server: Server) -> FastAPI:
    """Return the ASGI application. It closes the pool when it ends."""
    pool, spec = server.pool, server.spec

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        # Watch the pool while the application runs.
        watching = asyncio.ensure_future(server.watch())
        try:
            yield
        finally:
            watching.cancel()
            await server.stop()

    # No generated pages: they would describe the routes to clients without a token.
    app = FastAPI(
        title="ddppo environments",
        version=OPENENV_API,
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.server = server
    app.add_api_websocket_route("/ws", server.session)

    # OpenEnv's routes without a session.
    for path, what in ROUTES.items():
        app.add_api_route(path, partial(_once, server, what), methods=["POST"])

    @app.get("/state")
    async def state(request: Request) -> Response:
        return server.refusal(request) or _json(200, UNUSED)

    @app.post("/mcp")
    async def mcp(request: Request) -> Response:
        return await server.mcp(request)

    @app.get("/metadata")
    async def metadata(request: Request) -> Response:
        return server.refusal(request) or _json(200, described(server.name, spec))

    @app.get("/openapi.json")
    async def openapi(request: Request) -> Response:
        return server.refusal(request) or _json(200, app.openapi())

    # Needs no token: containers and load balancers ask for it.
    @app.get("/health")
    async def health() -> Response:
        numbers = {"size": pool.size, "held": pool.num_held, "free": pool.num_free}
        # The cause is in the log; this route needs no token.
        status = "unhealthy" if pool.trouble else "healthy"
        return _json(503 if pool.trouble else 200, {"status": status, **numbers})

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        refused = server.refusal(request)
        return refused or Response(server.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/schema")
    async def schema(request: Request) -> Response:
        operations = {op: sorted(fields) for op, fields in FIELDS.items()}
        content = {"protocol": PROTOCOL, "env": server.name, "spec": plain_spec(spec), "requests": operations}
        content |= schemas(spec)
        return server.refusal(request) or _json(200, content)

    # Needs no token: the page holds nothing of the environment then, asks for the token, and reads all in its session.
    if server.has_playground:

        @app.get(playground.PATH)
        async def play(request: Request) -> Response:
            host = request.headers.get("host", "")
            return playground.page(host, server.name, needs_token=server.has_token)

    return app


async def _once(server: Server, what: bytes, request: Request) -> Response:
    return await server.once(request, what)


def _json(status: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(content), status, headers, "application/json")
