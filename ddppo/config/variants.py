"""Sections of settings whose keys follow from one of them: a model's from model.name.

Each variant has a dataclass of its own keys, derived from the section's base. Ours are named in a table, those of
plugins by `Plugin.settings`, that of a class at an import path stands in it as `Settings`. A key that the class lacks
is unknown, whoever else may have it. Imports no torch, unless a class at an import path does.
"""

import difflib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ddppo.config.algorithm_settings import AlgorithmSettings, GrpoSettings, PPOSettings
from ddppo.config.fields import in_words
from ddppo.config.model_settings import MODELS, MlpSettings, ModelSettings
from ddppo.config.settings import DistSettings
from ddppo.distributed.topologies.known import TOPOLOGIES, find
from ddppo.errors import ConfigError, in_one_line, near
from ddppo.plugins import added, imported

RENAMED = {"dist.backend": "dist.collective"}  # settings, by the names that they had before
RENAMED_BACKENDS = {"native": "gym_vector"}  # values of env.backend, by the names that they had before


class Variants(NamedTuple):
    """A section whose variants have keys of their own: `key` names the variant, which `chosen_by=<name>` chooses.

    known: the settings of those that have a name, by it. find: of any name or import path; raises ConfigError.
    """

    base: type
    key: str
    chosen_by: str
    known: Callable[[], dict[str, type]]
    find: Callable[[str], type]


def _known_models() -> dict[str, type]:
    of_plugins = {
        name.removeprefix("model/"): imported(path)
        for name, path in added("settings").items()
        if name.startswith("model/")
    }
    return {**{name: spec.settings for name, spec in MODELS.items()}, **of_plugins}


def _of_model(name: str) -> type:
    if name in MODELS:
        return MODELS[name].settings
    if path := added("settings").get(f"model/{name}"):
        return imported(path)
    found = getattr(model_at(name), "Settings", MlpSettings)
    return _derived(
        found, ModelSettings, f"model.name={name}: its Settings", "MlpSettings, which has hidden_sizes"
    )


def _of_topology(name: str) -> type:
    found = find(name).settings
    if found is None:
        return DistSettings
    found = imported(found) if isinstance(found, str) else found
    return _derived(found, DistSettings, f"dist.topology={name}: its settings", "one that does")


_ALGORITHMS: dict[str, type] = {"ppo": PPOSettings, "grpo": GrpoSettings}


def _of_algorithm(name: str) -> type:
    if name not in _ALGORITHMS:
        names = list(_ALGORITHMS)
        raise ConfigError(f"ppo.algorithm={name}: must be one of {', '.join(names)}{near(name, names)}")
    return _ALGORITHMS[name]


def _derived(found: Any, base: type, said: str, other: str) -> type:
    if not (isinstance(found, type) and issubclass(found, base) and is_dataclass(found)):
        raise ConfigError(
            f"{said} must be a dataclass derived from {base.__module__}.{base.__name__}, or from {other}"
        )
    return found


SECTIONS_BY_NAME = {
    "model": Variants(ModelSettings, "name", "model", _known_models, _of_model),
    "dist": Variants(
        DistSettings,
        "topology",
        "distributed",
        lambda: {name: _of_topology(name) for name in TOPOLOGIES},
        _of_topology,
    ),
    "ppo": Variants(AlgorithmSettings, "algorithm", "ppo.algorithm", lambda: _ALGORITHMS, _of_algorithm),
}


def known(section: str) -> dict[str, type]:
    """Return the settings of every variant that is known by a name, by these names."""
    return SECTIONS_BY_NAME[section].known()


def settings_class(section: str, name: str) -> type:
    """Return the dataclass of the settings of a variant. Raises ConfigError where there is no such variant."""
    return SECTIONS_BY_NAME[section].find(name)


_before_user_import: Callable[[], None] | None = None


def call_before_user_import(hook: Callable[[], None]) -> None:
    """Call `hook` each time before a user's model is imported for its settings.

    A command that starts ranks forks their server in it (launch/run.py): ranks inherit nothing that the user's module
    computed or opened in the command's process, and import the module themselves, each with its own RANK.
    """
    global _before_user_import
    _before_user_import = hook


def model_at(name: str) -> Any:
    """Return what stands where model.name points to, a plugin's name or an import path. Raises ConfigError."""
    models = added("models")
    path = models.get(name, name)
    module, _, attribute = path.partition(":")
    if not (module and attribute):
        names = [*MODELS, *models]
        raise ConfigError(
            f"model.name={name}: neither one of {', '.join(names)} nor an import path like my_pkg.models:MyModel"
        )
    if _before_user_import is not None:
        _before_user_import()
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


def changed(section: str, values: Mapping[str, Any], name: str) -> DictConfig:
    """Return settings of another variant that keep of `values` what both have."""
    has = names_of(settings_class(section, name))
    kept = {key: value for key, value in values.items() if key in has}
    return structured(section, kept | {SECTIONS_BY_NAME[section].key: name})


def stored_names(folder: Path) -> dict[str, str]:
    """Return the variants that a run folder's config.yaml names, by section; none where it cannot be read."""
    try:
        loaded: Any = OmegaConf.load(folder / "config.yaml")
        names = {section: name_in(section, loaded.get(section) or {}) for section in SECTIONS_BY_NAME}
        # Before it was a preset of env_workers (stored.load_config).
        return {section: "env_workers" if x == "env_workers_hetero" else x for section, x in names.items()}
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
    made = empty(settings_class(section, name))
    if also:
        made = made.copy()
        OmegaConf.set_struct(made, False)
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
    if (full := f"{section}.{key}") in RENAMED:
        return f"{full} is called {RENAMED[full]} now"
    variants = SECTIONS_BY_NAME[section]
    chosen_by = variants.chosen_by
    said = f"there is no setting {section}.{key}"
    chosen = f"{chosen_by}={name}" if chosen_by == "distributed" else f"{section}.{variants.key}={name}"
    if owners := owners_of(section, key):
        return f"{said} with {chosen}: it is of {chosen_by}={' or '.join(owners)}"
    own = names_of(settings_class(section, name))
    if matches := difflib.get_close_matches(key, own):
        return (
            f"{said} (did you mean {' or '.join(f'{section}.{each}' for each in matches)}?); --help lists all"
        )
    of_others = [each for kind in known(section).values() for each in names_of(kind)]
    if matches := difflib.get_close_matches(key, of_others, n=1):
        meant = f"{section}.{matches[0]} of {chosen_by}={' or '.join(owners_of(section, matches[0]))}"
        return f"{said} (did you mean {meant}?); --help lists all"
    return f"{said}: {chosen} has {', '.join(own)}"


def own_keys(section: str, name: str) -> list[str]:
    """Return the keys that a variant has and the section's base has not."""
    common = names_of(SECTIONS_BY_NAME[section].base)
    return [key for key in names_of(settings_class(section, name)) if key not in common]


def owners_of(section: str, key: str) -> list[str]:
    """Return the names of the variants that have a key, [] where all have."""
    if key in names_of(SECTIONS_BY_NAME[section].base):
        return []
    return [name for name, kind in known(section).items() if key in names_of(kind)]


def type_of(key: str, types: Mapping[str, Any]) -> Any:
    """Return the annotation of a setting by its full key, one of `types` or of some variant; None if there is none."""
    section, _, name = key.partition(".")
    if key in types or section not in SECTIONS_BY_NAME:
        return types.get(key)
    return next(
        (item.type for kind in known(section).values() for item in fields(kind) if item.name == name), None
    )
