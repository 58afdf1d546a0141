"""The checks of env.backend=remote before a run begins: rules of its settings, and the task and slots of its servers.

The packages of the extra `serve` are imported only when they are needed.
"""

import http.client
import importlib.util
import json
import re
import socket
import threading
import urllib.parse
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddppo.config.settings import Config, EnvConfig
from ddppo.errors import ConfigError
from ddppo.package import install_command
from ddppo.spaces import EnvSpec

SERVED = "served"  # env.id of the preset env=remote: the servers name the task
_ADDRESS = re.compile(r"wss?://(\[[\da-f:.]+\]|[^/\s:@[\]]+)(:\d{1,5})?/?", re.IGNORECASE)
_ANSWER_S = 10.0
_MOST_BYTES = 2**24


# -- rules, before any process starts ----------------------------------------------------------------------------------


def can_serve() -> bool:
    """Return whether the packages of the extra `serve` are installed."""
    needed = ("fastapi", "uvicorn", "websockets", "msgpack")
    return all(importlib.util.find_spec(name) is not None for name in needed)


def check_packages(env: EnvConfig) -> None:
    """Raise ConfigError if packages of the extra `serve` are missing."""
    if not can_serve():
        raise ConfigError(
            f"env.backend={env.backend}: {env.id} in processes of its own needs packages that are not installed: "
            f"{install_command('serve')}"
        )


def check_served(config: Config) -> None:
    """Raise ConfigError for addresses and settings that have no effect or cannot work."""
    env = config.env
    for url in env.urls:
        check_address(url, _ADDRESS, "ws://127.0.0.1:8000, or ws://[::1]:8000")
    # Without addresses, each rank starts its own server, which has a token of its own.
    if not env.urls:
        if env.id == SERVED:
            raise ConfigError(
                "env=remote needs env.urls, the addresses of servers, e.g. env.urls=[ws://127.0.0.1:8000] of "
                "python -m ddppo.serve env=cartpole; a task that is known here is served by env.backend=remote alone"
            )
        if env.token_file is not None:
            raise ConfigError(
                f"env.token_file={env.token_file} has no effect with env.urls=[], for a server that a rank starts has "
                "a token of its own: give env.urls, or leave it out"
            )
        return
    # With addresses, the servers have made the environment already.
    for key in ("kwargs", "max_episode_steps"):
        if value := getattr(env, key):
            raise ConfigError(
                f"env.{key}={value} has no effect with env.urls, whose servers decide what they serve: give it to "
                "python -m ddppo.serve, and leave it out here (env=remote)"
            )


# -- the task and the slots of servers
# ----------------------------------------------------------------------------------


def served_spec(env: EnvConfig) -> EnvSpec | None:
    """Return the spec that the servers at env.urls serve; None without env.urls, as the task is then on this machine.

    Raises ConfigError if a server does not answer, if they serve different tasks, or if packages are missing.
    """
    check_packages(env)
    if not env.urls:
        return None
    # Ask each server once; all have to serve one task, the one that env.id names unless it is "served".
    found = {url: _schema(env, url) for url in dict.fromkeys(env.urls)}
    (first, (task, spec)), *others = found.items()
    for url, other in others:
        if other != (task, spec):
            raise ConfigError(
                f"env.urls: {first} serves {task} and {url} {other[0]}: give servers of one task"
            )
    # "served" stands for the task of the servers.
    if env.id not in (task, SERVED):
        raise ConfigError(
            f"env.id={env.id}: the servers of env.urls serve {task}: leave it out (env=remote), or serve what it names"
        )
    _check_trusted(env, spec)
    return spec


def _check_trusted(env: EnvConfig, spec: EnvSpec) -> None:
    """Refuse import paths named by a server, unless they are in ddppo or in the package of env.id.

    A server must not make this process import code of its choice.
    """
    own = {"ddppo", env.id.rpartition(":")[0].partition(".")[0]} - {""}
    for path in filter(None, (spec.tokens, spec.journal)):
        if path.partition(":")[0].partition(".")[0] not in own:
            raise ConfigError(
                f"env.urls: the servers name {path}, which would be imported here: name the task yourself if you trust "
                "its package, env.id=my_pkg.envs:MyEnv-v0"
            )


def check_run(env: EnvConfig, spec: EnvSpec, num_envs: int, num_more: int) -> None:
    """Raise ConfigError if this task cannot be served, or if the servers have too few slots."""
    if spec.journal is not None:
        raise ConfigError(
            f"env.backend=remote: the environments of {env.id} exchange messages after every iteration, which servers "
            "do not carry: use env.backend=pool or sync"
        )
    if env.urls:
        _check_slots(env, num_envs, num_more)


def _check_slots(env: EnvConfig, num_envs: int, num_more: int) -> None:
    """Raise ConfigError if the servers at env.urls have fewer free slots than the run needs.

    Args:
        num_envs: environments of training, spread evenly over the servers.
        num_more: environments of evaluation during training.
    """
    # Environment i uses urls[i modulo their number], as in AsyncEnvPool.
    asked = Counter(env.urls[i % len(env.urls)] for i in range(num_envs))
    more = 0
    for url, num in asked.items():
        health = _get(env, url, "/health")
        size, held = health.get("size"), health.get("held")
        if not isinstance(size, int) or not isinstance(held, int):
            raise ConfigError(f"env.urls: {url} does not say how many slots it has: is it a server of ddppo?")
        # Slots held by other clients are not free for this run.
        if size - held < num:
            others = f", {held} of which are held by others" if held else ""
            raise ConfigError(
                f"env.num_envs={num_envs} takes {num} slots of {url}, which has {size}{others}: start it with "
                f"pool={num + held} or more, or set a smaller env.num_envs"
            )
        more += size - held - num
    # Evaluation takes the slots that training leaves, on any of the servers.
    if more < num_more:
        raise ConfigError(
            f"eval.every_steps takes {num_more} slots besides those of env.num_envs={num_envs}, one for each rank that "
            f"evaluates, and env.urls have {more}: start a server with a larger pool, or use eval.every_steps=0"
        )


def token_of(env: EnvConfig) -> str | None:
    """Return the token for servers, None without env.token_file. Raises ConfigError for a file without a token."""
    return None if env.token_file is None else token_in(Path(env.token_file), "env.token_file")


def token_in(path: Path, key: str) -> str:
    """Return the token in the first line of a file. Raises ConfigError that names the setting `key`."""
    try:
        token = path.read_text().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{key}={path} cannot be read: {e}") from e
    if len(token) < 16:
        raise ConfigError(f"{key}={path}: a token has at least 16 characters, this one {len(token)}")
    if not (token.isascii() and token.isprintable()):
        raise ConfigError(f"{key}={path}: a token is printable ASCII, for it travels in an HTTP header")
    return token


def _schema(env: EnvConfig, url: str) -> tuple[str, EnvSpec]:
    from ddppo.serve.protocol import PROTOCOL, BadMessage, spec_of  # needs the extra serve

    schema = _get(env, url, "/schema")
    if schema.get("protocol") != PROTOCOL:
        raise ConfigError(f"env.urls: {url} speaks {str(schema.get('protocol'))[:40]}, not {PROTOCOL}")
    try:
        return str(schema.get("env"))[:200], spec_of(schema.get("spec"))
    except BadMessage as e:
        raise ConfigError(f"env.urls: {url}: {e}") from e


def _get(env: EnvConfig, url: str, path: str) -> dict[str, Any]:
    """Return the JSON at `path` of the server `url`. Raises ConfigError."""
    token = token_of(env)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return fetched(url, path, headers, remedy="start it with python -m ddppo.serve, or mend the address")


def fetched(url: str, path: str, headers: Mapping[str, str], *, remedy: str) -> dict[str, Any]:
    """Return the map in JSON at `path` of the server `url`, within 10 s. Raises ConfigError.

    Proxies are not used, for an address of a server is meant as it is. Redirects are not followed, for they would carry
    the headers to another server.
    """
    address = re.sub("^ws", "http", url.rstrip("/"), flags=re.IGNORECASE) + path
    parts = urllib.parse.urlsplit(address)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    line = kind(parts.hostname or "", parts.port, timeout=_ANSWER_S)
    late = threading.Event()

    def end() -> None:
        late.set()
        with suppress(OSError, AttributeError):
            line.sock.shutdown(socket.SHUT_RDWR)

    # The timeout of a socket is for each of its reads: a server that sends a byte now and then would pass it.
    timer = threading.Timer(_ANSWER_S, end)
    timer.daemon = True
    try:
        line.connect()
        timer.start()
        line.request("GET", parts.path, headers=dict(headers))
        answer = line.getresponse()
        body = answer.read(_MOST_BYTES + 1)
    # Not reached, no HTTP, or late.
    except (OSError, http.client.HTTPException) as e:
        why = (
            f"no answer within {_ANSWER_S:g} s"
            if late.is_set() or isinstance(e, TimeoutError)
            else masked(e, headers)
        )
        raise ConfigError(f"env.urls: {url} cannot be reached ({why}): {remedy}") from None
    finally:
        timer.cancel()
        line.close()
    if late.is_set():
        raise ConfigError(f"env.urls: {url} cannot be reached (no answer within {_ANSWER_S:g} s): {remedy}")
    status = answer.status
    if 300 <= status < 400:
        where = masked(answer.headers.get("Location"), headers)
        raise ConfigError(
            f"env.urls: {url} redirects to {where}, which is not followed: give the address of the server itself"
        )
    if status in (401, 403):
        raise ConfigError(
            f"env.urls: {url} "
            + ("refuses the token in env.token_file" if headers else "needs a token: set env.token_file")
        )
    if status != 200:
        raise ConfigError(f"env.urls: {url} answered {status} to {address}: {remedy}")
    if len(body) > _MOST_BYTES:
        raise ConfigError(
            f"env.urls: {url} answered {address} with more than {_MOST_BYTES >> 20} MiB: it is not read"
        )
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise ConfigError(f"env.urls: {url} answered {address} with no JSON: {remedy}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"env.urls: {url} answered {address} with no map: {remedy}")
    return content


def masked(by_server: object, headers: Mapping[str, str], most: int = 300) -> str:
    """Return a text of a server in one line, cut, without the values of our headers: a server may repeat a token."""
    text = str(by_server)
    for value in headers.values():
        for secret in filter(None, (value, value.removeprefix("Bearer "))):
            text = text.replace(secret, "***")
    return " ".join(text.split())[:most]


def check_address(url: str, pattern: re.Pattern[str], example: str) -> None:
    """Raise ConfigError for an address in env.urls that does not match, without any password or token in it."""
    port = re.search(r":(\d+)(/|$)", url)
    if not pattern.fullmatch(url) or (port is not None and int(port[1]) > 65_535):
        plain = re.sub(r"[?#].*", "?***", re.sub(r"//[^/]*@", "//***@", url))
        raise ConfigError(
            f"env.urls: {plain!r} is no address such as {example}; a token is no part of it: give a file by "
            "env.token_file"
        )
