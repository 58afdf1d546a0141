"""The settings of env=openenv, and what they and the schemas of a server say of the task.

`OpenEnvSettings` are env.kwargs; `headers_of` and `tasks_of` read the files that settings name. `OpenEnvTask` gives the
keywords of a reset and the data of a step, and turns an observation of the server into that of the policy.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ddppo.config.fields import check_fields, in_words, near, setting
from ddppo.config.settings import Config, EnvConfig
from ddppo.errors import ConfigError, EnvError, in_one_line
from ddppo.plugins import imported
from ddppo.seeding import derived_seed
from ddppo.serve.client.openenv_schema import ActionForm, Schema, actions_of, array, misfit, numbers_of, shown
from ddppo.serve.client.served import check_address, fetched
from ddppo.serve.protocol import BadMessage
from ddppo.spaces import ArraySpec, EnvSpec

REMEDY = "is it a server of OpenEnv 0.10?"
_ADDRESS = re.compile(
    r"(https?|wss?)://(\[[\da-f:.]+\]|[^/\s:@?#[\]]+)(:\d{1,5})?(/[^\s?#@]*)?", re.IGNORECASE
)


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
        self.actions: ActionForm = actions_of(
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


def schemas_at(url: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the schemas of a server. Raises ConfigError."""
    found = fetched(url, "/schema", headers, remedy=REMEDY)
    for key in ("action", "observation"):
        if not isinstance(found.get(key), dict):
            raise ConfigError(f"env.urls: {url} has no schema of its {key} at /schema: {REMEDY}")
    return {key: found[key] for key in ("action", "observation", "reset_observation") if key in found}
