"""One session with a server: questions with ids, and answers to each."""

import asyncio
import itertools
import json
from contextlib import suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from ddppo.errors import EnvError
from ddppo.serve.protocol import MSGPACK, PROTOCOL, BadMessage, decoded, encoded, spec_of
from ddppo.spaces import EnvSpec

_CLOSE_S = 2.0
_MOST_BYTES = 2**26  # of an answer


class EnvServerFault(EnvError):
    """place: of the environment in its pool."""

    place = 0


class EnvServerLost(EnvServerFault):
    """A server vanished, ended the session, or said what is not of the protocol: its episode is lost."""


class EnvServerRefused(EnvError):
    """A server does not take this client; `status` is HTTP's: 401 (token), 503 (full)."""

    def __init__(self, said: str, status: int) -> None:
        super().__init__(said)
        self.status = status


class EnvServerLate(EnvServerLost):
    """A server gave no answer in time. The answer may still come; nobody will take it for another's."""


class RemoteError(EnvServerFault):
    """The environment raised, or was asked what it cannot do; the session lives. `code` is the protocol's."""

    def __init__(self, said: str, code: str) -> None:
        super().__init__(said)
        self.code = code


class Connection:
    """Opened by `Connection.opened`, and closed by its opener."""

    def __init__(self, url: str, socket: ClientConnection) -> None:
        self.url = url
        self.num_late = 0  # answers that came after their question was given up
        self.spec: EnvSpec | None = None
        self._socket = socket
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._lost: EnvServerLost | None = None
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def opened(cls, url: str, token: str | None, open_s: float) -> "Connection":
        """Open a session. Raises EnvServerRefused, EnvServerLost; leaves nothing open then."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            socket = await connect(
                f"{url.rstrip('/')}/ws", additional_headers=headers, open_timeout=open_s, max_size=_MOST_BYTES,
                compression=None, proxy=None, close_timeout=_CLOSE_S,
            )  # fmt: skip
        except InvalidStatus as e:
            raise EnvServerRefused(
                f"{url} refused ({e.response.status_code}): {_reason(e)}", e.response.status_code
            ) from e
        except (OSError, TimeoutError, InvalidHandshake, InvalidURI, EOFError) as e:
            said = str(e) or f"no answer within {open_s:g} s"
            raise EnvServerLost(f"{url} cannot be reached: {said}") from e
        connection = cls(url, socket)
        try:
            told = await connection.ask(open_s, op="describe")
            if told.get("protocol") != PROTOCOL:
                raise EnvServerLost(f"{url} speaks {str(told.get('protocol'))[:40]}, not {PROTOCOL}")
            connection.spec = spec_of(told.get("spec"))
            return connection
        except BadMessage as e:
            connection.abort()
            raise EnvServerLost(f"{url}: {e}") from e
        except BaseException:
            connection.abort()
            raise

    @property
    def is_idle(self) -> bool:
        return not self._asked

    async def ask(self, timeout_s: float, **question: Any) -> dict[str, Any]:
        """Return the answer. Raises RemoteError, EnvServerLate, EnvServerLost."""
        if self._lost is not None:
            raise self._lost
        id = next(self._ids)
        self._asked[id] = answered = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._socket.send(encoded(MSGPACK, {"id": id, **question}))
                answer = await answered
        except TimeoutError:
            raise EnvServerLate(f"{self.url} gave no answer within {timeout_s:g} s") from None
        except ConnectionClosed as e:
            raise self._ended(e) from e
        finally:
            del self._asked[id]
            answered.cancel()
        if (error := answer.get("error")) is not None:
            code, said = (
                (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, error)
            )
            raise RemoteError(f"{self.url}: {str(said)[:1000]}", str(code)[:40])
        return answer

    async def close(self) -> None:
        """Say goodbye, for 2 s at most, and end the session."""
        with suppress(Exception):
            async with asyncio.timeout(_CLOSE_S):
                await self._socket.close()
        self.abort()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([self._reading], timeout=_CLOSE_S)

    def abort(self) -> None:
        self._lost = self._lost or EnvServerLost(f"the session with {self.url} was closed")
        self._reading.cancel()
        self._socket.transport.abort()

    async def _read(self) -> None:
        try:
            while True:
                content = await self._socket.recv()
                answer = decoded(MSGPACK, content if isinstance(content, bytes) else content.encode())
                id = answer.get("id")
                asked = self._asked.get(id) if type(id) is int else None
                if asked is None or asked.done():
                    self.num_late += 1
                else:
                    asked.set_result(answer)
        except ConnectionClosed as e:
            self._lost = self._ended(e)
        except BadMessage as e:
            self._lost = EnvServerLost(f"{self.url} answered what is not {PROTOCOL}: {e}")
        finally:
            lost = self._lost or EnvServerLost(f"the session with {self.url} was closed")
            for asked in self._asked.values():
                if not asked.done():
                    asked.set_exception(lost)

    def _ended(self, closed: ConnectionClosed) -> EnvServerLost:
        why = closed.rcvd.reason if closed.rcvd is not None else "it vanished"
        return EnvServerLost(f"{self.url} ended the session: {why or 'without a reason'}")


def _reason(refused: InvalidStatus) -> str:
    body = bytes(refused.response.body or b"")
    with suppress(ValueError, TypeError, KeyError):
        return str(json.loads(body)["error"])[:300]
    return body[:300].decode(errors="replace") or "without a reason"
