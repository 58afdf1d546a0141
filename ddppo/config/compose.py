"""What Hydra needs before it composes a configuration: schemas, folders of presets, resolvers, and keys by variant.

`register` is the one call. Hydra then merges in this order: schemas, presets, the command line. The keys of a section
may depend on its variant (variants.py), which is known between the last two steps: `_apply_with_variants` stands there.
The presets themselves, as files and names, are presets.py's.
"""

import hashlib
import importlib
import re
import secrets
import string
import sys
import time
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from ddppo.algorithms.known import PPO
from ddppo.config.fields import is_integer
from ddppo.config.presets import conf_dirs, is_schema, presets, read_preset, schemas
from ddppo.config.settings import SECTIONS, config_class
from ddppo.config.variants import (
    SECTIONS_WITH_VARIANTS,
    check_keys,
    keys_of,
    no_ppo_with,
    owners_of,
    settings_class,
    stored_variants,
    structured,
    variant_of,
)
from ddppo.errors import ConfigError
from ddppo.plugins import plugins

# Hydra's own step that applies the command line. It is wrapped, since Hydra has no hook there. It is the same in all of
# Hydra 1.3, which pyproject.toml asks for; tests/conf/test_variants.py fails if Hydra changes it.
_apply = ConfigLoaderImpl._apply_overrides_to_config
_get_mode = Hydra.get_mode


class PresetsOfPlugins(SearchPathPlugin):
    """Adds the conf/ of each plugin to Hydra's search path, behind ddppo's own."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in conf_dirs()[1:]:
            search_path.append("ddppo.plugins", f"file://{folder}")


def register() -> None:
    """Register schemas, presets and resolvers with Hydra. Raises ConfigError for a faulty plugin.

    The schema of the root is `schema`, that of a group `<group>/schema`. A plugin names its own, as `<group>/<name>`.
    """
    # Launchers, sweepers and presets of plugins.
    for folder in _plugin_folders():
        if folder not in sys.path:
            sys.path.append(folder)
    Plugins.instance().register(PresetsOfPlugins)
    store = ConfigStore.instance()
    # Hide schemas from completion and messages. Hydra finds entries by name, not by this list.
    setattr(store, "list", partial(_shown_options, store))  # noqa: B010 (mypy lets no method be assigned)
    _store_schemas(store)
    if ConfigLoaderImpl._apply_overrides_to_config is _apply:
        setattr(ConfigLoaderImpl, "_apply_overrides_to_config", staticmethod(_apply_with_variants))  # noqa: B010
    if Hydra.get_mode is _get_mode:
        setattr(Hydra, "get_mode", _mode_by_composing_once)  # noqa: B010
    # Resolvers, for ${name:...} in presets. The stamp is drawn once: one command means one folder, wherever it is read,
    # also in a launcher's processes.
    OmegaConf.register_new_resolver("folder_name", folder_name, replace=True)
    OmegaConf.register_new_resolver("task_folder", task_folder, replace=True)
    OmegaConf.register_new_resolver("product", lambda a, b: int(a) * int(b), replace=True)
    OmegaConf.register_new_resolver("stamp", partial(stamp, now=time.localtime(), key=_key()), replace=True)


def _store_schemas(store: ConfigStore) -> None:
    # A section with variants accepts any key until its variant is known.
    root = OmegaConf.structured(config_class())
    for section, variants in SECTIONS_WITH_VARIANTS.items():
        root[section] = _open(variants.base)
    store.store(name="schema", node=root)
    for group, kind in SECTIONS.items():
        has_variants = any(kind is variants.base for variants in SECTIONS_WITH_VARIANTS.values())
        store.store(group=group, name="schema", node=_open(kind) if has_variants else kind)
    for name, node in schemas().items():
        group, _, schema = name.rpartition("/")
        store.store(group=group, name=schema, node=node)


def _plugin_folders() -> list[str]:
    """Return the folders that hold a package `hydra_plugins`: Hydra looks for launchers and sweepers only there."""
    packages = ["ddppo.search", *(plugin.package for plugin in plugins())]
    files = [importlib.import_module(package).__file__ for package in packages]
    folders = [Path(file).parent / "_plugins" for file in files if file]
    return [str(folder) for folder in folders if folder.is_dir()]


def _open(kind: type) -> Any:
    """Return the schema of a section that accepts any key: presets fill it before its variant is known."""
    node = OmegaConf.structured(kind)
    OmegaConf.set_struct(node, False)
    return node


def _apply_with_variants(overrides: list[Override], cfg: DictConfig) -> None:
    """Give each section the dataclass of its variant, then let Hydra apply the settings of the command line.

    The presets are merged into `cfg` by then, so the variant is known.
    """
    overrides = _for_run(overrides, cfg)
    given = {each.key_or_group: each.value() for each in overrides if not each.is_delete()}
    added = [each.key_or_group for each in overrides if each.is_force_add()]
    for section in SECTIONS_WITH_VARIANTS:
        if section in cfg:
            _fix_variant(section, cfg, given, added)
    if "algorithm" in cfg:
        _leave_out_ppo(cfg, [key for key in given if key.startswith("ppo.")])
    for override in overrides:
        _write_out(override, cfg)
    _apply(overrides, cfg)


_SINGLE = ["hydra.mode=RUN"]


def _mode_by_composing_once(hydra: Hydra, config_name: str | None, overrides: list[str]) -> Any:
    """Return the mode of a command, single or sweep, and keep the composed configuration for the run.

    Hydra composes every command twice, at first only to see whether a preset sets hydra.mode. The two results, or the
    two errors, of a single run are the same, unless a setting is a sweep or a preset leaves a choice open.
    """
    loader = hydra.config_loader
    asked = list(overrides)
    found: DictConfig | None = None
    error: Exception | None = None
    try:
        if any(each.is_sweep_override() for each in OverridesParser.create().parse_overrides(asked)):
            return _get_mode(hydra, config_name, overrides)
        found = loader.load_configuration(
            config_name, asked, RunMode.MULTIRUN, validate_sweep_overrides=False
        )
    except Exception as e:
        error = e
    choices: Any = {} if found is None else OmegaConf.to_container(found.hydra.runtime.choices)
    if found is not None and "???" in choices.values():
        return found.hydra.mode

    def kept(config_name: str | None, overrides: list[str], run_mode: RunMode, **more: Any) -> DictConfig:
        """Do load_configuration's work once; after that, it is Hydra's own again."""
        delattr(loader, "load_configuration")
        # Hydra adds the mode that it has chosen.
        added = overrides[len(asked) :]
        if run_mode != RunMode.RUN or overrides[: len(asked)] != asked or added not in ([], _SINGLE):
            return loader.load_configuration(config_name, overrides, run_mode, **more)
        if error is not None:
            raise error
        assert found is not None
        if added:
            found.hydra.mode = RunMode.RUN
            found.hydra.overrides.hydra.extend(added)
        return found

    setattr(loader, "load_configuration", kept)  # noqa: B010
    return None if found is None else found.hydra.mode


def _for_run(overrides: list[Override], cfg: DictConfig) -> list[Override]:
    """Return the settings of the command line without those of other algorithms in a sweep over several.

    In such a sweep launch/arguments.py writes ++ in front of ppo.* and algorithm.*. Settings of ppo.* are then for the
    runs of PPO and GRPO alone, and those of algorithm.* for the others.
    """
    name = next((each.value() for each in overrides if each.key_or_group == "algorithm.name"), None)
    if name is None:
        name = OmegaConf.select(cfg, "algorithm.name")
    other = "algorithm." if name in (None, PPO) else "ppo."
    return [each for each in overrides if not (each.is_force_add() and each.key_or_group.startswith(other))]


_TOO_LARGE = 2.0**63  # for any whole number


def _write_out(override: Override, cfg: DictConfig) -> None:
    """Make a whole number of 1e6, if a setting of a user's own class is one: its type is known only now."""
    section, _, key = override.key_or_group.partition(".")
    value = override.value() if section in SECTIONS_WITH_VARIANTS and section in cfg else None
    if isinstance(value, float) and abs(value) < _TOO_LARGE and value.is_integer():
        kind = settings_class(section, variant_of(section, cfg[section]))
        if any(item.name == key and is_integer(item.type) for item in fields(kind)):
            override._value = int(value)


def _leave_out_ppo(cfg: DictConfig, keys: list[str]) -> None:
    """Remove the section ppo from `cfg` if another algorithm trains. keys: its settings on the command line.

    Raises ConfigError if there are any.
    """
    name = cfg.algorithm.name
    if name == PPO:
        return
    for key in keys:
        raise ConfigError(no_ppo_with(name, key))
    OmegaConf.set_struct(cfg, False)
    cfg.pop("ppo", None)
    OmegaConf.set_struct(cfg, True)


def _fix_variant(section: str, cfg: DictConfig, given: dict[str, Any], added: list[str]) -> None:
    """Replace a section in `cfg` by one of its variant's dataclass.

    Args:
        given: the settings of the command line, by key.
        added: keys of those that ++ adds.

    Raises ConfigError for a key that the variant lacks.
    """
    # 1. Which variant? A resumed run keeps its own, and presets do not matter. Else the command line wins over presets.
    values: Any = OmegaConf.to_container(cfg[section], resolve=False)
    chosen_by = SECTIONS_WITH_VARIANTS[section].key
    keys = [key.split(".")[1] for key in given if key.startswith(f"{section}.")]
    resumed = given.get("resume")
    if resumed not in (None, "auto"):
        stored_name = stored_variants(Path(str(resumed))).get(section)
        values = {chosen_by: stored_name} if stored_name else values
    if (wanted := given.get(f"{section}.{chosen_by}")) is not None and wanted != variant_of(section, values):
        # Settings of the presets that only their own variant has are dropped with it.
        has = keys_of(settings_class(section, str(wanted)))
        values = {key: value for key, value in values.items() if key in has or not owners_of(section, key)}
        values[chosen_by] = wanted
    # 2. A sweep may run over variants. Then keys of any variant pass here, and each run checks its own.
    name = variant_of(section, values)
    foreign: list[str] = []
    if str(given.get("hydra.mode")) == "MULTIRUN":
        foreign = [key for key in {*values, *keys} if owners_of(section, key)]
        foreign += [key for key in keys if f"{section}.{key}" in added]
    # 3. The section with exactly these keys.
    cfg[section] = structured(section, values, also=foreign)
    check_keys(section, name, [key for key in keys if key not in foreign])
    if foreign:
        OmegaConf.set_struct(cfg[section], False)
    for item in cfg[section].values():
        if isinstance(item, DictConfig):  # a mapping with keys that the user makes up, such as ppo.losses
            OmegaConf.set_struct(item, False)


def _shown_options(store: ConfigStore, path: str) -> list[str]:
    return [name for name in ConfigStore.list(store, path) if not is_schema(name.removesuffix(".yaml"))]


def stamp(pattern: str, *, now: time.struct_time, key: str) -> str:
    """Return the time `now` by a pattern of strftime, and a `key` that differs between commands of one second."""
    return f"{time.strftime(pattern, now)}_{key}"


def _key() -> str:
    """Return 6 random characters. Among 2,000 keys two are equal with a probability of .1 %."""
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(6))


_LONGEST_NAME = 64  # of a run's folder; a longer one is shortened
SHORT_NAME = r"(?:^run|^dist\.world_size-\d+)_[0-9a-f]{8}(?:_seed-\d+)?$"
_IN_SHORT_NAMES = r"(?:^|_)({}-\d+)(?=_|$)"  # the setting with its value, in the overrides


def folder_name(overrides: str, sweep_dir: str | Path | None = None) -> str:
    """Return the name of a run's folder in a sweep, made of its overrides: stable, no slash, at most 64 characters.

    A longer name becomes W, a hash of all other overrides, and the seed: dist.world_size-2_1c5ad7b2_seed-0. So names of
    a sweep sort by W and seed, and seeds of the same settings have the same hash. runs.csv has the overrides. A folder
    of the long name that earlier versions gave keeps it.
    """
    plain = re.sub(r"(^|_)\++", r"\1", overrides)  # ++ adds a setting, and is not part of its name
    # Other characters become dashes, so two names may become equal: the hash of the whole tells them apart.
    name = re.sub(r"[^\w.+@-]", "-", plain, flags=re.ASCII) or "run"
    digest = hashlib.sha256(overrides.encode()).hexdigest()
    whole = name if name == plain or not plain else f"{name}-{digest[:6]}"
    if len(whole) <= _LONGEST_NAME:
        return whole
    before = whole if len(name) <= 200 else f"{name[:94]}-{digest[:10]}-{name[-94:]}"
    if sweep_dir is not None and (Path(sweep_dir) / before).is_dir():
        return before
    others, found = plain, []
    for key in (r"dist\.world_size", "seed"):
        setting = re.search(_IN_SHORT_NAMES.format(key), others)
        found.append(setting[1] if setting else "")
        if setting:
            others = others[: setting.start(1)] + others[setting.end(1) :]
    of_others = hashlib.sha256(others.encode()).hexdigest()[:8]
    size, seed = found
    return f"{size or 'run'}_{of_others}" + (f"_{seed}" if seed else "")


def task_folder(choice: str, *, _root_: DictConfig) -> str:
    """Return the folder of outputs/ for runs of a task: the env preset, or the task's name if the preset has another.

    env=cartpole is cartpole; env=gym env.id=my_pkg.envs:MyEnv-v0 is MyEnv-v0.
    """
    task = OmegaConf.select(_root_, "env.id", throw_on_missing=False)
    if (
        task is None
        or choice not in presets("env")
        or read_preset(presets("env")[choice]).get("id", task) == task
    ):
        return choice
    return re.sub(r"[^\w.+-]", "-", str(task).rpartition(":")[2], flags=re.ASCII).strip("-.") or choice
