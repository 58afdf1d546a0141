"""All that a world at an endpoint holds, as facts: those of holdings.py, read by API calls.

`facts_of` reads one service. The addresses and the meaning of facts are as in the simulated world, so that goals and
graders are the same. Three values differ, because a service does not give the other: an object is its ETag, messages of
a queue are their number, and the four flags that block public access are no facts if all are set, as in a new bucket.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from ddppo.domains.cloud.holdings import (
    AES256,
    LARGEST,
    QUEUE,
    Address,
    Facts,
    document_of,
    of_key,
    tag_facts,
    unless,
)
from ddppo.domains.cloud.meaning import lifecycle, name_of, settings

# ask(service, operation, **parameters): the answer with short names; {} if the service refuses.
Ask = Callable[..., dict[str, Any]]


def facts_of(service: str, ask: Ask, account: str) -> dict[Address, Any]:
    """Return the facts of a service, named as in the CLI."""
    return dict(READERS[service](ask, account))


def _all(
    first: dict[str, Any], again: Callable[..., dict[str, Any]], field: str, token: str
) -> Iterator[Any]:
    """Yield the entries of an answer and of its next pages. token: "field of the answer > parameter"."""
    given, _, parameter = token.partition(" > ")
    while True:
        yield from first.get(field) or []
        if not first.get(given):
            return
        first = again(**{parameter: first[given]})


def _s3(ask: Ask, account: str) -> Facts:
    for name in [bucket["Name"] for bucket in ask("s3api", "list-buckets").get("Buckets", [])]:
        yield from _bucket(name, lambda operation, **more: ask("s3api", operation, **more), {"Bucket": name})


def _bucket(name: str, ask: Callable[..., dict[str, Any]], of: dict[str, str]) -> Facts:
    at: Address = ("bucket", name)
    yield at, True
    yield from tag_facts(at, ask("get-bucket-tagging", **of).get("TagSet"))
    is_versioned = ask("get-bucket-versioning", **of).get("Status") == "Enabled"
    yield from unless(None, (*at, "versioning"), is_versioned or None)
    if text := ask("get-bucket-policy", **of).get("Policy"):
        yield (*at, "policy"), document_of(text)
    encrypted = ask("get-bucket-encryption", **of).get("ServerSideEncryptionConfiguration", {})
    for rule in encrypted.get("Rules", []):
        rule = {
            key: value
            for key, value in rule.items()
            if key == "ApplyServerSideEncryptionByDefault" or value is True
        }
        yield from unless(AES256, (*at, "encryption"), settings(rule))
    flags = ask("get-public-access-block", **of).get("PublicAccessBlockConfiguration", {})
    for flag, value in flags.items() if not all(flags.values()) else ():
        yield from unless(False, (*at, "public_access_block", flag), value)
    rules = ask("get-bucket-lifecycle-configuration", **of).get("Rules", [])
    yield from unless(None, (*at, "lifecycle"), lifecycle(rules))
    notified = ask("get-bucket-notification-configuration", **of)
    plain = {
        kind: [_without(one, "Id") for one in many]
        for kind, many in notified.items()
        if isinstance(many, list)
    }
    yield from unless(None, (*at, "notification"), settings(plain) if plain else None)
    yield from unless(None, (*at, "acl"), _grants(ask("get-bucket-acl", **of)))
    for stored in _all(
        ask("list-objects-v2", **of),
        lambda **more: ask("list-objects-v2", **of, **more),
        "Contents",
        "NextContinuationToken > ContinuationToken",
    ):
        on: Address = (*at, "object", stored["Key"])
        yield on, stored["ETag"]
        yield from tag_facts(on, ask("get-object-tagging", **of, Key=stored["Key"]).get("TagSet"))
        yield from unless(None, (*on, "acl"), _grants(ask("get-object-acl", **of, Key=stored["Key"])))


def _without(given: Any, *keys: str) -> Any:
    return (
        {key: value for key, value in given.items() if key not in keys} if isinstance(given, dict) else given
    )


def _grants(acl: dict[str, Any]) -> Any:
    """Return what an access control list grants, but for the full control of the owner."""
    owner = acl.get("Owner", {}).get("ID")
    return settings([grant for grant in acl.get("Grants", []) if grant.get("Grantee", {}).get("ID") != owner])


def _dynamodb(ask: Ask, account: str) -> Facts:
    for name in ask("dynamodb", "list-tables").get("TableNames", []):
        at: Address = ("table", name)
        of = {"TableName": name}
        table = ask("dynamodb", "describe-table", **of).get("Table", {})
        yield at, True
        arn = table.get("TableArn", "")
        yield from tag_facts(at, ask("dynamodb", "list-tags-of-resource", ResourceArn=arn).get("Tags"))
        yield (*at, "KeySchema"), settings(table.get("KeySchema"))
        yield (*at, "AttributeDefinitions"), settings(table.get("AttributeDefinitions"))
        given = table.get("ProvisionedThroughput", {})
        units = (given.get("ReadCapacityUnits"), given.get("WriteCapacityUnits"))
        is_by_request = (table.get("BillingModeSummary") or {}).get("BillingMode") == "PAY_PER_REQUEST"
        yield (*at, "BillingModeSummary"), "PAY_PER_REQUEST" if is_by_request else units
        for kind in ("GlobalSecondaryIndexes", "LocalSecondaryIndexes"):
            for index in table.get(kind) or []:
                yield (*at, kind, index["IndexName"]), settings([index["KeySchema"], index["Projection"]])
        if (table.get("StreamSpecification") or {}).get("StreamEnabled"):
            yield (*at, "StreamSpecification"), settings(table["StreamSpecification"])
        encrypted = settings(_without(table.get("SSEDescription"), "KMSMasterKeyArn"))
        yield from unless(None, (*at, "SSEDescription"), encrypted)
        is_protected = table.get("DeletionProtectionEnabled") or None
        yield from unless(None, (*at, "DeletionProtectionEnabled"), is_protected)
        expiry = ask("dynamodb", "describe-time-to-live", **of).get("TimeToLiveDescription", {})
        expires = expiry.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
        yield from unless(
            None, (*at, "TimeToLiveDescription"), expiry.get("AttributeName") if expires else None
        )
        backups = ask("dynamodb", "describe-continuous-backups", **of).get("ContinuousBackupsDescription", {})
        recovery = backups.get("PointInTimeRecoveryDescription", {}).get("PointInTimeRecoveryStatus")
        yield from unless("DISABLED", (*at, "ContinuousBackupsDescription"), recovery)
        keys = [key["AttributeName"] for key in table.get("KeySchema", [])]
        scan = {**of, "ConsistentRead": True}
        for item in _all(
            ask("dynamodb", "scan", **scan),
            lambda **more: ask("dynamodb", "scan", **scan, **more),  # noqa: B023 (used up in this round)
            "Items",
            "LastEvaluatedKey > ExclusiveStartKey",
        ):
            yield (*at, "item", of_key({key: item[key] for key in keys})), settings(item)


COUNTS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


def _sqs(ask: Ask, account: str) -> Facts:
    for url in ask("sqs", "list-queues").get("QueueUrls", []):
        at: Address = ("queue", name_of(url))
        yield at, True
        yield from tag_facts(at, ask("sqs", "list-queue-tags", QueueUrl=url).get("Tags"))
        held = ask("sqs", "get-queue-attributes", QueueUrl=url, AttributeNames=["All"]).get("Attributes", {})
        for attribute, default in QUEUE.items():
            is_default = str(held.get(attribute, default)) == str(default)
            yield from unless(None, (*at, attribute), None if is_default else held[attribute])
        if int(held.get("MaximumMessageSize", LARGEST[0])) not in LARGEST:
            yield (*at, "MaximumMessageSize"), held["MaximumMessageSize"]
        if held.get("Policy"):
            yield (*at, "Policy"), document_of(held["Policy"], held.get("QueueArn", ""))
        yield from unless(None, (*at, "RedrivePolicy"), settings(held.get("RedrivePolicy")))
        allowed = settings(held.get("RedriveAllowPolicy"))
        yield from unless(settings({"redrivePermission": "allowAll"}), (*at, "RedriveAllowPolicy"), allowed)
        yield from unless(0, (*at, "messages"), sum(int(held.get(count, 0)) for count in COUNTS))


# What the policy of a new topic allows to its own account.
BY_DEFAULT = (
    *(
        "GetTopicAttributes",
        "SetTopicAttributes",
        "AddPermission",
        "RemovePermission",
        "DeleteTopic",
        "Subscribe",
    ),
    *("ListSubscriptionsByTopic", "Publish"),
)


def _defaults(arn: str, account: str) -> list[Any]:
    """Return the policies that a new topic may have, without and with the right to receive."""
    found = []
    for more in ((), ("Receive",)):
        allowed: dict[str, Any] = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Resource": arn}
        allowed["Action"] = [f"SNS:{action}" for action in (*BY_DEFAULT, *more)]
        allowed["Condition"] = {"StringEquals": {"AWS:SourceOwner": account}}
        found.append(document_of(json.dumps({"Statement": [allowed]}), arn))
    return found


def _sns(ask: Ask, account: str) -> Facts:
    for arn in [topic["TopicArn"] for topic in ask("sns", "list-topics").get("Topics", [])]:
        at: Address = ("topic", name_of(arn))
        yield at, True
        yield from tag_facts(at, ask("sns", "list-tags-for-resource", ResourceArn=arn).get("Tags"))
        held = ask("sns", "get-topic-attributes", TopicArn=arn).get("Attributes", {})
        for attribute in ("DisplayName", "DeliveryPolicy", "KmsMasterKeyId"):
            yield from unless(None, (*at, attribute), held.get(attribute))
        yield from unless(None, (*at, "FifoTopic"), str(held.get("FifoTopic")).lower() == "true" or None)
        allowed = document_of(held.get("Policy"), arn)
        if allowed not in _defaults(arn, account):
            yield (*at, "Policy"), allowed
        for one in _all(
            ask("sns", "list-subscriptions-by-topic", TopicArn=arn),
            lambda **more: ask("sns", "list-subscriptions-by-topic", TopicArn=arn, **more),  # noqa: B023 (as above)
            "Subscriptions",
            "NextToken > NextToken",
        ):
            on: Address = (*at, "subscription", f"{one['Protocol']} {one['Endpoint']}")
            yield on, True
            asked = {"SubscriptionArn": one["SubscriptionArn"]}
            given = ask("sns", "get-subscription-attributes", **asked).get("Attributes", {})
            for attribute in ("FilterPolicy", "RedrivePolicy", "DeliveryPolicy"):
                yield from unless(None, (*on, attribute), settings(given.get(attribute)))
            is_raw = str(given.get("RawMessageDelivery")).lower() == "true"
            yield from unless(None, (*on, "RawMessageDelivery"), is_raw or None)


def _iam(ask: Ask, account: str) -> Facts:
    def of(at: Address, one: dict[str, Any], named: dict[str, str]) -> Facts:
        kind = at[0]
        yield at, True
        yield from unless("/", (*at, "path"), one["Path"])
        attached = ask("iam", f"list-attached-{kind}-policies", **named).get("AttachedPolicies", [])
        for policy in attached:
            yield (*at, "attached", name_of(policy["PolicyArn"])), policy["PolicyArn"]
        for name in ask("iam", f"list-{kind}-policies", **named).get("PolicyNames", []):
            given = ask("iam", f"get-{kind}-policy", **named, PolicyName=name)
            yield (*at, "inline", name), _meant(given.get("PolicyDocument"))

    for user in ask("iam", "list-users").get("Users", []):
        name = user["UserName"]
        named = {"UserName": name}
        yield from of(("user", name), user, named)
        yield from tag_facts(("user", name), ask("iam", "list-user-tags", **named).get("Tags"))
        keys = ask("iam", "list-access-keys", **named).get("AccessKeyMetadata", [])
        yield from unless(
            (), ("user", name, "AccessKeyMetadata"), tuple(sorted(key["Status"] for key in keys))
        )
    for group in ask("iam", "list-groups").get("Groups", []):
        name = group["GroupName"]
        yield from of(("group", name), group, {"GroupName": name})
        for user in ask("iam", "get-group", GroupName=name).get("Users", []):
            yield ("group", name, "member", user["UserName"]), True
    for name in [role["RoleName"] for role in ask("iam", "list-roles").get("Roles", [])]:
        at: Address = ("role", name)
        role = ask("iam", "get-role", RoleName=name).get("Role", {})
        yield from of(at, role, {"RoleName": name})
        yield from tag_facts(at, ask("iam", "list-role-tags", RoleName=name).get("Tags"))
        yield (*at, "AssumeRolePolicyDocument"), _meant(role.get("AssumeRolePolicyDocument"))
        yield from unless("3600", (*at, "MaxSessionDuration"), str(role.get("MaxSessionDuration", 3600)))
        boundary = role.get("PermissionsBoundary", {}).get("PermissionsBoundaryArn")
        yield from unless(None, (*at, "PermissionsBoundary"), boundary)
    for policy in ask("iam", "list-policies", Scope="Local").get("Policies", []):
        arn, at = policy["Arn"], ("policy", policy["PolicyName"])
        yield at, arn
        yield from tag_facts(at, ask("iam", "list-policy-tags", PolicyArn=arn).get("Tags"))
        asked = {"PolicyArn": arn, "VersionId": policy["DefaultVersionId"]}
        version = ask("iam", "get-policy-version", **asked).get("PolicyVersion", {})
        yield (*at, "Document"), _meant(version.get("Document"))


def _meant(document: Any) -> Any:
    """Return the meaning of a document, which boto3 has read."""
    return document_of(document if isinstance(document, str) else json.dumps(document))


def _ssm(ask: Ask, account: str) -> Facts:
    for one in ask("ssm", "describe-parameters").get("Parameters", []):
        name = one["Name"]
        at: Address = ("parameter", name)
        now = ask("ssm", "get-parameter", Name=name, WithDecryption=True).get("Parameter", {})
        yield at, True
        yield (*at, "Type"), one["Type"]
        yield (*at, "Value"), now.get("Value")
        yield from unless("alias/aws/ssm", (*at, "KeyId"), one.get("KeyId"))
        yield from unless("text", (*at, "DataType"), one.get("DataType"))
        yield from unless("Standard", (*at, "Tier"), one.get("Tier"))
        yield from unless(None, (*at, "AllowedPattern"), one.get("AllowedPattern"))
        yield from unless(None, (*at, "Policies"), settings(one.get("Policies")) or None)
        tags = ask("ssm", "list-tags-for-resource", ResourceType="Parameter", ResourceId=name)
        yield from tag_facts(at, tags.get("TagList"))


def _secretsmanager(ask: Ask, account: str) -> Facts:
    listed = ask("secretsmanager", "list-secrets", IncludePlannedDeletion=True)
    for secret in listed.get("SecretList", []):
        name = secret["Name"]
        at: Address = ("secret", name)
        yield at, "deleted" if secret.get("DeletedDate") else True
        yield from tag_facts(at, secret.get("Tags"))
        yield (
            (*at, "SecretString"),
            ask("secretsmanager", "current-value", SecretId=name, **_current(secret))["value"],
        )
        yield from unless("alias/aws/secretsmanager", (*at, "KmsKeyId"), secret.get("KmsKeyId"))
        yield from unless(False, (*at, "RotationEnabled"), secret.get("RotationEnabled"))
        if text := ask("secretsmanager", "get-resource-policy", SecretId=name).get("ResourcePolicy"):
            yield (*at, "Policy"), document_of(text)


def _current(secret: dict[str, Any]) -> dict[str, str]:
    versions = secret.get("SecretVersionsToStages") or {}
    return {"VersionId": next((id for id, stages in versions.items() if "AWSCURRENT" in stages), "")}


READERS: dict[str, Callable[[Ask, str], Facts]] = {
    "s3api": _s3,
    "dynamodb": _dynamodb,
    "sqs": _sqs,
    "sns": _sns,
    "iam": _iam,
    "ssm": _ssm,
    "secretsmanager": _secretsmanager,
}
# Services whose facts a call of another service can change: a topic sends to queues, a bucket to queues and topics.
ALSO_CHANGES = {"sns": ("sqs",), "s3api": ("sqs", "sns")}
