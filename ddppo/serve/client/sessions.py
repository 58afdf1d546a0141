"""Sessions with servers, opened all or none and opened again when lost, and pools of environments over them.

async with AsyncEnvPool(["ws://127.0.0.1:8000"], num_envs=8) as pool:
    observations = await pool.reset(seeds)
    answers = await pool.step(actions)

with SyncEnvPool(["ws://127.0.0.1:8000"], num_envs=8) as pool:
    observations = pool.reset(seeds)

AsyncEnvPool is for asyncio, SyncEnvPool for all other programs. Both are `Sessions`, one for each environment.
"""

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from ddppo.envs.encoding.observations import ObsArrays
from ddppo.errors import ConfigError, EnvError
from ddppo.seeding import derived_seed
from ddppo.serve.client.connection import (
    Connection,
    EnvServerFault,
    EnvServerLost,
    EnvServerRefused,
    RemoteError,
)
from ddppo.serve.protocol import BadMessage, array_of, info_of, obs_of
from ddppo.spaces import EnvSpec
from ddppo.terminal import warn

T = TypeVar("T")

_CLOSE_S = 10.0  # to close all sessions
_JOIN_S = 5.0  # for the thread of the loop to end
# Between tries to open a session; each pause is twice the one before.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_FIRST_OPEN_S = 1.0  # timeout of the first try to open a lost session again
_ALIVE_S = 60.0  # interval of requests on idle sessions, because servers end idle ones


@dataclass(slots=True)
class EnvAnswer:
    """The answer of one environment."""

    obs: ObsArrays | str
    mask: np.ndarray | None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final_obs: ObsArrays | str | None = None  # of an episode that ended, if the next one has begun
    is_lost: bool = False  # the session was lost: this is a reset, and no transition
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Patience:
    """The timeouts of a client in seconds, and how often it opens lost sessions again."""

    answer_s: float = 60.0  # for an answer
    open_s: float = 10.0  # to open a session
    full_s: float = 0.0  # to wait for slots if all are held
    reconnect_s: float = 30.0  # to open a lost session again
    max_reconnects: int = 0  # of one environment


Opener = Callable[[int, str, float], Awaitable[Connection]]


async def until_not_full(open_: Callable[[], Awaitable[T]], full_s: float) -> T:
    """Return what open_() returns; while servers are full (503), try again until full_s is over."""
    loop = asyncio.get_running_loop()
    end, pause_s = loop.time() + full_s, _FIRST_PAUSE_S
    while True:
        try:
            return await open_()
        except EnvServerRefused as e:
            if e.status != 503 or loop.time() + pause_s > end:
                raise
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class Sessions:
    """One session for each address.

    Args:
        revive: starts the server again if it has ended; for a server that the client owns. Called in another thread.
        opener: opens session i at an address within open_s; for servers with another protocol than ddppo/1.
    """

    def __init__(
        self, addresses: Sequence[str], token: str | None, patience: Patience,
        revive: Callable[[], None] | None = None, opener: "Opener | None" = None,
    ) -> None:  # fmt: skip
        self.addresses = list(addresses)
        self.patience = patience
        self.num_reconnects = 0  # sessions opened again, over all environments
        self._num_reconnects_of = [0] * len(self.addresses)
        self._token, self._opener = token, opener
        self._revive, self._reviving = revive, asyncio.Lock()
        self._sessions: list[Connection] = []
        self._keeping: asyncio.Future[None] | None = None

    @property
    def spec(self) -> EnvSpec:
        assert self._sessions, "not connected"
        spec = self._sessions[0].spec
        assert spec is not None
        return spec

    async def connect(self) -> None:
        """Open all sessions; if one fails, close the others and raise its error. A second call does nothing."""
        if self._sessions:
            return
        self._sessions = await until_not_full(self._opened, self.patience.full_s)
        self._keeping = asyncio.ensure_future(self._keep_alive())

    async def _opened(self) -> list[Connection]:
        # Open all at the same time. After the first failure, cancel the others and close those that are open.
        open_s = self.patience.open_s
        opening = [asyncio.ensure_future(self._open(i, open_s)) for i in range(len(self.addresses))]
        try:
            done, _ = await asyncio.wait(opening, return_when=asyncio.FIRST_EXCEPTION)
            failed = [each for each in opening if each in done and each.exception() is not None]
            if failed:
                error = failed[0].exception()
                assert error is not None
                raise error
            sessions = [each.result() for each in opening]
            # All environments of a run have one spec.
            if other := next((each for each in sessions if each.spec != sessions[0].spec), None):
                raise ConfigError(f"{other.url} and {sessions[0].url} serve different tasks")
            return sessions
        except BaseException:
            # Close those that have opened, so that their slots are free at once.
            for each in opening:
                each.cancel()
            ended = await asyncio.gather(*opening, return_exceptions=True)
            await _all_closed([each for each in ended if isinstance(each, Connection)])
            raise

    async def begin(self, i: int, seed: int, options: Mapping[str, Any] | None = None) -> EnvAnswer:
        """Start an episode. A lost session is opened again. Raises RemoteError, EnvServerLost."""
        request = {"op": "reset", "seed": seed} | ({"options": dict(options)} if options else {})
        while True:
            try:
                return await self._ask(i, request)
            except EnvServerLost as lost:  # safe to repeat: no step of the episode has been used
                await self._reopen(i, lost)

    async def act(self, i: int, action: Any, *, goes_on: bool = False) -> EnvAnswer:
        """Step once; with goes_on, an episode that ends is followed by the next one.

        Raises RemoteError, and EnvServerLost if it is unknown whether the step was done; then the session is closed.
        """
        try:
            return await self._ask(i, {"op": "step", "action": action, "goes_on": goes_on})
        except EnvServerLost:
            self._sessions[i].abort()
            raise

    async def close(self) -> None:
        """Close all sessions, within 10 s."""
        if self._keeping is not None:
            self._keeping.cancel()
        sessions, self._sessions = self._sessions, []
        await _all_closed(sessions)

    async def _open(self, i: int, open_s: float) -> Connection:
        if self._opener is not None:
            return await self._opener(i, self.addresses[i], open_s)
        return await Connection.opened(self.addresses[i], self._token, open_s)

    async def _ask(self, i: int, request: Mapping[str, Any]) -> EnvAnswer:
        session = self._sessions[i]
        answer = await session.ask(self.patience.answer_s, **request)
        try:
            return _checked_answer(self.spec, answer, goes_on=request.get("goes_on", False))
        except BadMessage as e:
            raise EnvServerLost(f"{session.url} sent an answer that does not fit its spec: {e}") from e

    async def _reopen(self, i: int, lost: EnvServerLost) -> None:
        """Open a session again. Raises `lost` if its reconnects are used up, or if no server answers in time."""
        # 1. Count it.
        patience, spec = self.patience, self.spec
        self._sessions[i].abort()
        if self._num_reconnects_of[i] >= patience.max_reconnects:
            raise lost
        self._num_reconnects_of[i] += 1
        self.num_reconnects += 1
        warn(
            f"{lost}; the session is opened again ({self._num_reconnects_of[i]} of {patience.max_reconnects})"
        )
        # 2. Try with growing pauses and timeouts, until reconnect_s is over.
        loop = asyncio.get_running_loop()
        end, pause_s, open_s = loop.time() + patience.reconnect_s, _FIRST_PAUSE_S, _FIRST_OPEN_S
        while True:
            try:
                await self._ensure_server()
                # The first timeout is short: an own server may have ended a moment ago, unnoticed, and will not answer.
                opened = await self._open(i, min(open_s, patience.open_s))
                break
            except (EnvServerLost, EnvServerRefused) as e:
                if loop.time() + pause_s > end or getattr(e, "status", 503) != 503:
                    raise lost from e
            await asyncio.sleep(pause_s)
            pause_s, open_s = min(2 * pause_s, _LONGEST_PAUSE_S), 2 * open_s
        # 3. It has to serve the same task.
        self._sessions[i] = opened
        if opened.spec != spec:
            raise EnvError(f"{opened.url} came back with another task") from lost

    async def _ensure_server(self) -> None:
        if self._revive is not None:
            async with self._reviving:
                await asyncio.to_thread(self._revive)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(_ALIVE_S)
            idle = [session for session in self._sessions if session.is_idle]
            for session in idle:
                with suppress(EnvServerLost, RemoteError):  # the next request will raise it
                    await session.ask(self.patience.answer_s, op="describe")


async def _all_closed(sessions: list[Connection]) -> None:
    # Close all at the same time; abort those that take too long.
    closing = [asyncio.ensure_future(session.close()) for session in sessions]
    if closing:
        _, late = await asyncio.wait(closing, timeout=_CLOSE_S - 1.0)
        for each in late:
            each.cancel()
        for session in sessions:
            session.abort()


def _checked_answer(spec: EnvSpec, answer: dict[str, Any], *, goes_on: bool) -> EnvAnswer:
    """Return an answer with arrays of the spec's types and shapes. Raises BadMessage."""
    mask = None
    if spec.mask_size is not None:
        mask = array_of(answer.get("mask"), np.dtype(bool), (spec.mask_size,))
    final, info = answer.get("final_obs"), info_of(answer.get("info", {}))
    reward, terminated, truncated = (
        answer.get("reward", 0.0),
        answer.get("terminated", False),
        answer.get("truncated", False),
    )
    # A server is not trusted: check types, and that a final observation comes with the end of an episode.
    if type(reward) is not float or type(terminated) is not bool or type(truncated) is not bool:
        raise BadMessage(
            "VALIDATION_ERROR", "reward must be a number, terminated and truncated true or false"
        )
    if not math.isfinite(reward):
        raise BadMessage("VALIDATION_ERROR", f"the reward is {reward}, no finite number")
    if (final is not None) != (goes_on and (terminated or truncated)):
        raise BadMessage(
            "VALIDATION_ERROR", "final_obs must be present if and only if the next episode has begun"
        )
    final_obs = None if final is None else obs_of(spec.obs, final)
    return EnvAnswer(
        obs_of(spec.obs, answer.get("obs")), mask, reward, terminated, truncated, final_obs, info=info
    )


# -- pools ------------------------------------------------------------------------------------------------------------


class AsyncEnvPool(Sessions):
    """num_envs environments in sessions that are spread evenly over `urls`.

    An environment that lost its session starts an episode from a new seed.

    Args:
        first: global index of the first environment; environment k uses urls[k % len(urls)].
        patience: the fields of `Patience`.
    """

    def __init__(
        self, urls: Sequence[str], num_envs: int, *, first: int = 0, token: str | None = None,
        revive: Callable[[], None] | None = None, opener: "Opener | None" = None, **patience: Any,
    ) -> None:  # fmt: skip
        if not urls:
            raise ConfigError("env.urls is empty: give the address of a server, e.g. ws://127.0.0.1:8000")
        addresses = [urls[(first + i) % len(urls)] for i in range(num_envs)]
        super().__init__(addresses, token, Patience(**patience), revive, opener)
        self.num_envs = num_envs
        self._seeds = [0] * num_envs
        self._num_lost = [0] * num_envs

    async def __aenter__(self) -> "AsyncEnvPool":
        await self.connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def reset(self, seeds: Sequence[int]) -> list[EnvAnswer]:
        """Start every environment from its seed."""
        assert len(seeds) == self.num_envs, (len(seeds), self.num_envs)
        self._seeds = [int(seed) for seed in seeds]
        return await together([self.begin(i, seed) for i, seed in enumerate(self._seeds)])

    async def step(self, actions: np.ndarray) -> list[EnvAnswer]:
        """Step all environments by actions `[E, *spec.action.shape]`. Episodes that end are followed by new ones."""
        return await together([self._step(i, action) for i, action in enumerate(actions.tolist())])

    async def _step(self, i: int, action: Any) -> EnvAnswer:
        try:
            return await self.act(i, action, goes_on=True)
        # The step may have been done or not, so it is not repeated: start an episode from a seed that follows from the
        # old one, so that the run stays reproducible given the same losses.
        except EnvServerLost as lost:
            self._num_lost[i] += 1
            self._seeds[i] = derived_seed(self._seeds[i], "restart", self._num_lost[i])
            await self._reopen(i, lost)
            answer = await self.begin(i, self._seeds[i])
            answer.is_lost = True
            return answer


class LoopThread:
    """An asyncio event loop in its own thread, for programs without one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="environments", daemon=True)
        self._thread.start()

    def begun(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start a coroutine, and return its future. Raises EnvError after `close`."""
        if self._loop.is_closed():
            work.close()
            raise EnvError("the pool is closed: make another one")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def done(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, and return its result."""
        future = self.begun(work)
        try:
            return future.result()
        except BaseException:  # also Ctrl-C: the coroutine must not run on
            future.cancel()
            raise

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run a last coroutine, for 10 s at most, and end the thread. A second call does nothing."""
        if self._loop.is_closed():
            last.close()
            return
        with suppress(TimeoutError):
            self.begun(last).result(_CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            self._loop.close()


class SyncEnvPool:
    """An AsyncEnvPool for programs without an event loop."""

    def __init__(self, urls: Sequence[str], num_envs: int, **settings: Any) -> None:
        self._pool = AsyncEnvPool(urls, num_envs, **settings)
        self._loop = LoopThread()
        try:
            self._loop.done(self._pool.connect())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "SyncEnvPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def spec(self) -> EnvSpec:
        return self._pool.spec

    @property
    def addresses(self) -> list[str]:
        return self._pool.addresses

    @property
    def num_reconnects(self) -> int:
        return self._pool.num_reconnects

    def reset(self, seeds: Sequence[int]) -> list[EnvAnswer]:
        return self._loop.done(self._pool.reset(seeds))

    def step(self, actions: np.ndarray) -> list[EnvAnswer]:
        return self._loop.done(self._pool.step(actions))

    def close(self) -> None:
        """Close all sessions and end the thread, within 15 s. A second call does nothing."""
        self._loop.close(self._pool.close())


async def together(requests: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all requests at once. The first error is raised when all have ended, so that none is left running."""
    answers = await asyncio.gather(*requests, return_exceptions=True)
    for i, answer in enumerate(answers):
        if isinstance(answer, EnvServerFault):
            answer.place = i
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]
