"""`aws <service> <operation> --option value` as an API call, without a shell, files or processes. `parse` is the entry.

Any other line is an error in the words of the AWS CLI. Only the services and operations listed here exist; the control
routes of the simulator are out of reach.
"""

import json
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

import jmespath
from botocore import xform_name
from botocore.model import OperationModel
from jmespath.exceptions import JMESPathError

from ddppo.domains.cloud.cli_options import (
    PAGES,
    USAGE,
    check_places,
    of_a_service,
    of_a_verb,
    of_an_operation,
    of_the_cli,
    of_the_verbs,
    verb_value,
)
from ddppo.domains.cloud.cli_parameters import (
    content_of,
    members,
    operation_model,
    pagination,
    value_of,
    words,
)
from ddppo.domains.cloud.folder import CommandError, Folder

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


def operations(service: str) -> tuple[str, ...]:
    """Return the operations of a service, reading ones first."""
    return (*READS[service].split(), *WRITES[service].split())


def is_read(service: str, operation: str) -> bool:
    return operation in READS[service].split()


REGION = "us-east-1"


@dataclass(frozen=True)
class OutputForm:
    """How the answer of a call is fetched and shown."""

    output: str = "json"  # or text, table
    paginate: bool = True  # follow the pages of an answer up to its end
    pages: dict[str, Any] = field(default_factory=dict)  # StartingToken, PageSize, MaxItems
    outfile: str = ""  # file to which the body of an answer goes
    skeleton: str = ""  # input or output: nothing is called, an example of it is shown


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
    view: OutputForm = field(default=OutputForm(), compare=False)

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
    """A command of `aws s3`. objects.py translates it to one or several API calls."""

    verb: str
    places: tuple[str, ...]  # s3://bucket/key, or a path in the folder
    options: dict[str, Any] = field(default_factory=dict)  # that were typed, by name: {"recursive": True}


NO_FILES = Folder()
NO_HELP = "help: there is no such thing here; a wrong command names the choices"


def parse(line: str, folder: Folder = NO_FILES) -> ApiCall | S3Command:
    """Parse a command line; nothing is executed. `folder` has the files that it may name. Raises CommandError."""
    # 1. The words, and the options of the AWS CLI itself, which may stand anywhere.
    typed = words(line)
    if not typed or typed[0] != "aws":
        raise CommandError(f"{typed[0] if typed else ''}: command not found: type an aws command", status=127)
    found, left = of_the_cli(("s3", *SERVICES)).parse_known_args(typed[1:])
    _check_options(found)
    if found.command == "s3":
        return _objects(left, found, folder)
    # 2. The operation, and its options.
    chosen, left = of_a_service(operations(found.command)).parse_known_args(left)
    if chosen.operation == "help":
        raise CommandError(NO_HELP)
    return _operation(found, chosen.operation, left, folder)


def _check_options(found: Namespace) -> None:
    """Raise CommandError for an option of the AWS CLI that leads out of the simulator, or has no use in it."""
    for option, value in (
        ("--endpoint-url", found.endpoint_url),
        ("--profile", found.profile),
        ("--ca-bundle", found.ca_bundle),
        ("--no-verify-ssl", not found.verify_ssl),
        ("--no-sign-request", not found.sign_request),
        ("--v2-debug", found.v2_debug),
        ("--version", found.version),
        ("--color on", found.color == "on"),
    ):
        if value:
            raise CommandError(f"Unknown options: {option}: there is no such thing here")
    if found.command == "help":
        raise CommandError(NO_HELP)
    if found.region not in (None, REGION):
        raise CommandError(f"aws: error: argument --region: here it can only be {REGION}")
    if found.query is not None:
        try:
            jmespath.compile(found.query)
        except JMESPathError as error:
            raise CommandError(f"Bad value for --query {found.query}: {error}") from error
    for value in (found.read_timeout, found.connect_timeout):
        try:
            int(value or 0)
        except ValueError as error:
            raise CommandError(str(error), 255) from error


def _operation(found: Namespace, operation: str, left: list[str], folder: Folder) -> ApiCall:
    service = SERVICES[found.command]
    # 1. Which words belong to which option. Some options make the others optional.
    is_input = "--cli-input-json" in left or (
        "--generate-cli-skeleton" in left and not _asks_for_output(left)
    )
    if left == ["help"]:
        raise CommandError(NO_HELP)
    typed, unknown = of_an_operation(service, operation, all_optional=is_input).parse_known_args(left)
    given = vars(typed)
    if (unknown := [*unknown, *([given["help"]] if given.get("help") else [])]) != []:
        raise CommandError(f"Unknown options: {', '.join(unknown)}")
    # 2. Pages.
    paginate, shadowed = _paginates(service, operation, given, found.paginate)
    pages = {}
    for option, name in PAGES.items():
        if given.get(option) is not None and option not in shadowed:
            pages[name] = given.pop(option)
    # 3. Values.
    params: dict[str, Any] = {}
    for option, (name, shape) in members(service, operation).items():
        value = given.get(option)
        if value is not None:
            params[name] = value if shape.type_name == "boolean" else value_of(option, shape, value, folder)
    if given.get("--cli-input-json") is not None:
        params = _from_json(given["--cli-input-json"], folder) | params
    view = OutputForm(
        found.output or "json",
        paginate,
        pages,
        given.get("outfile") or "",
        given.get("--generate-cli-skeleton") or "",
    )
    return ApiCall(found.command, operation, params, found.query, view=view)


def _asks_for_output(left: list[str]) -> bool:
    behind = left.index("--generate-cli-skeleton") + 1
    return left[behind : behind + 1] == ["output"]


def _paginates(service: str, operation: str, given: dict[str, Any], paginate: bool) -> tuple[bool, set[str]]:
    """Return whether an operation is followed through its pages, and the options of pages that are its own."""
    how = pagination(service, operation)
    if how is None:
        return False, set()
    tokens = how["input_token"] if isinstance(how["input_token"], list) else [how["input_token"]]
    own = [f"--{xform_name(name, '-')}" for name in (*tokens, how.get("limit_key")) if name]
    # With the service's own options of pages, the answer is one page.
    paginate = paginate and not any(
        given.get(option) is not None for option in own if option != "--max-items"
    )
    if paginate:
        return True, set()
    shadowed = set(PAGES) & set(members(service, operation))
    used = [option for option in PAGES if given.get(option) and option not in shadowed]
    if used:
        said = f"Cannot specify --no-paginate along with pagination arguments: {', '.join(used)}"
        raise CommandError(f"Error during pagination: {said}", 255)
    return False, shadowed


def _from_json(text: str, folder: Folder) -> dict[str, Any]:
    """Return the parameters of --cli-input-json. Its options win over them."""
    loaded = content_of("--cli-input-json", text, folder)
    text = text if loaded is None else loaded if isinstance(loaded, str) else loaded.decode()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        said = f"Invalid JSON: {error}\nJSON received: {text}"
        raise CommandError(f"Error parsing parameter 'cli-input-json': {said}") from error
    if not isinstance(found, dict):
        raise CommandError(f"'{type(found).__name__}' object has no attribute 'keys'", 255)
    return found


def _objects(left: list[str], found: Namespace, folder: Folder) -> S3Command:
    """Parse the rest of `aws s3`."""
    chosen, left = of_the_verbs().parse_known_args(left)
    if chosen.subcommand is None:
        raise CommandError(f"{USAGE}\naws: error: too few arguments")
    typed, unknown = of_a_verb(chosen.subcommand).parse_known_args(left)
    given = vars(typed)
    places = given.pop("places")
    places = tuple(places) if isinstance(places, list) else (places,)
    options = {name: value for name, value in given.items() if value not in (None, False)}
    for name, value in options.items():
        options[name] = verb_value(name, value, folder)
    if unknown:
        raise CommandError(f"Unknown options: {','.join(unknown)}")
    check_places(chosen.subcommand, places, options)
    return S3Command(chosen.subcommand, places, options)
