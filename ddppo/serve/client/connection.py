"""One session with a server over a WebSocket: requests with ids, and the answer to each."""

import asyncio
import itertools
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.frames import CloseCode
from websockets.http11 import Response

from ddppo.errors import EnvError
from ddppo.serve.client.served import masked
from ddppo.serve.protocol import MSGPACK, PROTOCOL, BadMessage, decoded, encoded, spec_of
from ddppo.spaces import EnvSpec

_CLOSE_S = 2.0  # for the closing handshake
_MOST_BYTES = 2**26  # of an answer


class EnvServerFault(EnvError):
    """A request to a server failed."""

    place = 0  # index of the environment in its pool


class EnvServerLost(EnvServerFault):
    """A server vanished, ended the session, or broke the protocol. The episode is lost."""


class EnvServerRefused(EnvError):
    """A server refused the handshake, with HTTP status 401 (token), 503 (full) or another."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class EnvServerLate(EnvServerLost):
    """A server gave no answer in time. If the answer still comes, its id keeps it from being taken for another."""


class RemoteError(EnvServerFault):
    """The environment raised, or the request was invalid. The session continues.

    Attributes:
        code: of the protocol.
        said: the message of the server alone.
    """

    def __init__(self, url: str, said: str, code: str) -> None:
        super().__init__(f"{url}: {said}")
        self.code, self.said = code, said


class _Dialled(connect):
    """websockets.connect without redirects: another server must not be sent the headers of this one."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


async def dialled(url: str, headers: Mapping[str, str], open_s: float) -> ClientConnection:
    """Open the WebSocket at url/ws. Raises EnvServerRefused, EnvServerLost."""
    try:
        return await _Dialled(
            f"{url.rstrip('/')}/ws", additional_headers=headers, open_timeout=open_s, max_size=_MOST_BYTES,
            compression=None, proxy=None, close_timeout=_CLOSE_S,
        )  # fmt: skip
    except InvalidStatus as e:
        status = e.response.status_code
        why = masked(_reason(e.response), headers)
        raise EnvServerRefused(f"{url} refused ({status}): {why}", status) from None
    except (OSError, TimeoutError, InvalidHandshake, InvalidURI, EOFError) as e:
        why = masked(e, headers) or f"no answer within {open_s:g} s"
        raise EnvServerLost(f"{url} cannot be reached: {why}") from None


class Connection:
    """A session. Make it by `Connection.opened`, and close it.

    headers: those that the server was sent, whose values no message may repeat.
    """

    protocol = PROTOCOL

    def __init__(self, url: str, socket: ClientConnection, headers: Mapping[str, str]) -> None:
        self.url = url
        self._headers = headers
        self.num_late = 0  # answers that came after the timeout of their request
        self.spec: EnvSpec | None = None
        self._socket = socket
        self._ids = itertools.count(1)
        self._pending: dict[
            int, asyncio.Future[dict[str, Any]]
        ] = {}  # the answer to each open request, by its id
        self._lost: EnvServerLost | None = None  # why the session has ended
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def opened(cls, url: str, token: str | None, open_s: float) -> "Connection":
        """Open a session and read its spec. Raises EnvServerRefused, EnvServerLost, and then leaves nothing open."""
        # 1. The handshake, at which a server refuses.
        headers = bearer(token)
        socket = await dialled(url, headers, open_s)
        # 2. The protocol's version and the task.
        connection = cls(url, socket, headers)
        try:
            answer = await connection.ask(open_s, op="describe")
            if answer.get("protocol") != PROTOCOL:
                spoken = masked(answer.get("protocol"), headers, 40)
                raise EnvServerLost(f"{url} speaks {spoken}, not {PROTOCOL}")
            connection.spec = spec_of(answer.get("spec"))
            return connection
        except BadMessage as e:
            connection.abort()
            raise EnvServerLost(f"{url}: {e}") from e
        except BaseException:
            connection.abort()
            raise

    @property
    def is_idle(self) -> bool:
        return not self._pending

    async def ask(self, timeout_s: float, **request: Any) -> dict[str, Any]:
        """Send a request and return its answer. Raises RemoteError, EnvServerLate, EnvServerLost."""
        id = next(self._ids)
        answer = await self._exchanged(timeout_s, id, encoded(MSGPACK, {"id": id, **request}))
        if (error := answer.get("error")) is not None:
            code, message = (
                (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, error)
            )
            raise self.remote_error(message, code)
        return answer

    def remote_error(self, message: Any, code: Any) -> RemoteError:
        return RemoteError(self.url, masked(message, self._headers, 1000), masked(code, self._headers, 40))

    async def _exchanged(self, timeout_s: float, id: int, content: str | bytes) -> dict[str, Any]:
        """Send a message and return its answer, an error too. Raises EnvServerLate, EnvServerLost."""
        # `_read` sets the future when the answer with this id comes.
        if self._lost is not None:
            raise self._lost
        self._pending[id] = answered = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                # The session may have ended with a last message, which `_read` still takes.
                with suppress(ConnectionClosed):
                    await self._socket.send(content)
                return await answered
        except TimeoutError:
            raise EnvServerLate(f"{self.url} gave no answer within {timeout_s:g} s") from None
        finally:
            # An answer that comes after this counts as late.
            del self._pending[id]
            answered.cancel()

    async def close(self) -> None:
        """Close the session, with a closing handshake of 2 s at most."""
        # A server that does not answer must not keep this program from ending.
        with suppress(Exception):
            async with asyncio.timeout(_CLOSE_S):
                await self._socket.close()
        self.abort()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([self._reading], timeout=_CLOSE_S)

    def abort(self) -> None:
        # Later requests fail with the first cause.
        self._lost = self._lost or EnvServerLost(f"the session with {self.url} was closed")
        self._reading.cancel()
        self._socket.transport.abort()

    async def _read(self) -> None:
        """Give each answer to its request, until the connection ends; then fail all open requests."""
        try:
            while True:
                content = await self._socket.recv()
                self._take(content if isinstance(content, bytes) else content.encode())
        except ConnectionClosed as e:
            self._lost = self._ended(e)
        except BadMessage as e:
            self._lost = EnvServerLost(f"{self.url} sent an answer that breaks {self.protocol}: {e}")
            self._socket.transport.abort()
        finally:
            # Nobody will answer the open requests any more.
            lost = self._lost or EnvServerLost(f"the session with {self.url} was closed")
            for pending in self._pending.values():
                if not pending.done():
                    pending.set_exception(lost)

    def _take(self, content: bytes) -> None:
        """Give an answer to its request. Raises BadMessage."""
        answer = decoded(MSGPACK, content)
        id = answer.get("id")
        pending = self._pending.get(id) if type(id) is int else None
        # An answer without a request is late: its request has timed out.
        if pending is None or pending.done():
            self.num_late += 1
        else:
            pending.set_result(answer)

    def _ended(self, closed: ConnectionClosed) -> EnvServerLost:
        if closed.sent is not None and closed.sent.code == CloseCode.MESSAGE_TOO_BIG:
            return EnvServerLost(
                f"{self.url} sent an answer of more than {_MOST_BYTES >> 20} MiB: it is not read"
            )
        why = masked(closed.rcvd.reason, self._headers) if closed.rcvd is not None else "it vanished"
        return EnvServerLost(f"{self.url} ended the session: {why or 'without a reason'}")


def bearer(token: str | None) -> dict[str, str]:
    """Return the headers that carry a token."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _reason(response: Response) -> str:
    if 300 <= response.status_code < 400:
        where = response.headers.get("Location")
        return f"it redirects to {where}, which is not followed: give the address of the server itself"
    body = bytes(response.body or b"")
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        return str(json.loads(body)["error"])
    return body.decode(errors="replace") or "without a reason"
