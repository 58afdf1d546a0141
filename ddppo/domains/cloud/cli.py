"""`aws <service> <operation> --option value` as a call, without a shell, files or processes.

What else is typed is an error, worded as the AWS CLI words it. Services and operations that are not listed here do not
exist, the simulator's own routes included.
"""

from dataclasses import dataclass, field
from typing import Any

import jmespath
from botocore.model import OperationModel
from jmespath.exceptions import JMESPathError

from ddppo.domains.cloud.cli_parameters import CommandError, operation_model, parameters, words

SERVICES = {  # as the AWS CLI calls them -> as boto3 does
    "s3api": "s3",
    "dynamodb": "dynamodb",
    "sqs": "sqs",
    "sns": "sns",
    "iam": "iam",
    "ssm": "ssm",
    "secretsmanager": "secretsmanager",
}
READS = {
    "s3api": """list-buckets head-bucket get-bucket-location get-bucket-versioning get-bucket-tagging
        get-bucket-policy get-bucket-encryption get-public-access-block get-bucket-lifecycle-configuration
        get-bucket-notification-configuration list-objects-v2 head-object get-object get-object-tagging""",
    "dynamodb": """list-tables describe-table get-item query scan describe-time-to-live list-tags-of-resource
        describe-continuous-backups""",
    "sqs": "list-queues get-queue-url get-queue-attributes list-queue-tags",
    "sns": """list-topics get-topic-attributes list-subscriptions list-subscriptions-by-topic
        get-subscription-attributes list-tags-for-resource""",
    "iam": """list-users get-user list-groups get-group list-groups-for-user list-roles get-role list-policies
        get-policy get-policy-version list-attached-role-policies list-attached-user-policies
        list-attached-group-policies list-role-policies get-role-policy list-access-keys list-role-tags
        list-user-tags""",
    "ssm": """get-parameter get-parameters get-parameters-by-path describe-parameters list-tags-for-resource
        get-parameter-history""",
    "secretsmanager": """list-secrets describe-secret get-secret-value list-secret-version-ids
        get-resource-policy""",
}
WRITES = {
    "s3api": """create-bucket delete-bucket put-bucket-versioning put-bucket-tagging delete-bucket-tagging
        put-bucket-policy delete-bucket-policy put-bucket-encryption delete-bucket-encryption
        put-public-access-block delete-public-access-block put-bucket-lifecycle-configuration
        delete-bucket-lifecycle put-bucket-notification-configuration put-object delete-object copy-object
        put-object-tagging""",
    "dynamodb": """create-table delete-table update-table put-item update-item delete-item update-time-to-live
        tag-resource untag-resource update-continuous-backups""",
    "sqs": """create-queue delete-queue set-queue-attributes purge-queue send-message receive-message
        delete-message tag-queue untag-queue""",
    "sns": """create-topic delete-topic set-topic-attributes subscribe unsubscribe set-subscription-attributes
        publish tag-resource untag-resource""",
    "iam": """create-user delete-user create-group delete-group add-user-to-group remove-user-from-group
        create-role delete-role update-assume-role-policy create-policy delete-policy attach-role-policy
        detach-role-policy attach-user-policy detach-user-policy attach-group-policy detach-group-policy
        put-role-policy delete-role-policy create-access-key update-access-key delete-access-key tag-role
        untag-role tag-user untag-user""",
    "ssm": "put-parameter delete-parameter delete-parameters add-tags-to-resource remove-tags-from-resource",
    "secretsmanager": """create-secret put-secret-value update-secret delete-secret restore-secret
        tag-resource untag-resource""",
}
OBJECT_VERBS = ("ls", "mb", "rb", "rm", "cp")  # of `aws s3`; what needs a disk is not there


def operations(service: str) -> tuple[str, ...]:
    """Return what may be typed after `aws SERVICE`, reads first."""
    return (*READS[service].split(), *WRITES[service].split())


def is_read(service: str, operation: str) -> bool:
    return operation in READS[service].split()


REGION = "us-east-1"
USAGE = """usage: aws [options] <command> <subcommand> [<subcommand> ...] [parameters]
To see help text, you can run:

  aws help
  aws <command> help
  aws <command> <subcommand> help
"""


@dataclass(frozen=True)
class ApiCall:
    """One operation of a service, with botocore's parameters; `query` is the JMESPath of what is printed."""

    service: str
    operation: str
    params: dict[str, Any] = field(default_factory=dict)
    query: str | None = None

    @property
    def is_read(self) -> bool:
        return is_read(self.service, self.operation)

    @property
    def model(self) -> OperationModel:
        return operation_model(SERVICES[self.service], self.operation)

    @property
    def api_name(self) -> str:
        """`ListBuckets` of `list-buckets`."""
        return self.model.name


@dataclass(frozen=True)
class S3Command:
    """A command of `aws s3`, which stands for one or several calls (world.py)."""

    verb: str
    places: tuple[str, ...]
    flags: frozenset[str]


def parse(line: str) -> ApiCall | S3Command:
    """Read one command line. Raises CommandError; nothing has happened then."""
    typed = words(line)
    if not typed or typed[0] != "aws":
        raise CommandError(f"{typed[0] if typed else ''}: command not found: type an aws command", status=127)
    if len(typed) < 2 or typed[1].startswith("-"):
        raise CommandError(f"{USAGE}\naws: error: the following arguments are required: command")
    service = typed[1]
    if service == "s3":
        return _objects(typed[2:])
    if service not in SERVICES:
        raise _invalid_choice("command", ("s3", *SERVICES))
    if len(typed) < 3 or typed[2].startswith("-"):
        raise CommandError(f"{USAGE}\naws: error: the following arguments are required: operation")
    if typed[2] not in operations(service):
        raise _invalid_choice("operation", operations(service))
    options, stray = _options(typed[3:])
    query = _global(options)
    params = parameters(SERVICES[service], typed[2], options)
    if stray:
        raise CommandError(f"Unknown options: {', '.join(stray)}")
    return ApiCall(service, typed[2], params, query)


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


def _objects(typed: list[str]) -> S3Command:
    if not typed or typed[0] not in OBJECT_VERBS:
        raise _invalid_choice("subcommand", OBJECT_VERBS)
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
    return S3Command(typed[0], places, flags)


def _invalid_choice(of: str, choices: tuple[str, ...]) -> CommandError:
    return CommandError(
        f"{USAGE}\naws: error: argument {of}: Invalid choice, valid choices are:\n\n" + " | ".join(choices)
    )
