"""Sections with keys by variant: model.* depends on model.name, dist.* on dist.topology, ppo.* on ppo.algorithm.

algorithm.* depends on algorithm.name.

A variant is one value of that setting, such as model.name=cnn. Each variant has a dataclass of its keys, derived from
the section's base class, which has the keys of all variants. A key that the dataclass lacks does not exist, even if
another variant has it: no rule "has no effect" is needed.

The dataclass of a variant is found in three places:
    ddppo's own: in a table here, in config/model_settings.py, or in algorithms/known.py.
    A plugin's model or algorithm: `Plugin.settings` names it.
    A class at an import path: a model, model.name=my_pkg.models:MyModel, has it as its attribute `Settings`, an
    algorithm, algorithm.name=my_pkg.algos:Reinforce, as its attribute `settings_class`.

Imports no torch, unless a user's class at an import path does.
"""

import difflib
import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ddppo.algorithms.known import ALGORITHMS, PPO
from ddppo.config.algorithm_settings import (
    AlgorithmChoice,
    AlgorithmSettings,
    GrpoSettings,
    PPOSettings,
    SurrogateSettings,
)
from ddppo.config.fields import in_words
from ddppo.config.model_settings import MODELS, MlpSettings, ModelSettings
from ddppo.config.settings import DistSettings
from ddppo.distributed.topologies.known import TOPOLOGIES, find
from ddppo.errors import ConfigError, in_one_line, near
from ddppo.plugins import added, imported

RENAMED = {  # old name of a setting -> its name now
    "dist.backend": "dist.collective",
    "ppo.divide_by_std": "ppo.scale_by (group for true, none for false)",
}
RENAMED_BACKENDS = {"native": "gym_vector"}  # old value of env.backend -> its value now


class Variants(NamedTuple):
    """A section with variants, each with its own keys."""

    base: type  # dataclass of the keys that all variants have
    key: str  # the setting that names the variant, without the section: "name" of model.name
    chosen_by: str  # how a command line chooses one: model=cnn, distributed=ddp, ppo.algorithm=grpo
    known: Callable[[], dict[str, type]]  # dataclasses of the variants that have a name, by name
    find: Callable[[str], type]  # dataclass of any name or import path; raises ConfigError


def _known_models() -> dict[str, type]:
    of_plugins = {
        name.removeprefix("model/"): imported(path)
        for name, path in added("settings").items()
        if name.startswith("model/")
    }
    return {**{name: spec.settings for name, spec in MODELS.items()}, **of_plugins}


def _model_settings(name: str) -> type:
    if name in MODELS:
        return MODELS[name].settings
    if path := added("settings").get(f"model/{name}"):
        return imported(path)
    found = getattr(model_at(name), "Settings", MlpSettings)
    return _derived(
        found, ModelSettings, f"model.name={name}: its Settings", "MlpSettings, which has hidden_sizes"
    )


def _topology_settings(name: str) -> type:
    found = find(name).settings
    if found is None:
        return DistSettings
    found = imported(found) if isinstance(found, str) else found
    owner = f"dist.topology={name}: its settings"
    return _derived(found, DistSettings, owner, "settings of ddppo's topologies")


_SURROGATES: dict[str, type] = {"ppo": PPOSettings, "grpo": GrpoSettings}


def _surrogate_settings(name: str) -> type:
    if name in _SURROGATES:
        return _SURROGATES[name]
    names = list(_SURROGATES)
    other = f"; any other algorithm is chosen by algorithm={name}" if _is_other_algorithm(name) else ""
    raise ConfigError(f"ppo.algorithm={name}: must be one of {', '.join(names)}{near(name, names)}{other}")


def _is_other_algorithm(name: str) -> bool:
    return ":" in name or name in ALGORITHMS or name in added("algorithms")


def _known_algorithms() -> dict[str, type]:
    of_plugins = [
        name.removeprefix("algorithm/") for name in added("settings") if name.startswith("algorithm/")
    ]
    return {PPO: AlgorithmChoice, **{name: _algorithm_settings(name) for name in (*ALGORITHMS, *of_plugins)}}


def _algorithm_settings(name: str) -> type:
    if name == PPO:
        return AlgorithmChoice
    if name in _SURROGATES:
        raise ConfigError(
            f"algorithm.name={name} is the algorithm ppo with ppo.algorithm={name}: use algorithm={name}"
        )
    if name in ALGORITHMS:
        return imported(ALGORITHMS[name].settings)
    if path := added("settings").get(f"algorithm/{name}"):
        return imported(path)
    found = algorithm_at(name)
    if not hasattr(found, "settings_class"):
        raise ConfigError(f"algorithm={name}: must be a subclass of ddppo.algorithms.contract.Algorithm")
    owner = f"algorithm={name}: its settings_class"
    return _derived(found.settings_class, AlgorithmSettings, owner, "settings of ddppo's algorithms")


def _derived(found: Any, base: type, subject: str, other: str) -> type:
    """Return `found`. Raises ConfigError unless it is a dataclass derived from `base`."""
    if not (isinstance(found, type) and issubclass(found, base) and is_dataclass(found)):
        raise ConfigError(
            f"{subject} must be a dataclass derived from {base.__module__}.{base.__name__}, or from {other}"
        )
    _check_annotations(found, base, subject)
    return found


def _check_annotations(found: type, base: type, subject: str) -> None:
    """Raise ConfigError if a setting of a user's dataclass is none, has no default, or changes the type of ours."""
    has = {item.name: item for item in fields(found)}
    lost = [name for name in inspect.get_annotations(found) if name not in has and not name.startswith("_")]
    if lost and "__dataclass_fields__" not in vars(found):
        raise ConfigError(
            f"{subject}: {found.__name__} is not decorated, so that {', '.join(lost)} is no setting: write @dataclass "
            "above the class"
        )
    for name, item in has.items():
        if isinstance(item.default, property):  # of a base class, which has a value where this has none
            raise ConfigError(
                f"{subject}: {found.__name__}.{name} has no default: write {name}: ... = <value>"
            )
    types, ours = typing.get_type_hints(found), typing.get_type_hints(base)
    for item in fields(base):
        if types[item.name] != ours[item.name]:
            raise ConfigError(
                f"{subject}: {found.__name__}.{item.name} is of type {_type_name(types[item.name])}, and the setting "
                f"{item.name} of all is of type {_type_name(ours[item.name])}: use another name for it"
            )


def _type_name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


SECTIONS_WITH_VARIANTS = {
    "model": Variants(ModelSettings, "name", "model", _known_models, _model_settings),
    "dist": Variants(
        DistSettings,
        "topology",
        "distributed",
        lambda: {name: _topology_settings(name) for name in TOPOLOGIES},
        _topology_settings,
    ),
    "algorithm": Variants(AlgorithmChoice, "name", "algorithm", _known_algorithms, _algorithm_settings),
    "ppo": Variants(
        SurrogateSettings, "algorithm", "ppo.algorithm", lambda: _SURROGATES, _surrogate_settings
    ),
}


def known(section: str) -> dict[str, type]:
    """Return the dataclasses of the variants that have a name, by name."""
    return SECTIONS_WITH_VARIANTS[section].known()


def settings_class(section: str, name: str) -> type:
    """Return the dataclass of a variant's settings. Raises ConfigError if there is no such variant."""
    return SECTIONS_WITH_VARIANTS[section].find(name)


_before_user_import: Callable[[], None] | None = None


def call_before_user_import(hook: Callable[[], None]) -> None:
    """Call `hook` each time before a user's model or algorithm is imported for its settings.

    A command that starts ranks forks their server in it (launch/run.py): ranks inherit nothing that the user's module
    computed or opened in the command's process, and import the module themselves, each with its own RANK.
    """
    global _before_user_import
    _before_user_import = hook


def model_at(name: str) -> Any:
    """Return the object that model.name names: a plugin's model, or one at an import path. Raises ConfigError."""
    models = added("models")
    path = models.get(name, name)
    return _own(f"model.name={name}", path, [*MODELS, *models], "my_pkg.models:MyModel")


def algorithm_at(name: str) -> Any:
    """Return the class that algorithm.name names, of ddppo, of a plugin or at an import path. Raises ConfigError."""
    plugged = added("algorithms")
    path = ALGORITHMS[name].algorithm if name in ALGORITHMS else plugged.get(name, name)
    names = [PPO, "grpo", *ALGORITHMS, *plugged]
    return _own(f"algorithm={name}", path, names, "my_pkg.algos:Reinforce")


def _own(setting: str, path: str, names: list[str], example: str) -> Any:
    """Return the object at an import path of the user's. Raises ConfigError. names: what has a name instead."""
    module, _, attribute = path.partition(":")
    if not (module and attribute):
        raise ConfigError(
            f"{setting}: neither one of {', '.join(names)} nor an import path like {example}{near(path, names)}"
        )
    if _before_user_import is not None:
        _before_user_import()
    try:
        return imported(path)
    except (Exception, SystemExit) as e:  # a user's module may raise anything
        raise ConfigError(f"{setting}: cannot be imported: {in_one_line(e)}") from e


def variant_of(section: str, values: Mapping[str, Any]) -> str:
    """Return the name of the variant in the `values` of a section: the default if they have none."""
    variants = SECTIONS_WITH_VARIANTS[section]
    naming = next(item for item in fields(variants.base) if item.name == variants.key)
    found = values.get(naming.name)
    return str(naming.default if found is None else found)


def settings_of(section: str, **values: Any) -> Any:
    """Return the settings of a variant as its dataclass: settings_of("model", name="gnn", graph_width=8).

    Raises ConfigError for a key that the variant lacks.
    """
    name = variant_of(section, values)
    check_keys(section, name, values)
    return settings_class(section, name)(**values)


def changed(section: str, values: Mapping[str, Any], name: str) -> DictConfig:
    """Return settings of the variant `name` that keep the `values` of the keys that it has."""
    has = keys_of(settings_class(section, name))
    kept = {key: value for key, value in values.items() if key in has}
    return structured(section, kept | {SECTIONS_WITH_VARIANTS[section].key: name})


def stored_variants(folder: Path) -> dict[str, str]:
    """Return the name of the variant in a run folder's config.yaml, by section; {} if it cannot be read."""
    try:
        loaded: Any = OmegaConf.load(folder / "config.yaml")
        names = {
            section: variant_of(section, loaded.get(section) or {}) for section in SECTIONS_WITH_VARIANTS
        }
        # Of older runs: it is a preset of env_workers now (stored.load_config).
        return {section: "env_workers" if x == "env_workers_hetero" else x for section, x in names.items()}
    except Exception:  # the command that loads it reports the fault
        return {}


def keys_of(kind: type) -> list[str]:
    """Return the keys of a variant's dataclass."""
    return [item.name for item in fields(kind)]


def structured(section: str, values: Mapping[str, Any], also: Sequence[str] = ()) -> DictConfig:
    """Return the `values` of a section as settings of the variant that they name.

    also: keys of other variants that are accepted too. Raises ConfigError for any other key.
    """
    name = variant_of(section, values)
    check_keys(section, name, [key for key in values if key not in also])
    made = defaults_of(settings_class(section, name))
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
def defaults_of(kind: type) -> DictConfig:
    """Return a variant's settings at their defaults, to be copied: made once, since that takes milliseconds."""
    try:
        made = OmegaConf.structured(kind)
    except OmegaConfBaseException as e:
        raise ConfigError(
            f"{kind.__module__}.{kind.__qualname__}: settings are of types that YAML knows: {' '.join(str(e).split())}"
        ) from e
    assert isinstance(made, DictConfig)
    return made


def check_keys(section: str, name: str, keys: Iterable[str]) -> None:
    """Raise ConfigError if a variant lacks one of `keys`."""
    has = keys_of(settings_class(section, name))
    for key in keys:
        if str(key) not in has:
            raise ConfigError(unknown_key(section, name, str(key)))


def unknown_key(section: str, name: str, key: str) -> str:
    """Return the message about a key that a variant lacks: which variants have it, or which key was meant."""
    if (full := f"{section}.{key}") in RENAMED:
        return f"{full} is called {RENAMED[full]} now"
    variants = SECTIONS_WITH_VARIANTS[section]
    chosen_by = variants.chosen_by
    unknown = f"there is no setting {section}.{key}"
    chosen = f"{section}.{variants.key}={name}" if section in ("model", "ppo") else f"{chosen_by}={name}"
    if (section, name) == ("algorithm", PPO):
        of_ppo = {each for kind in _SURROGATES.values() for each in keys_of(kind)}
        if key in of_ppo or not owners_of(section, key):
            use = (
                f": use ppo.{key}"
                if key in of_ppo
                else near(f"ppo.{key}", [f"ppo.{each}" for each in sorted(of_ppo)])
            )
            return f"{unknown} with {chosen}, which has its settings in the section ppo{use}"
    # Another variant has exactly this key; else a similar key of this variant, of another one; else list all.
    if owners := owners_of(section, key):
        return f"{unknown} with {chosen}: it is of {chosen_by}={' or '.join(owners)}"
    own = keys_of(settings_class(section, name))
    if matches := difflib.get_close_matches(key, own):
        meant = " or ".join(f"{section}.{each}" for each in matches)
        return f"{unknown} (did you mean {meant}?); --help {section} lists them"
    of_others = [each for kind in known(section).values() for each in keys_of(kind)]
    if matches := difflib.get_close_matches(key, of_others, n=1):
        meant = f"{section}.{matches[0]} of {chosen_by}={' or '.join(owners_of(section, matches[0]))}"
        return f"{unknown} (did you mean {meant}?); --help {section} lists them"
    return f"{unknown}: {chosen} has {', '.join(own)}"


def no_ppo_with(name: str, key: str) -> str:
    """Return the message about a setting of the section ppo with another algorithm. key: "ppo.gamma", or "ppo=..."."""
    has = keys_of(settings_class("algorithm", name))
    wanted = key.removeprefix("ppo.")
    use = f"use algorithm.{wanted}" if wanted in has else f"it has {', '.join(has)}"
    if key.startswith("ppo="):
        use = "leave it out"
    return (
        f"{key} has no effect with algorithm={name}, which has its settings in the section algorithm: {use}"
    )


def own_keys(section: str, name: str) -> list[str]:
    """Return the keys of a variant that the section's base class lacks."""
    common = keys_of(SECTIONS_WITH_VARIANTS[section].base)
    return [key for key in keys_of(settings_class(section, name)) if key not in common]


def owners_of(section: str, key: str) -> list[str]:
    """Return the names of the variants that have a key; [] if all have it."""
    if key in keys_of(SECTIONS_WITH_VARIANTS[section].base):
        return []
    return [name for name, kind in known(section).items() if key in keys_of(kind)]


def type_of(key: str, types: Mapping[str, Any]) -> Any:
    """Return the annotation of a setting by its full key, in `types` or of any variant; None if there is none."""
    section, _, name = key.partition(".")
    if key in types or section not in SECTIONS_WITH_VARIANTS:
        return types.get(key)
    kinds = [*known(section).values(), *([AlgorithmSettings] if section == "algorithm" else [])]
    return next((item.type for kind in kinds for item in fields(kind) if item.name == name), None)
