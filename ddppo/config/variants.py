"""Sections of settings whose keys follow from one of them: a model's from model.name.

Each variant has a dataclass of its own keys, derived from the section's base. Ours are named in a table, those of
plugins by `Plugin.settings`, that of a class at an import path stands in it as `Settings`. A key that the class lacks
is unknown, whoever else may have it. Imports no torch, unless a class at an import path does.
"""

import difflib
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ddppo.config.fields import in_words
from ddppo.config.settings import (
    CnnSettings,
    DictSettings,
    MlpSettings,
    ModelSettings,
    ResnetSettings,
)
from ddppo.errors import ConfigError
from ddppo.plugins import added, imported
from ddppo.tracebacks import in_one_line


class Section(NamedTuple):
    """A section with variants: key names the variant, which option of a group chooses."""

    base: type
    key: str
    group: str
    ours: Mapping[str, type]


SECTIONS_BY_NAME = {
    "model": Section(
        ModelSettings,
        "name",
        "model",
        {"mlp": MlpSettings, "cnn": CnnSettings, "resnet": ResnetSettings, "dict": DictSettings},
    ),
}


def known(section: str) -> dict[str, type]:
    """Return the settings of every variant that is known by a name, by these names."""
    prefix = f"{section}/"
    of_plugins = {
        name.removeprefix(prefix): imported(path)
        for name, path in added("settings").items()
        if name.startswith(prefix)
    }
    return {**SECTIONS_BY_NAME[section].ours, **of_plugins}


def settings_class(section: str, name: str) -> type:
    """Return the dataclass of the settings of a variant. Raises ConfigError where there is no such variant."""
    if name in (ours := SECTIONS_BY_NAME[section].ours):
        return ours[name]
    if path := added("settings").get(f"{section}/{name}"):
        return imported(path)
    return _of_model(name)


def _of_model(name: str) -> type:
    found = getattr(model_at(name), "Settings", MlpSettings)
    if not (isinstance(found, type) and issubclass(found, ModelSettings) and is_dataclass(found)):
        raise ConfigError(
            f"model.name={name}: its Settings must be a dataclass derived from ddppo.config.ModelSettings, or from "
            "MlpSettings, which brings hidden_sizes and the like"
        )
    return found


def model_at(name: str) -> Any:
    """Return what stands where model.name points to, a plugin's name or an import path. Raises ConfigError."""
    models = added("models")
    path = models.get(name, name)
    module, _, attribute = path.partition(":")
    if not (module and attribute):
        names = [*SECTIONS_BY_NAME["model"].ours, *models]
        raise ConfigError(
            f"model.name={name}: neither one of {', '.join(names)} nor an import path like my_pkg.models:MyModel"
        )
    try:
        return imported(path)
    except (Exception, SystemExit) as e:  # a user's module may raise anything
        raise ConfigError(f"model.name={name}: cannot be imported: {in_one_line(e)}") from e


def name_in(section: str, values: Mapping[str, Any]) -> str:
    """Return the variant that `values` of a section name: the base's default where they name none."""
    of_name = next(
        item for item in fields(SECTIONS_BY_NAME[section].base) if item.name == SECTIONS_BY_NAME[section].key
    )
    found = values.get(of_name.name)
    return str(of_name.default if found is None else found)


def settings_of(section: str, **values: Any) -> Any:
    """Return settings of a section by the variant named among them: settings_of("model", name="gnn", graph_width=8).

    Raises ConfigError for a key that the variant lacks.
    """
    name = name_in(section, values)
    check_keys(section, name, values)
    return settings_class(section, name)(**values)


def stored_names(folder: Path) -> dict[str, str]:
    """Return the variants that a run folder's config.yaml names, by section; none where it cannot be read."""
    try:
        loaded: Any = OmegaConf.load(folder / "config.yaml")
        return {section: name_in(section, loaded.get(section) or {}) for section in SECTIONS_BY_NAME}
    except Exception:  # what is wrong with it is told by those who load it
        return {}


def names_of(kind: type) -> list[str]:
    """Return the keys of a variant."""
    return [item.name for item in fields(kind)]


def structured(section: str, values: Mapping[str, Any], also: Sequence[str] = ()) -> DictConfig:
    """Return `values` of a section as settings of the variant that they name.

    also: keys of other variants, which are let in. Raises ConfigError for any other key.
    """
    name = name_in(section, values)
    check_keys(section, name, [key for key in values if key not in also])
    made = empty(settings_class(section, name)).copy()
    if also:
        OmegaConf.set_struct(made, False)
    for item in made.values():
        if isinstance(item, DictConfig):  # of keys that a user makes up
            OmegaConf.set_struct(item, False)
    try:
        merged = OmegaConf.merge(made, dict(values))
    except OmegaConfBaseException as e:
        raise ConfigError(f"{section}.{e.full_key}: {in_words(str(e).splitlines()[0])}") from e
    assert isinstance(merged, DictConfig)
    return merged


@functools.cache
def empty(kind: type) -> DictConfig:
    """Return a variant's settings at their defaults, for a copy of it: it takes milliseconds to make."""
    try:
        made = OmegaConf.structured(kind)
    except OmegaConfBaseException as e:
        raise ConfigError(
            f"{kind.__module__}.{kind.__qualname__}: settings are of types that YAML knows: {' '.join(str(e).split())}"
        ) from e
    assert isinstance(made, DictConfig)
    return made


def check_keys(section: str, name: str, keys: Iterable[str]) -> None:
    """Raise ConfigError where a variant lacks one of `keys`."""
    has = names_of(settings_class(section, name))
    for key in keys:
        if str(key) not in has:
            raise ConfigError(unknown_key(section, name, str(key)))


def unknown_key(section: str, name: str, key: str) -> str:
    """Return that a variant has no such key, and which others have it, or which of its own is meant, perhaps."""
    _, chosen_by, group, _ = SECTIONS_BY_NAME[section]
    said = f"there is no setting {section}.{key}"
    chosen = f"{group}={name}" if group != section else f"{section}.{chosen_by}={name}"
    if owners := owners_of(section, key):
        return f"{said} with {chosen}: it is of {group}={' or '.join(owners)}"
    own = names_of(settings_class(section, name))
    if matches := difflib.get_close_matches(key, own):
        return (
            f"{said} (did you mean {' or '.join(f'{section}.{each}' for each in matches)}?); --help lists all"
        )
    of_others = [each for kind in known(section).values() for each in names_of(kind)]
    if matches := difflib.get_close_matches(key, of_others, n=1):
        meant = f"{section}.{matches[0]} of {group}={' or '.join(owners_of(section, matches[0]))}"
        return f"{said} (did you mean {meant}?); {chosen} has {', '.join(own)}"
    return f"{said}: {chosen} has {', '.join(own)}"


def owners_of(section: str, key: str) -> list[str]:
    """Return the names of the variants that have a key."""
    return [name for name, kind in known(section).items() if key in names_of(kind)]
