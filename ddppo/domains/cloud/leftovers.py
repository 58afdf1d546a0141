"""Delete what worlds have made on a shared account: `delete_all`, and the command for worlds of lost machines.

    python -m ddppo.domains.cloud.leftovers allow_real_cloud=true endpoint_url=http://127.0.0.1:5000

A name is `<name_prefix>-<token>-<episode>-<name>`. The token holds the machine, the process and its start, so that the
worlds of a machine know which of them have been killed.
"""

import hashlib
import importlib.util
import os
import re
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ddppo.config.fields import setting
from ddppo.errors import ConfigError, EnvError
from ddppo.options import door, parse
from ddppo.package import install_command

Owns = Callable[[str], bool]  # whether a name, an ARN or a URL is to go
Clients = dict[str, Any]

# -- the world of a name ----------------------------------------------------------------------------------------------

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_WIDTHS = (4, 5, 8)  # of the machine, the process and its start in a token, in base 36
_GONE = (
    "NoSuch",
    "NotFound",
    "NonExistent",
    "NotExist",
    "ResourceInUse",
)  # of a table in use: it is being deleted


def token_of_this_process() -> str:
    """Return what tells the names of this process from those of all others."""
    return _machine() + _base36(os.getpid(), _WIDTHS[1]) + _base36(_started(os.getpid()) or 0, _WIDTHS[2])


def is_abandoned(name: str, name_prefix: str) -> bool:
    """Return whether a name is of a process of this machine that has ended."""
    found = _token(name, name_prefix)
    if found is None or found[:4] != _machine():
        return False
    pid, start = int(found[4:9], 36), int(found[9:], 36)
    return _started(pid) != start


def is_of_a_world(name: str, name_prefix: str) -> bool:
    """Return whether a name is of any world, but for worlds of this machine that live."""
    found = _token(name, name_prefix)
    return found is not None and (found[:4] != _machine() or is_abandoned(name, name_prefix))


def _token(name: str, name_prefix: str) -> str | None:
    found = re.search(rf"(?<![a-z0-9-]){name_prefix}-([0-9a-z]{{{sum(_WIDTHS)}}})-\d+(?:[-/]|$)", name)
    return found[1] if found else None


def _machine() -> str:
    """Return four letters for this machine, and for the space of process numbers within it."""
    # The name alone is no mark: machines of a cloud may all have the same one.
    marks = [socket.gethostname()]
    with suppress(OSError):
        marks.append(Path("/etc/machine-id").read_text().strip())
    with suppress(OSError):
        marks.append(os.readlink("/proc/self/ns/pid"))
    return _hashed(" ".join(marks))


def _hashed(text: str) -> str:
    return _base36(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 36**4, 4)


def _base36(number: int, width: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text.rjust(width, "0")[-width:]


def _started(pid: int) -> int | None:
    """Return when a process started, in ticks since the machine did, 0 if that is unknown; None if there is none."""
    try:
        # The name of the program, in brackets, may hold blanks.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except FileNotFoundError:
        pass
    if Path("/proc/self").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0


# -- deleting ----------------------------------------------------------------------------------------------------------


def delete_all(clients: Clients, owns: Owns, services: Sequence[str] | None = None) -> Counter[str]:
    """Delete the resources that `owns` chooses; return how many, by service. Raises ClientError, BotoCoreError."""
    found: Counter[str] = Counter()
    for service in services if services is not None else DELETERS:
        found[service] = DELETERS[service](clients[service], owns)
    return +found


def _gone(call: Callable[..., Any], **params: Any) -> Any:
    """Make a call; what another process has deleted meanwhile is no error."""
    try:
        return call(**params)
    except Exception as error:
        if not _is_gone(error):
            raise
        return {}


def _is_gone(error: Exception) -> bool:
    """Return whether a service says that there is no such thing. (Without an import: the command names its extra.)"""
    code = getattr(error, "response", {}).get("Error", {}).get("Code", "")
    return any(word in code for word in _GONE)


def _pages(client: Any, operation: str, field: str, **params: Any) -> Iterator[Any]:
    if not client.can_paginate(operation):
        yield from _gone(getattr(client, operation), **params).get(field) or []
        return
    try:
        for page in client.get_paginator(operation).paginate(**params):
            yield from page.get(field) or []
    except Exception as error:
        if not _is_gone(error):
            raise


def _delete_s3(s3: Any, owns: Owns) -> int:
    names = [bucket["Name"] for bucket in _pages(s3, "list_buckets", "Buckets") if owns(bucket["Name"])]
    for name in names:
        # A policy may forbid its own owner to delete.
        _gone(s3.delete_bucket_policy, Bucket=name)
        for field in ("Versions", "DeleteMarkers"):
            for one in list(_pages(s3, "list_object_versions", field, Bucket=name)):
                _gone(s3.delete_object, Bucket=name, Key=one["Key"], VersionId=one["VersionId"])
        _gone(s3.delete_bucket, Bucket=name)
    return len(names)


def _delete_dynamodb(dynamodb: Any, owns: Owns) -> int:
    names = [name for name in _pages(dynamodb, "list_tables", "TableNames") if owns(name)]
    for name in names:
        table = _gone(dynamodb.describe_table, TableName=name).get("Table", {})
        if table.get("DeletionProtectionEnabled"):
            _gone(dynamodb.update_table, TableName=name, DeletionProtectionEnabled=False)
        _gone(dynamodb.delete_table, TableName=name)
    return len(names)


def _delete_sqs(sqs: Any, owns: Owns) -> int:
    urls = [url for url in _pages(sqs, "list_queues", "QueueUrls") if owns(url)]
    for url in urls:
        _gone(sqs.delete_queue, QueueUrl=url)
    return len(urls)


def _delete_sns(sns: Any, owns: Owns) -> int:
    arns = [topic["TopicArn"] for topic in _pages(sns, "list_topics", "Topics") if owns(topic["TopicArn"])]
    for one in list(_pages(sns, "list_subscriptions", "Subscriptions")):
        if owns(one["TopicArn"]) and one["SubscriptionArn"].startswith("arn:"):  # else it is not confirmed
            _gone(sns.unsubscribe, SubscriptionArn=one["SubscriptionArn"])
    for arn in arns:
        _gone(sns.delete_topic, TopicArn=arn)
    return len(arns)


def _delete_iam(iam: Any, owns: Owns) -> int:
    def named(operation: str, field: str, key: str) -> list[str]:
        return [one[key] for one in _pages(iam, operation, field) if owns(one[key])]

    # Users leave their groups, and everything loses its policies, before anything can be deleted.
    users = named("list_users", "Users", "UserName")
    groups = named("list_groups", "Groups", "GroupName")
    roles = named("list_roles", "Roles", "RoleName")
    for name in users:
        for group in list(_pages(iam, "list_groups_for_user", "Groups", UserName=name)):
            _gone(iam.remove_user_from_group, UserName=name, GroupName=group["GroupName"])
        for key in list(_pages(iam, "list_access_keys", "AccessKeyMetadata", UserName=name)):
            _gone(iam.delete_access_key, UserName=name, AccessKeyId=key["AccessKeyId"])
    for kind, names in (("user", users), ("group", groups), ("role", roles)):
        for name in names:
            of = {f"{kind.title()}Name": name}
            for one in list(_pages(iam, f"list_attached_{kind}_policies", "AttachedPolicies", **of)):
                _gone(getattr(iam, f"detach_{kind}_policy"), **of, PolicyArn=one["PolicyArn"])
            for inline in list(_pages(iam, f"list_{kind}_policies", "PolicyNames", **of)):
                _gone(getattr(iam, f"delete_{kind}_policy"), **of, PolicyName=inline)
            _gone(getattr(iam, f"delete_{kind}"), **of)
    local = [
        one for one in _pages(iam, "list_policies", "Policies", Scope="Local") if owns(one["PolicyName"])
    ]
    for policy in local:
        for version in list(_pages(iam, "list_policy_versions", "Versions", PolicyArn=policy["Arn"])):
            if not version["IsDefaultVersion"]:
                _gone(iam.delete_policy_version, PolicyArn=policy["Arn"], VersionId=version["VersionId"])
        _gone(iam.delete_policy, PolicyArn=policy["Arn"])
    return len(users) + len(groups) + len(roles) + len(local)


def _delete_ssm(ssm: Any, owns: Owns) -> int:
    names = [one["Name"] for one in _pages(ssm, "describe_parameters", "Parameters") if owns(one["Name"])]
    for start in range(0, len(names), 10):  # as many as one call takes
        _gone(ssm.delete_parameters, Names=names[start : start + 10])
    return len(names)


def _delete_secretsmanager(secrets: Any, owns: Owns) -> int:
    listed = _pages(secrets, "list_secrets", "SecretList", IncludePlannedDeletion=True)
    arns = [one["ARN"] for one in listed if owns(one["Name"])]
    for arn in arns:
        _gone(secrets.delete_secret, SecretId=arn, ForceDeleteWithoutRecovery=True)
    return len(arns)


DELETERS: dict[str, Callable[[Any, Owns], int]] = {
    "s3api": _delete_s3,
    "dynamodb": _delete_dynamodb,
    "sns": _delete_sns,
    "sqs": _delete_sqs,
    "iam": _delete_iam,
    "ssm": _delete_ssm,
    "secretsmanager": _delete_secretsmanager,
}


# -- the command -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class LeftoverOptions:
    endpoint_url: str | None = setting(None, "address of the endpoint; null is AWS itself")
    allow_real_cloud: bool = setting(False, "agree that resources are deleted")
    account_id: str | None = setting(
        None, "account in which they are; required unless the endpoint is on this machine"
    )
    name_prefix: str = setting("ddppo", "names of the worlds begin with it")


_USAGE = """python -m ddppo.domains.cloud.leftovers allow_real_cloud=true endpoint_url=http://127.0.0.1:5000

Deletes what the worlds of env.backend_cloud=aws with this name_prefix have left, whichever machine they were on, but
for worlds of this machine that live. Call it when no other machine trains with the same prefix on this account."""


@door("stopped")
def main() -> None:
    """Run the command line."""
    options = parse(LeftoverOptions, sys.argv[1:], usage=_USAGE)
    if importlib.util.find_spec("boto3") is None:
        raise ConfigError(
            f"ddppo.domains.cloud needs packages that are not installed: {install_command('cloud')}"
        )

    # Only now: it needs the packages of the extra.
    from botocore.exceptions import BotoCoreError, ClientError

    from ddppo.domains.cloud.access import Access, Endpoint, said

    access = Access(
        Endpoint(options.endpoint_url, options.allow_real_cloud, options.account_id, options.name_prefix)
    )
    try:
        found = delete_all(access.clients, partial(is_of_a_world, name_prefix=options.name_prefix))
    except (ClientError, BotoCoreError) as error:
        raise EnvError(f"the endpoint refused: {access.without_secrets(said(error))}") from None
    finally:
        access.close()
    print(
        f"deleted: {', '.join(f'{num} of {service}' for service, num in found.items()) or 'nothing was left'}"
    )


if __name__ == "__main__":
    main()
