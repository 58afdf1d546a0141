"""All that an account holds, as facts: `("bucket", "ledger", "tag", "team"): "finance"`.

A fact is something that a command can change. What is as the service makes it by default is no fact, so a bucket that
was just made is one fact, its existence. Facts hold no identifiers, times, versions that were replaced, or messages'
visibility: these differ between two ways to the same state.

The facts are read from moto's own objects (moto is pinned in pyproject.toml), in well below a millisecond, so that a
grader can look at all of the world after each step, and changes nothing by looking.
"""

import functools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ddppo.domains.cloud.meaning import lifecycle, name_of, policy, settings, tags

Address = tuple[str, ...]  # kind of resource, its name, and what it is a fact of
Facts = Iterator[tuple[Address, Any]]


def holdings(account: str, region: str) -> dict[Address, Any]:
    """Return all facts of an account. A service that was never called holds nothing."""
    found: dict[Address, Any] = {}
    for service, (where, facts) in READERS.items():
        module = sys.modules.get(f"moto.{service}.models")  # loaded by the first call of a service
        if module is not None:
            backends = getattr(module, f"{service}_backends")
            found.update(facts(backends[account]["aws" if where == "global" else region]))
    return found


def unless(default: Any, address: Address, value: Any) -> Facts:
    """A fact, unless it has its default, or is empty."""
    if value not in (default, None, "", [], {}, frozenset()):
        yield address, value


def tag_facts(address: Address, given: Any) -> Facts:
    for key, value in (tags(given) or {}).items():
        yield (*address, "tag", key), value


@functools.lru_cache(maxsize=256)
def document_of(text: str | bytes | None, own: str = "") -> Any:
    """Return the meaning of a policy, or its text if it has none. `own` is the ARN of its only resource."""
    found = policy(text, own)
    return str(text) if found is None and text else found


def _plain(value: Any) -> Any:
    """Return an object of moto as JSON types."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(inner) for inner in value]
    return _plain(vars(value)) if hasattr(value, "__dict__") else value


# -- the services ------------------------------------------------------------------------------------------------------


def _s3(backend: Any) -> Facts:
    for name, bucket in backend.buckets.items():
        at = ("bucket", name)
        yield at, True
        yield from tag_facts(at, backend.tagger.get_tag_dict_for_resource(bucket.arn))
        # A bucket whose versioning was suspended keeps no versions, as a new one.
        yield from unless(None, (*at, "versioning"), bucket.is_versioned or None)
        if bucket.policy:
            yield (*at, "policy"), document_of(bucket.policy)
        yield from unless(AES256, (*at, "encryption"), settings((bucket.encryption or {}).get("Rule")))
        flags = vars(bucket.public_access_block) if bucket.public_access_block else {}
        for flag, value in flags.items():
            yield from unless(False, (*at, "public_access_block", flag), value)
        yield from unless(None, (*at, "lifecycle"), lifecycle(list(map(_rule, bucket.rules))))
        notified = bucket.notification_configuration
        yield from unless(NO_EVENTS, (*at, "notification"), settings(_plain(notified)) if notified else None)
        yield from unless(None, (*at, "acl"), _grants(bucket.acl))
        yield from unless(False, (*at, "object_lock"), bucket.object_lock_enabled)
        yield from unless(None, (*at, "ownership"), settings(bucket.ownership_rule))
        for key, stored in bucket.keys.items():
            if hasattr(stored, "value"):  # not a delete marker
                yield (*at, "object", key), stored.value
                yield from tag_facts(
                    (*at, "object", key), backend.tagger.get_tag_dict_for_resource(stored.arn)
                )
                yield from unless(None, (*at, "object", key, "acl"), _grants(stored.acl))


AES256 = settings({"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}})  # of every new bucket
NO_EVENTS = settings({"topic": [], "queue": [], "cloud_function": [], "event_bridge": None})


def _rule(rule: Any) -> dict[str, Any]:
    """Return a rule of a lifecycle as the service would give it."""
    given = rule.filter or rule
    where = {"Prefix": given.prefix, "Tags": []}
    if rule.filter and rule.filter.tag_key:
        where["Tags"].append({"Key": rule.filter.tag_key, "Value": rule.filter.tag_value})
    if rule.filter and rule.filter.and_filter:
        where["Prefix"] = rule.filter.and_filter.prefix
        where["Tags"] += [{"Key": key, "Value": value} for key, value in rule.filter.and_filter.tags.items()]
    actions = {
        "Expiration": {
            "Days": rule.expiration_days,
            "Date": rule.expiration_date,
            "ExpiredObjectDeleteMarker": rule.expired_object_delete_marker,
        },
        "Transitions": _plain(rule.transitions or []),
        "NoncurrentVersionTransitions": _plain(rule.noncurrent_version_transitions or []),
        "NoncurrentVersionExpiration": {"NoncurrentDays": rule.nve_noncurrent_days},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": rule.aimu_days},
    }
    for action, what in list(actions.items()):
        if isinstance(what, dict):
            actions[action] = {key: value for key, value in what.items() if value is not None}
        if not actions[action]:
            del actions[action]
    return {"Status": rule.status, "Filter": where, **actions}


def _grants(acl: Any) -> Any:
    """Return what an access control list grants, but for the full control of the owner."""
    grants = _plain(acl).get("grants", []) if acl else []
    owner = "75aa57f09aa0c8caeab4f8c24e99d10f8e7faeebf76c078efc7c6caea54ba06a"  # moto's
    return settings([grant for grant in grants if any(one["id"] != owner for one in grant["grantees"])])


def _dynamodb(backend: Any) -> Facts:
    for name, table in backend.tables.items():
        at = ("table", name)
        yield at, True
        yield from tag_facts(at, table.tags)
        yield (*at, "KeySchema"), settings(table.schema)
        yield (*at, "AttributeDefinitions"), settings(table.attr)
        units = (table.throughput["ReadCapacityUnits"], table.throughput["WriteCapacityUnits"])
        is_by_request = table.billing_mode == "PAY_PER_REQUEST"
        yield (*at, "BillingModeSummary"), "PAY_PER_REQUEST" if is_by_request else units
        # Of an index, its throughput is as of the table.
        indexes = {"GlobalSecondaryIndexes": table.global_indexes, "LocalSecondaryIndexes": table.indexes}
        for kind, of_kind in indexes.items():
            for index in of_kind:
                yield (*at, kind, index.name), settings([index.schema, index.projection])
        if table.stream_specification and table.stream_specification["StreamEnabled"]:
            yield (*at, "StreamSpecification"), settings(table.stream_specification)
        encrypted = (table.sse_specification or {}).get("Enabled")
        yield from unless(
            None, (*at, "SSEDescription"), settings(table.sse_specification) if encrypted else None
        )
        yield from unless(None, (*at, "DeletionProtectionEnabled"), table.deletion_protection_enabled or None)
        expires = table.ttl["TimeToLiveStatus"] == "ENABLED"
        yield from unless(
            None, (*at, "TimeToLiveDescription"), table.ttl.get("AttributeName") if expires else None
        )
        recovery = table.continuous_backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"]
        yield from unless("DISABLED", (*at, "ContinuousBackupsDescription"), recovery)
        for item in table.all_items():
            attributes = item.to_json()["Attributes"]
            key = {attribute: attributes[attribute] for attribute in table.table_key_attrs}
            yield (*at, "item", of_key(key)), settings(attributes)


def of_key(key: Mapping[str, Any]) -> str:
    """Return the key of an item as one text."""
    return json.dumps(key, sort_keys=True)


QUEUE = {
    "DelaySeconds": 0,
    "MessageRetentionPeriod": 345600,
    "ReceiveMessageWaitTimeSeconds": 0,
    "VisibilityTimeout": 30,
    "SqsManagedSseEnabled": "true",
    "FifoQueue": "false",
    "ContentBasedDeduplication": "false",
    "DeduplicationScope": "queue",
    "FifoThroughputLimit": "perQueue",
    "KmsDataKeyReusePeriodSeconds": 300,
    "KmsMasterKeyId": None,
}
LARGEST = (262144, 1048576)  # MaximumMessageSize by default, before and after 2025


def _sqs(backend: Any) -> Facts:
    for name, queue in backend.queues.items():
        at = ("queue", name)
        yield at, True
        yield from tag_facts(at, queue.tags)
        held = queue.attributes
        for attribute, default in QUEUE.items():
            yield from unless(default, (*at, attribute), held.get(attribute))
        if held["MaximumMessageSize"] not in LARGEST:
            yield (*at, "MaximumMessageSize"), held["MaximumMessageSize"]
        if held.get("Policy"):
            yield (*at, "Policy"), document_of(held["Policy"], queue.queue_arn)
        yield from unless(None, (*at, "RedrivePolicy"), settings(held.get("RedrivePolicy")))
        allowed = settings(getattr(queue, "redrive_allow_policy", None))
        yield from unless(settings({"redrivePermission": "allowAll"}), (*at, "RedriveAllowPolicy"), allowed)
        # Messages that are being received or delayed are in the queue as well.
        yield from unless((), (*at, "messages"), tuple(sorted(message.body for message in queue._messages)))


def _sns(backend: Any) -> Facts:
    for topic in backend.topics.values():
        at = ("topic", topic.name)
        yield at, True
        yield from tag_facts(at, topic._tags)
        for attribute, value in (
            ("DisplayName", topic.display_name),
            ("DeliveryPolicy", topic.delivery_policy),
            ("KmsMasterKeyId", topic.kms_master_key_id),
        ):
            yield from unless(None, (*at, attribute), value)
        yield from unless(False, (*at, "FifoTopic"), str(topic.fifo_topic).lower() == "true")
        own = topic._create_default_topic_policy(backend.region_name, topic.account_id, topic.name)
        default = document_of(json.dumps(own), topic.arn)
        if document_of(topic.policy, topic.arn) != default:
            yield (*at, "Policy"), document_of(topic.policy, topic.arn)
    for one in backend.subscriptions.values():
        on: Address = ("topic", one.topic.name, "subscription", f"{one.protocol} {one.endpoint}")
        yield on, True
        for attribute in ("FilterPolicy", "RedrivePolicy", "DeliveryPolicy"):
            yield from unless(None, (*on, attribute), settings(one.attributes.get(attribute)))
        is_raw = str(one.attributes.get("RawMessageDelivery")).lower() == "true"
        yield from unless(None, (*on, "RawMessageDelivery"), is_raw or None)


def _iam(backend: Any) -> Facts:
    def of(at: Address, one: Any) -> Facts:
        yield at, True
        yield from unless("/", (*at, "path"), one.path)
        for arn in one.managed_policies:
            yield (*at, "attached", name_of(arn)), arn
        for name, document in one.policies.items():
            yield (*at, "inline", name), document_of(document)

    for name, user in backend.users.items():
        yield from of(("user", name), user)
        yield from tag_facts(("user", name), backend.tagger.get_tag_dict_for_resource(user.arn))
        keys = tuple(sorted(key.status for key in user.access_keys))
        yield from unless((), ("user", name, "AccessKeyMetadata"), keys)
    for name, group in backend.groups.items():
        yield from of(("group", name), group)
        for user in group.users:
            yield ("group", name, "member", user.name), True
    for role in backend.roles.values():
        at = ("role", role.name)
        yield from of(at, role)
        yield from tag_facts(at, role.tags)
        yield (*at, "AssumeRolePolicyDocument"), document_of(role.assume_role_policy_document)
        yield from unless("3600", (*at, "MaxSessionDuration"), str(role.max_session_duration or 3600))
        yield from unless(None, (*at, "PermissionsBoundary"), role.permissions_boundary_arn)
    for arn, document in backend.managed_policies.items():
        if ":iam::aws:" not in arn:
            at = ("policy", name_of(arn))
            yield at, arn
            yield from tag_facts(at, list(document.tags.values()))
            current = document.default_version_id
            texts = [held.document for held in document.versions if held.version_id == current]
            yield (*at, "Document"), document_of(texts[0] if texts else None)


def _ssm(backend: Any) -> Facts:
    for name, versions in backend._parameters.items():
        if not versions or name.startswith("/aws/"):  # public ones, which moto loads when they are read
            continue
        at, now = ("parameter", name), versions[-1]
        yield at, True
        yield (*at, "Type"), now.parameter_type
        yield (*at, "Value"), now.decrypt(now.value)
        yield from unless("alias/aws/ssm", (*at, "KeyId"), now.keyid)
        yield from unless("text", (*at, "DataType"), now.data_type)
        yield from unless("Standard", (*at, "Tier"), now.tier)
        yield from unless(None, (*at, "AllowedPattern"), now.allowed_pattern)
        yield from unless("[]", (*at, "Policies"), now.policies)
        yield from tag_facts(at, backend._resource_tags["Parameter"].get(name))


def _secretsmanager(backend: Any) -> Facts:
    for secret in dict.values(backend.secrets):
        at = ("secret", secret.name)
        yield at, "deleted" if secret.deleted_date else True
        yield from tag_facts(at, secret.tags)
        current = secret.versions.get(secret.default_version_id, {})
        yield (*at, "SecretString"), current.get("secret_string", current.get("secret_binary"))
        yield from unless("alias/aws/secretsmanager", (*at, "KmsKeyId"), secret.kms_key_id)
        yield from unless(False, (*at, "RotationEnabled"), secret.rotation_enabled)
        if secret.policy:
            yield (*at, "Policy"), document_of(secret.policy)
        yield from unless((), (*at, "replicas"), tuple(replica.region for replica in secret.replicas))


READERS: dict[str, tuple[str, Callable[[Any], Iterable[tuple[Address, Any]]]]] = {
    "s3": ("global", _s3),
    "dynamodb": ("region", _dynamodb),
    "sqs": ("region", _sqs),
    "sns": ("region", _sns),
    "iam": ("global", _iam),
    "ssm": ("region", _ssm),
    "secretsmanager": ("region", _secretsmanager),
}
