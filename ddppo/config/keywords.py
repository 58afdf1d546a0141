"""A task's own keywords as settings of env: `env.circuit=tof_3` is env.kwargs.circuit where the preset of env has it.

Imports no torch.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ddppo.config.compose import conf_dir, presets
from ddppo.config.settings import EnvConfig
from ddppo.errors import ConfigError, near

_STRANGE = re.compile(
    r"[^\s,:(){}\[\]'\"]*[\^~!#&;<>][^\s,:(){}\[\]'\"]*"
)  # words that Hydra reads in quotes alone
_OF_ALL = [f"env.{item.name}" for item in fields(EnvConfig)]


def in_full(settings: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return the settings of a command line with `env.<keyword>=` of the chosen presets as `env.kwargs.<keyword>=`.

    values: all that the command line sets, by key. Raises ConfigError for what is neither a setting of env nor a
    keyword that a preset names.
    """
    return [
        _in_full(setting, values) if setting.lstrip("+").startswith("env.") else setting
        for setting in settings
    ]


def _in_full(setting: str, values: Mapping[str, str]) -> str:
    key, equals, value = setting.partition("=")
    bare = key.lstrip("+")
    if not equals or ".".join(bare.split(".")[:2]) in _OF_ALL:
        return setting
    presets = _chosen(values)
    keywords = [f"env.{name}" for preset in presets for name in _names(_kwargs(preset))]
    if bare in keywords:
        return f"env.kwargs.{bare.removeprefix('env.')}={_quoted(value)}"
    own = [name for preset in presets for name in _names(_kwargs(preset), groups=False)]
    also = f", env={','.join(presets)} also {', '.join(own)}" if own else ""
    raise ConfigError(
        f"there is no setting {bare}{near(bare, [*_OF_ALL, *keywords])}: env has "
        f"{', '.join(name.removeprefix('env.') for name in _OF_ALL)}{also}; "
        "other keywords of a task are env.kwargs.<keyword>"
    )


def _quoted(value: str) -> str:
    """Return a value with quotes around the words that need them, such as gf2^4_mult, unless it has quotes."""
    return value if re.search("['\"]", value) else _STRANGE.sub(r"'\g<0>'", value)


def _chosen(values: Mapping[str, str]) -> list[str]:
    """Return the presets of env that a command line asks for: several in a sweep; of a resumed run it may be any."""
    every = list(presets("env"))
    if "resume" in values:
        return every
    given = values.get("env")
    if given is None and values.get("experiment", "null") != "null":
        given = _named(presets("experiment").get(values["experiment"]), "override /env")
    if given is None:
        given = _named(conf_dir() / "config.yaml", "env")
    return [word for word in re.findall(r"[\w-]+", given or "") if word in every]


def _named(path: Path | None, key: str) -> str | None:
    """Return what the list of defaults of a preset names under a key."""
    if path is None:  # of which Hydra tells
        return None
    defaults = _read(path).get("defaults", ())
    return next((str(item[key]) for item in defaults if isinstance(item, dict) and key in item), None)


def _kwargs(preset: str) -> Any:
    return _read(presets("env")[preset]).get("kwargs", {})


def _read(path: Path) -> dict[str, Any]:
    found = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(found, dict), path
    return {str(key): value for key, value in found.items()}


def _names(kwargs: Any, prefix: str = "", *, groups: bool = True) -> list[str]:
    """Return the names of keywords, such as episode.slack; those of groups too, such as episode, unless told not to."""
    if not isinstance(kwargs, dict):
        return []
    names: list[str] = []
    for key, value in kwargs.items():
        inner = _names(value, f"{prefix}{key}.", groups=groups)
        names += [f"{prefix}{key}"] * (groups or not inner) + inner
    return names
