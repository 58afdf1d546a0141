"""What Hydra is told before it composes: the schemas of the groups, the presets' folders, the names of run folders."""

import hashlib
import importlib
import re
import secrets
import string
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from ddppo.config.help import help_text
from ddppo.config.settings import SECTIONS, EnvConfig, config_class
from ddppo.config.variants import (
    SECTIONS_BY_NAME,
    check_keys,
    name_in,
    names_of,
    owners_of,
    settings_class,
    stored_names,
    structured,
)
from ddppo.errors import ConfigError, near
from ddppo.plugins import added, imported, plugins

_SCHEMAS = {"hydra/sweeper/gp_ucb_schema": "ddppo.search.settings:GpUcbSweeperConfig"}  # and those of plugins
# Which keys a section has follows from the variant that presets name in it, and the command line sets these keys: the
# section gets its dataclass between the two. Hydra has no hook there, so its own step is wrapped (`_applied`). It is
# the same in all of 1.3, to which pyproject.toml keeps; tests/conf/test_variants.py fails where Hydra changes it.
_apply = ConfigLoaderImpl._apply_overrides_to_config


class PresetsOfPlugins(SearchPathPlugin):
    """Has Hydra look for presets in the conf/ of each plugin too, behind ddppo's own."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in conf_dirs()[1:]:
            search_path.append("ddppo.plugins", f"file://{folder}")


def register() -> None:
    """Put the schemas into Hydra's ConfigStore: `schema` for the root, `<group>/schema` for each group.

    Plugins bring schemas of their own, by `<group>/<name>`, and presets. Raises ConfigError for a faulty plugin.
    """
    for folder in _plugin_folders():
        if folder not in sys.path:
            sys.path.append(folder)
    Plugins.instance().register(PresetsOfPlugins)
    store = ConfigStore.instance()
    # What Hydra shows of a store, in completion and in messages; it finds entries by their names all the same.
    setattr(store, "list", partial(_shown_options, store))  # noqa: B010 (mypy lets no method be assigned)
    root = OmegaConf.structured(config_class())
    for section, variants in SECTIONS_BY_NAME.items():
        root[section] = _open(variants.base)
    store.store(name="schema", node=root)
    for group, kind in SECTIONS.items():
        has_variants = any(kind is variants.base for variants in SECTIONS_BY_NAME.values())
        store.store(group=group, name="schema", node=_open(kind) if has_variants else kind)
    if ConfigLoaderImpl._apply_overrides_to_config is _apply:
        setattr(ConfigLoaderImpl, "_apply_overrides_to_config", staticmethod(_applied))  # noqa: B010
    for name, node in schemas().items():
        group, _, schema = name.rpartition("/")
        store.store(group=group, name=schema, node=node)
    of_hydra = {name: node for name, node in schemas().items() if name.startswith("hydra/")}
    text = help_text(presets, config_class(), list(SECTIONS), of_hydra)
    help_node = {"app_name": "ddppo", "header": "", "footer": "", "template": text}
    store.store(group="hydra/help", name="ddppo", node=help_node)
    OmegaConf.register_new_resolver("folder_name", folder_name, replace=True)
    OmegaConf.register_new_resolver("product", lambda a, b: int(a) * int(b), replace=True)
    # Drawn here, once: one command means one name wherever it is asked for, in a launcher's processes too.
    OmegaConf.register_new_resolver("stamp", partial(stamp, now=time.localtime(), key=_key()), replace=True)


def schemas() -> dict[str, type]:
    """Return the settings of launchers, sweepers and options of plugins, by `<group>/<name>`."""
    return {name: imported(path) for name, path in (_SCHEMAS | added("schemas")).items()}


def is_schema(name: str) -> bool:
    """Return whether an entry of Hydra's is what presets stand on, and no option of a group."""
    return name == "schema" or name.endswith("_schema")


def _plugin_folders() -> list[str]:
    """Return the folders of launchers and sweepers: Hydra looks for them in packages named hydra_plugins only."""
    packages = ["ddppo.search", *(plugin.package for plugin in plugins())]
    files = [importlib.import_module(package).__file__ for package in packages]
    folders = [Path(file).parent / "_plugins" for file in files if file]
    return [str(folder) for folder in folders if folder.is_dir()]


def _open(kind: type) -> Any:
    """Return a section for presets to fill, whose keys are known once all of them have named its variant."""
    node = OmegaConf.structured(kind)
    OmegaConf.set_struct(node, False)
    return node


def _applied(overrides: list[Override], cfg: DictConfig) -> None:
    """Do what Hydra does with the settings of a command line, after each section with variants has its class.

    The presets are merged by then, and which variant is meant is known.
    """
    given = {each.key_or_group: each.value() for each in overrides if not each.is_delete()}
    for section in SECTIONS_BY_NAME:
        if section in cfg:
            _choose(section, cfg, given)
    _apply(overrides, cfg)


def _choose(section: str, cfg: DictConfig, given: dict[str, Any]) -> None:
    values: Any = OmegaConf.to_container(cfg[section], resolve=False)
    chosen_by = SECTIONS_BY_NAME[section].key
    keys = [key.split(".")[1] for key in given if key.startswith(f"{section}.")]
    resumed = given.get("resume")
    if resumed not in (None, "auto"):  # the run goes on with its own variant: what presets say is left aside
        stored_name = stored_names(Path(str(resumed))).get(section)
        values = {chosen_by: stored_name} if stored_name else values
    if (wanted := given.get(f"{section}.{chosen_by}")) is not None and wanted != name_in(section, values):
        # Another variant than the presets': what they set of theirs alone goes with it.
        has = names_of(settings_class(section, str(wanted)))
        values = {key: value for key, value in values.items() if key in has or not owners_of(section, key)}
        values[chosen_by] = wanted
    name = name_in(section, values)
    foreign: list[str] = []
    if str(given.get("hydra.mode")) == "MULTIRUN":
        # A sweep over variants: each of its runs says which keys it lacks, if they are those of another.
        foreign = [key for key in {*values, *keys} if owners_of(section, key)]
    cfg[section] = structured(section, values, also=foreign)
    check_keys(section, name, [key for key in keys if key not in foreign])
    if foreign:
        OmegaConf.set_struct(cfg[section], False)
    for item in cfg[section].values():
        if isinstance(item, DictConfig):  # of keys that a user makes up
            OmegaConf.set_struct(item, False)


def _shown_options(store: ConfigStore, path: str) -> list[str]:
    return [name for name in ConfigStore.list(store, path) if not is_schema(name.removesuffix(".yaml"))]


def stamp(pattern: str, *, now: time.struct_time, key: str) -> str:
    """Return the time `now` by a pattern of strftime, and the `key` that tells apart what begins in one second."""
    return f"{time.strftime(pattern, now)}_{key}"


def _key() -> str:
    """Return 6 random characters. Of 2,000 drawn in one second two are the same once in a thousand times."""
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(6))


def folder_name(overrides: str) -> str:
    """Return the name of a run's folder in a sweep, made of its overrides: stable, no slash, at most 200 characters.

    A hash tells apart those that would be one after characters were replaced or left out.
    """
    plain = re.sub(r"(^|_)\++", r"\1", overrides)  # ++ adds a setting, and is no part of its name
    name = re.sub(r"[^\w.+@-]", "-", plain, flags=re.ASCII) or "run"
    digest = hashlib.sha256(overrides.encode()).hexdigest()[:10]
    if len(name) > 200:
        return f"{name[:94]}-{digest}-{name[-94:]}"
    return name if name == plain or not plain else f"{name}-{digest[:6]}"


def conf_dir() -> Path:
    """Return the folder of the YAML presets: inside an installed package first, else in the checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


def conf_dirs() -> list[Path]:
    """Return the folders of presets: ddppo's own, then those of plugins."""
    return [conf_dir(), *(plugin.conf for plugin in plugins() if plugin.conf is not None)]


def presets(group: str) -> dict[str, Path]:
    """Return the presets of a group, such as env, or experiment with those in its folders, by their names.

    Raises ConfigError for two of one name: Hydra would take one and pass over the other.
    """
    found: dict[str, Path] = {}
    for folder in conf_dirs():
        for path in sorted((folder / group).rglob("*.yaml")):
            name = path.relative_to(folder / group).with_suffix("").as_posix()
            if name in found:
                raise ConfigError(f"{found[name]} and {path} are both {group}={name}: rename one")
            found[name] = path
    return dict(sorted(found.items()))


# -- A task's own keywords as settings of env: env.circuit=tof_3 is env.kwargs.circuit where the preset of env has it.

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
