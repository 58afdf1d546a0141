"""The arguments of `python -m ddppo.train` before Hydra reads them, and Hydra's messages after.

`prepared_arguments` is the whole story, and the sections below follow its steps. It is needed because Hydra's grammar
reads paths, numbers and flags in its own way, and accepts settings that have no effect. `composed` uses the same steps
for a configuration without a run.
"""

import argparse
import functools
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, get_origin

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from ddppo.config import rules, stored
from ddppo.config.compose import register
from ddppo.config.fields import in_words, is_integer, is_truth, near, setting_types, written_out
from ddppo.config.help import setting_names, unknown_setting
from ddppo.config.presets import algorithms, check_algorithm, conf_dir, in_full, is_schema, presets, schemas
from ddppo.config.settings import SECTIONS, Config, config_class, sections
from ddppo.config.variants import type_of
from ddppo.errors import ConfigError, EnvRaised, RunFolderError, TrainingError
from ddppo.launch.torchrun import launcher
from ddppo.package import install_command

_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir", "sweep")  # settings that name a folder to write into


def prepared_arguments(arguments: list[str]) -> list[str]:
    """Return the arguments for Hydra: flags first, settings in its grammar, then settings that follow from others.

    Raises ConfigError if arguments exclude one another or have no effect, RunFolderError if a folder cannot be used.
    """
    # 1. Separate flags from settings. Help and completion need no checks.
    arguments = [_by_import_path(argument) for argument in arguments]
    asked = _Parser().parse_intermixed_args(arguments)
    flags, settings = _parted(arguments, asked.overrides)
    if asked.help or asked.hydra_help:
        return [*flags, *settings]
    _check_flags(asked)
    if asked.shell_completion:
        return [*flags, *settings]
    # 2. Refuse names and values that Hydra would misunderstand, and write keywords of a task in full.
    values = {bare_name(key): value for key, equals, value in (s.partition("=") for s in settings) if equals}
    _check_names(settings, values)
    check_algorithm(values)
    settings = in_full(settings, values)
    # 3. Refuse settings that do not belong to one run, or to a sweep.
    if asked.multirun or values.get("hydra.mode") == "MULTIRUN":
        _check_multirun(asked, values)
        settings = _seeds_first(settings)
    else:
        _check_single(values, runs=asked.cfg is None and asked.info is None)
    # 4. Check folders. A resumed run writes into its own, and under a launcher W is the number of processes.
    added = _settings_of_resume(values) if "resume" in values else []
    for key in _FOLDERS:
        if key in values:
            _check_writable(key, _unquoted(values[key]))
    if launcher():
        added += _settings_of_launcher(values)
    # 5. Write each setting as Hydra's grammar needs it.
    if len(set(algorithms(values))) > 1:
        settings = [_of_several(setting) for setting in settings]
    return [*flags, *map(_in_grammar, settings), *added]


def _seeds_first(settings: list[str]) -> list[str]:
    """Return the settings of a sweep with `seed` as the first, so that seeds are outermost: they take turns over W.

    If all seeds of one W ran before the next W, a machine that becomes busy would look like a slow W.
    """
    return sorted(settings, key=lambda setting: bare_name(setting.partition("=")[0]) != "seed")


def composed(overrides: Sequence[str]) -> Config:
    """Return the checked configuration of `python -m ddppo.train <overrides>`. Raises ConfigError as that does."""
    arguments = prepared_arguments(list(overrides))
    register()
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            config = stored.from_omegaconf(compose("config", arguments))
    except (HydraException, OmegaConfBaseException) as e:
        raise ConfigError(composition_message(e)) from e
    rules.validate(config)
    return config


# -- 1. Flags and settings.

_IMPORT_PATH = re.compile(r"[a-z_][\w.]*:[a-z_]\w*", re.IGNORECASE)
_SHELLS = ("bash", "fish", "zsh")


# Groups in which an import path stands for a preset, and the setting that takes it.
_TAKE_IMPORT_PATHS = {"distributed": "dist.topology", "algorithm": "algorithm.name"}
_EXAMPLES = {"distributed": "my_pkg.topologies:Ring", "algorithm": "my_pkg.algos:Reinforce"}


def _by_import_path(argument: str) -> str:
    """Return `algorithm=my_pkg.algos:Reinforce`, which is no preset, as the setting algorithm.name=...

    A sweep may name several, with commas in between. Raises ConfigError if presets are among them.
    """
    group, _, value = argument.partition("=")
    key, words = _TAKE_IMPORT_PATHS.get(group), value.split(",")
    paths = [word for word in words if _IMPORT_PATH.fullmatch(word)]
    if key is None or not paths:
        return argument
    if len(paths) < len(words):
        raise ConfigError(
            f"{argument}: a sweep runs over presets or over import paths: give a command for each of the two"
        )
    return f"{key}={value}"


class _Parser(argparse.ArgumentParser):
    """Hydra's parser with messages of ours. It knows flags by their whole names only."""

    def __init__(self) -> None:
        let_hydra_parse()
        super().__init__(
            add_help=False, allow_abbrev=False, parents=[get_args_parser()], conflict_handler="resolve"
        )

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{' '.join(message.split())}; --help shows how ddppo.train is called")


def let_hydra_parse() -> None:
    """Let argparse of Python 3.14 accept help texts that are not strings yet.

    It checks a help text when a flag is added. Hydra 1.3 makes one of its texts only when it is shown, so no command of
    Hydra's would start there without this.
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


def _parted(arguments: list[str], overrides: list[str]) -> tuple[list[str], list[str]]:
    """Return flags with their values, and settings: Hydra does not find a flag between settings."""
    flags, left = [], list(overrides)
    for argument in arguments:
        if left and argument == left[0]:
            left.pop(0)
        else:
            flags.append(argument)
    return flags, overrides


def _check_flags(asked: argparse.Namespace) -> None:
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
        raise ConfigError(
            "--experimental-rerun reads files that ddppo does not write: use resume=<run folder>"
        )
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


# -- 2. Names of settings, and values that Hydra would read as something else.

_GROUPS = (*SECTIONS, "experiment", "hydra/launcher", "hydra/sweeper")
# Sections of settings that are no group, and the group with presets for them, if any.
_PLAIN_SECTIONS = {"dist": "distributed", "eval": "", "checkpoint": "", "log": ""}
# Values that name no preset. Hydra takes null for "no preset", and fails on the others.
_NO_NAME = re.compile(r"""[-+.\d]+(e[-+]?\d+)?|true|false|nan|inf|null|['"]{2}|\{.*|\[\s*\]""", re.IGNORECASE)


@functools.cache
def types() -> dict[str, Any]:
    """Return the annotation of every setting by its full key, including those of launchers and sweepers."""
    found = setting_types(config_class())
    for schema, section in schemas().items():
        group = schema.rpartition("/")[0]
        if group.startswith("hydra/"):
            found |= setting_types(section, group.replace("/", ".") + ".")
    return found


def mappings_of_plugins() -> list[str]:
    """Return the settings of plugins that are mappings: the user makes up their keys."""
    of_sections = [name for section in sections() for name in types() if name.startswith(f"{section}.")]
    return [name for name in of_sections if get_origin(types()[name]) is dict]


def bare_name(key: str) -> str:
    """Return the name of a setting without the signs by which Hydra adds (+, ++) and removes (~)."""
    return key.lstrip("+~")


def _check_names(settings: list[str], values: dict[str, str]) -> None:
    """Refuse settings that Hydra would misunderstand, or answer in words of its own."""
    removable = (
        "env.kwargs.",
        "env.simulator_options.",
        "env.reward_weights.",
        "env.slow_ranks.",
        "eval.env.",
        "hydra",
        *(f"{name}." for name in mappings_of_plugins()),
    )
    for setting in settings:
        key, equals, value = setting.partition("=")
        bare = bare_name(key)
        if equals and not bare:
            raise ConfigError(
                f"{setting} has no name in front of the equals sign; --help all lists the settings"
            )
        if key.startswith("~") and not bare.startswith(removable):
            raise ConfigError(f"{setting}: a setting cannot be taken away: leave it out to have its default")
        if equals and (bare in _PLAIN_SECTIONS or bare in sections()):
            raise ConfigError(f"{setting}: {_no_setting_but_section(bare, value)}")
        is_no_option = is_schema(value) or _NO_NAME.fullmatch(value) is not None
        if equals and bare in _GROUPS and is_no_option and setting != "experiment=null":
            raise ConfigError(unknown_option(f"{bare}/{value}", ""))
        if type_of(bare, types()) is bool and equals and not is_truth(value):
            raise ConfigError(f"{setting}: {value} is not true or false")


def _no_setting_but_section(section: str, value: str) -> str:
    if group := _PLAIN_SECTIONS.get(section):
        return f"{section} is a section of settings; its options are chosen by {group}=: use {group}={value}"
    names = [name for name in setting_names(config_class()) if name.startswith(f"{section}.")]
    return f"{section} is a section of settings: set one of {', '.join(names)}"


# -- 3. One run, or a sweep.

# Settings that have an effect in sweeps only, apart from their defaults.
_SWEEP_SETTINGS = (
    "hydra/launcher",
    "hydra/sweeper",
    "hydra.launcher.",
    "hydra.sweeper.",
    "hydra.sweep.",
    "objective",
)
_SWEEP_DEFAULTS = (("hydra/launcher", "basic"), ("hydra/sweeper", "basic"))


def _check_single(values: dict[str, str], *, runs: bool) -> None:
    """Refuse settings of sweeps. runs: whether the run is started, and not only its configuration shown."""
    if "sweep" in values:
        raise ConfigError(
            f"sweep={values['sweep']} has no effect on one run: add -m, or use hydra.run.dir for its folder"
        )
    if not runs:
        return
    for key, value in values.items():
        if key.startswith(_SWEEP_SETTINGS) and (key.partition(".")[0], value) not in _SWEEP_DEFAULTS:
            raise ConfigError(f"{key}={value} has no effect on one run: add -m, or leave it out")


def _check_multirun(asked: argparse.Namespace, values: dict[str, str]) -> None:
    """Refuse settings of single runs, and two sweeps in one command."""
    if asked.cfg or asked.info:  # with hydra.mode=MULTIRUN
        raise ConfigError(
            "--cfg and --info show one configuration, hydra.mode=MULTIRUN runs several: leave it out"
        )
    if launcher():
        raise ConfigError(f"-m starts several runs, {launcher()} one: use one or the other")
    if "resume" in values:
        raise ConfigError(
            "resume continues one run; it cannot be combined with -m. To continue a sweep, repeat its command with "
            "the same sweep=<folder>"
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
            f"hydra.run.dir={values['hydra.run.dir']} has no effect with -m: its runs have folders in the sweep's: "
            "use sweep=<folder>"
        )


# -- 4. Folders, and settings that follow from resume= and from the launcher.


def _settings_of_resume(values: dict[str, str]) -> list[str]:
    """Return the setting that makes the folder of a resumed run its output; none for resume=auto."""
    if _unquoted(values["resume"]) == "auto":
        _check_fixed(values)
        return []
    if "init_from" in values:
        raise ConfigError(
            f"init_from={values['init_from']} and resume={values['resume']} exclude one another: a resumed run has its "
            "own parameters; leave one of them out"
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


def _check_fixed(values: dict[str, str]) -> None:
    """Refuse resume=auto with a folder that has another name at each start: nothing would ever be resumed."""
    folder = values.get("hydra.run.dir")
    if folder is None or "${stamp:" in folder or "${now:" in folder:
        found = "there is none" if folder is None else f"hydra.run.dir={folder} is another at every start"
        raise ConfigError(
            f"resume=auto resumes the run in a folder with a fixed name, and {found}: add "
            "hydra.run.dir=<folder>"
        )


def _check_writable(key: str, value: str) -> None:
    """Raise RunFolderError if a folder cannot be made and written to."""
    if value in ("", "null"):
        raise RunFolderError(f"{key}={value} names no folder")
    if "${" in value:  # known once the configuration is composed
        return
    folder = Path(value).absolute()
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    # Try it: permissions say nothing about names that are too long, quotas, or file systems that refuse folders. Under
    # another name, for another command may want the same folder now.
    try:
        with tempfile.TemporaryDirectory(dir=existing) as beside:
            (Path(beside) / folder.relative_to(existing)).mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise RunFolderError(
            f"{key}={folder}: {existing} is not a folder that can be written to: {e.strerror}"
        ) from e


def _settings_of_launcher(values: dict[str, str]) -> list[str]:
    """Return dist.world_size=<number of ranks that torchrun or mpirun started>, unless it is given."""
    world_size = os.environ["WORLD_SIZE"]
    if values.get("dist.world_size", world_size) != world_size:
        raise ConfigError(
            f"dist.world_size={values['dist.world_size']}, but {launcher()} started {world_size} ranks: leave it out"
        )
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0 and "resume" not in values:
        raise ConfigError(
            "torchrun --max-restarts starts this command again after a fault, and without resume=auto it would begin "
            "another run: add resume=auto hydra.run.dir=<folder>, or leave --max-restarts out"
        )
    return [] if "dist.world_size" in values else [f"dist.world_size={world_size}"]


# -- 5. Settings in Hydra's grammar.

# Mappings with keys that the user makes up. Hydra takes such a key for a typing error unless ++ adds it.
_MAPPINGS = (
    "env.kwargs",
    "env.simulator_options",
    "env.reward_weights",
    "env.slow_ranks",
    "eval.env",
    "model.encoders",
    "ppo.learning_rates",
    "ppo.losses",
)
_IPV6 = re.compile(r"(?<![\"'])wss?://\[[\da-f:.]+\](:\d+)?/?", re.IGNORECASE)  # Hydra takes [ ] for a list


def _in_grammar(argument: str) -> str:
    """Return a setting in Hydra's grammar: paths quoted, whole numbers written out, made-up keys added by ++."""
    key, equals, value = argument.partition("=")
    bare = bare_name(key)
    if equals and (bare in (*_FOLDERS, "resume") or (bare == "init_from" and _is_one_path(value))):
        return f"{key}={_quoted(_unquoted(value))}"
    if equals and bare == "env.urls":
        return f"{key}={_IPV6.sub(lambda found: _quoted(found[0]), value)}"
    if equals and is_integer(type_of(bare.removeprefix("hydra.sweeper.params."), types())):
        return f"{key}={written_out(value)}"
    mappings = tuple(f"{name}{end}" for name in (*_MAPPINGS, *mappings_of_plugins()) for end in "=.")
    return f"++{argument}" if argument.startswith(mappings) else argument


def _of_several(argument: str) -> str:
    """Return a setting of an algorithm with ++ in front, for a sweep over several of them (compose._for_run)."""
    is_own = argument.startswith(("algorithm.", "ppo.")) and not argument.startswith("algorithm.name=")
    return f"++{argument}" if is_own else argument


def _is_one_path(value: str) -> bool:
    """Return whether a value is a path and not several values of a sweep: it exists, or has no comma."""
    return value != "null" and ("," not in value or Path(_unquoted(value)).exists())


def _unquoted(value: str) -> str:
    """Return a value without the quotes that Hydra's grammar asks for."""
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1].replace(f"\\{value[0]}", value[0]) if is_quoted else value


def _quoted(value: str) -> str:
    """Return a value in quotes, so that Hydra's grammar reads any character as it is. It still resolves ${...}."""
    return QuotedString(value, Quote.single).with_quotes()


# -- Hydra's messages and errors in one line each.

# Options that come with one of our extras. Hydra knows no such name before the extra is installed.
_EXTRAS = {("hydra/sweeper", "optuna"): "tune", ("hydra/launcher", "joblib"): "tune"}
_CHAINED = ", set env var HYDRA_FULL_ERROR=1 to see chained exception."  # Hydra's words in place of the cause


def composition_message(error: HydraException | OmegaConfBaseException) -> str:
    """Return Hydra's message about a command line in one line, with near matches of a mistyped name."""
    text = str(error)
    if text.startswith("Error merging override"):
        cause = in_words(str(error.__cause__).splitlines()[0])
        return f"{text.removeprefix('Error merging override ').lstrip('+')}: {cause}"
    # A name that does not exist: of a setting, or of an option of a group.
    if found := re.match(r"Could not override '([\w.]+)'", text):
        return unknown_setting(found[1], config_class())
    if found := re.search(r"Could not (?:find|load|override) '(\w+/[^'\s]+)'", text):
        return unknown_option(found[1], text)
    # Anything else: its lines joined, the key in front, the cause behind.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    details = [line for line in lines if not line.startswith(("full_key", "reference_type", "object_type"))]
    key = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("full_key")), "")
    message = " ".join(details)
    if _CHAINED in message and isinstance(error.__cause__, Exception):
        message = f"{message.replace(_CHAINED, '')}: {one_line(error.__cause__)}"
    return f"{key + ': ' if key else ''}{message}"


def unknown_option(path: str, text: str) -> str:
    """Return a message about an option that does not exist, e.g. hydra/launcher/nix or experiment/tune/nix.

    text: Hydra's own message, which lists the options of launchers and sweepers.
    """
    parts = path.split("/")
    depth = 2 if parts[0] == "hydra" else 1
    group, option = "/".join(parts[:depth]), "/".join(parts[depth:])
    if extra := _EXTRAS.get((group, option)):
        return f"{group}={option} needs a package that is not installed: {install_command(extra)}"
    options = set(presets(group))
    if parts[0] == "hydra":
        options |= set(re.findall(r"^\t(\w+)$", text, re.MULTILINE))
    own = f"; one of your own goes by its import path, {example}" if (example := _EXAMPLES.get(group)) else ""
    if group == "env":
        own = f"; any other task goes by its id, env=gym env.id={option}"
    if group == "model":
        own = f"; one of your own goes by model.name={option if ':' in option else 'my_pkg.models:MyModel'}"
    return (
        f"{group}={option}: must be one of {', '.join(sorted(options))}{near(option, sorted(options))}{own}"
    )


def one_line(error: Exception) -> str:
    """Return an error in one line, with the name of its class unless it is one of ours, which need none."""
    text = " ".join((error.said if isinstance(error, EnvRaised) else str(error)).split())
    return text if isinstance(error, (ConfigError, TrainingError)) else f"{type(error).__name__}: {text}"
