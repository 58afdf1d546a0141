"""From what Hydra composed, or a run folder keeps, to `Config` and back."""

import functools
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from ddppo.config.fields import in_words
from ddppo.config.help import unknown_setting
from ddppo.config.settings import Config, config_class
from ddppo.config.variants import SECTIONS_BY_NAME, check_keys, empty, name_in, names_of, settings_class
from ddppo.errors import ConfigError

# What config.yaml held of every model, topology and algorithm until each had settings of its own, with the defaults.
_OF_ALL_VARIANTS: dict[str, dict[str, Any]] = {
    "model": {
        **{"hidden_sizes": [64, 64], "activation": "tanh", "shared_trunk": False, "orthogonal": True},
        **{"log_std_init": 0.0, "log_std": "parameter", "squash": "none"},
        **{"memory": "none", "memory_size": 128, "memory_layers": 1},
        **{"conv_layers": [], "resnet_channels": [16, 32, 32], "image_encoder": "cnn", "encoders": {}},
        **{"vector_sizes": [64], "image_features": 256, "image_layout": "auto", "pixel_max": 255.0},
        **{"precision": "float32", "graph_conv": "qgnn", "graph_layers": 4, "graph_width": 128},
        **{"graph_prior": 3.0, "temperature": None, "token_width": 64, "token_layers": 2, "token_heads": 4},
        **{"turn_tokens": 64, "obs_tokens": 256, "hf_path": None, "lora_rank": 8},
        **{"sampling_temperature": 1.0, "top_p": 1.0},
    },
}


@functools.cache
def _schema(kinds: tuple[type, ...]) -> DictConfig:
    """Return what a configuration is merged into whose sections with variants are of these classes.

    To be merged into a copy: it takes 6 ms to make.
    """
    schema = OmegaConf.structured(config_class())
    assert isinstance(schema, DictConfig)
    for section, kind in zip(SECTIONS_BY_NAME, kinds, strict=True):
        schema[section] = empty(kind)
    return schema


def from_omegaconf(cfg: DictConfig) -> Config:
    """Convert a composed config to `Config`. Raises ConfigError where a value has the wrong type or is missing."""
    try:
        if missing := sorted(OmegaConf.missing_keys(cfg)):
            example = " (e.g. env.id=CartPole-v1)" if "env.id" in missing else ""
            raise ConfigError(f"{', '.join(missing)} must be given{example}")
        plain: Any = OmegaConf.to_container(cfg, resolve=True)
        merged = OmegaConf.merge(_schema(_kinds(plain)), _all_escaped(plain))
        config = OmegaConf.to_object(merged)
    except OmegaConfBaseException as e:
        raise ConfigError(_omegaconf_message(e)) from e
    assert isinstance(config, Config)
    return config


def _kinds(plain: Mapping[str, Any]) -> tuple[type, ...]:
    """Return the classes of the sections with variants. Raises ConfigError for a key that one of them lacks."""
    kinds = []
    for section in SECTIONS_BY_NAME:
        values = plain.get(section) or {}
        name = name_in(section, values)
        check_keys(section, name, values)
        kinds.append(settings_class(section, name))
    return tuple(kinds)


def load(path: Path) -> Config:
    """Read the resolved config.yaml of a run folder. Raises ConfigError with the path where it is not whole or ours."""
    try:
        loaded = OmegaConf.load(path)
    except FileNotFoundError as e:
        raise ConfigError(f"{path} does not exist: {path.parent} is not a run folder of ddppo") from e
    except Exception as e:  # yaml raises many kinds
        raise ConfigError(f"{path} is not readable YAML: {' '.join(str(e).split())}") from e
    if not isinstance(loaded, DictConfig) or not loaded:
        held = "nothing" if not loaded else "a list"
        raise ConfigError(f"{path} is not the configuration of a run: it holds {held}")
    section = loaded.get("dist")
    if isinstance(section, DictConfig) and "backend" in section:  # its name before there was shared memory
        section.setdefault("collective", section.pop("backend"))
    section = loaded.get("env")
    if isinstance(section, DictConfig) and section.get("backend") == "async":  # before there were pools
        section["backend"] = "pool"
    _leave_out_others(loaded)
    try:
        return from_omegaconf(loaded)
    except ConfigError as e:
        raise ConfigError(f"{path} is not the configuration of a run: {e}") from e


_ALSO_A_DEFAULT = {"image_layout": "chw"}  # of still earlier runs


def _leave_out_others(loaded: DictConfig) -> None:
    """Take the keys of other variants out of a file of before, which held those of all at their defaults."""
    for section, defaults in _OF_ALL_VARIANTS.items():
        values = loaded.get(section)
        if not isinstance(values, DictConfig):
            continue
        has = names_of(settings_class(section, name_in(section, values)))
        for key, default in defaults.items():
            if key not in has and key in values and values[key] in (default, _ALSO_A_DEFAULT.get(key)):
                del values[key]


def to_yaml(config: Config) -> str:
    return OmegaConf.to_yaml(to_omegaconf(config))


def to_omegaconf(config: Config) -> DictConfig:
    """Return what `from_omegaconf` makes this configuration of; ${ in its texts is no interpolation."""
    kinds = tuple(type(getattr(config, section)) for section in SECTIONS_BY_NAME)
    merged = OmegaConf.merge(_schema(kinds), _all_escaped(asdict(config)))
    assert isinstance(merged, DictConfig)
    return merged


def escaped(text: str) -> str:
    """Return what OmegaConf resolves to `text`, in which ${ is two characters and not an interpolation."""
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
