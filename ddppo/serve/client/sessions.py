"""Sessions with servers, all opened or none, each begun anew where it is lost; and pools of environments over them.

async with AsyncEnvPool(["ws://127.0.0.1:8000"], num_envs=8) as pool:
    observations = await pool.reset(seeds)
    answers = await pool.step(actions)

with SyncEnvPool(["ws://127.0.0.1:8000"], num_envs=8) as pool:
    observations = pool.reset(seeds)

Both have one core: AsyncEnvPool is for asyncio, SyncEnvPool for everybody else.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
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

_CLOSE_S = 10.0
_JOIN_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_FIRST_OPEN_S = 1.0
_ALIVE_S = 60.0  # a session that is asked nothing for so long is asked for its spec: servers end idle ones


@dataclass(slots=True)
class EnvAnswer:
    """What one environment answers. final_obs where an episode ended and another began. is_lost: no transition."""

    obs: ObsArrays | str
    mask: np.ndarray | None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final_obs: ObsArrays | str | None = None
    is_lost: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client waits, and how often it begins anew.

    answer_s: for an answer. open_s: for a session to be opened. full_s: for slots, where all are held. A session that
    is lost is opened anew, for reconnect_s at most and at most max_reconnects times.
    """

    answer_s: float = 60.0
    open_s: float = 10.0
    full_s: float = 0.0
    reconnect_s: float = 30.0
    max_reconnects: int = 0


class Sessions:
    """One session for every address. num_reconnects: how often one was opened anew.

    revive: makes sure that the server runs, where it is the client's own; called from another thread.
    """

    def __init__(
        self, addresses: Sequence[str], token: str | None, patience: Patience,
        revive: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self.addresses = list(addresses)
        self.patience = patience
        self.num_reconnects = 0
        self._num_reconnects_of = [0] * len(self.addresses)
        self._token = token
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
        """Open all sessions, or none and raise the first error. A second time does nothing."""
        if self._sessions:
            return
        loop = asyncio.get_running_loop()
        end, pause_s = loop.time() + self.patience.full_s, _FIRST_PAUSE_S
        while True:
            try:
                self._sessions = await self._opened()
                break
            except EnvServerRefused as e:
                if e.status != 503 or loop.time() + pause_s > end:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self._keeping = asyncio.ensure_future(self._keep_alive())

    async def _opened(self) -> list[Connection]:
        open_s = self.patience.open_s
        opening = [asyncio.ensure_future(self._open(url, open_s)) for url in self.addresses]
        try:
            done, _ = await asyncio.wait(opening, return_when=asyncio.FIRST_EXCEPTION)
            failed = [each for each in opening if each in done and each.exception() is not None]
            if failed:
                error = failed[0].exception()
                assert error is not None
                raise error
            sessions = [each.result() for each in opening]
            if other := next((each for each in sessions if each.spec != sessions[0].spec), None):
                raise ConfigError(f"{other.url} and {sessions[0].url} serve different tasks")
            return sessions
        except BaseException:
            for each in opening:
                each.cancel()
            ended = await asyncio.gather(*opening, return_exceptions=True)
            await _all_closed([each for each in ended if isinstance(each, Connection)])
            raise

    async def begin(self, i: int, seed: int, options: Mapping[str, Any] | None = None) -> EnvAnswer:
        """Begin an episode, in a session opened anew if it has to be. Raises RemoteError, EnvServerLost."""
        question = {"op": "reset", "seed": seed} | ({"options": dict(options)} if options else {})
        while True:
            try:
                return await self._asked(i, question)
            except EnvServerLost as lost:  # safe to repeat: nothing was learned from it yet
                await self._reopen(i, lost)

    async def act(self, i: int, action: Any, *, goes_on: bool = False) -> EnvAnswer:
        """Do one step; with goes_on an episode that ends is followed by another.

        Raises RemoteError, and EnvServerLost where nobody knows whether it was done; then the session is over.
        """
        try:
            return await self._asked(i, {"op": "step", "action": action, "goes_on": goes_on})
        except EnvServerLost:
            self._sessions[i].abort()
            raise

    async def close(self) -> None:
        """Close all sessions, within 10 s."""
        if self._keeping is not None:
            self._keeping.cancel()
        sessions, self._sessions = self._sessions, []
        await _all_closed(sessions)

    async def _open(self, url: str, open_s: float) -> Connection:
        return await Connection.opened(url, self._token, open_s)

    async def _asked(self, i: int, question: Mapping[str, Any]) -> EnvAnswer:
        session = self._sessions[i]
        told = await session.ask(self.patience.answer_s, **question)
        try:
            return _answer_of(self.spec, told, goes_on=question.get("goes_on", False))
        except BadMessage as e:
            raise EnvServerLost(f"{session.url} answered what its spec does not describe: {e}") from e

    async def _reopen(self, i: int, lost: EnvServerLost) -> None:
        """Open a session anew. Raises `lost` where that may not be, or cannot in time."""
        patience, spec = self.patience, self.spec
        self._sessions[i].abort()
        if self._num_reconnects_of[i] >= patience.max_reconnects:
            raise lost
        self._num_reconnects_of[i] += 1
        self.num_reconnects += 1
        warn(
            f"{lost}; the session is opened anew ({self._num_reconnects_of[i]} of {patience.max_reconnects})"
        )
        loop = asyncio.get_running_loop()
        end, pause_s, open_s = loop.time() + patience.reconnect_s, _FIRST_PAUSE_S, _FIRST_OPEN_S
        while True:
            try:
                await self._be_alive()
                # Briefly at first: where a server of one's own has just ended, and nobody knows, nobody answers either.
                opened = await self._open(self.addresses[i], min(open_s, patience.open_s))
                break
            except (EnvServerLost, EnvServerRefused) as e:
                if loop.time() + pause_s > end or getattr(e, "status", 503) != 503:
                    raise lost from e
            await asyncio.sleep(pause_s)
            pause_s, open_s = min(2 * pause_s, _LONGEST_PAUSE_S), 2 * open_s
        self._sessions[i] = opened
        if opened.spec != spec:
            raise EnvError(f"{opened.url} came back with another task") from lost

    async def _be_alive(self) -> None:
        if self._revive is not None:
            async with self._reviving:
                await asyncio.to_thread(self._revive)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(_ALIVE_S)
            idle = [session for session in self._sessions if session.is_idle]
            for session in idle:
                with suppress(EnvServerLost, RemoteError):  # the next question hears of it
                    await session.ask(self.patience.answer_s, op="describe")


async def _all_closed(sessions: list[Connection]) -> None:
    closing = [asyncio.ensure_future(session.close()) for session in sessions]
    if closing:
        _, late = await asyncio.wait(closing, timeout=_CLOSE_S - 1.0)
        for each in late:
            each.cancel()
        for session in sessions:
            session.abort()


def _answer_of(spec: EnvSpec, told: dict[str, Any], *, goes_on: bool) -> EnvAnswer:
    mask = None
    if spec.mask_size is not None:
        mask = array_of(told.get("mask"), np.dtype(bool), (spec.mask_size,))
    final, info = told.get("final_obs"), info_of(told.get("info", {}))
    reward, terminated, truncated = (
        told.get("reward", 0.0),
        told.get("terminated", False),
        told.get("truncated", False),
    )
    if type(reward) is not float or type(terminated) is not bool or type(truncated) is not bool:
        raise BadMessage(
            "VALIDATION_ERROR", "reward must be a number, terminated and truncated true or false"
        )
    if (final is not None) != (goes_on and (terminated or truncated)):
        raise BadMessage(
            "VALIDATION_ERROR", "final_obs must be there where an episode went on, and only there"
        )
    final_obs = None if final is None else obs_of(spec.obs, final)
    return EnvAnswer(
        obs_of(spec.obs, told.get("obs")), mask, reward, terminated, truncated, final_obs, info=info
    )


# -- pools ------------------------------------------------------------------------------------------------------------


class AsyncEnvPool(Sessions):
    """num_envs sessions, spread over `urls` in turn, the first of which is `first`.

    An environment that lost its session starts an episode from another seed. patience: as `Patience` has it.
    """

    def __init__(
        self, urls: Sequence[str], num_envs: int, *, first: int = 0, token: str | None = None,
        revive: Callable[[], None] | None = None, **patience: Any,
    ) -> None:  # fmt: skip
        if not urls:
            raise ConfigError("env.urls is empty: give the address of a server, e.g. ws://127.0.0.1:8000")
        addresses = [urls[(first + i) % len(urls)] for i in range(num_envs)]
        super().__init__(addresses, token, Patience(**patience), revive)
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
        return await _all([self.begin(i, seed) for i, seed in enumerate(self._seeds)])

    async def step(self, actions: np.ndarray) -> list[EnvAnswer]:
        """Step all at once, with actions `[E, *spec.action.shape]`; episodes that end are followed by new ones."""
        return await _all([self._step(i, action) for i, action in enumerate(actions.tolist())])

    async def _step(self, i: int, action: Any) -> EnvAnswer:
        try:
            return await self.act(i, action, goes_on=True)
        except EnvServerLost as lost:  # not repeated: nobody knows whether it was done
            self._num_lost[i] += 1
            self._seeds[i] = derived_seed(self._seeds[i], "restart", self._num_lost[i])
            await self._reopen(i, lost)
            answer = await self.begin(i, self._seeds[i])
            answer.is_lost = True
            return answer


class LoopThread:
    """An event loop in a thread of its own, for programs without one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="environments", daemon=True)
        self._thread.start()

    def begun(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def done(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns, when it does."""
        future = self.begun(work)
        try:
            return future.result()
        except BaseException:  # Ctrl-C too: what was begun ends
            future.cancel()
            raise

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Do the last work, for 10 s at most, and end the thread; a second time does nothing."""
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
    """An AsyncEnvPool on a loop in a thread of its own, for programs without one."""

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
        """Close all sessions and end the thread, within 15 s; a second time does nothing."""
        self._loop.close(self._pool.close())


async def _all(questions: list[Coroutine[Any, Any, EnvAnswer]]) -> list[EnvAnswer]:
    """Ask all at once. The first error is raised when all have ended: none is left to answer later."""
    answers = await asyncio.gather(*questions, return_exceptions=True)
    for i, answer in enumerate(answers):
        if isinstance(answer, EnvServerFault):
            answer.place = i
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if isinstance(answer, EnvAnswer)]
