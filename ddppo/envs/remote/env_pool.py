"""Pools of sessions, all opened or none: one core, for asyncio (AsyncEnvPool) and for everybody else (SyncEnvPool).

async with AsyncEnvPool(["ws://127.0.0.1:8000"], num_envs=8) as pool:
    observations = await pool.reset(seeds)
    answers = await pool.step(actions)

with SyncEnvPool(["ws://127.0.0.1:8000"], num_envs=8) as pool:
    observations = pool.reset(seeds)
"""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from ddppo.envs.remote.connection import Connection, EnvServerLost, EnvServerRefused
from ddppo.envs.remote.messages import BadMessage, array_of, obs_of
from ddppo.envs.rows import ObsArrays
from ddppo.errors import ConfigError
from ddppo.seeding import derived_seed
from ddppo.spaces import EnvSpec

T = TypeVar("T")

CLOSE_S = 10.0
_JOIN_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


@dataclass(slots=True)
class Answer:
    """What one environment answers. final_obs where an episode ended. is_lost: no transition, but a new episode."""

    obs: ObsArrays
    mask: np.ndarray | None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final_obs: ObsArrays | None = None
    is_lost: bool = False


class AsyncEnvPool:
    """num_envs sessions, spread over `urls` in turn.

    answer_s: how long a question may take. A session that is lost is opened anew, for reconnect_s at most, as often as
    max_reconnects allows; its environment then starts an episode from another seed. num_reconnects: how often that was.
    """

    def __init__(
        self, urls: Sequence[str], num_envs: int, *, token: str | None = None, answer_s: float = 60.0,
        open_s: float = 10.0, max_reconnects: int = 0, reconnect_s: float = 30.0,
    ) -> None:  # fmt: skip
        if not urls:
            raise ConfigError("env.urls is empty: give the address of a server, e.g. ws://127.0.0.1:8000")
        self.urls = [urls[i % len(urls)] for i in range(num_envs)]
        self.num_envs = num_envs
        self.num_reconnects = 0
        self._token = token
        self._answer_s, self._open_s, self._reconnect_s = answer_s, open_s, reconnect_s
        self._max_reconnects = max_reconnects
        self._sessions: list[Connection] = []
        self._seeds = [0] * num_envs
        self._num_lost = [0] * num_envs

    async def __aenter__(self) -> "AsyncEnvPool":
        await self.connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

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
        opening = [
            asyncio.ensure_future(Connection.opened(url, self._token, self._open_s)) for url in self.urls
        ]
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
        except BaseException:
            for each in opening:
                each.cancel()
            ended = await asyncio.gather(*opening, return_exceptions=True)
            await _all_closed([each for each in ended if isinstance(each, Connection)])
            raise
        self._sessions = sessions

    async def reset(self, seeds: Sequence[int]) -> list[Answer]:
        """Start every environment from its seed."""
        assert len(seeds) == self.num_envs, (len(seeds), self.num_envs)
        self._seeds = [int(seed) for seed in seeds]
        return await self._all([self._reset(i) for i in range(self.num_envs)])

    async def step(self, actions: np.ndarray) -> list[Answer]:
        """Step all at once, with actions `[E, *spec.action.shape]`; episodes that end are followed by new ones."""
        return await self._all([self._step(i, action) for i, action in enumerate(actions.tolist())])

    async def close(self) -> None:
        """Close all sessions, within 10 s."""
        sessions, self._sessions = self._sessions, []
        await _all_closed(sessions)

    async def _all(self, questions: list[Coroutine[Any, Any, Answer]]) -> list[Answer]:
        """Ask all at once. The first error is raised when all have ended: none is left to answer later."""
        answers = await asyncio.gather(*questions, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if isinstance(answer, Answer)]

    async def _reset(self, i: int) -> Answer:
        try:
            return await self._asked(i, op="reset", seed=self._seeds[i])
        except EnvServerLost as lost:  # safe to repeat: nothing was learned from it yet
            return await self._begun_anew(i, lost)

    async def _step(self, i: int, action: Any) -> Answer:
        try:
            return await self._asked(i, op="step", action=action, goes_on=True)
        except EnvServerLost as lost:  # not repeated: nobody knows whether it was done
            self._num_lost[i] += 1
            self._seeds[i] = derived_seed(self._seeds[i], "restart", self._num_lost[i])
            answer = await self._begun_anew(i, lost)
            answer.is_lost = True
            return answer

    async def _begun_anew(self, i: int, lost: EnvServerLost) -> Answer:
        """Open the session anew and reset. Raises `lost` where that may not be, or cannot in time."""
        while True:
            await self._reopen(i, lost)
            try:
                return await self._asked(i, op="reset", seed=self._seeds[i])
            except EnvServerLost as again:
                lost = again

    async def _asked(self, i: int, **question: Any) -> Answer:
        told = await self._sessions[i].ask(self._answer_s, **question)
        try:
            return _answer_of(self.spec, told)
        except BadMessage as e:
            raise EnvServerLost(f"{self.urls[i]} answered what its spec does not describe: {e}") from e

    async def _reopen(self, i: int, lost: EnvServerLost) -> None:
        """Open the session anew. Raises `lost` where that may not be, or cannot in time."""
        self._sessions[i].abort()
        if self.num_reconnects >= self._max_reconnects:
            raise lost
        self.num_reconnects += 1
        loop = asyncio.get_running_loop()
        end, pause_s = loop.time() + self._reconnect_s, _FIRST_PAUSE_S
        spec = self.spec
        while True:
            try:
                opened = await Connection.opened(self.urls[i], self._token, self._open_s)
            except (EnvServerLost, EnvServerRefused) as e:
                if loop.time() + pause_s > end or getattr(e, "status", 503) != 503:
                    raise lost from e
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            self._sessions[i] = opened
            if opened.spec != spec:
                raise EnvServerLost(f"{self.urls[i]} came back with another task") from lost
            return


class SyncEnvPool:
    """An AsyncEnvPool on a loop in a thread of its own, for programs without one."""

    def __init__(self, urls: Sequence[str], num_envs: int, **settings: Any) -> None:
        self._pool = AsyncEnvPool(urls, num_envs, **settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="environments", daemon=True)
        self._thread.start()
        try:
            self._done(self._pool.connect())
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
    def num_reconnects(self) -> int:
        return self._pool.num_reconnects

    def reset(self, seeds: Sequence[int]) -> list[Answer]:
        return self._done(self._pool.reset(seeds))

    def step(self, actions: np.ndarray) -> list[Answer]:
        return self._done(self._pool.step(actions))

    def close(self) -> None:
        """Close all sessions and end the thread, within 15 s; a second time does nothing."""
        if self._loop.is_closed():
            return
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._pool.close(), self._loop).result(CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _done(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C too: what was begun ends
            future.cancel()
            raise


async def _all_closed(sessions: list[Connection]) -> None:
    closing = [asyncio.ensure_future(session.close()) for session in sessions]
    if closing:
        _, late = await asyncio.wait(closing, timeout=CLOSE_S - 1.0)
        for each in late:
            each.cancel()
        for session in sessions:
            session.abort()


def _answer_of(spec: EnvSpec, told: dict[str, Any]) -> Answer:
    mask = None
    if spec.mask_size is not None:
        mask = array_of(told.get("mask"), np.dtype(bool), (spec.mask_size,))
    final = told.get("final_obs")
    reward, terminated, truncated = (
        told.get("reward", 0.0),
        told.get("terminated", False),
        told.get("truncated", False),
    )
    if type(reward) is not float or type(terminated) is not bool or type(truncated) is not bool:
        raise BadMessage(
            "VALIDATION_ERROR", "reward must be a number, terminated and truncated true or false"
        )
    if (final is not None) != (terminated or truncated):
        raise BadMessage("VALIDATION_ERROR", "final_obs must be there where an episode ended, and only there")
    final_obs = None if final is None else obs_of(spec.obs, final)
    return Answer(obs_of(spec.obs, told.get("obs")), mask, reward, terminated, truncated, final_obs)
