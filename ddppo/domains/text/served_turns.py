"""`Turns` over sessions: environments of a server (ddppo.serve), each stepped at its own pace.

Calls run in an asyncio loop on a thread of its own and put their answers in a queue, which `ready` reads.
"""

import queue
import time
from collections.abc import Coroutine, Mapping
from typing import Any

import numpy as np

from ddppo.config.settings import EnvConfig
from ddppo.domains.text.turns import Turn
from ddppo.envs.encoding.gym_spaces import MASK
from ddppo.envs.vec_env import EnvNames
from ddppo.errors import EnvError
from ddppo.serve.client.backend import Source, patience
from ddppo.serve.client.connection import EnvServerLost, RemoteError
from ddppo.serve.client.sessions import AsyncEnvPool, EnvAnswer, LoopThread
from ddppo.spaces import EnvSpec
from ddppo.terminal import warn


class RemoteTurns:
    """One session for each environment. A session that was lost is opened again when its next episode starts."""

    def __init__(
        self, env: EnvConfig, spec: EnvSpec, names: EnvNames, timeout_s: float, max_restarts: int
    ) -> None:
        self.spec = spec
        self.names = names
        self.num_envs = len(names.indices)
        self.num_lost_episodes = 0
        self._num_lost_of = [0] * self.num_envs
        self._max_restarts = max_restarts
        self._answers: queue.SimpleQueue[Turn | Exception] = queue.SimpleQueue()
        self._busy: set[int] = set()  # environments that have not answered yet
        # The servers, and one session for each environment, on the loop's thread.
        self._source = source = Source(env, spec, names, timeout_s)
        self._loop = LoopThread()
        self._pool = AsyncEnvPool(
            source.urls, self.num_envs, first=names.indices.start, token=source.token, revive=source.revive,
            opener=source.opener, **patience(timeout_s, max_restarts),
        )  # fmt: skip
        # A server may have been restarted with another task since the run was checked.
        try:
            self._loop.done(self._pool.connect())
            if self._pool.spec != spec:
                raise EnvError(
                    f"{source.urls[0]} serves a task of {self._pool.spec}, which differs from {spec}, its task before"
                )
        except BaseException:
            self.close()
            raise

    @property
    def num_restarts(self) -> int:
        return self._pool.num_reconnects

    def begin(self, i: int, seed: int, options: Mapping[str, Any]) -> None:
        self._start(i, self._pool.begin(i, seed, options))

    def act(self, i: int, action: Any) -> None:
        # JSON holds plain values only.
        plain = action.tolist() if isinstance(action, (np.ndarray, np.generic)) else action
        self._start(i, self._pool.act(i, plain))

    def ready(self, wait_s: float | None) -> list[Turn]:
        turns: list[Turn] = []
        end = float("inf")
        while self._busy:
            try:
                # The first answer is awaited without a limit here: the sessions have timeouts of their own.
                patience_s = None if end == float("inf") else max(0.0, end - time.monotonic())
                answer = self._answers.get(timeout=patience_s)
            except queue.Empty:
                break
            if isinstance(answer, Exception):
                raise answer
            self._busy.remove(answer.env)
            turns.append(answer)
            if wait_s is not None and len(turns) == 1:
                end = time.monotonic() + wait_s
        return turns

    def close(self) -> None:
        """End all sessions, within 15 s. A second call does nothing."""
        self._loop.close(self._pool.close())
        self._source.close()

    def _start(self, i: int, call: Coroutine[Any, Any, EnvAnswer]) -> None:
        assert i not in self._busy, f"{self.names(i)} has not answered yet"
        self._busy.add(i)
        self._loop.begun(self._finish(i, call))

    async def _finish(self, i: int, call: Coroutine[Any, Any, EnvAnswer]) -> None:
        try:
            self._answers.put(self._turn(i, await call))
        except (EnvServerLost, RemoteError) as e:
            self._answers.put(self._failed(i, e))
        except Exception as e:  # raised by `ready`, in the thread of the rank
            self._answers.put(e)

    def _turn(self, i: int, answer: EnvAnswer) -> Turn:
        info = answer.info if answer.mask is None else {**answer.info, MASK: answer.mask}
        return Turn(i, answer.obs, answer.reward, answer.terminated, answer.truncated, info=info)

    def _failed(self, i: int, error: EnvError) -> Turn | EnvError:
        if self._num_lost_of[i] >= self._max_restarts:
            return EnvError(f"{self.names(i)}: {error}")
        self._num_lost_of[i] += 1
        self.num_lost_episodes += 1
        warn(
            f"{self.names(i)}: {error}; its episode is lost ({self._num_lost_of[i]} of {self._max_restarts})"
        )
        return Turn(i, None, failed=True)
