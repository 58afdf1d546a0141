"""What the door makes of Hydra's complaints about a command line, and of errors, in a line each."""

import re

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from ddppo.config import config_class, in_words, near, presets
from ddppo.config.help import unknown_setting
from ddppo.errors import ConfigError, EnvRaised, TrainingError
from ddppo.package import install_command

# Options that packages of an extra bring, which Hydra cannot name.
_EXTRAS = {("hydra/sweeper", "optuna"): "tune", ("hydra/launcher", "joblib"): "tune"}
# Hydra's way to keep the cause to itself.
_CHAINED = ", set env var HYDRA_FULL_ERROR=1 to see chained exception."


def composition_message(error: HydraException | OmegaConfBaseException) -> str:
    """Return Hydra's complaint about a command line in one line, with near matches of a mistyped name."""
    text = str(error)
    if text.startswith("Error merging override"):
        cause = in_words(str(error.__cause__).splitlines()[0])
        return f"{text.removeprefix('Error merging override ').lstrip('+')}: {cause}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if found := re.match(r"Could not override '([\w.]+)'", text):
        return unknown_setting(found[1], config_class())
    if found := re.search(r"Could not (?:find|load|override) '([\w/]+/[\w-]+)'", text):
        return unknown_option(found[1], text)
    details = [line for line in lines if not line.startswith(("full_key", "reference_type", "object_type"))]
    key = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("full_key")), "")
    message = " ".join(details)
    if _CHAINED in message and isinstance(error.__cause__, Exception):
        message = f"{message.replace(_CHAINED, '')}: {one_line(error.__cause__)}"
    return f"{key + ': ' if key else ''}{message}"


def unknown_option(path: str, text: str) -> str:
    """Return what is wrong with e.g. hydra/launcher/nix or experiment/tune/nix, of which Hydra says `text`."""
    parts = path.split("/")
    depth = 2 if parts[0] == "hydra" else 1
    group, option = "/".join(parts[:depth]), "/".join(parts[depth:])
    if extra := _EXTRAS.get((group, option)):
        return f"{group}={option} needs a package that is not installed: {install_command(extra)}"
    options = set(presets(group))
    if parts[0] == "hydra":  # its own and those of plugins
        options |= set(re.findall(r"^\t(\w+)$", text, re.MULTILINE))
    return f"{group}={option}: must be one of {', '.join(sorted(options))}{near(option, sorted(options))}"


def one_line(error: Exception) -> str:
    """Return an error in one line, with the name of its class unless it is one of ours, which say all."""
    text = " ".join((error.said if isinstance(error, EnvRaised) else str(error)).split())
    return text if isinstance(error, (ConfigError, TrainingError)) else f"{type(error).__name__}: {text}"
