"""The command line of all commands but ddppo.train: `key=value` arguments become a dataclass of settings.

    options = parse(EvaluateConfig, sys.argv[1:], path="run", usage="python -m ddppo.evaluate run=<run folder> ...")

The fields are those of `ddppo.config.fields.setting`. Imports no torch.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ddppo.config.fields import check_fields, in_words, is_integer, is_truth, near, written_out
from ddppo.config.help import setting_line
from ddppo.config.settings import SECTIONS, config_class
from ddppo.config.stored import escaped
from ddppo.errors import ConfigError, TrainingError
from ddppo.package import see_current_folder, versions
from ddppo.processes.signals import ends_without_waiting
from ddppo.terminal import unbroken_streams

T = TypeVar("T")


@contextmanager
def door(interrupted: str = "interrupted") -> Iterator[None]:
    """Run a command: exit code 2 for a mistake in it, 1 for a fault, 130 for Ctrl-C, each with a sentence on stderr."""
    see_current_folder()
    with ends_without_waiting(), unbroken_streams():
        try:
            yield
        except (ConfigError, TrainingError) as e:
            print(f"error: {e}", file=sys.stderr)
            sys.exit(e.exit_code)
        except KeyboardInterrupt:
            print(f"\n{interrupted}", file=sys.stderr)
            sys.exit(130)


def parse(
    section: type[T],
    arguments: Sequence[str],
    *,
    usage: str,
    path: str | None = None,
    more: str | None = None,
) -> T:
    """Return the options of a command line as a `section`. `--help`, `-h` and `--version` print their text and exit.

    Args:
        section: the dataclass.
        usage: how the command is called; the first lines of the help.
        path: the field for one word without `=`, or for one that exists as a file or folder.
        more: the field, a list, for further such words.

    Raises ConfigError, in one line, for a name that is no field (with near matches), a value of the wrong type or
    against its rule, a second path, and a missing value.
    """
    (options,) = parse_all((section,), arguments, usage=usage, path=path, more=more)
    assert isinstance(options, section)
    return options


def parse_all(
    sections: Sequence[type[Any]], arguments: Sequence[str], *, usage: str, path: str | None = None,
    more: str | None = None,
) -> list[Any]:  # fmt: skip
    """Parse a command line into several dataclasses. `path` and `more` are fields of the first; else as in `parse`."""
    if any(a in ("-h", "--help") for a in arguments):
        print(help_text(sections, usage))
        sys.exit(0)
    if "--version" in arguments:
        print(versions())
        sys.exit(0)
    # Each argument is a path, a setting, or a mistake.
    types = {f.name: f.type for section in sections for f in fields(section)}
    names = list(types)
    given: dict[str, Any] = {}
    word: str | None = None
    for argument in arguments:
        if argument.startswith("-"):
            raise ConfigError(f"{argument}: options are key=value here, without dashes; --help lists all")
        # A setting without a value, or a truth value that YAML would read as a number, is a mistake.
        key, equals, value = argument.partition("=")
        is_setting = bool(equals) and key in names
        if is_setting and not value:
            raise ConfigError(f"{argument} has no value: give one, or leave it out")
        if is_setting and types[key] is bool and not is_truth(value):
            raise ConfigError(f"{argument}: {value} is not true or false")
        # The path is taken as it is, then texts, then integers such as 1e6, then any other value, as YAML.
        if path is not None and ((is_setting and key == path) or _is_path(argument, is_setting)):
            if word is not None and more is not None and not is_setting:
                given.setdefault(more, []).append(escaped(argument))
                continue
            if word is not None:
                raise ConfigError(f"{argument}: a second {path}, after {word}: give one at a time")
            # Not read as YAML: a folder may be called 2026 or a[1].
            word = value if is_setting else argument
            given[path] = escaped(word)
        elif is_setting and types[key] in (str, str | None) and value != "null":
            # Not read as YAML, which takes 12_3, an element of a job array, for 123.
            given[key] = escaped(value)
        elif is_setting and is_integer(types[key]):
            given |= _value(f"{key}={written_out(value)}")
        elif is_setting:
            given |= _value(argument)
        else:
            raise ConfigError(f"{argument}: there is no setting {key}{near(key, names)}; --help lists all")
    return [
        filled(section, {f.name: given[f.name] for f in fields(section) if f.name in given}, usage)
        for section in sections
    ]


def parted(section: type[Any], arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments for `section`, and those that are settings of ddppo.train.

    Raises ConfigError for a name that is neither, if it resembles a field of `section`.
    """
    # Only a name without a dot can be a mistyped field; others are left to ddppo.train, which checks them.
    names = [item.name for item in fields(section)]
    of_train = {*SECTIONS, "experiment", *(item.name for item in fields(config_class()))}
    ours: list[str] = []
    others: list[str] = []
    for argument in arguments:
        key = argument.partition("=")[0]
        is_ours = argument.startswith("-") or key in names
        (ours if is_ours else others).append(argument)
        if (
            not is_ours
            and not {".", "/"} & set(key)
            and key.lstrip("+~") not in of_train
            and near(key, names)
        ):
            raise ConfigError(f"{argument}: there is no setting {key}{near(key, names)}; --help lists all")
    return ours, others


def whole_numbers(name: str, given: object) -> list[int]:
    """Return the numbers of `1,2,4` or `[1,2,4]`, each once, in ascending order; [] for null. Raises ConfigError."""
    words = [] if given is None else written_out(str(given)).strip("[]").split(",")
    if not all(word.strip().isdigit() and 0 < int(word) <= 10**9 for word in words):
        raise ConfigError(f"{name}={given}: numbers of workers, e.g. {name}=1,2,4")
    return sorted({int(word) for word in words})


def _is_path(argument: str, is_setting: bool) -> bool:
    return not is_setting and ("=" not in argument or Path(argument).exists())


def _value(argument: str) -> dict[str, Any]:
    """Return {key: value} with the value read as YAML, as on Hydra's command line."""
    try:
        parsed = OmegaConf.to_container(OmegaConf.from_dotlist([argument]), resolve=True)
    except OmegaConfBaseException as e:
        raise ConfigError(_one_line(e)) from e
    except Exception as e:  # yaml raises many kinds
        raise ConfigError(
            f"{argument}: the value cannot be read ({_one_line(e)}); lists are [1,2], mappings {{a: 1, b: 2}}"
        ) from e
    assert isinstance(parsed, dict)
    return {str(key): value for key, value in parsed.items()}


def filled(section: type[T], given: Mapping[str, Any], usage: str = "") -> T:
    """Return a `section` with these values, converted and checked. Raises ConfigError as `parse` does."""
    # Unknown names first, then missing values, then types (OmegaConf), then rules.
    items = fields(section)  # type: ignore[arg-type]  # a dataclass, which type[T] does not say
    names = [item.name for item in items]
    for name in given:
        if name not in names:
            raise ConfigError(f"there is no setting {name}{near(name, names)}; there are {', '.join(names)}")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(section), dict(given))
        for item in items:
            if OmegaConf.is_missing(merged, item.name):
                first = f": {usage.splitlines()[0]}" if usage else ""
                raise ConfigError(f"{item.name}= is missing ({item.metadata['meaning']}){first}")
        options = OmegaConf.to_object(merged)
    except OmegaConfBaseException as e:
        raise ConfigError(_one_line(e)) from e
    assert isinstance(options, section)
    check_fields(options)
    return options


def _one_line(error: Exception) -> str:
    if isinstance(error, OmegaConfBaseException):
        text = in_words(str(error).splitlines()[0])
        return f"{error.full_key}: {text}" if error.full_key else text
    return " ".join(str(error).split())


def help_text(sections: Sequence[type[Any]], usage: str) -> str:
    """Return the text of `--help`: the usage, then each field with its default, meaning and choices."""
    lines = [usage]
    for section in sections:
        heading = (section.__doc__ or "").partition(". ")[0].rstrip(".")
        # A dataclass without a docstring gets its signature.
        is_generated = heading.startswith(f"{section.__name__}(")
        lines += ["", *([f"{heading}:"] if heading and not is_generated else [])]
        lines += [setting_line(item, "", 34) for item in fields(section)]
    return "\n".join(lines)
