"""`Config` from Hydra's configuration or a run folder's config.yaml, and back.

Run folders of older versions still load: `load_config` renames and drops settings that have changed since.
"""

import copy
import functools
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from ddppo.config.fields import in_words
from ddppo.config.help import unknown_setting
from ddppo.config.settings import Config, config_class
from ddppo.config.variants import (
    RENAMED_BACKENDS,
    SECTIONS_WITH_VARIANTS,
    check_keys,
    defaults_of,
    keys_of,
    settings_class,
    variant_of,
)
from ddppo.errors import ConfigError

# Of older runs: config.yaml held the keys of all models, topologies and algorithms, with these defaults.
_OF_ALL_VARIANTS: dict[str, dict[str, Any]] = {
    "model": {
        **{"hidden_sizes": [64, 64], "activation": "tanh", "shared_trunk": False, "orthogonal": True},
        **{"layer_norm": False, "log_std_init": 0.0, "log_std": "parameter", "squash": "none"},
        **{"distribution": "gaussian"},
        **{"memory": "none", "memory_size": 128, "memory_layers": 1},
        **{"conv_layers": [], "resnet_channels": [16, 32, 32], "image_encoder": "cnn", "encoders": {}},
        **{"vector_sizes": [64], "image_features": 256, "image_layout": "auto", "pixel_max": 255.0},
        **{"precision": "float32", "graph_conv": "qgnn", "graph_layers": 4, "graph_width": 128},
        **{"observe": "features", "prior": 3.0, "limit": 3.0, "value_width": 16},
        **{"graph_prior": 3.0, "temperature": None, "token_width": 64, "token_layers": 2, "token_heads": 4},
        **{"graph_prior": 3.0, "node_scores": "rules", "temperature": None},
        **{"token_width": 64, "token_layers": 2, "token_heads": 4},
        **{"turn_tokens": 64, "obs_tokens": 256, "hf_path": None, "lora_rank": 8},
        **{"lora_alpha": None, "lora_targets": [], "gradient_checkpointing": False},
        **{"sampling_temperature": 1.0, "top_p": 1.0},
        **{"chat": "auto", "chat_template": None, "chat_template_kwargs": {}, "stop_tokens": []},
        **{"tool_calls": "auto"},
        **{"system": None, "shots": None, "long_texts": "cut_end", "begin_text": True},
    },
    "dist": {
        **{"num_learners": None, "env_shares": [], "observers": None, "max_wait_ms": None, "max_lag": None},
        **{"correction": "clip", "preempt_rule": "fraction", "sync_frac": 0.6, "min_frac": 0.25},
        **{"rollout_time_cap_s": None},
    },
    "ppo": {
        **{"gamma": 0.99, "gae_lambda": 0.95, "value_coef": 0.5, "clip_value_coef": None},
        **{"normalize_advantages": "global", "normalize_rewards": False},
        **{"divide_by_std": True, "token_mean": "tokens", "kl_coef": 0.0},
        **{
            "scale_by": "group",
            "mask_truncated": False,
            "loss": "clip",
            "clip_coef_high": None,
            "ratio": "token",
        },
    },
}

# Of older runs: values of later settings with which they go on as before, by section and variant.
_AS_BEFORE: dict[tuple[str, str], dict[str, Any]] = {
    ("model", "hf"): {"chat": "text", "system": "", "shots": [], "begin_text": False},
}


@functools.cache
def _schema(kinds: tuple[type, ...]) -> DictConfig:
    """Return the schema of a configuration with sections of these dataclasses, one for each section with variants.

    Kept, for it takes 6 ms to make: merge into a copy.
    """
    schema = OmegaConf.structured(config_class())
    assert isinstance(schema, DictConfig)
    for section, kind in zip(SECTIONS_WITH_VARIANTS, kinds, strict=True):
        schema[section] = defaults_of(kind)
    return schema


def from_omegaconf(cfg: DictConfig) -> Config:
    """Convert a composed configuration to `Config`. Raises ConfigError if a value is missing or has the wrong type."""
    try:
        # 1. Required settings without a value.
        if missing := sorted(OmegaConf.missing_keys(cfg)):
            example = " (e.g. env.id=CartPole-v1)" if "env.id" in missing else ""
            raise ConfigError(f"{', '.join(missing)} must be given{example}")
        # 2. Resolve interpolations, then merge into the schema of exactly these variants, which checks keys and types.
        plain: Any = OmegaConf.to_container(cfg, resolve=True)
        merged = OmegaConf.merge(_schema(_kinds(plain)), _all_escaped(plain))
        config = OmegaConf.to_object(merged)
    except OmegaConfBaseException as e:
        raise ConfigError(_omegaconf_message(e)) from e
    assert isinstance(config, Config)
    return config


def _kinds(plain: Mapping[str, Any]) -> tuple[type, ...]:
    """Return the dataclass of each section with variants. Raises ConfigError for a key that a variant lacks."""
    kinds = []
    for section in SECTIONS_WITH_VARIANTS:
        values = plain.get(section) or {}
        name = variant_of(section, values)
        check_keys(section, name, values)
        kinds.append(settings_class(section, name))
    return tuple(kinds)


def load_config(path: Path) -> Config:
    """Read the config.yaml of a run folder. Raises ConfigError with the path if it is damaged or not ddppo's."""
    with suppress(OSError, ValueError):  # reported below
        if (kept := _kept.get(path.read_text())) is not None:
            return copy.deepcopy(kept)
    try:
        loaded = OmegaConf.load(path)
    except FileNotFoundError as e:
        raise ConfigError(f"{path} does not exist: {path.parent} is not a run folder of ddppo") from e
    except Exception as e:  # yaml raises many kinds
        raise ConfigError(f"{path} is not readable YAML: {' '.join(str(e).split())}") from e
    if not isinstance(loaded, DictConfig) or not loaded:
        held = "nothing" if not loaded else "a list"
        raise ConfigError(f"{path} is not the configuration of a run: it holds {held}")
    # Settings that have other names or values now.
    section = loaded.get("dist")
    if isinstance(section, DictConfig) and "backend" in section:
        section.setdefault("collective", section.pop("backend"))
    if isinstance(section, DictConfig):
        section.pop("max_world_size", None)  # distributed=single set it; the command checks that now
        section.setdefault("reduction", "fast")  # the only one there was
        if section.get("topology") == "env_workers_hetero":  # a preset of env_workers now
            section["topology"] = "env_workers"
            section["env_shares"] = section.get("env_shares") or [0]
    section = loaded.get("env")
    if isinstance(section, DictConfig) and section.get("backend") == "async":
        section["backend"] = "pool"
    # Sections and keys that are no settings any more.
    _leave_out_sections(loaded, path)
    plain: Any = OmegaConf.to_container(loaded)
    try:
        return from_omegaconf(OmegaConf.create(without_others(plain)))
    except ConfigError as e:
        raise ConfigError(f"{path} is not the configuration of a run: {e}") from e


_ALSO_A_DEFAULT = {"image_layout": "chw"}  # in still older runs


def without_others(config: Mapping[str, Any], *, imports: bool = True) -> dict[str, Any]:
    """Return a configuration of an older run, which has the keys of all variants, without those of other variants.

    A key of another variant stays if it is not at its default: it is an error then, and not dropped silently. Renamed
    values get their new names.

    Args:
        imports: whether a user's own model or topology is imported for its keys. If not, its section stays as it is.
    """
    found = dict(config)
    env = found.get("env")
    if isinstance(env, Mapping) and env.get("backend") in RENAMED_BACKENDS:
        found["env"] = {**env, "backend": RENAMED_BACKENDS[env["backend"]]}
    ppo = found.get("ppo")
    if isinstance(ppo, Mapping) and ppo.get("algorithm") == "grpo" and "divide_by_std" in ppo:
        others = {key: value for key, value in ppo.items() if key != "divide_by_std"}
        found["ppo"] = {"scale_by": "group" if ppo["divide_by_std"] else "none"} | others
    for section, defaults in _OF_ALL_VARIANTS.items():
        values = found.get(section)
        if not isinstance(values, Mapping) or not (defaults.keys() & values.keys()):
            continue
        name = variant_of(section, values)
        if ":" in name and not imports:
            continue
        try:
            has = keys_of(settings_class(section, name))
        except ConfigError:  # from_omegaconf raises it again
            continue
        found[section] = {
            key: value
            for key, value in values.items()
            if key in has or key not in defaults or value not in (defaults[key], _ALSO_A_DEFAULT.get(key))
        }
    for (section, name), before in _AS_BEFORE.items():
        values = found.get(section)
        if isinstance(values, Mapping) and values.get("name") == name:
            found[section] = before | dict(values)
    return found


def _leave_out_sections(loaded: DictConfig, path: Path) -> None:
    """Drop the sections of plugins that are not installed here. Raises ConfigError for one that the run used."""
    known = {item.name for item in fields(config_class())}
    for name in [str(name) for name in loaded if name not in known]:
        settings = loaded[name]
        if not isinstance(settings, DictConfig) or "name" not in settings:
            continue
        if settings["name"] not in (None, "auto"):
            raise ConfigError(
                f"{path}: the run has {name}.name={settings['name']}, which no plugin here brings: install its package"
            )
        del loaded[name]


def to_yaml(config: Config) -> str:
    """Return the text of config.yaml. Kept by value: a run writes the same text into three files as it begins."""
    written = repr(config)  # unlike ==, it tells 1 from 1.0 and true
    if written not in _texts:
        _texts.clear()
        _texts[written] = OmegaConf.to_yaml(to_omegaconf(config))
    return _texts[written]


_texts: dict[str, str] = {}  # the last one, by the configuration's repr


def keep(config: Config) -> None:
    """Let `load_config` in this process and its forks answer for the text of `config` without parsing it: .04 s."""
    _kept.clear()
    _kept[to_yaml(config)] = config


_kept: dict[str, Config] = {}  # by the text of config.yaml


def to_omegaconf(config: Config) -> DictConfig:
    """Return the configuration from which `from_omegaconf` makes `config`. A ${ in its texts is no interpolation.

    It has the sections of `in_effect`.
    """
    kinds = tuple(type(getattr(config, section)) for section in SECTIONS_WITH_VARIANTS)
    found = in_effect(config)
    merged = OmegaConf.merge(_schema(kinds), _all_escaped(found))
    assert isinstance(merged, DictConfig)
    # A structured configuration lets no section be deleted. Sections that the object lacks have their defaults.
    left_out = {"ppo"} - found.keys()
    return OmegaConf.create({str(name): merged[name] for name in merged if name not in left_out})


def in_effect(config: Config) -> dict[str, Any]:
    """Return the settings of a configuration as nested dicts, without the section ppo if another algorithm trains."""
    found = asdict(config)
    if config.training is not config.ppo:
        del found["ppo"]
    return found


def escaped(text: str) -> str:
    """Return `text` escaped, so that OmegaConf resolves it to `text` and takes no ${ for an interpolation."""
    return re.sub(r"(\\*)\$\{", lambda found: f"{2 * found[1]}\\${{", text)


def _all_escaped(value: Any) -> Any:
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, dict):
        return {key: _all_escaped(inner) for key, inner in value.items()}
    return [_all_escaped(inner) for inner in value] if isinstance(value, list) else value


def _omegaconf_message(error: OmegaConfBaseException) -> str:
    key = getattr(error, "full_key", None) or "configuration"
    if isinstance(error, ConfigKeyError):
        return unknown_setting(key, config_class())
    return f"{key}: {in_words(str(error).splitlines()[0])}"
