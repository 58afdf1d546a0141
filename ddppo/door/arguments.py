"""What `python -m ddppo.train` does to its arguments before Hydra sees them.

Hydra's grammar reads paths, numbers and flags in its own way, and lets a setting without effect pass in silence.
"""

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from ddppo import config as configuration
from ddppo.config import Config
from ddppo.config.integers import is_integer, type_of, written_out
from ddppo.config.keywords import in_full
from ddppo.door.complaints import composition_message
from ddppo.door.refusals import (
    bare_name,
    check_fixed,
    check_flags,
    check_multirun,
    check_names,
    check_single,
    check_writable,
    mappings_of_plugins,
    types,
)
from ddppo.door.torchrun import under_torchrun
from ddppo.errors import ConfigError, RunFolderError

# Settings whose keys the user makes up, which Hydra would take for typing errors unless told to add them.
_NAMED = (
    "env.kwargs",
    "env.slow_ranks",
    "model.encoders",
    "ppo.learning_rates",
    "ppo.losses",
)
_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir", "sweep")
_IMPORT_PATH = re.compile(r"[a-z_][\w.]*:[a-z_]\w*", re.IGNORECASE)
_IPV6 = re.compile(r"(?<![\"'])wss?://\[[\da-f:.]+\](:\d+)?/?", re.IGNORECASE)  # brackets are lists to Hydra


class _Parser(argparse.ArgumentParser):
    """Hydra's parser, which says a mistake in our words and knows flags by their whole names only."""

    def __init__(self) -> None:
        let_hydra_parse()
        super().__init__(
            add_help=False, allow_abbrev=False, parents=[get_args_parser()], conflict_handler="resolve"
        )

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{' '.join(message.split())}; --help shows how ddppo.train is called")


def let_hydra_parse() -> None:
    """Have argparse of Python 3.14, which looks at help texts as they are given, pass those that are no text yet.

    Hydra 1.3 writes one of them when it is shown: without this no command of its would start there.
    """
    check = getattr(argparse.ArgumentParser, "_check_help", None)
    if check is None or hasattr(check, "passes_others"):
        return

    def check_texts(parser: argparse.ArgumentParser, action: argparse.Action) -> None:
        if action.help is None or isinstance(action.help, str):
            check(parser, action)

    ours: Any = check_texts
    ours.passes_others = True
    setattr(argparse.ArgumentParser, "_check_help", ours)  # noqa: B010 (mypy knows no such method)


def prepared_arguments(arguments: list[str]) -> list[str]:
    """Return the arguments for Hydra: a resumed run's folder is its output, torchrun's world size the run's.

    Paths are quoted whatever their characters, whole numbers and a task's keywords written out, and flags come first.
    Raises ConfigError where arguments exclude one another, have no effect, or name a folder that cannot be used.
    """
    arguments = [_own_topology(argument) for argument in arguments]
    asked = _Parser().parse_intermixed_args(arguments)
    flags, settings = _parted(arguments, asked.overrides)
    if asked.help or asked.hydra_help:
        return [*flags, *settings]
    check_flags(asked)
    if asked.shell_completion:
        return [*flags, *settings]
    values = {bare_name(key): value for key, equals, value in (s.partition("=") for s in settings) if equals}
    check_names(settings, values)
    settings = in_full(settings, values)
    is_multirun = asked.multirun or values.get("hydra.mode") == "MULTIRUN"
    if is_multirun:
        check_multirun(asked, values)
    else:
        check_single(values, runs=asked.cfg is None and asked.info is None)
    added = _of_resumed(values) if "resume" in values else []
    for key in _FOLDERS:
        if key in values:
            check_writable(key, _unquoted(values[key]))
    if under_torchrun():
        added += _of_torchrun(values)
    return [*flags, *map(_prepared, settings), *added]


def composed(overrides: Sequence[str]) -> Config:
    """Return the checked configuration of `python -m ddppo.train <overrides>`. Raises ConfigError as that does."""
    arguments = prepared_arguments(list(overrides))
    configuration.register()
    try:
        with initialize_config_dir(str(configuration.conf_dir()), version_base="1.3"):
            config = configuration.from_omegaconf(compose("config", arguments))
    except (HydraException, OmegaConfBaseException) as e:
        raise ConfigError(composition_message(e)) from e
    configuration.validate(config)
    return config


def _own_topology(argument: str) -> str:
    """Return `distributed=my_pkg.topologies:Ring`, which is no preset, as the setting that it is."""
    group, equals, value = argument.partition("=")
    is_path = group == "distributed" and equals and _IMPORT_PATH.fullmatch(value)
    return f"dist.topology={value}" if is_path else argument


def _parted(arguments: list[str], overrides: list[str]) -> tuple[list[str], list[str]]:
    """Return flags with their values, and settings: Hydra finds no flag between settings."""
    flags, left = [], list(overrides)
    for argument in arguments:
        if left and argument == left[0]:
            left.pop(0)
        else:
            flags.append(argument)
    return flags, overrides


def _prepared(argument: str) -> str:
    key, equals, value = argument.partition("=")
    bare = bare_name(key)
    if equals and (bare in (*_FOLDERS, "resume") or (bare == "init_from" and _is_one_path(value))):
        return f"{key}={_quoted(_unquoted(value))}"
    if equals and bare == "env.urls":
        return f"{key}={_IPV6.sub(lambda found: _quoted(found[0]), value)}"
    if equals and is_integer(type_of(bare.removeprefix("hydra.sweeper.params."), types())):
        return f"{key}={written_out(value)}"
    mappings = tuple(f"{name}{end}" for name in (*_NAMED, *mappings_of_plugins()) for end in "=.")
    return f"++{argument}" if argument.startswith(mappings) else argument


def _is_one_path(value: str) -> bool:
    """Return whether a value names what there is, or cannot be several values of a sweep."""
    return value != "null" and ("," not in value or Path(_unquoted(value)).exists())


def _of_resumed(values: dict[str, str]) -> list[str]:
    """Return what makes the folder of a resumed run its output."""
    if _unquoted(values["resume"]) == "auto":
        check_fixed(values)
        return []
    if "init_from" in values:
        raise ConfigError(
            f"init_from={values['init_from']} and resume={values['resume']} exclude one another: a run that goes on "
            "has parameters of its own; leave one of them out"
        )
    folder = Path(_unquoted(values["resume"])).resolve()
    if not (folder / "config.yaml").is_file():
        raise RunFolderError(f"resume={values['resume']}: not a run folder, it has no config.yaml")
    other = values.get("hydra.run.dir")
    if other is not None and Path(_unquoted(other)).resolve() != folder:
        raise ConfigError(
            f"hydra.run.dir={other} has no effect with resume={values['resume']}: a resumed run stays in its folder"
        )
    if "${" in str(folder):
        raise RunFolderError(
            f"resume={values['resume']}: Hydra takes ${{ in {folder} for an interpolation: rename it"
        )
    return [f"hydra.run.dir={_quoted(str(folder))}"]


def _of_torchrun(values: dict[str, str]) -> list[str]:
    world_size = os.environ["WORLD_SIZE"]
    if values.get("dist.world_size", world_size) != world_size:
        raise ConfigError(
            f"dist.world_size={values['dist.world_size']}, but torchrun started {world_size} ranks: leave it out"
        )
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0 and "resume" not in values:
        raise ConfigError(
            "torchrun --max-restarts starts this command again after a fault, and without resume=auto it would begin "
            "another run: add resume=auto hydra.run.dir=<folder>, or leave --max-restarts out"
        )
    return [] if "dist.world_size" in values else [f"dist.world_size={world_size}"]


def _unquoted(value: str) -> str:
    """Return a value without the quotes that Hydra's grammar would ask for."""
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1].replace(f"\\{value[0]}", value[0]) if is_quoted else value


def _quoted(value: str) -> str:
    """Return a value as Hydra's grammar reads it whatever its characters; ${} in it is still resolved."""
    return QuotedString(value, Quote.single).with_quotes()
