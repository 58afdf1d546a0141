"""The text of `--help`: the options and common settings, or with `all` every option and setting with its meaning.

And the messages about names that do not exist, which draw on the same lists.
"""

import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from ddppo.config.fields import near
from ddppo.config.variants import RENAMED, SECTIONS_WITH_VARIANTS, keys_of, known
from ddppo.errors import ConfigError

_USAGE = """ddppo: data-parallel PPO on one worker or many

  python -m ddppo.train env=cartpole                                    one process
  python -m ddppo.train env=cartpole dist.world_size=4                  four ranks on this machine
  python -m ddppo.train -m env=cartpole dist.world_size=1,2,4 seed=0,1  a run per combination, one after another
  python -m ddppo.train -m env=cartpole 'seed=range(5)' sweep=<folder>  again: skip complete runs, go on with others
  python -m ddppo.train -m experiment=<name>                            a whole study, in a folder of its own
  python -m ddppo.train env=circuit env.circuit=tof_3                   keywords of a task are settings of env too
  torchrun --nproc-per-node=4 -m ddppo.train env=cartpole               four ranks that torchrun starts
  mpirun -n 4 python -m ddppo.train env=cartpole                        four ranks that MPI, or srun, starts
  python -m ddppo.train resume=outputs/cartpole/<stamp>                 go on from the last checkpoint of a run
  python -m ddppo.train env=cartpole --cfg job                          show the composed configuration
"""
_MORE = """
--help all     every option with its description, every setting, launchers and sweepers
--help <name>  the same of one group or section: {topics}"""
# Settings that users of other libraries set first; --help all has the others.
_COMMON = (
    *("seed", "device", "target_return", "resume", "init_from", "sweep"),
    *("env.id", "env.num_envs", "env.kwargs", "env.wrappers", "model.hidden_sizes", "model.activation"),
    *("ppo.total_steps", "ppo.rollout_steps", "ppo.num_epochs", "ppo.num_minibatches", "ppo.learning_rate"),
    *(
        "ppo.lr_schedule",
        "ppo.gamma",
        "ppo.gae_lambda",
        "ppo.clip_coef",
        "ppo.entropy_coef",
        "ppo.value_coef",
    ),
    *(
        "ppo.normalize_obs",
        "ppo.normalize_rewards",
        "dist.world_size",
        "eval.every_steps",
        "eval.final_episodes",
    ),
    *("checkpoint.every_steps", "log.tensorboard", "log.progress", "run.max_minutes", "run.stop_at_target"),
)
_BRIEF = 76  # characters of a meaning in the short help
# Options of Hydra and its plugins. Ours are presets in conf/hydra.
_OF_HYDRA = {
    "hydra/launcher": {
        "basic": "One job after another, the default.",
        "joblib": "Small jobs side by side, hydra.launcher.n_jobs of them at once. Needs the extra tune.",
    },
    "hydra/sweeper": {
        "basic": "Every combination of the given values, the default.",
        "optuna": "Optuna draws hydra.sweeper.n_trials settings, guided by `objective`. Needs the extra tune.",
    },
}


def description(path: Path) -> str:
    """Return the one-line description of a preset: its first comment that is not a Hydra directive."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and not line.startswith("# @"):
            return line.lstrip("# ").strip()
    return ""


def help_text(
    presets: Callable[[str], Mapping[str, Path]],
    root: type,
    groups: list[str],
    of_hydra: Mapping[str, type],
    topic: str | None = None,
) -> str:
    """Return the text of `--help`, of `--help all`, or of `--help <group or section>`. Raises ConfigError.

    Args:
        presets: the presets of a group, by name.
        root: the dataclass of all settings.
        groups: the groups of presets, in this order.
        of_hydra: dataclasses of launchers and sweepers, by schema, e.g. hydra/launcher/slurm_schema.
        topic: None for the short text, `all`, or a group or a section.
    """
    options = {
        group: _OF_HYDRA.get(group, {}) | {name: description(path) for name, path in presets(group).items()}
        for group in [*groups, "experiment", *_OF_HYDRA]
    }
    sections = [
        item.name
        for item in fields(root)
        if item.name in SECTIONS_WITH_VARIANTS
        or (isinstance(item.default_factory, type) and is_dataclass(item.default_factory))
    ]
    topics = list(dict.fromkeys([*options, *sections]))
    if topic is None:
        return "\n".join(_short(root, options, topics))
    if topic != "all" and topic not in topics:
        raise ConfigError(
            f"--help {topic}: no group or section{near(topic, topics)}; there are all, {', '.join(topics)}"
        )
    is_all = topic == "all"
    # Options of groups, then settings, then those of launchers and sweepers.
    lines = [_USAGE, "Groups and their options (group=option):"] if is_all else []
    for group, described in options.items():
        if described and topic in ("all", group):
            lines += ["", f"  {group}"]
            lines += [_folded(f"    {name:<22}  ", text) for name, text in described.items()]
    section = "dist" if topic == "distributed" else topic
    if is_all or section in sections:
        lines += ["", "Settings (key=value), their defaults and meanings:"]
        lines += _settings(root, "") if is_all else _of_section(root, section)
    for schema, settings in of_hydra.items():
        group, _, name = schema.rpartition("/")
        if topic in ("all", group):
            users = [option for option in presets(group) if option.startswith(name.removesuffix("_schema"))]
            lines += ["", f"Settings of {group}={' and '.join(users)}:"]
            lines += _settings(settings, group.replace("/", ".") + ".")
    return "\n".join(lines)


def _short(root: type, options: Mapping[str, Mapping[str, str]], topics: list[str]) -> list[str]:
    """Return the lines of `--help`: names of all options, and the settings of _COMMON, a line each."""
    lines = [_USAGE, "Options (group=option):", ""]
    for group, described in options.items():
        names = textwrap.fill(" ".join(described), 100, break_long_words=False, break_on_hyphens=False)
        lines.append(f"  {group:<16}" + names.replace("\n", "\n" + 18 * " "))
    lines += ["", "Settings (key=value) that most runs change:", ""]
    for key in _COMMON:
        item = _field(root, key)
        default = "" if item.default == "???" else shown_default(item)
        meaning = re.split(r"; |(?<!e\.g)\. ", item.metadata["meaning"])[0]  # its first sentence
        lines.append(f"  {key + '=' + default:<32}" + textwrap.shorten(meaning, _BRIEF, placeholder=" ..."))
    more = textwrap.fill(", ".join(topics), 70, break_on_hyphens=False).replace("\n", "\n" + 15 * " ")
    return [*lines, _MORE.format(topics=more)]


def _field(root: type, key: str) -> Any:
    """Return the field of a setting by its full key, of the first variant that has it."""
    section, _, name = key.rpartition(".")
    kinds = [_section(root, section) if section else root]
    if section in SECTIONS_WITH_VARIANTS:
        kinds = [SECTIONS_WITH_VARIANTS[section].base, *known(section).values()]
    return next(item for kind in kinds for item in fields(kind) if item.name == name)


def _of_section(root: type, section: str) -> list[str]:
    if section in SECTIONS_WITH_VARIANTS:
        return _of_variants(section)
    return _settings(_section(root, section), f"{section}.")


def _section(root: type, name: str) -> Any:
    """Return the dataclass of a section."""
    return next(item.default_factory for item in fields(root) if item.name == name)


def unknown_setting(key: str, root: type) -> str:
    """Return the message about a setting that does not exist: its name now if it was renamed, or near matches."""
    if key in RENAMED:
        return f"{key} is called {RENAMED[key]} now"
    return f"there is no setting {key}{near(key, all_names(root))}; --help all lists them"


def all_names(root: type) -> list[str]:
    """Return the full keys of all settings, including those of all variants."""
    of_variants = [
        f"{section}.{name}"
        for section in SECTIONS_WITH_VARIANTS
        for kind in known(section).values()
        for name in keys_of(kind)
    ]
    return list(dict.fromkeys([*setting_names(root), *of_variants]))


def setting_names(section: type, prefix: str = "") -> list[str]:
    """Return the full keys of every setting of dataclass `section`, e.g. ppo.gamma."""
    names: list[str] = []
    for item in fields(section):
        inner = item.default_factory
        if isinstance(inner, type) and is_dataclass(inner):
            names += setting_names(inner, f"{prefix}{item.name}.")
        else:
            names.append(prefix + item.name)
    return names


def _settings(section: type, prefix: str) -> list[str]:
    nested: list[str] = []
    plain: list[str] = []
    for item in fields(section):
        # A section with variants, another section, or a setting.
        if not prefix and item.name in SECTIONS_WITH_VARIANTS:
            nested += ["", *_of_variants(item.name)]
        elif isinstance(item.default_factory, type) and is_dataclass(item.default_factory):
            nested += ["", *_settings(item.default_factory, f"{item.name}.")]
        elif item.metadata["meaning"]:
            plain.append(setting_line(item, prefix, 38))
    return plain + nested


def _of_variants(section: str) -> list[str]:
    """Return lines for the settings that all variants have, then for the others, grouped by their variants."""
    base, chosen_by = SECTIONS_WITH_VARIANTS[section].base, SECTIONS_WITH_VARIANTS[section].chosen_by
    # Each line once: a setting with the same default and meaning in several variants is one line of them all.
    common = keys_of(base)
    owners: dict[str, list[str]] = {}
    for name, kind in known(section).items():
        for item in fields(kind):
            if item.name not in common:
                owners.setdefault(setting_line(item, f"{section}.", 38), []).append(name)
    lines = _settings(base, f"{section}.")
    for names in dict.fromkeys(map(tuple, owners.values())):
        lines += ["", f"  with {chosen_by}={' or '.join(names)}:"]
        lines += [line for line, of_line in owners.items() if tuple(of_line) == names]
    return lines


def setting_line(item: Any, prefix: str, width: int) -> str:
    """Return the name, default, meaning and choices of a setting, the meaning after `width` columns."""
    meaning, choices = item.metadata["meaning"], item.metadata["choices"]
    if not all(choice in meaning for choice in choices):
        meaning += f" ({', '.join(choices)})"
    default = "" if item.default == "???" else shown_default(item)
    return _folded(f"  {prefix + item.name + '=' + default:<{width}}  ", meaning)


def _folded(name: str, text: str) -> str:
    """Return a line of help: folded into a column beside the name on a terminal, else one line, for grep."""
    if not sys.stdout.isatty():
        return name + text
    indent = " " * min(len(name), 42)
    return textwrap.fill(
        name + text,
        max(80, shutil.get_terminal_size().columns),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def shown_default(item: Any) -> str:
    value = item.default if item.default_factory is MISSING else item.default_factory()
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return str(value).replace(" ", "")
