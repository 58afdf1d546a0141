"""`aws <service> <operation> --option value` as an API call, without a shell, files or processes. `parse` is the entry.

Any other line is an error in the words of the AWS CLI. Only the services and operations listed here exist; the control
routes of the simulator are out of reach.
"""

from dataclasses import dataclass, field
from typing import Any

import jmespath
from botocore.model import OperationModel
from jmespath.exceptions import JMESPathError

from ddppo.domains.cloud.cli_parameters import CommandError, operation_model, parameters, words

# Name in the AWS CLI -> name in boto3.
SERVICES = {
    "s3api": "s3",
    "dynamodb": "dynamodb",
    "sqs": "sqs",
    "sns": "sns",
    "iam": "iam",
    "ssm": "ssm",
    "secretsmanager": "secretsmanager",
}
# Operations that change nothing, and operations that do, by service.
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
OBJECT_VERBS = ("ls", "mb", "rb", "rm", "cp")  # of `aws s3`, without the verbs that need a disk


def operations(service: str) -> tuple[str, ...]:
    """Return the operations of a service, reading ones first."""
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
    """One operation of a service."""

    service: str
    operation: str  # as the CLI spells it: list-buckets
    params: dict[str, Any] = field(default_factory=dict)  # as botocore takes them
    query: str | None = None  # JMESPath of --query, which filters the output
    answer: Any = field(
        default=None, compare=False
    )  # of a call that was made: what it showed, through its --query

    @property
    def is_read(self) -> bool:
        return is_read(self.service, self.operation)

    @property
    def model(self) -> OperationModel:
        return operation_model(SERVICES[self.service], self.operation)

    @property
    def api_name(self) -> str:
        """Its name in the API: `ListBuckets` for `list-buckets`."""
        return self.model.name


@dataclass(frozen=True)
class S3Command:
    """A command of `aws s3`. world.py translates it to one or several API calls."""

    verb: str
    places: tuple[str, ...]  # s3://bucket/key
    flags: frozenset[str]


def parse(line: str) -> ApiCall | S3Command:
    """Parse a command line; nothing is executed. Raises CommandError."""
    # 1. aws <service> <operation>
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
    # 2. Options: the global ones, then those of the operation.
    options, stray = _options(typed[3:])
    query = _global(options)
    params = parameters(SERVICES[service], typed[2], options)
    if stray:
        raise CommandError(f"Unknown options: {', '.join(stray)}")
    return ApiCall(service, typed[2], params, query)


def _options(typed: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the words of each option, and the words before the first option."""
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
    """Remove the supported global options from `options`; return the --query.

    Others, such as --endpoint-url and --profile, would reach outside the simulator, and stay unknown options.
    """
    # These have one value here; naming it is allowed, as the AWS CLI would accept it.
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
    # Flags may stand anywhere; each verb has its own.
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
