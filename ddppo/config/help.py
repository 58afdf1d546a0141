"""The text of `--help`: every option of every group, and every setting with its default and meaning.

And the messages about names that do not exist, which draw on the same lists.
"""

import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from ddppo.config.fields import near
from ddppo.config.variants import RENAMED, SECTIONS_WITH_VARIANTS, keys_of, known

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
    presets: Callable[[str], Mapping[str, Path]], root: type, groups: list[str], of_hydra: Mapping[str, type]
) -> str:
    """Return the text of `--help`.

    Args:
        presets: the presets of a group, by name.
        root: the dataclass of all settings.
        groups: the groups of presets, in this order.
        of_hydra: dataclasses of launchers and sweepers, by schema, e.g. hydra/launcher/slurm_schema.
    """
    # Options of groups, then settings, then those of launchers and sweepers.
    lines = [_USAGE, "Groups and their options (group=option):"]
    for group in [*groups, "experiment", *_OF_HYDRA]:
        options = dict(_OF_HYDRA.get(group, {}))
        options |= {name: description(path) for name, path in presets(group).items()}
        lines += ["", f"  {group}"] if options else []
        lines += [_folded(f"    {name:<22}  ", text) for name, text in options.items()]
    lines += ["", "Settings (key=value), their defaults and meanings:"]
    lines += _settings(root, "")
    for schema, section in of_hydra.items():
        group, _, name = schema.rpartition("/")
        users = [option for option in presets(group) if option.startswith(name.removesuffix("_schema"))]
        lines += ["", f"Settings of {group}={' and '.join(users)}:"]
        lines += _settings(section, group.replace("/", ".") + ".")
    return "\n".join(lines)


def unknown_setting(key: str, root: type) -> str:
    """Return the message about a setting that does not exist: its name now if it was renamed, or near matches."""
    if key in RENAMED:
        return f"{key} is called {RENAMED[key]} now"
    return f"there is no setting {key}{near(key, all_names(root))}; --help lists all"


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
