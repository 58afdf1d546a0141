"""What `python -m ddppo.train` does to its arguments before Hydra sees them, and to Hydra's complaints after."""

import os
import re
import sys
from pathlib import Path
from typing import Any, ClassVar

from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ddppo.config import Config, conf_dir, near
from ddppo.errors import ConfigError, RunFolderError, TrainingError
from ddppo.help import setting_names

# Settings whose keys the user makes up, which Hydra would take for typing errors unless told to add them.
_MAPPINGS = ("env.kwargs=", "env.kwargs.", "env.slow_ranks=", "env.slow_ranks.")
# Options that packages of an extra bring, which Hydra cannot name.
_EXTRAS = {("hydra/sweeper", "optuna"): "tune", ("hydra/launcher", "joblib"): "tune"}
_CHAINED = (
    ", set env var HYDRA_FULL_ERROR=1 to see chained exception."  # Hydra's way to keep the cause to itself
)
_MULTIRUN = ("-m", "--multirun")
_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir", "sweep")


class SweepFolder(Callback):
    """Remembers the folder of a sweep, which Hydra tells only while one begins; None before any."""

    path: ClassVar[Path | None] = None

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        SweepFolder.path = Path(config.hydra.sweep.dir)
        try:
            check_objective(config)
        except ConfigError as e:  # which Hydra would only warn of, and go on
            print(f"error: {e}", file=sys.stderr)
            sys.exit(2)


def check_objective(config: DictConfig) -> None:
    """Raise ConfigError where the sweeper would optimise nothing, or look for the worst."""
    direction = OmegaConf.select(config.hydra.sweeper, "direction")
    if direction is None:  # it does not optimise
        return
    given = getattr(direction, "name", direction)
    wanted = "minimize" if config.objective == "time_to_target" else "maximize"
    if given != wanted:
        raise ConfigError(
            f"hydra.sweeper.direction={given} would look for the worst: objective={config.objective} needs "
            f"hydra.sweeper.direction={wanted}"
        )
    if OmegaConf.select(config, "hydra.launcher.wait") is False:
        raise ConfigError(
            "hydra.launcher.wait=false leaves the sweeper without results to choose by: let it wait"
        )
    if config.objective == "eval_return" and not config.eval.final_episodes:
        raise ConfigError(
            "eval.final_episodes=0 leaves objective=eval_return without a value: set eval.final_episodes"
        )


def under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


def prepared_arguments(arguments: list[str]) -> list[str]:
    """Return the arguments for Hydra: a resumed run's folder is its output, torchrun's world size the run's.

    Raises ConfigError where arguments exclude one another or name a folder that cannot be used.
    """
    values = dict(a.split("=", 1) for a in arguments if "=" in a and not a.startswith("-"))
    is_multirun = any(a in _MULTIRUN for a in arguments) or values.get("hydra.mode") == "MULTIRUN"
    added = []
    if "" in values:
        raise ConfigError(f"={values['']} has no name in front of the equals sign; --help lists all settings")
    for key in _FOLDERS:
        if key in values:
            _check_writable(key, _unquoted(values[key]))
    if is_multirun:
        _check_multirun(arguments, values)
    elif "sweep" in values:
        raise ConfigError(
            f"sweep={values['sweep']} has no effect on one run: add -m, or use hydra.run.dir for its folder"
        )
    if "resume" in values:
        folder = Path(_unquoted(values["resume"])).resolve()
        if not (folder / "config.yaml").is_file():
            raise RunFolderError(f"resume={values['resume']}: not a run folder, it has no config.yaml")
        added.append(f"hydra.run.dir={_quoted(str(folder))}")
    if under_torchrun():
        world_size = os.environ["WORLD_SIZE"]
        if values.get("dist.world_size", world_size) != world_size:
            raise ConfigError(
                f"dist.world_size={values['dist.world_size']}, but torchrun started {world_size} ranks: leave it out"
            )
        if "dist.world_size" not in values:
            added.append(f"dist.world_size={world_size}")
    flags_first = sorted(arguments, key=lambda a: a not in _MULTIRUN)  # Hydra finds no flag between settings
    return [_prepared(a) for a in flags_first] + added


def _prepared(argument: str) -> str:
    key, equals, value = argument.partition("=")
    if equals and key in _FOLDERS:
        return f"{key}={_quoted(_unquoted(value))}"
    return f"++{argument}" if argument.startswith(_MAPPINGS) else argument


def _check_multirun(arguments: list[str], values: dict[str, str]) -> None:
    shows = [a for a in arguments if a in ("-c", "--cfg", "-i", "--info")]
    if shows:
        raise ConfigError(f"{shows[0]} shows one configuration, -m runs several: leave -m out")
    if under_torchrun():
        raise ConfigError("-m starts several runs, torchrun one: use one or the other")
    if "resume" in values:
        raise ConfigError(
            "resume goes on with one run; it cannot be combined with -m. A sweep goes on by the same command "
            "with the same sweep=<folder>"
        )
    if re.search(r"[,(]", values.get("experiment", "")):
        raise ConfigError(
            f"experiment={values['experiment']}: each experiment is a sweep of its own: a command for each"
        )


def composition_message(error: HydraException | OmegaConfBaseException) -> str:
    """Return Hydra's complaint about a command line in one line, with near matches of a mistyped name."""
    text = str(error)
    if text.startswith("Error merging override"):
        cause = str(error.__cause__).splitlines()[0]
        return f"{text.removeprefix('Error merging override ')}: {cause}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if found := re.match(r"Could not override '([\w.]+)'", text):
        return f"there is no setting {found[1]}{near(found[1], setting_names(Config))}; --help lists all"
    if found := re.search(r"Could not (?:find|load|override) '([\w/]+/[\w-]+)'", text):
        return _unknown_option(found[1], text)
    details = [line for line in lines if not line.startswith(("full_key", "reference_type", "object_type"))]
    key = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("full_key")), "")
    message = " ".join(details)
    if _CHAINED in message and isinstance(error.__cause__, Exception):
        message = f"{message.replace(_CHAINED, '')}: {one_line(error.__cause__)}"
    return f"{key + ': ' if key else ''}{message}"


def _unknown_option(path: str, text: str) -> str:
    """Return what is wrong with e.g. hydra/launcher/nix or experiment/tune/nix, of which Hydra says `text`."""
    parts = path.split("/")
    depth = 2 if parts[0] == "hydra" else 1
    group, option = "/".join(parts[:depth]), "/".join(parts[depth:])
    if extra := _EXTRAS.get((group, option)):
        return f"{group}={option} needs a package that is not installed: pip install 'ddppo[{extra}]'"
    folder = conf_dir() / group
    options = {p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.yaml")}
    if parts[0] == "hydra":  # its own and those of plugins
        options |= {found for found in re.findall(r"^\t(\w+)$", text, re.MULTILINE) if "schema" not in found}
    return f"{group}={option}: must be one of {', '.join(sorted(options))}{near(option, sorted(options))}"


def one_line(error: Exception) -> str:
    """Return an error in one line, with the name of its class unless it is one of ours, which say all."""
    text = " ".join(str(error).split())
    return text if isinstance(error, (ConfigError, TrainingError)) else f"{type(error).__name__}: {text}"


def _check_writable(key: str, value: str) -> None:
    if value in ("", "null"):
        raise RunFolderError(f"{key}={value} names no folder")
    folder = Path(value).absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        raise RunFolderError(f"{key}={folder}: {existing} is not a folder that can be written to")


def _unquoted(value: str) -> str:
    return value.strip("'\"")


def _quoted(value: str) -> str:
    """Return a value as Hydra's grammar reads it whatever its characters; ${} in it is still resolved."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
