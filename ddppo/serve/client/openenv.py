"""env.backend=openenv: environments of servers that speak OpenEnv 0.10 (https://github.com/huggingface/OpenEnv).

`OpenEnvConnection` is a session. It takes the requests of ddppo/1 and gives its answers, so pools treat it as any other
(sessions.py). Messages of OpenEnv are described in ddppo/serve/openenv.py; they have no ids, so a session that is late
is closed, and no answer is ever taken for that of another request. `task_of` looks at the servers before a run.
openenv_task.py has the settings and the task, openenv_schema.py what schemas mean.
"""

import asyncio
import functools
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from websockets.asyncio.client import ClientConnection

from ddppo.config.settings import EnvConfig
from ddppo.envs.encoding.step_values import PARTS
from ddppo.envs.single import scalars
from ddppo.errors import ConfigError, EnvError
from ddppo.seeding import derived_seed
from ddppo.serve.client.connection import (
    Connection,
    EnvServerLate,
    EnvServerLost,
    EnvServerRefused,
    RemoteError,
    dialled,
)
from ddppo.serve.client.openenv_schema import BadAction, calls_tools, mcp_tools, tool_failed
from ddppo.serve.client.openenv_task import (
    REMEDY,
    OpenEnvSettings,
    OpenEnvTask,
    headers_of,
    schemas_at,
    tasks_of,
)
from ddppo.serve.client.served import check_packages, masked
from ddppo.serve.client.sessions import LoopThread, Opener, Patience, until_not_full
from ddppo.serve.protocol import JSON, BadMessage, decoded
from ddppo.spaces import EnvSpec

_LOOKED_AT_S = 60.0  # for the answers of a server that is looked at before a run
_FULL_S = 30.0  # to wait for a session, if the server has none free


# -- sessions ---------------------------------------------------------------------------------------------------------


class OpenEnvConnection(Connection):
    """A session with a server of OpenEnv, with the requests and answers of ddppo/1. Make it by `started`."""

    protocol = "OpenEnv 0.10"
    _task: OpenEnvTask
    _place: int
    _seed = _num_episodes = 0
    _return = 0.0  # of the episode so far
    _row: Mapping[str, Any] = {}

    def __init__(self, url: str, socket: ClientConnection, headers: Mapping[str, str]) -> None:
        super().__init__(url, socket, headers)
        self._turn = asyncio.Lock()  # one message at a time: answers have no ids
        self._has_asked = False
        self._refusal: dict[str, Any] | None = None  # an error that came before the first message

    @classmethod
    async def started(cls, url: str, headers: Mapping[str, str], open_s: float) -> "OpenEnvConnection":
        """Open a session. Raises EnvServerRefused, with status 503 if the server is full, EnvServerLost."""
        connection = cls(
            url, await dialled(re.sub("^http", "ws", url, flags=re.IGNORECASE), headers, open_s), headers
        )
        # The server has accepted the connection, and says only now whether it has a session.
        try:
            await connection.sent(open_s, {"type": "state"})
            return connection
        except RemoteError as e:
            if e.code == "EXECUTION_ERROR":  # an environment without a state before its first reset
                return connection
            connection.abort()
            if e.code == "CAPACITY_REACHED":
                raise EnvServerRefused(
                    f"{url} is full (CAPACITY_REACHED): {e.said}; start it with a larger max_concurrent_envs, or set a "
                    "smaller env.num_envs",
                    503,
                ) from None
            raise EnvServerLost(f"{url} gave no session ({e.code}): {e.said}") from None
        except BaseException:
            connection.abort()
            raise

    @classmethod
    async def of_task(
        cls, url: str, headers: Mapping[str, str], open_s: float, task: OpenEnvTask, place: int
    ) -> "OpenEnvConnection":
        """Open a session with a server that still has this task.

        Args:
            place: global index of the environment, a part of the names of its episodes.
        """
        connection = await cls.started(url, headers, open_s)
        try:
            found = await asyncio.to_thread(schemas_at, url, headers)
        except ConfigError as e:
            connection.abort()
            raise EnvServerLost(str(e)) from e
        except BaseException:
            connection.abort()
            raise
        if found != task.schemas:
            connection.abort()
            _task.cache_clear()  # so that a later run of this process looks again
            raise EnvError(f"{url} serves other actions or observations than when it was looked at")
        connection.spec, connection._task, connection._place = task.spec, task, place
        return connection

    async def ask(self, timeout_s: float, **request: Any) -> dict[str, Any]:
        match request["op"]:
            case "reset":
                self._seed = request["seed"]
                return await self._reset(timeout_s, request["seed"], request.get("options") or {})
            case "step":
                return await self._step(timeout_s, request["action"], goes_on=request["goes_on"])
        await self.sent(timeout_s, {"type": "state"})
        return {}

    async def sent(self, timeout_s: float, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return the data of its answer. Raises RemoteError, EnvServerLate, EnvServerLost."""
        # If the caller is cancelled, the exchange goes on, and the next message waits for its answer.
        exchange = asyncio.ensure_future(self._in_turn(timeout_s, message))
        exchange.add_done_callback(lambda done: done.cancelled() or done.exception())
        answer = await asyncio.shield(exchange)
        kind, data = answer.get("type"), answer.get("data")
        if not isinstance(data, dict):
            raise self._broke(f"the answer to {message['type']} has no data")
        if kind == "error":
            raise self.remote_error(_said(data), data.get("code"))
        wanted = {"reset": "observation", "step": "observation"}.get(message["type"], message["type"])
        if kind != wanted:
            raise self._broke(
                f"the answer to {message['type']} is of the type {str(kind)[:40]!r}, not {wanted}"
            )
        return data

    async def _in_turn(self, timeout_s: float, message: dict[str, Any]) -> dict[str, Any]:
        try:
            async with self._turn:
                self._has_asked = True
                if self._refusal is not None:
                    return self._refusal
                return await self._exchanged(timeout_s, next(self._ids), json.dumps(message))
        except EnvServerLate:
            # The answer may still come, and nothing would tell it from that of the next request.
            self.abort()
            raise

    async def listed_tools(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return the tools of the environment. Raises ValueError if there are none, and as `sent` does."""
        request = {"jsonrpc": "2.0", "method": "tools/list", "params": {}, "id": 1}
        answer = await self.sent(timeout_s, {"type": "mcp", "data": request})
        if (error := answer.get("error")) is not None:
            raise ValueError(
                masked(error.get("message") if isinstance(error, dict) else error, self._headers)
            )
        return mcp_tools(answer.get("result"))

    async def _reset(self, timeout_s: float, seed: int, options: Mapping[str, Any]) -> dict[str, Any]:
        self._num_episodes += 1
        name, self._row = self._task.row(seed, options)
        episode_id = f"env{self._place}-seed{seed}-{self._num_episodes}"
        keywords = self._task.keywords(seed, episode_id, options)
        data = await self.sent(timeout_s, {"type": "reset", "data": keywords})
        answer = self._answered(data, is_first=True)
        if name is not None:
            answer["info"] |= {"task": name}
        if answer["terminated"]:
            raise self._broke("the answer to reset says that the episode is over")
        return {key: answer[key] for key in ("obs", "info")}

    async def _step(self, timeout_s: float, action: Any, *, goes_on: bool) -> dict[str, Any]:
        is_text = self._task.spec.is_text
        try:
            data = await self.sent(timeout_s, {"type": "step", "data": self._task.actions.data(action)})
        except BadAction as e:
            return _refused(str(e))
        except RemoteError as e:
            # A language model is told what is wrong with its action. The episode goes on, as in OpenEnv.
            if is_text and e.code == "VALIDATION_ERROR":
                return _refused(e.said)
            raise
        answer = self._answered(data, is_first=False)
        if (answer["terminated"] or answer["truncated"]) and goes_on:
            # The seed of the next episode follows from that of the first, and from nothing else.
            seed = derived_seed(self._seed, "env", self._num_episodes)
            answer = {**answer, "final_obs": answer["obs"], **await self._reset(timeout_s, seed, {})}
        return answer

    def _answered(self, data: Mapping[str, Any], *, is_first: bool) -> dict[str, Any]:
        """Return an observation of OpenEnv as an answer of ddppo/1. Raises EnvServerLost."""
        observation, reward, is_over = data.get("observation"), data.get("reward"), data.get("done", False)
        if not isinstance(observation, dict):
            raise self._broke("an observation is no map")
        if reward is not None and not (isinstance(reward, int | float) and math.isfinite(reward)):
            raise self._broke(f"the reward {str(reward)[:40]!r} is no finite number")
        if type(is_over) is not bool:
            raise self._broke(f"done is {str(is_over)[:40]!r}, neither true nor false")
        try:
            obs = self._task.observed(observation, self._row, is_first=is_first)
        except BadMessage as e:
            raise self._broke(f"an observation does not fit: {e}") from e
        metadata = {**_map(observation.get("metadata")), **_map(data.get("metadata"))}
        info = scalars(metadata) | ({PARTS: metadata[PARTS]} if PARTS in metadata else {})
        if (failed := tool_failed(observation)) is not None and self._task.actions.tools is not None:
            info["tool_failed"] = failed
        # OpenEnv has no word for a time limit; servers of ddppo say so in the metadata.
        self._return = float(reward or 0.0) + (0.0 if is_first else self._return)
        if is_over and self._task.settings.achieved_at is not None:
            info["is_success"] = self._return >= self._task.settings.achieved_at
        truncated = is_over and metadata.get("truncated") is True
        ends = {"terminated": is_over and not truncated, "truncated": truncated}
        return {"obs": obs, "reward": float(reward or 0.0), "info": info, **ends}

    def _broke(self, why: str) -> EnvServerLost:
        self.abort()
        return EnvServerLost(f"{self.url} breaks {self.protocol}: {masked(why, self._headers)}")

    def _take(self, content: bytes) -> None:
        answer = decoded(JSON, content)
        if not self._pending:
            # A full server says so at once, perhaps before the first message has been sent.
            if answer.get("type") == "error" and not self._has_asked and self._refusal is None:
                self._refusal = answer
                return
            raise BadMessage("VALIDATION_ERROR", "an answer without a request")
        (pending,) = self._pending.values()
        if pending.done():
            raise BadMessage("VALIDATION_ERROR", "two answers to one request")
        pending.set_result(answer)


def _refused(message: str) -> dict[str, Any]:
    info = {"tool_failed": True}
    return {"obs": f"error: {message}", "reward": 0.0, "terminated": False, "truncated": False, "info": info}


def _said(data: Mapping[str, Any]) -> str:
    """Return the message of an error, with what pydantic found."""
    errors = data.get("errors")
    found = errors if isinstance(errors, list) else []
    more = [
        f"{'.'.join(map(str, error.get('loc') or ()))}: {error.get('msg')}"
        for error in found
        if isinstance(error, dict)
    ]
    return "; ".join(filter(None, [str(data.get("message") or ""), *more[:5]]))


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# -- looking at servers before a run ----------------------------------------------------------------------------------


def openenv_spec(env: EnvConfig) -> EnvSpec:
    """Return the spec of the task at env.urls. Raises ConfigError."""
    return task_of(env).spec


def task_of(env: EnvConfig) -> OpenEnvTask:
    """Return the task at env.urls, after one reset of its environment; once in a process. Raises ConfigError."""
    return _task(json.dumps([env.urls, env.token_file, env.kwargs], sort_keys=True, default=str))


@functools.cache
def _task(key: str) -> OpenEnvTask:
    urls, token_file, kwargs = json.loads(key)
    env = EnvConfig(id="openenv", urls=urls, token_file=token_file, kwargs=kwargs)
    check_packages(env)
    settings, headers = OpenEnvSettings.of(env), headers_of(env)
    # 1. All servers have one task.
    found = {url: schemas_at(url, headers) for url in dict.fromkeys(urls)}
    (first, schemas), *others = found.items()
    for url, other in others:
        if other != schemas:
            raise ConfigError(f"env.urls: {first} and {url} have other schemas: give servers of one task")
    # 2. A session: its tools, and the first observation of an episode.
    loop = LoopThread()
    try:
        return loop.done(_looked_at(first, headers, settings, schemas))
    except ConfigError:
        raise
    except EnvError as e:
        raise ConfigError(f"env.urls: {e}") from e
    finally:
        loop.close(asyncio.sleep(0.0))


async def _looked_at(
    url: str, headers: Mapping[str, str], settings: OpenEnvSettings, schemas: Mapping[str, Any]
) -> OpenEnvTask:
    connection = await until_not_full(
        lambda: OpenEnvConnection.started(url, headers, Patience().open_s), _FULL_S
    )
    try:
        tools = None
        if calls_tools(schemas["action"]) and settings.form in ("auto", "tool"):
            try:
                tools = await connection.listed_tools(_LOOKED_AT_S)
            except ValueError as e:
                raise ConfigError(
                    f"env.urls: the actions of {url} are calls of tools, and it gives none ({e}): {REMEDY}"
                ) from e
        tasks = tasks_of(settings)
        row = next(iter(tasks.values()), {})
        keywords = {"seed": 0, "episode_id": "look", **settings.reset, **row}
        data = await connection.sent(_LOOKED_AT_S, {"type": "reset", "data": keywords})
        observation = data.get("observation")
        if not isinstance(observation, dict):
            raise ConfigError(f"env.urls: {url} answered a reset without an observation: {REMEDY}")
        return OpenEnvTask(settings, schemas, tools, observation, row)
    finally:
        await connection.close()


def opener_of(env: EnvConfig, indices: range) -> Opener:
    """Return what opens the sessions of the environments with these global indices. Raises ConfigError."""
    task, headers = task_of(env), headers_of(env)

    async def opened(i: int, url: str, open_s: float) -> Connection:
        return await OpenEnvConnection.of_task(url, headers, open_s, task, indices[i])

    return opened
