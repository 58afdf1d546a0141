"""`aws s3`: ls, mb, rb, rm and cp between buckets, as the calls that they stand for."""

from collections.abc import Callable, Iterator
from typing import Any

from ddppo.domains.cloud.cli import Call, CommandError, Objects

Perform = Callable[[Call], dict[str, Any]]
FAILED = {"mb": "make_bucket", "rb": "remove_bucket", "rm": "delete", "cp": "copy"}


def act(command: Objects, perform: Perform, moment: str) -> str:
    """Make the calls of a command and return what is printed; `moment` stands for every time of day."""
    try:
        if command.verb == "ls":
            return "\n".join(_listed(command, perform, moment))
        return "\n".join(_changed(command, perform))
    except CommandError as error:
        if command.verb == "ls":
            raise
        said = f"{FAILED[command.verb]} failed: {command.places[0]} {error.said}"
        raise CommandError(said, status=1, code=error.code) from error


def _parted(place: str) -> tuple[str, str]:
    bucket, _, key = place.removeprefix("s3://").partition("/")
    return bucket, key


def _objects(bucket: str, prefix: str, perform: Perform) -> list[dict[str, Any]]:
    listed = perform(Call("s3api", "list-objects-v2", {"Bucket": bucket, "Prefix": prefix}))
    return listed.get("Contents", [])


def _listed(command: Objects, perform: Perform, moment: str) -> Iterator[str]:
    when = moment.replace("T", " ")[:19]
    if not command.places:
        for bucket in perform(Call("s3api", "list-buckets")).get("Buckets", []):
            yield f"{when} {bucket['Name']}"
        return
    bucket, prefix = _parted(command.places[0])
    folders = set()
    for found in _objects(bucket, prefix, perform):
        below = found["Key"][prefix.rfind("/") + 1 :]
        if "/" in below and "--recursive" not in command.flags:
            folder = below.partition("/")[0]
            if folder not in folders:
                yield f"{'PRE':>30} {folder}/"
            folders.add(folder)
        else:
            shown = found["Key"] if "--recursive" in command.flags else below
            yield f"{when} {found['Size']:>10} {shown}"


def _changed(command: Objects, perform: Perform) -> Iterator[str]:
    bucket, key = _parted(command.places[0])
    if command.verb == "mb":
        perform(Call("s3api", "create-bucket", {"Bucket": bucket}))
        yield f"make_bucket: {bucket}"
    elif command.verb == "rb":
        if "--force" in command.flags:
            yield from _removed(bucket, "", perform)
        perform(Call("s3api", "delete-bucket", {"Bucket": bucket}))
        yield f"remove_bucket: {bucket}"
    elif command.verb == "rm" and "--recursive" in command.flags:
        yield from _removed(bucket, key, perform)
    elif command.verb == "rm":
        perform(Call("s3api", "delete-object", {"Bucket": bucket, "Key": key}))
        yield f"delete: s3://{bucket}/{key}"
    else:
        to, to_key = _parted(command.places[1])
        if not to_key or to_key.endswith("/"):
            to_key += key.rpartition("/")[2]
        source = {"Bucket": bucket, "Key": key}
        perform(Call("s3api", "copy-object", {"Bucket": to, "Key": to_key, "CopySource": source}))
        yield f"copy: s3://{bucket}/{key} to s3://{to}/{to_key}"


def _removed(bucket: str, prefix: str, perform: Perform) -> Iterator[str]:
    for found in _objects(bucket, prefix, perform):
        perform(Call("s3api", "delete-object", {"Bucket": bucket, "Key": found["Key"]}))
        yield f"delete: s3://{bucket}/{found['Key']}"
