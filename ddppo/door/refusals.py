"""What the door refuses in a command line: what excludes another, has no effect, or means something else to Hydra."""

import argparse
import functools
import os
import re
import tempfile
from pathlib import Path
from typing import Any, get_origin

from ddppo.config import SECTIONS, config_class, is_schema, schemas, sections
from ddppo.config.help import setting_names
from ddppo.config.integers import is_truth, setting_types, type_of
from ddppo.door.complaints import unknown_option
from ddppo.door.torchrun import under_torchrun
from ddppo.errors import ConfigError, RunFolderError

_GROUPS = (*SECTIONS, "experiment", "hydra/launcher", "hydra/sweeper")
_PLAIN_SECTIONS = {
    "dist": "distributed",
    "eval": "",
    "checkpoint": "",
    "log": "",
}  # and the group that fills it
# What a single run does not ask for its value.
_OF_SWEEPS = (
    "hydra/launcher",
    "hydra/sweeper",
    "hydra.launcher.",
    "hydra.sweeper.",
    "hydra.sweep.",
    "objective",
)
_DEFAULTS_OF_SWEEPS = (("hydra/launcher", "basic"), ("hydra/sweeper", "basic"))
# Values of a group that are the name of no file: null takes the group away, of the others Hydra cannot make sense.
_NO_NAME = re.compile(r"""[-+.\d]+(e[-+]?\d+)?|true|false|nan|inf|null|['"]{2}|\{.*|\[\s*\]""", re.IGNORECASE)
_SHELLS = ("bash", "fish", "zsh")


@functools.cache
def types() -> dict[str, Any]:
    """Return the annotation of every setting by its full key, those of launchers and sweepers too."""
    found = setting_types(config_class())
    for schema, section in schemas().items():
        group = schema.rpartition("/")[0]
        if group.startswith("hydra/"):
            found |= setting_types(section, group.replace("/", ".") + ".")
    return found


def mappings_of_plugins() -> list[str]:
    """Return the settings of plugins whose keys the user makes up."""
    of_sections = [name for section in sections() for name in types() if name.startswith(f"{section}.")]
    return [name for name in of_sections if get_origin(types()[name]) is dict]


def bare_name(key: str) -> str:
    """Return the name of a setting without the signs by which Hydra adds and takes away."""
    return key.lstrip("+~")


def check_fixed(values: dict[str, str]) -> None:
    """Check that resume=auto finds at the next start what this one leaves."""
    folder = values.get("hydra.run.dir")
    if folder is None or "${stamp:" in folder or "${now:" in folder:
        found = "there is none" if folder is None else f"hydra.run.dir={folder} is another at every start"
        raise ConfigError(
            f"resume=auto goes on with what it finds in a folder of a fixed name, and {found}: add "
            "hydra.run.dir=<folder>"
        )


def check_flags(asked: argparse.Namespace) -> None:
    """Refuse flags of Hydra's that it would answer with a traceback."""
    named = {
        "--run": asked.run,
        "-m": asked.multirun,
        "--cfg": asked.cfg,
        "--info": asked.info,
        "-sc": asked.shell_completion,
    }
    given = [flag for flag, value in named.items() if value]
    if asked.experimental_rerun:
        raise ConfigError("--experimental-rerun reads what no run of ours leaves: use resume=<run folder>")
    if "-m" in given and len(given) > 1 and given[1] in ("--cfg", "--info"):
        raise ConfigError(f"{given[1]} shows one configuration, -m runs several: leave -m out")
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} exclude one another: give one of them")
    for flag in ("resolve", "package"):
        if getattr(asked, flag) and not asked.cfg:
            raise ConfigError(f"--{flag} has no effect without --cfg: add --cfg job")
    if asked.shell_completion:
        _check_completion(asked.overrides)


def _check_completion(words: list[str]) -> None:
    action, _, shell = words[0].partition("=") if len(words) == 1 else ("", "", "")
    if action not in ("install", "uninstall", "query") or shell not in _SHELLS:
        raise ConfigError(
            f"-sc {' '.join(words)}: needs one of install= and uninstall= with {', '.join(_SHELLS)}, "
            'e.g. eval "$(ddppo-train -sc install=bash)"'
        )
    if action == "query" and not {"COMP_LINE", "COMP_POINT"} & os.environ.keys():
        raise ConfigError(f"-sc {words[0]}: is for the shell to ask, once -sc install={shell} has set it up")


def check_names(settings: list[str], values: dict[str, str]) -> None:
    """Refuse what Hydra would take for something else, or say in its own words only."""
    for setting in settings:
        key, equals, value = setting.partition("=")
        bare = bare_name(key)
        if equals and not bare:
            raise ConfigError(f"{setting} has no name in front of the equals sign; --help lists all settings")
        taken_away = (
            "env.kwargs.",
            "env.slow_ranks.",
            "hydra",
            *(f"{name}." for name in mappings_of_plugins()),
        )
        if key.startswith("~") and not bare.startswith(taken_away):
            raise ConfigError(f"{setting}: a setting cannot be taken away: leave it out to have its default")
        if equals and (bare in _PLAIN_SECTIONS or bare in sections()):
            raise ConfigError(f"{setting}: {_of_section(bare, value)}")
        if equals and bare in _GROUPS and _is_no_option(value) and setting != "experiment=null":
            raise ConfigError(unknown_option(f"{bare}/{value}", ""))
        if type_of(bare, types()) is bool and equals and not is_truth(value):
            raise ConfigError(f"{setting}: {value} is not true or false")


def _is_no_option(value: str) -> bool:
    return is_schema(value) or _NO_NAME.fullmatch(value) is not None


def _of_section(section: str, value: str) -> str:
    if group := _PLAIN_SECTIONS.get(section):
        return (
            f"{section} is a section of settings, whose options are chosen by {group}=: use {group}={value}"
        )
    names = [name for name in setting_names(config_class()) if name.startswith(f"{section}.")]
    return f"{section} is a section of settings: set one of {', '.join(names)}"


def check_single(values: dict[str, str], *, runs: bool) -> None:
    if "sweep" in values:
        raise ConfigError(
            f"sweep={values['sweep']} has no effect on one run: add -m, or use hydra.run.dir for its folder"
        )
    if not runs:  # a configuration is only shown
        return
    for key, value in values.items():
        if key.startswith(_OF_SWEEPS) and (key.partition(".")[0], value) not in _DEFAULTS_OF_SWEEPS:
            raise ConfigError(f"{key}={value} has no effect on one run: add -m, or leave it out")


def check_multirun(asked: argparse.Namespace, values: dict[str, str]) -> None:
    if asked.cfg or asked.info:  # with hydra.mode=MULTIRUN
        raise ConfigError(
            "--cfg and --info show one configuration, hydra.mode=MULTIRUN runs several: leave it out"
        )
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
    if "sweep" in values and "hydra.sweep.dir" in values:
        raise ConfigError(
            f"sweep={values['sweep']} and hydra.sweep.dir={values['hydra.sweep.dir']} both name the sweep's folder: "
            "give sweep= alone"
        )
    subdir = values.get("hydra.sweep.subdir")
    if subdir is not None and "${" not in subdir:
        raise ConfigError(
            f"hydra.sweep.subdir={subdir} would put every run of the sweep into one folder: leave it out"
        )
    if "hydra.run.dir" in values:
        raise ConfigError(
            f"hydra.run.dir={values['hydra.run.dir']} has no effect with -m, whose runs have folders in the sweep's: "
            "use sweep=<folder>"
        )


def check_writable(key: str, value: str) -> None:
    if value in ("", "null"):
        raise RunFolderError(f"{key}={value} names no folder")
    if "${" in value:  # known once the configuration is composed
        return
    folder = Path(value).absolute()
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    try:  # permissions do not tell of names too long, of quotas, or of file systems that take no folders
        with tempfile.TemporaryDirectory(
            dir=existing
        ) as beside:  # another command may want the same folder now
            (Path(beside) / folder.relative_to(existing)).mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise RunFolderError(
            f"{key}={folder}: {existing} is not a folder that can be written to: {e.strerror}"
        ) from e
