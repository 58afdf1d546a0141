"""Which words of a command line belong to which option, as the AWS CLI decides it.

The AWS CLI reads a line in three rounds of argparse: its own options, which may stand anywhere, and the service; the
operation; the options of the operation. Each round leaves what it does not know to the next one. The parsers here have
the same options, so that abbreviations (`--buck b`), `--bucket=b` and odd places mean the same.
"""

import argparse
import functools
import json
from argparse import Namespace
from difflib import get_close_matches
from typing import Any, NoReturn

from botocore import xform_name

from ddppo.domains.cloud.cli_parameters import (
    RENAMED,
    Shorthand,
    ShorthandError,
    content_of,
    operation_model,
    pagination,
)
from ddppo.domains.cloud.folder import CommandError, Folder
from ddppo.domains.cloud.printing import FORMATS

USAGE = """usage: aws [options] <command> <subcommand> [<subcommand> ...] [parameters]
To see help text, you can run:

  aws help
  aws <command> help
  aws <command> <subcommand> help
"""
# The options of pages, and their names in botocore.
PAGES = {"--starting-token": "StartingToken", "--page-size": "PageSize", "--max-items": "MaxItems"}


class OptionParser(argparse.ArgumentParser):
    """argparse, with the messages of the AWS CLI, as CommandError."""

    def __init__(self) -> None:
        super().__init__(prog="aws", add_help=False, conflict_handler="resolve")

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{USAGE}\naws: error: {message}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = list(action.choices)
        said = "Invalid choice, valid choices are:\n\n" + " | ".join(choices)
        if near := get_close_matches(value, choices, cutoff=0.8):
            said += f"\n\nInvalid choice: {value!r}, maybe you meant:\n" + "".join(
                f"\n  * {one}" for one in near
            )
        raise argparse.ArgumentError(action, said)


@functools.cache
def of_the_cli(commands: tuple[str, ...]) -> OptionParser:
    """Return the parser of the options of the AWS CLI itself, and of the service."""
    parser = OptionParser()
    for option in ("--endpoint-url", "--query", "--profile", "--region", "--ca-bundle"):
        parser.add_argument(option)
    for option in ("--debug", "--version", "--v2-debug"):
        parser.add_argument(option, action="store_true")
    for option, name in (
        ("--no-verify-ssl", "verify_ssl"),
        ("--no-paginate", "paginate"),
        ("--no-sign-request", "sign_request"),
    ):
        parser.add_argument(option, action="store_false", dest=name)
    parser.add_argument("--output", choices=FORMATS)
    parser.add_argument("--color", choices=("on", "off", "auto"), default="auto")
    parser.add_argument("--cli-read-timeout", dest="read_timeout")
    parser.add_argument("--cli-connect-timeout", dest="connect_timeout")
    parser.add_argument("command", choices=(*commands, "help"))
    return parser


@functools.cache
def of_a_service(operations: tuple[str, ...]) -> OptionParser:
    parser = OptionParser()
    parser.add_argument("operation", choices=(*operations, "help"))
    return parser


@functools.lru_cache(maxsize=512)
def of_an_operation(service: str, operation: str, *, all_optional: bool) -> OptionParser:
    """Return the parser of the options of an operation. Names in its result are the options, `--bucket`."""
    parser = OptionParser()
    model = operation_model(service, operation)
    how = pagination(service, operation)
    shape = model.input_shape
    types: dict[str, Any] = {"long": int, "float": float, "double": float}
    for name, of in (shape.members if shape else {}).items():
        option = RENAMED.get((service, operation, name), f"--{xform_name(name, '-')}")
        needed = name in shape.required_members and name not in model.idempotent_members and not all_optional
        if of.type_name == "boolean":
            parser.add_argument(option, action="store_true", default=None, dest=option)
            parser.add_argument(
                option.replace("--", "--no-", 1), action="store_false", default=None, dest=option
            )
        elif of.type_name == "list":
            parser.add_argument(option, nargs="*", required=needed, dest=option)
        else:
            parser.add_argument(option, type=types.get(of.type_name, str), required=needed, dest=option)
    if how is not None:
        limit = shape.members[how["limit_key"]].type_name if "limit_key" in how else "integer"
        for option in PAGES:
            kind = str if option == "--starting-token" or limit == "string" else int
            if option != "--page-size" or "limit_key" in how:
                parser.add_argument(option, type=kind, dest=option)
    if model.has_streaming_output:
        parser.add_argument("outfile")
    else:
        parser.add_argument("--cli-input-json", dest="--cli-input-json")
        skeleton = {"nargs": "?", "const": "input", "choices": ("input", "output")}
        parser.add_argument("--generate-cli-skeleton", dest="--generate-cli-skeleton", **skeleton)  # type: ignore[arg-type]
    parser.add_argument("help", nargs="?")
    return parser


# -- aws s3 ------------------------------------------------------------------------------------------------------------

VERBS = ("ls", "cp", "mv", "rm", "sync", "mb", "rb", "presign")
COPIES = ("cp", "mv", "sync")
ACLS = (
    "private",
    "public-read",
    "public-read-write",
    "authenticated-read",
    "aws-exec-read",
    "bucket-owner-read",
    "bucket-owner-full-control",
    "log-delivery-write",
)
CLASSES = (
    "STANDARD",
    "REDUCED_REDUNDANCY",
    "STANDARD_IA",
    "ONEZONE_IA",
    "INTELLIGENT_TIERING",
    "GLACIER",
    "DEEP_ARCHIVE",
    "GLACIER_IR",
)
CHECKSUMS = ("CRC64NVME", "CRC32", "SHA256", "SHA1", "CRC32C", "SHA512", "XXHASH64", "XXHASH3", "XXHASH128")
# Options of transfers that the simulated storage has no use for.
UNUSED = ("sse-c", "sse-c-key", "sse-c-copy-source", "sse-c-copy-source-key", "source-region")
REST = (
    "storage-class",
    "website-redirect",
    "content-type",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "expires",
    "sse-kms-key-id",
)


class _Filter(argparse.Action):
    """Keeps the order of --exclude and --include, because the last match counts."""

    def __call__(self, parser: Any, namespace: Namespace, values: Any, option: str | None = None) -> None:
        before = getattr(namespace, self.dest) or ()
        setattr(namespace, self.dest, (*before, (str(option).removeprefix("--"), values[0])))


@functools.cache
def of_the_verbs() -> OptionParser:
    parser = OptionParser()
    parser.add_argument("subcommand", choices=VERBS, nargs="?")
    return parser


@functools.cache
def of_a_verb(verb: str) -> OptionParser:
    """Return the parser of the options of a command of `aws s3`."""
    parser = OptionParser()

    def flags(*names: str) -> None:
        for name in names:
            parser.add_argument(f"--{name}", action="store_true", dest=name)

    nargs: Any = {"ls": "?", "rm": 1, "mb": None, "rb": None, "presign": None}.get(verb, 2)
    parser.add_argument("places", nargs=nargs, metavar="path" if nargs is None else "paths", default="s3://")
    if verb in (*COPIES, "rm"):
        flags("dryrun", "quiet", "only-show-errors")
        for option in ("--include", "--exclude"):
            parser.add_argument(option, action=_Filter, nargs=1, dest="filters")
    if verb in ("cp", "mv", "rm", "ls"):
        flags("recursive")
    if verb in (*COPIES, "rm", "ls"):
        parser.add_argument("--page-size", dest="page-size")
        parser.add_argument(
            "--request-payer", nargs="?", const="requester", choices=("requester",), dest="request-payer"
        )
    if verb in COPIES:
        _add_transfers(parser, flags)
    if verb == "cp":
        parser.add_argument("--expected-size", dest="expected-size")
    elif verb == "mv":
        flags("validate-same-s3-paths")
    elif verb == "sync":
        flags("size-only", "exact-timestamps", "delete")
    elif verb == "ls":
        flags("human-readable", "summarize")
        for name in ("bucket-name-prefix", "bucket-region"):
            parser.add_argument(f"--{name}", dest=name)
    elif verb == "mb":
        parser.add_argument("--tags", action="append", nargs=2, dest="tags")
    elif verb == "rb":
        flags("force")
    elif verb == "presign":
        parser.add_argument("--expires-in", dest="expires-in", default=3600)
    return parser


def _add_transfers(parser: OptionParser, flags: Any) -> None:
    """Add the options of cp, mv and sync."""
    flags("follow-symlinks", "ignore-glacier-warnings", "force-glacier-transfer")
    for name in ("no-follow-symlinks", "no-guess-mime-type", "no-progress"):
        parser.add_argument(f"--{name}", action="store_true", dest=name)
    parser.add_argument("--acl", choices=ACLS, dest="acl")
    parser.add_argument("--sse", nargs="?", const="AES256", choices=("AES256", "aws:kms"), dest="sse")
    for name in UNUSED:
        parser.add_argument(f"--{name}", nargs="?", const="AES256", dest=name)
    for name in REST:
        parser.add_argument(f"--{name}", choices=CLASSES if name == "storage-class" else None, dest=name)
    parser.add_argument("--grants", nargs="+", dest="grants")
    parser.add_argument("--metadata", dest="metadata")
    parser.add_argument("--metadata-directive", choices=("COPY", "REPLACE"), dest="metadata-directive")
    parser.add_argument("--checksum-mode", choices=("ENABLED",), dest="checksum-mode")
    parser.add_argument("--checksum-algorithm", choices=CHECKSUMS, dest="checksum-algorithm")
    parser.add_argument("--case-conflict", choices=("ignore", "skip", "warn", "error"), dest="case-conflict")


def verb_value(name: str, value: Any, folder: Folder) -> Any:
    """Return the value of an option of `aws s3` from what was typed."""
    if name in UNUSED or (name == "case-conflict" and value != "ignore"):
        raise CommandError(f"Unknown options: --{name}: there is no such thing here")
    if isinstance(value, str) and name != "website-redirect":
        loaded = content_of(f"--{name}", value, folder)
        value = value if loaded is None else loaded
    if name in ("page-size", "expires-in"):
        try:
            return int(value)
        except ValueError as error:
            raise CommandError(str(error), 255) from error
    if name == "metadata":
        return _metadata(value)
    return value


def _metadata(text: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(text) if text.lstrip().startswith("{") else Shorthand(text).read()
    except (ShorthandError, ValueError) as error:
        raise CommandError(f"Error parsing parameter '--metadata': {error}") from error
    return found


def check_places(verb: str, places: tuple[str, ...], options: dict[str, Any]) -> None:
    """Raise CommandError if the places of a command of `aws s3` do not fit together."""
    kinds = "".join("s3" if place.startswith("s3://") else "local" for place in places)
    allowed = ("s3s3", "s3local", "locals3") if verb in COPIES else ("s3",)
    if verb not in ("ls", "presign") and kinds not in allowed:
        raise CommandError(f"usage: aws s3 {verb}\nError: Invalid argument type")
    if verb == "rb" and places[0].removeprefix("s3://").partition("/")[2]:
        bucket = places[0].removeprefix("s3://").partition("/")[0]
        raise CommandError(f"Please specify a valid bucket name only. E.g. s3://{bucket}")
    if verb not in COPIES:
        return
    if "-" in places and (verb != "cp" or "recursive" in options):
        raise CommandError("Streaming currently is only compatible with non-recursive cp commands")
    if verb == "mv" and kinds == "s3s3":
        source, target = (place if "/" in place[5:] else f"{place}/" for place in places)
        if source == target or (target.endswith("/") and source == target + source.rpartition("/")[2]):
            raise CommandError(f"Cannot mv a file onto itself: {source} - {target}")
    usages = {"locals3": "<LocalPath> <S3Uri>", "s3s3": "<S3Uri> <S3Uri>", "s3local": "<S3Uri> <LocalPath>"}
    for name, fitting in (("checksum-algorithm", ("locals3", "s3s3")), ("checksum-mode", ("s3local",))):
        if name in options and kinds not in fitting:
            raise CommandError(
                f"Expected {name} parameter to be used with one of following path formats: "
                f"{', '.join(usages[one] for one in fitting)}. Instead, received {usages[kinds]}."
            )
