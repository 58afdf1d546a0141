"""Presets (YAML) and settings' dataclasses as files and names, and what a command line chooses of them.

Imports no Hydra, so that help and most mistakes are answered before Hydra is imported; compose.py hands both to Hydra.
At the end of the file: keywords of a task as settings, env.circuit=tof_3 for env.kwargs.circuit=tof_3.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ddppo.algorithms.known import PPO
from ddppo.config.fields import not_whole, setting_types
from ddppo.config.help import help_text, unknown_setting
from ddppo.config.settings import SECTIONS, EnvConfig, config_class
from ddppo.config.variants import SECTIONS_WITH_VARIANTS, no_ppo_with
from ddppo.errors import ConfigError, near
from ddppo.plugins import added, imported, plugins

_SCHEMAS = {"hydra/sweeper/gp_ucb_schema": "ddppo.search.settings:GpUcbSweeperConfig"}  # and those of plugins


def conf_dir() -> Path:
    """Return the folder of the presets (YAML): in the package if it is installed, else in the checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


def conf_dirs() -> list[Path]:
    """Return the folders of presets: ddppo's own, then those of plugins."""
    return [conf_dir(), *(plugin.conf for plugin in plugins() if plugin.conf is not None)]


def presets(group: str) -> dict[str, Path]:
    """Return the presets of a group such as env, by name. Presets in subfolders, as of experiment, have names a/b.

    Raises ConfigError for two presets of one name: Hydra would silently take one of them.
    """
    # All folders: two packages may have a preset of one name.
    found: dict[str, Path] = {}
    for folder in conf_dirs():
        for path in sorted((folder / group).rglob("*.yaml")):
            name = path.relative_to(folder / group).with_suffix("").as_posix()
            if name in found:
                raise ConfigError(f"{found[name]} and {path} are both {group}={name}: rename one")
            found[name] = path
    return dict(sorted(found.items()))


def schemas() -> dict[str, type]:
    """Return the dataclasses of launchers, sweepers and plugins' options, by `<group>/<name>`."""
    return {name: imported(path) for name, path in (_SCHEMAS | added("schemas")).items()}


def is_schema(name: str) -> bool:
    """Return whether an entry of Hydra's store is a schema, which presets derive from, and not an option of a group."""
    return name == "schema" or name.endswith("_schema")


def shown_help(topic: str | None = None) -> str:
    """Return the text of `--help`, or of `--help <topic>`.

    Hydra would compose a configuration first, and list its groups one by one: 1.5 s.
    """
    of_hydra = {name: node for name, node in schemas().items() if name.startswith("hydra/")}
    return help_text(presets, config_class(), list(SECTIONS), of_hydra, topic)


# -- Mistakes that one setting shows by itself.

_PLAIN = re.compile(
    r"([a-z]\w*(?:\.[a-z]\w*)*)=([\w.+-]+)", re.IGNORECASE
)  # neither a flag nor Hydra's grammar
_OWN_MODULE = "ddppo.config.settings"  # of sections that are no plugin's
_WORD = re.compile(r"(?!(?:null|none|true|false|yes|no|on|off|y|n|inf|nan)$)[a-z_]+", re.IGNORECASE)


def refuse_plain_mistakes(arguments: Sequence[str]) -> None:
    """Raise ConfigError for a name that exists nowhere, or a word where a whole number is asked for.

    Hydra would find both, in the same words, after it has been imported and has composed the presets: half a second.
    This looks only at commands of plain settings, and leaves to Hydra names that depend on a preset or on a variant.
    """
    found = [_PLAIN.fullmatch(argument) for argument in arguments]
    pairs = [(match[1], match[2]) for match in found if match]
    if len(pairs) < len(arguments):
        return
    root = config_class()
    types = setting_types(root)
    # Sections that have the same keys with every preset, and all names with which a setting may begin.
    fixed = {
        item.name for item in fields(root) if getattr(item.default_factory, "__module__", "") == _OWN_MODULE
    }
    fixed -= {"env", *SECTIONS_WITH_VARIANTS}
    first_words = {
        *(name.partition(".")[0] for name in types),
        *SECTIONS_WITH_VARIANTS,
        *SECTIONS,
        "experiment",
    }
    for key, value in pairs:
        section, dot, name = key.partition(".")
        is_lost = section not in first_words and section != "hydra"
        if is_lost or (section in fixed and dot and "." not in name and key not in types):
            raise ConfigError(unknown_setting(key, root))
        is_whole = (section in fixed or section == "env" or not dot) and types.get(key) in (int, int | None)
        if is_whole and _WORD.fullmatch(value):
            raise ConfigError(f"{key}={value}: {not_whole(value)}")


# -- The algorithms of a command line, before it is composed.


def algorithms(values: Mapping[str, str]) -> list[str]:
    """Return the values of algorithm.name that a command line may choose: several in a sweep.

    values: the settings of the command line, by key. A resumed run keeps its own algorithm, which is not among them.
    """
    if "algorithm.name" in values:
        return values["algorithm.name"].split(",")
    given = values.get("algorithm")
    if given is None:
        given = _named(presets("experiment").get(values.get("experiment", "")), "override /algorithm")
    return list(filter(None, map(_algorithm_of, (given or PPO).split(","))))


def _algorithm_of(word: str) -> str | None:
    """Return the algorithm.name of a preset of algorithm, or of an import path; None if there is no such preset."""
    if ":" in word:
        return word
    path = presets("algorithm").get(word)
    read = {} if path is None else read_preset(path)
    return None if path is None else str({**(read.get("algorithm") or {}), **read}.get("name", PPO))


def training_section_of(settings: Sequence[str]) -> str:
    """Return the section with the settings of the algorithm that a command line trains with: ppo or algorithm."""
    values = {key.lstrip("+"): value for key, _, value in (setting.partition("=") for setting in settings)}
    names = algorithms(values)
    return "algorithm" if names and PPO not in names else "ppo"


def check_algorithm(values: Mapping[str, str]) -> None:
    """Refuse presets and settings of ppo if no run of the command line trains with PPO or GRPO. Raises ConfigError."""
    names = algorithms(values)
    if not names or PPO in names or "resume" in values:
        return
    for key, value in values.items():
        if key == "ppo" or key.startswith("ppo."):
            raise ConfigError(no_ppo_with(names[0], f"ppo={value}" if key == "ppo" else key))
    # An experiment that sets PPO up is a study of PPO.
    experiment = values.get("experiment", "null")
    path = presets("experiment").get(experiment)
    if path is not None and (_named(path, "override /ppo") is not None or "ppo" in read_preset(path)):
        raise ConfigError(
            f"algorithm={names[0]} with experiment={experiment}, which has settings of PPO: leave one of them out"
        )


# -- Keywords of a task as settings of env: env.circuit=tof_3 means env.kwargs.circuit=tof_3 if the env preset names it.

# Words that Hydra reads only in quotes.
_STRANGE = re.compile(r"[^\s,:(){}\[\]'\"]*[\^~!#&;<>][^\s,:(){}\[\]'\"]*")
_OF_ALL = [f"env.{item.name}" for item in fields(EnvConfig)]


def in_full(settings: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return the settings of a command line with `env.<keyword>=` written as `env.kwargs.<keyword>=`.

    values: the settings of the command line, by key. Raises ConfigError for a name that is neither a setting of env nor
    a keyword in the env presets that the command line chooses.
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
    # A setting of env passes; a keyword of a chosen preset goes below kwargs; anything else is a mistake.
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
    """Return a value with quotes around the words that need them, such as gf2^4_mult, unless it is quoted already."""
    return value if re.search("['\"]", value) else _STRANGE.sub(r"'\g<0>'", value)


def _chosen(values: Mapping[str, str]) -> list[str]:
    """Return the env presets that a command line chooses: several in a sweep, all for a resumed run."""
    every = list(presets("env"))
    if "resume" in values:
        return every
    given = values.get("env")
    # An experiment may choose the env preset, and conf/config.yaml has the default.
    if given is None and values.get("experiment", "null") != "null":
        given = _named(presets("experiment").get(values["experiment"]), "override /env")
    if given is None:
        given = _named(conf_dir() / "config.yaml", "env")
    return [word for word in re.findall(r"[\w-]+", given or "") if word in every]


def _named(path: Path | None, key: str) -> str | None:
    """Return the entry of a key in a preset's list of defaults, if there is one."""
    if path is None:  # Hydra reports the missing preset
        return None
    defaults = read_preset(path).get("defaults", ())
    return next((str(item[key]) for item in defaults if isinstance(item, dict) and key in item), None)


def _kwargs(preset: str) -> Any:
    return read_preset(presets("env")[preset]).get("kwargs", {})


def read_preset(path: Path) -> dict[str, Any]:
    found = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(found, dict), path
    return {str(key): value for key, value in found.items()}


def _names(kwargs: Any, prefix: str = "", *, groups: bool = True) -> list[str]:
    """Return the names of keywords, such as episode.slack, and with `groups` also those of groups, such as episode."""
    if not isinstance(kwargs, dict):
        return []
    names: list[str] = []
    for key, value in kwargs.items():
        inner = _names(value, f"{prefix}{key}.", groups=groups)
        names += [f"{prefix}{key}"] * (groups or not inner) + inner
    return names
