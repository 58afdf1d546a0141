"""From what Hydra composed, or a run folder keeps, to `Config` and back."""

import functools
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from ddppo.config.help import unknown_setting
from ddppo.config.settings import Config, config_class
from ddppo.errors import ConfigError

_WANTED = {  # what OmegaConf calls the types of settings
    "Integer": "a whole number, e.g. 1000 or 1e3",
    "Float": "a number",
    "Boolean": "true or false",
    "Bool": "true or false",
}


@functools.cache
def _schema() -> DictConfig:
    """Return what every configuration is merged into, a copy of it: it takes 6 ms to make."""
    schema = OmegaConf.structured(config_class())
    assert isinstance(schema, DictConfig)
    return schema


def from_omegaconf(cfg: DictConfig) -> Config:
    """Convert a composed config to `Config`. Raises ConfigError where a value has the wrong type or is missing."""
    try:
        if missing := sorted(OmegaConf.missing_keys(cfg)):
            example = " (e.g. env.id=CartPole-v1)" if "env.id" in missing else ""
            raise ConfigError(f"{', '.join(missing)} must be given{example}")
        plain = OmegaConf.to_container(cfg, resolve=True)
        merged = OmegaConf.merge(_schema(), _all_escaped(plain))
        config = OmegaConf.to_object(merged)
    except OmegaConfBaseException as e:
        raise ConfigError(_omegaconf_message(e)) from e
    assert isinstance(config, Config)
    return config


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
    try:
        return from_omegaconf(loaded)
    except ConfigError as e:
        raise ConfigError(f"{path} is not the configuration of a run: {e}") from e


def to_yaml(config: Config) -> str:
    return OmegaConf.to_yaml(to_omegaconf(config))


def to_omegaconf(config: Config) -> DictConfig:
    """Return what `from_omegaconf` makes this configuration of; ${ in its texts is no interpolation."""
    merged = OmegaConf.merge(_schema(), _all_escaped(asdict(config)))
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


def in_words(complaint: str) -> str:
    """Return OmegaConf's complaint about a value in words of ours, or as it is where it is about something else."""
    found = re.match(r"Value '(.*)' of type '\w+' could not be converted to (\w+)$", complaint, re.DOTALL)
    if found and (wanted := _WANTED.get(found[2])):
        return f"{found[1]} is not {wanted}"
    found = re.match(r"Value '(.*)' is not a valid (\w+) \(type \w+\)$", complaint, re.DOTALL)
    if found and (wanted := _WANTED.get(found[2].capitalize())):
        return f"{found[1]} is not {wanted}"
    if complaint.endswith("is not a ListConfig, list or tuple."):
        return "must be a list, in brackets, as [a,b]"
    if re.match(r"Cannot assign \w+ to Dict\[", complaint):
        return "must be names and values, in braces, as {a:1,b:2}"
    return complaint
