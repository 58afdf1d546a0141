"""Pools of sessions, all opened or none: one core, for asyncio (AsyncEnvPool) and for everybody else (SyncEnvPool).

async with AsyncEnvPool(["ws://127.0.0.1:8000"], num_envs=8) as pool:
    observations = await pool.reset(seeds)
    answers = await pool.step(actions)

with SyncEnvPool(["ws://127.0.0.1:8000"], num_envs=8) as pool:
    observations = pool.reset(seeds)
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from ddppo.errors import ConfigError
from ddppo.seeding import derived_seed
from ddppo.serve.client.connection import EnvServerFault, EnvServerLost
from ddppo.serve.client.sessions import CLOSE_S, Answer, Patience, Sessions
from ddppo.spaces import EnvSpec

T = TypeVar("T")

_JOIN_S = 5.0


class AsyncEnvPool(Sessions):
    """num_envs sessions, spread over `urls` in turn, the first of which is `first`.

    An environment whose session was lost starts an episode from another seed. patience: as `Patience` has it.
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

    async def reset(self, seeds: Sequence[int]) -> list[Answer]:
        """Start every environment from its seed."""
        assert len(seeds) == self.num_envs, (len(seeds), self.num_envs)
        self._seeds = [int(seed) for seed in seeds]
        return await _all([self.begin(i, seed) for i, seed in enumerate(self._seeds)])

    async def step(self, actions: np.ndarray) -> list[Answer]:
        """Step all at once, with actions `[E, *spec.action.shape]`; episodes that end are followed by new ones."""
        return await _all([self._step(i, action) for i, action in enumerate(actions.tolist())])

    async def _step(self, i: int, action: Any) -> Answer:
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
            self.begun(last).result(CLOSE_S)
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

    def reset(self, seeds: Sequence[int]) -> list[Answer]:
        return self._loop.done(self._pool.reset(seeds))

    def step(self, actions: np.ndarray) -> list[Answer]:
        return self._loop.done(self._pool.step(actions))

    def close(self) -> None:
        """Close all sessions and end the thread, within 15 s; a second time does nothing."""
        self._loop.close(self._pool.close())


async def _all(questions: list[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """Ask all at once. The first error is raised when all have ended: none is left to answer later."""
    answers = await asyncio.gather(*questions, return_exceptions=True)
    for i, answer in enumerate(answers):
        if isinstance(answer, EnvServerFault):
            answer.place = i
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if isinstance(answer, Answer)]
