"""env.backend=openenv: environments of servers that speak OpenEnv 0.10 (https://github.com/huggingface/OpenEnv).

`OpenEnvSettings` are env.kwargs, `OpenEnvTask` is what a server's schemas and these settings say of the task, and
`OpenEnvConnection` is a session. A session takes the requests of ddppo/1 and gives its answers, so pools treat it as
any other (sessions.py). Messages of OpenEnv are described in ddppo/serve/openenv.py; they have no ids, so a session
that is late is closed, and no answer is ever taken for that of another request.
"""

import asyncio
import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from websockets.asyncio.client import ClientConnection

from ddppo.config.fields import check_fields, in_words, near, setting
from ddppo.config.settings import Config, EnvConfig
from ddppo.envs.encoding.step_values import PARTS
from ddppo.envs.single import scalars
from ddppo.errors import ConfigError, EnvError, in_one_line
from ddppo.plugins import imported
from ddppo.seeding import derived_seed
from ddppo.serve.client.connection import (
    Connection,
    EnvServerLate,
    EnvServerLost,
    EnvServerRefused,
    RemoteError,
    dialled,
)
from ddppo.serve.client.openenv_schema import (
    Actions,
    BadAction,
    Schema,
    actions_of,
    array,
    calls_tools,
    mcp_tools,
    misfit,
    numbers_of,
    shown,
    tool_failed,
)
from ddppo.serve.client.served import check_address, check_packages, fetched, masked
from ddppo.serve.client.sessions import LoopThread, Opener, Patience, until_not_full
from ddppo.serve.protocol import JSON, BadMessage, decoded
from ddppo.spaces import ArraySpec, EnvSpec

_ADDRESS = re.compile(
    r"(https?|wss?)://(\[[\da-f:.]+\]|[^/\s:@?#[\]]+)(:\d{1,5})?(/[^\s?#@]*)?", re.IGNORECASE
)
_LOOKED_AT_S = 60.0  # for the answers of a server that is looked at before a run
_FULL_S = 30.0  # to wait for a session, if the server has none free
_REMEDY = "is it a server of OpenEnv 0.10?"


# -- settings ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class OpenEnvSettings:
    """The settings of env=openenv, env.kwargs."""

    url: str = setting("", "address of the server, http://127.0.0.1:8000; of several: env.urls")
    tasks: Any = setting(
        None,
        "what episodes are about: a list of maps, whose fields are keywords of a reset, or a file of JSON Lines with "
        "such maps. The environments of a group have the same one: by the seed, or by a curriculum if all have a tier. "
        "null: seeds alone",
    )
    reset: dict[str, Any] = setting(meaning="further keywords of every reset", factory=dict)
    action: dict[str, Any] = setting(
        meaning="fields of actions with a fixed value, {timeout: 30}", factory=dict
    )
    choices: dict[str, int] = setting(
        meaning="number of choices of fields that are whole numbers without bounds, {action_id: 4}: 0 to 3",
        factory=dict,
    )
    form: str = setting(
        "auto",
        "form of actions: numbers (fields with choices or numbers), text (a field), tool (a language model calls the "
        "action as a tool), auto (by the schema)",
        choices=("auto", "numbers", "text", "tool"),
    )
    fields: list[str] | None = setting(None, "numeric fields of observations to observe; null is all")
    render: str | None = setting(
        None,
        "import path of a function(observation, task) that returns the text or the numbers to observe; the default is "
        "the observation's sole text, else JSON",
    )
    achieved_at: float | None = setting(
        None,
        "return from which an episode counts as achieved (is_success); null: as the server's metadata says",
    )
    max_chars: int = setting(2**20, "characters of an observation, above which the episode is lost", low=1)

    @classmethod
    def of(cls, env: EnvConfig) -> "OpenEnvSettings":
        """Return the settings in env.kwargs. Raises ConfigError."""
        names = [item.name for item in fields(cls)]
        if unknown := env.kwargs.keys() - set(names):
            name = min(unknown)
            raise ConfigError(
                f"env.{name}: env=openenv has no such setting{near(name, names)}: it has {', '.join(names)}; what a "
                "server's reset takes is env.reset={key: value}"
            )
        try:
            found = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(cls), env.kwargs))
        except OmegaConfBaseException as e:
            raise ConfigError(f"env.{e.full_key}={e.value!r}: {in_words(str(e.msg))}") from e
        assert isinstance(found, cls)
        check_fields(found, "env.")
        return found


def check_openenv(config: Config) -> None:
    """Raise ConfigError for addresses and settings that have no effect or cannot work."""
    env = config.env
    settings = OpenEnvSettings.of(env)
    # The preset makes env.urls of env.url.
    if not any(env.urls):
        raise ConfigError("env=openenv needs the address of a server: env.url=http://127.0.0.1:8000")
    for url in env.urls:
        check_address(url, _ADDRESS, "http://127.0.0.1:8000, or wss://my-space.hf.space")
    if settings.url and env.urls != [settings.url]:
        raise ConfigError("env.url and env.urls are both given: use env.urls alone for several servers")
    if env.max_episode_steps is not None:
        raise ConfigError(
            f"env.max_episode_steps={env.max_episode_steps} has no effect with env=openenv, whose servers end "
            "episodes: leave it out"
        )
    headers_of(env)
    tasks_of(settings)


def headers_of(env: EnvConfig) -> dict[str, str]:
    """Return the headers in env.token_file: a bearer token in its first line, or lines `Name: value`.

    Raises ConfigError that names the file, and nothing of its content.
    """
    if env.token_file is None:
        return {}
    subject = f"env.token_file={env.token_file}"
    try:
        lines = [line.strip() for line in Path(env.token_file).read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{subject} cannot be read: {type(e).__name__}") from None
    if not lines:
        raise ConfigError(
            f"{subject} is empty: its first line is the token, or each line a header, Name: value"
        )
    if not all(line.isascii() and line.isprintable() for line in lines):
        raise ConfigError(f"{subject}: tokens and headers are printable ASCII")
    if re.fullmatch(r"[\w-]+:\s.+", lines[0]) is None:
        return {"Authorization": f"Bearer {lines[0]}"}
    found = [re.fullmatch(r"([\w-]+):\s+(.+)", line) for line in lines]
    if not all(found):
        raise ConfigError(f"{subject}: line {found.index(None) + 1} is no header, Name: value")
    return {match[1]: match[2] for match in found if match is not None}


def tasks_of(settings: OpenEnvSettings) -> dict[str, dict[str, Any]]:
    """Return the tasks by name: of the field task, name or id of each, else its number. Raises ConfigError."""
    rows, subject = settings.tasks, "env.tasks"
    if rows is None:
        return {}
    if isinstance(rows, str):
        subject = f"env.tasks={rows}"
        try:
            rows = [json.loads(line) for line in Path(rows).read_text().splitlines() if line.strip()]
        except (OSError, ValueError) as e:
            raise ConfigError(f"{subject} is no readable file of JSON Lines: {in_one_line(e)}") from e
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) and row for row in rows):
        raise ConfigError(
            f"{subject}: tasks are a list of maps such as [{{task: a}}, {{task: b}}], or a file of JSON Lines with them"
        )
    for key in ("task", "name", "id"):
        names = [row.get(key) for row in rows]
        if all(isinstance(name, str | int) for name in names) and len({*map(str, names)}) == len(rows):
            return {str(name): row for name, row in zip(names, rows, strict=True)}
    return {str(i): row for i, row in enumerate(rows)}


# -- the task ---------------------------------------------------------------------------------------------------------


class OpenEnvTask:
    """A task of servers: what an episode's reset is given, how actions are sent, and how observations are read.

    Args:
        schemas: of the server, as /schema has them.
        tools: of its MCP server; None if actions are no calls of tools.
        first: the first observation of an episode, which has the shapes of all; and the episode's task.
    """

    def __init__(
        self, settings: OpenEnvSettings, schemas: Mapping[str, Any], tools: list[dict[str, Any]] | None,
        first: Mapping[str, Any], row: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.settings, self.schemas = settings, schemas
        self.tasks = tasks_of(settings)
        self._render = None if settings.render is None else _renderer(settings.render)
        self._observation: Schema = schemas["observation"]
        self._first: Schema = schemas.get("reset_observation") or self._observation
        # Does the policy observe numbers or text? Numbers, if the whole observation is numbers.
        if self._render is not None:
            seen = self._rendered(first, row)
            numbers = None if isinstance(seen, str) else {"obs": seen}
        else:
            numbers = _numbers(first, settings.fields)
        self.actions: Actions = actions_of(
            schemas["action"], tools, settings.form, settings.action, settings.choices,
            observes_numbers=numbers is not None,
        )  # fmt: skip
        is_text = self.actions.spec.kind == "text"
        if not is_text and numbers is None:
            raise ConfigError(
                f"actions of the server are numbers, and its observations, {json.dumps(first)[:300]}, are not: name "
                "the numeric fields by env.fields=[...], give a function that returns numbers by env.render=, or "
                "use env.form=tool for a language model"
            )
        if is_text and self._render is not None and numbers is not None:
            raise ConfigError(
                f"env.render={settings.render} returns numbers, and actions are text: let it return text, or use "
                "env.form=numbers"
            )
        if is_text or numbers is None:
            obs: ArraySpec | dict[str, ArraySpec] = ArraySpec((settings.max_chars,), "text")
        else:
            shapes = {key: ArraySpec(part.shape) for key, part in numbers.items()}
            obs = shapes if len(shapes) > 1 else next(iter(shapes.values()))
        # Tiers are for curricula and reports.
        # Tasks with tiers are for a curriculum; others are chosen by the seed of an episode.
        tiers = {name: row["tier"] for name, row in self.tasks.items() if isinstance(row.get("tier"), str)}
        if tiers and len(tiers) < len(self.tasks):
            without = min(self.tasks.keys() - tiers.keys())
            raise ConfigError(
                f"env.tasks: some tasks name a tier, and {without} does not: give each one, or none"
            )
        self.spec = EnvSpec(obs, self.actions.spec, tools=self.actions.tools, tasks=tiers or None)

    def row(self, seed: int, options: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
        """Return name and fields of an episode's task: the one that options name, else one by the seed."""
        if not self.tasks:
            return None, {}
        name = options.get("task")
        if name not in self.tasks:
            names = list(self.tasks)
            name = names[derived_seed(seed, "env") % len(names)]
        return name, self.tasks[name]

    def keywords(self, seed: int, episode_id: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data of a reset."""
        _, row = self.row(seed, options)
        more = {key: value for key, value in options.items() if key != "task" or not self.tasks}
        return {"seed": seed, "episode_id": episode_id, **self.settings.reset, **row, **more}

    def observed(
        self, observation: Mapping[str, Any], row: Mapping[str, Any], *, is_first: bool
    ) -> str | np.ndarray | dict[str, np.ndarray]:
        """Return the observation of the policy. Raises BadMessage if it does not fit the schema or the spec."""
        # An environment of tools answers a reset by an observation of another kind.
        if not (is_first and self.actions.tools is not None):
            schema = self._first if is_first else self._observation
            if (wrong := misfit(observation, schema)) is not None:
                raise BadMessage("VALIDATION_ERROR", wrong)
        if self._render is not None:
            return self._rendered(observation, row)
        if self.spec.is_text:
            return shown(observation)
        found = numbers_of(observation, self.settings.fields)
        return found if isinstance(self.spec.obs, dict) else next(iter(found.values()))

    def _rendered(self, observation: Mapping[str, Any], row: Mapping[str, Any]) -> str | np.ndarray:
        assert self._render is not None
        subject = f"env.render={self.settings.render}"
        try:
            seen = self._render(dict(observation), dict(row))
        except Exception as e:  # of the user's own code
            raise EnvError(
                f"{subject} raised {in_one_line(e)} for the observation {str(observation)[:300]}"
            ) from e
        return seen if isinstance(seen, str) else array(seen, f"what {subject} returned")


def _numbers(observation: Mapping[str, Any], fields: Sequence[str] | None) -> dict[str, np.ndarray] | None:
    try:
        return numbers_of(observation, fields)
    except BadMessage as e:
        if fields is not None:
            raise ConfigError(f"env.fields={list(fields)}: the server's observation does not fit: {e}") from e
        return None


def _renderer(path: str) -> Any:
    try:
        found = imported(path)
    except Exception as e:  # a user's module may raise anything
        raise ConfigError(
            f"env.render={path} cannot be imported: {in_one_line(e)}: it is my_pkg.module:function"
        ) from e
    if not callable(found):
        raise ConfigError(f"env.render={path} is no function")
    return found


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


def schemas_at(url: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the schemas of a server. Raises ConfigError."""
    found = fetched(url, "/schema", headers, remedy=_REMEDY)
    for key in ("action", "observation"):
        if not isinstance(found.get(key), dict):
            raise ConfigError(f"env.urls: {url} has no schema of its {key} at /schema: {_REMEDY}")
    return {key: found[key] for key in ("action", "observation", "reset_observation") if key in found}


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
                    f"env.urls: the actions of {url} are calls of tools, and it gives none ({e}): {_REMEDY}"
                ) from e
        tasks = tasks_of(settings)
        row = next(iter(tasks.values()), {})
        keywords = {"seed": 0, "episode_id": "look", **settings.reset, **row}
        data = await connection.sent(_LOOKED_AT_S, {"type": "reset", "data": keywords})
        observation = data.get("observation")
        if not isinstance(observation, dict):
            raise ConfigError(f"env.urls: {url} answered a reset without an observation: {_REMEDY}")
        return OpenEnvTask(settings, schemas, tools, observation, row)
    finally:
        await connection.close()


def opener_of(env: EnvConfig, indices: range) -> Opener:
    """Return what opens the sessions of the environments with these global indices. Raises ConfigError."""
    task, headers = task_of(env), headers_of(env)

    async def opened(i: int, url: str, open_s: float) -> Connection:
        return await OpenEnvConnection.of_task(url, headers, open_s, task, indices[i])

    return opened
