"""`aws <service> <operation> --option value` as a call; whatever else is typed is an error as the AWS CLI words it."""

from dataclasses import dataclass, field
from typing import Any

import jmespath
from botocore.model import OperationModel
from jmespath.exceptions import JMESPathError

from ddppo.domains.cloud.cli import verbs
from ddppo.domains.cloud.cli.parameters import operation_model, parameters
from ddppo.domains.cloud.cli.words import CommandError, words

REGION = "us-east-1"
USAGE = """usage: aws [options] <command> <subcommand> [<subcommand> ...] [parameters]
To see help text, you can run:

  aws help
  aws <command> help
  aws <command> <subcommand> help
"""


@dataclass(frozen=True)
class Call:
    """One operation of a service, with botocore's parameters; `query` is the JMESPath of what is printed."""

    service: str
    operation: str
    params: dict[str, Any] = field(default_factory=dict)
    query: str | None = None

    @property
    def is_read(self) -> bool:
        return verbs.is_read(self.service, self.operation)

    @property
    def model(self) -> OperationModel:
        return operation_model(verbs.SERVICES[self.service], self.operation)

    @property
    def api_name(self) -> str:
        """`ListBuckets` of `list-buckets`."""
        return self.model.name


@dataclass(frozen=True)
class Objects:
    """A command of `aws s3`, which stands for one or several calls (ddppo.domains.cloud.objects)."""

    verb: str
    places: tuple[str, ...]
    flags: frozenset[str]


def parse(line: str) -> Call | Objects:
    """Read one command line. Raises CommandError; nothing has happened then."""
    typed = words(line)
    if not typed or typed[0] != "aws":
        raise CommandError(f"{typed[0] if typed else ''}: command not found: type an aws command", status=127)
    if len(typed) < 2 or typed[1].startswith("-"):
        raise CommandError(f"{USAGE}\naws: error: the following arguments are required: command")
    service = typed[1]
    if service == "s3":
        return _objects(typed[2:])
    if service not in verbs.SERVICES:
        raise _invalid_choice("command", ("s3", *verbs.SERVICES))
    if len(typed) < 3 or typed[2].startswith("-"):
        raise CommandError(f"{USAGE}\naws: error: the following arguments are required: operation")
    if typed[2] not in verbs.operations(service):
        raise _invalid_choice("operation", verbs.operations(service))
    options, stray = _options(typed[3:])
    query = _global(options)
    params = parameters(verbs.SERVICES[service], typed[2], options)
    if stray:
        raise CommandError(f"Unknown options: {', '.join(stray)}")
    return Call(service, typed[2], params, query)


def _options(typed: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return option -> its words, and the words before any option."""
    options: dict[str, list[str]] = {}
    stray: list[str] = []
    current = stray
    for word in typed:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            current = options[name] = [value] if equals else []
        else:
            current.append(word)
    return options, stray


def _global(options: dict[str, list[str]]) -> str | None:
    """Take the few global options out of `options`; those that would lead elsewhere are unknown options."""
    for name, only in (("--output", "json"), ("--region", REGION)):
        value = options.pop(name, [only])
        if value != [only]:
            raise CommandError(f"aws: error: argument {name}: here it can only be {only}")
    query = options.pop("--query", None)
    if query is None:
        return None
    if len(query) != 1:
        raise CommandError("aws: error: argument --query: expected one argument")
    try:
        jmespath.compile(query[0])
    except JMESPathError as error:
        raise CommandError(f"Bad value for --query {query[0]}: {error}") from error
    return query[0]


def _objects(typed: list[str]) -> Objects:
    if not typed or typed[0] not in verbs.OBJECT_VERBS:
        raise _invalid_choice("subcommand", verbs.OBJECT_VERBS)
    flags = frozenset(word for word in typed[1:] if word.startswith("--"))
    allowed = {"ls": {"--recursive"}, "rm": {"--recursive"}, "rb": {"--force"}}.get(typed[0], set())
    if flags - allowed:
        raise CommandError(f"Unknown options: {', '.join(sorted(flags - allowed))}")
    places = tuple(word for word in typed[1:] if not word.startswith("--"))
    wanted = {"ls": (0, 1), "cp": (2,)}.get(typed[0], (1,))
    if len(places) not in wanted:
        raise CommandError(f"aws: error: aws s3 {typed[0]} takes {wanted[-1]} places, here are {len(places)}")
    if any(not place.startswith("s3://") or place == "s3://" for place in places):
        raise CommandError("aws: error: Invalid argument type: only s3:// places, there are no files here")
    return Objects(typed[0], places, flags)


def _invalid_choice(of: str, choices: tuple[str, ...]) -> CommandError:
    return CommandError(
        f"{USAGE}\naws: error: argument {of}: Invalid choice, valid choices are:\n\n" + " | ".join(choices)
    )
