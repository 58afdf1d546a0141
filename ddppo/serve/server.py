"""Starting and stopping a server: `serve` blocks, `served` runs it in a thread, `listening` does the work of both."""

import ipaddress
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn

from ddppo.config.settings import EnvConfig
from ddppo.envs.probing.probe import probe
from ddppo.errors import ConfigError
from ddppo.serve.app import Server, make_app
from ddppo.serve.limits import Confinement, Limits
from ddppo.serve.session import protocols
from ddppo.serve.slots.pool import SlotPool
from ddppo.spaces import EnvSpec

log = logging.getLogger(__name__)

_UNTAKEN_MS = 20_000  # the kernel drops a connection if its client acknowledges no data for so long


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """All settings of a server."""

    env: EnvConfig  # the environment that it serves
    pool: int = 8  # number of slots
    host: str = "127.0.0.1"
    port: int = 8000  # 0 takes a free one
    token: str | None = None  # that clients must send; None is allowed on loopback only
    limits: Limits = field(default_factory=Limits)
    confinement: Confinement = field(default_factory=Confinement)
    keep_env: tuple[str, ...] = ()  # environment variables that worlds see, too; * for any letters
    prints: bool = False  # worlds print where the server prints
    playground: bool = False  # a page at /play, for environments of text
    spec: EnvSpec | None = None  # of env; None: make the environment once and look


def check(settings: ServeSettings) -> None:
    """Raise ConfigError for settings that would let anybody use the server, or that need root."""
    # Without a token, only programs of this machine may connect.
    if settings.token is None and not _is_loopback(settings.host):
        raise ConfigError(
            f"host={settings.host} can be reached from other machines: set token_file=<file>, whose first line "
            "clients must know, or host=127.0.0.1"
        )
    if settings.token is not None and (not settings.token.isascii() or not settings.token.isprintable()):
        raise ConfigError("token must be printable ASCII: it travels in an HTTP header")
    if settings.confinement.first_uid is not None and os.geteuid() != 0:
        raise ConfigError(
            f"first_uid={settings.confinement.first_uid} takes a server that is root, this one is user "
            f"{os.geteuid()}: leave it out, or start the server as root"
        )


def serve(settings: ServeSettings) -> None:
    """Serve until SIGINT or SIGTERM. Raises ConfigError before anything starts."""
    with listening(settings) as (listener, server):
        log.info("serving %s: %d slots at %s", settings.env.id, settings.pool, address(listener))
        if settings.playground:
            log.info("playground at %s/play", address(listener).replace("ws", "http", 1))
        server.run([listener])


@contextmanager
def served(settings: ServeSettings) -> Iterator[str]:
    """Serve from a thread of this process while the block runs; yields the address ws://host:port."""
    with listening(settings) as (listener, server):
        thread = threading.Thread(target=server.run, args=([listener],), name="server")
        thread.start()
        try:
            yield address(listener)
        finally:
            server.should_exit = True
            # uvicorn looks at this flag several times a second, then ends sessions.
            thread.join(20.0)


def _is_no_false_alarm(record: logging.LogRecord) -> bool:
    """Return False for an error that uvicorn logs by mistake when a handshake is refused by an HTTP answer."""
    return record.msg != "ASGI callable returned without completing handshake."


@contextmanager
def listening(
    settings: ServeSettings, listener: socket.socket | None = None
) -> Iterator[tuple[socket.socket, uvicorn.Server]]:
    """Yield a socket and a server with all slots ready. The socket is `listener`, else a new one at host and port."""
    # 1. Settings, the spec, and the port: mistakes show before a process starts.
    check(settings)
    spec = settings.spec or probe(settings.env)
    if settings.playground and not spec.is_text:
        raise ConfigError(
            f"playground=true: env.id={settings.env.id} is no task of text, so a person cannot type its actions: "
            "leave it out"
        )
    listener = listener or _listener(settings)
    limits = settings.limits
    logging.getLogger("uvicorn.error").addFilter(_is_no_false_alarm)
    with listener:
        # Drop connections to clients that take no more data.
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNTAKEN_MS)
        # 2. The slots, one process each.
        modules = (settings.env.id.rpartition(":")[0], spec.forked_from)
        pool = SlotPool(
            settings.env, spec, settings.pool, confinement=settings.confinement,
            modules=tuple(filter(None, modules)), keep_env=settings.keep_env, prints=settings.prints,
        )  # fmt: skip
        try:
            pool.wait_until_ready(60.0 + settings.pool)
            # 3. uvicorn with bounded protocols.
            state = Server(
                pool, spec, limits, settings.token, settings.env.id, has_playground=settings.playground
            )
            http, ws = protocols(limits, state.counts)
            yield listener, uvicorn.Server(uvicorn.Config(
                make_app(state), http=http, ws=ws, ws_max_size=limits.max_message_bytes, ws_per_message_deflate=False,
                access_log=False, log_level="warning", timeout_graceful_shutdown=10, server_header=False,
            ))  # fmt: skip
        finally:
            pool.close()


def _listener(settings: ServeSettings) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        return socket.create_server((settings.host, settings.port), family=family, backlog=1024)
    except OSError as e:
        raise ConfigError(
            f"host={settings.host} port={settings.port} cannot be listened on: {e.strerror}: choose another port"
        ) from e


def address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"ws://[{host}]:{port}" if ":" in host else f"ws://{host}:{port}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
