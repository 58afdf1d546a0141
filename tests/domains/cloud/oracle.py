"""What a state of the cloud means, told otherwise than by the graders: `observe` asks each service through boto3.

Documents are told by what they do: a policy is a table of decisions about sample requests, rules of a lifecycle are the
fate of sample objects at sample ages. Nothing here uses ddppo's goals, facts or meanings.
"""

import fnmatch
import functools
import itertools
import json
from typing import Any

from botocore.exceptions import ClientError
from moto.sqs.models import sqs_backends

ACCOUNT = "123456789012"

# -- policies: decisions about sample requests -------------------------------------------------------------------------

TOPICS = [f"arn:aws:sns:us-east-1:{ACCOUNT}:{name}" for name in ("alerts", "other")]
CALLERS = [
    *(("Service", f"{name}.amazonaws.com") for name in ("lambda", "ec2", "ecs", "sns")),
    *(("AWS", arn) for arn in (f"arn:aws:iam::{ACCOUNT}:user/eve", "arn:aws:iam::999999999999:user/mal")),
    ("AWS", "anonymous"),
    ("Federated", "accounts.google.com"),
]
ACTIONS = [
    *(
        "sts:AssumeRole",
        "sts:AssumeRoleWithSAML",
        "sts:TagSession",
        "s3:GetObject",
        "s3:PutObject",
        "s3:ListBucket",
    ),
    *(
        "sqs:SendMessage",
        "sqs:ReceiveMessage",
        "sqs:DeleteQueue",
        "sns:Publish",
        "sns:Subscribe",
        "logs:PutLogEvents",
    ),
    "iam:CreateUser",
]
PLACES = ["arn:aws:s3:::payroll", "arn:aws:s3:::payroll/may.csv", "arn:aws:s3:::other/x"]


def decisions(document: Any, own: str = "") -> Any:
    """Return what a policy decides about each sample request; of a queue or topic, `own` is the only resource.

    SNS names the topic in aws:SourceArn, a caller cannot; a user belongs to an account.
    """
    return _decisions(document if isinstance(document, str) else json.dumps(document), own)


@functools.lru_cache(maxsize=1024)
def _decisions(text: str, own: str) -> Any:
    given = json.loads(text)
    if not isinstance(given, dict) or "Statement" not in given:
        return "broken"
    statements = given["Statement"] if isinstance(given["Statement"], list) else [given["Statement"]]
    table = []
    for caller, action, place in itertools.product(CALLERS, ACTIONS, [own] if own else PLACES):
        contexts: list[dict[str, str]] = (
            [{}, {"aws:sourceowner": ACCOUNT}] if caller[0] == "Service" else [{}]
        )
        if caller[1].startswith("sns."):
            contexts = [{"aws:sourcearn": topic, **more} for topic in TOPICS for more in contexts]
        elif ":user/" in caller[1]:
            contexts = [{"aws:sourceowner": caller[1].split(":")[4]}]
        for context in contexts:
            hit = {one["Effect"] for one in statements if _applies(one, caller, action, place, context)}
            table.append("Deny" if "Deny" in hit else "Allow" if "Allow" in hit else "")
    return tuple(table)


def _applies(
    statement: dict[str, Any], caller: Any, action: str, place: str, context: dict[str, str]
) -> bool:
    def many(given: Any) -> list[Any]:
        return given if isinstance(given, list) else [given]

    def like(value: str, patterns: Any) -> bool:
        return any(fnmatch.fnmatchcase(value, pattern.replace("[", "[[]")) for pattern in many(patterns))

    def called_by(principals: Any) -> bool:
        if principals == "*":
            return True
        for kind, values in principals.items():
            for value in many(values):
                if (kind, value) == ("AWS", "*") or (kind, value) == caller:
                    return True
                account = (
                    value if value.isdigit() else value.split(":")[4] if value.endswith(":root") else None
                )
                if kind == caller[0] == "AWS" and account and f"::{account}:" in caller[1]:
                    return True
        return False

    def holds(operator: str, key: str, values: Any) -> bool:
        value, wanted = context.get(key.lower()), [str(one) for one in many(values)]
        name = operator.lower()
        if "not" in name:
            return value is None or not like(value, wanted)
        if value is None:
            return False
        return value in wanted if name == "stringequals" else like(value, wanted)

    if "Principal" in statement and not called_by(statement["Principal"]):
        return False
    if "NotPrincipal" in statement and called_by(statement["NotPrincipal"]):
        return False
    lower = [one.lower() for one in many(statement.get("Action", statement.get("NotAction", [])))]
    if like(action.lower(), lower) is ("NotAction" in statement):
        return False
    if "Resource" in statement and not like(place, statement["Resource"]):
        return False
    if "NotResource" in statement and like(place, statement["NotResource"]):
        return False
    tests = statement.get("Condition", {})
    return all(holds(operator, key, values) for operator, by in tests.items() for key, values in by.items())


# -- lifecycles: the fate of sample objects ----------------------------------------------------------------------------

OBJECTS = [
    (key, tag) for key in ("", "a.txt", "logs/x", "logs/old/y") for tag in ({}, {"old": "yes"}, {"a": "b"})
]
AGES = (1, 2, 5, 7, 10, 20, 29, 30, 31, 60, 90, 365, 1000)


def fates(rules: list[dict[str, Any]]) -> Any:
    """Return what becomes of each sample object at each sample age."""
    table = []
    for (key, tagged), age in itertools.product(OBJECTS, AGES):
        fate = set()
        for rule in rules:
            given = rule.get("Filter", {})
            both = given.get("And", {})
            tags = {
                tag["Key"]: tag["Value"]
                for tag in [*both.get("Tags", []), *([given["Tag"]] if "Tag" in given else [])]
            }
            prefix = rule.get("Prefix") or given.get("Prefix") or both.get("Prefix") or ""
            if (
                rule["Status"] != "Enabled"
                or not key.startswith(prefix)
                or not tags.items() <= tagged.items()
            ):
                continue
            if age >= rule.get("Expiration", {}).get("Days", 10**6):
                fate.add("expired")
            fate |= {
                f"marker {value}" for name, value in rule.get("Expiration", {}).items() if name != "Days"
            }
            fate |= {
                f"to {step['StorageClass']}"
                for step in rule.get("Transitions", [])
                if age >= step.get("Days", 0)
            }
            if age >= rule.get("NoncurrentVersionExpiration", {}).get("NoncurrentDays", 10**6):
                fate.add("old versions expired")
            if age >= rule.get("AbortIncompleteMultipartUpload", {}).get("DaysAfterInitiation", 10**6):
                fate.add("uploads aborted")
        table.append(tuple(sorted(fate)))
    return tuple(table)


# -- the services ------------------------------------------------------------------------------------------------------

Seen = dict[tuple[str, str], dict[str, Any]]  # by kind and name of a resource, each thing that counts


def asked(function: Any, field: str, **params: Any) -> Any:
    """Return a field of an answer, or None if there is none."""
    try:
        return function(**params).get(field)
    except ClientError:
        return None


def content(s3: Any, of: dict[str, str]) -> bytes | None:
    """Return the bytes of an object; None if a policy of its bucket denies that."""
    body = asked(s3.get_object, "Body", **of)
    return None if body is None else body.read()


def tagged(tags: Any) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in tags or []}


def granted(answer: Any) -> list[str]:
    return sorted(
        f"{grant['Grantee'].get('URI')} {grant['Permission']}"
        for grant in answer or []
        if "URI" in grant["Grantee"]
    )


def observe_s3(s3: Any, names: set[str] | None) -> Seen:
    found: Seen = {}
    for name in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]:
        if names is not None and name not in names:
            continue
        text = asked(s3.get_bucket_policy, "Policy", Bucket=name)
        rules = asked(s3.get_bucket_encryption, "ServerSideEncryptionConfiguration", Bucket=name)
        blocked = asked(s3.get_public_access_block, "PublicAccessBlockConfiguration", Bucket=name) or {}
        lifecycle = asked(s3.get_bucket_lifecycle_configuration, "Rules", Bucket=name)
        found["bucket", name] = {
            "versioned": asked(s3.get_bucket_versioning, "Status", Bucket=name) == "Enabled",
            "tags": tagged(asked(s3.get_bucket_tagging, "TagSet", Bucket=name)),
            "policy": text and decisions(text),
            "encryption": [
                list(rule["ApplyServerSideEncryptionByDefault"].values()) for rule in rules["Rules"]
            ]
            if rules
            else [["AES256"]],
            "blocked": sorted(flag for flag, value in blocked.items() if value),
            "lifecycle": fates(lifecycle or []),
            "grants": granted(asked(s3.get_bucket_acl, "Grants", Bucket=name)),
        }
        for stored in asked(s3.list_objects_v2, "Contents", Bucket=name) or []:
            of = {"Bucket": name, "Key": stored["Key"]}
            found["bucket", name][f"object {stored['Key']}"] = (
                content(s3, of),
                tagged(asked(s3.get_object_tagging, "TagSet", **of)),
                granted(asked(s3.get_object_acl, "Grants", **of)),
            )
    return found


def observe_dynamodb(dynamodb: Any, names: set[str] | None) -> Seen:
    found: Seen = {}
    for name in dynamodb.list_tables()["TableNames"]:
        if names is not None and name not in names:
            continue
        table = dynamodb.describe_table(TableName=name)["Table"]
        mode = table["BillingModeSummary"]["BillingMode"] or "PROVISIONED"
        units = [table["ProvisionedThroughput"][f"{of}CapacityUnits"] for of in ("Read", "Write")]
        expiry = dynamodb.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
        backups = dynamodb.describe_continuous_backups(TableName=name)["ContinuousBackupsDescription"]
        items = dynamodb.scan(TableName=name, ConsistentRead=True)["Items"]
        found["table", name] = {
            "keys": sorted((key["AttributeName"], key["KeyType"]) for key in table["KeySchema"]),
            "attributes": sorted(
                (one["AttributeName"], one["AttributeType"]) for one in table["AttributeDefinitions"]
            ),
            "billing": [mode, *(units if mode == "PROVISIONED" else [])],
            "indexes": sorted(index["IndexName"] for index in table.get("GlobalSecondaryIndexes") or []),
            "stream": table.get("StreamSpecification"),
            "protected": bool(table.get("DeletionProtectionEnabled")),
            "expiry": expiry.get("AttributeName") if expiry["TimeToLiveStatus"] == "ENABLED" else None,
            "recovery": backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"],
            "tags": tagged(dynamodb.list_tags_of_resource(ResourceArn=table["TableArn"])["Tags"]),
            "items": sorted(json.dumps(item, sort_keys=True, default=str) for item in items),
        }
    return found


def observe_sqs(sqs: Any, names: set[str] | None) -> Seen:
    found: Seen = {}
    for url in sqs.list_queues().get("QueueUrls", []):
        name = url.rpartition("/")[2]
        if names is not None and name not in names:
            continue
        given = dict(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"])
        for which in ("", "NotVisible", "Delayed"):
            given.pop(f"ApproximateNumberOfMessages{which}")
        text = given.pop("Policy", None)
        given.pop("CreatedTimestamp"), given.pop("LastModifiedTimestamp")
        found["queue", name] = given | {
            # To ask for messages would hide them: here alone, moto is looked into.
            "messages": sorted(one.body for one in sqs_backends[ACCOUNT]["us-east-1"].queues[name]._messages),
            "policy": text and decisions(text, given["QueueArn"]),
            "RedrivePolicy": {
                key: str(value) for key, value in json.loads(given.get("RedrivePolicy", "{}")).items()
            },
            "tags": asked(sqs.list_queue_tags, "Tags", QueueUrl=url) or {},
        }
    return found


def observe_sns(sns: Any, names: set[str] | None) -> Seen:
    found: Seen = {}
    for arn in [topic["TopicArn"] for topic in sns.list_topics()["Topics"]]:
        name = arn.rpartition(":")[2]
        if names is not None and name not in names:
            continue
        given = sns.get_topic_attributes(TopicArn=arn)["Attributes"]
        subscriptions = sns.list_subscriptions_by_topic(TopicArn=arn)["Subscriptions"]
        found["topic", name] = {
            "DisplayName": given.get("DisplayName"),
            "KmsMasterKeyId": given.get("KmsMasterKeyId") or None,
            "policy": decisions(given["Policy"], arn),
            "tags": tagged(asked(sns.list_tags_for_resource, "Tags", ResourceArn=arn)),
            "subscriptions": sorted(_subscribed(sns, one) for one in subscriptions),
        }
    return found


def _subscribed(sns: Any, one: dict[str, str]) -> tuple[str, ...]:
    given = sns.get_subscription_attributes(SubscriptionArn=one["SubscriptionArn"])["Attributes"]
    chosen = json.loads(given.get("FilterPolicy") or "{}")
    raw = str(given.get("RawMessageDelivery", "false")).lower()
    return one["Protocol"], one["Endpoint"], json.dumps(chosen, sort_keys=True), raw


def observe_iam(iam: Any, names: set[str] | None) -> Seen:
    found: Seen = {}

    def wanted(name: str) -> bool:
        return names is None or name in names

    for user in iam.list_users()["Users"]:
        name = user["UserName"]
        if wanted(name):
            of = {"UserName": name}
            found["user", name] = {
                "path": user["Path"],
                "tags": tagged(iam.list_user_tags(**of)["Tags"]),
                "attached": sorted(
                    one["PolicyArn"] for one in iam.list_attached_user_policies(**of)["AttachedPolicies"]
                ),
                "keys": sorted(key["Status"] for key in iam.list_access_keys(**of)["AccessKeyMetadata"]),
                "inline": sorted(iam.list_user_policies(**of)["PolicyNames"]),
            }
    for group in iam.list_groups()["Groups"]:
        name = group["GroupName"]
        if wanted(name):
            of = {"GroupName": name}
            found["group", name] = {
                "path": group["Path"],
                "members": sorted(user["UserName"] for user in iam.get_group(**of)["Users"]),
                "attached": sorted(
                    one["PolicyArn"] for one in iam.list_attached_group_policies(**of)["AttachedPolicies"]
                ),
            }
    for role in iam.list_roles()["Roles"]:
        name = role["RoleName"]
        if wanted(name):
            of = {"RoleName": name}
            inline = {
                policy: decisions(iam.get_role_policy(**of, PolicyName=policy)["PolicyDocument"])
                for policy in iam.list_role_policies(**of)["PolicyNames"]
            }
            found["role", name] = {
                "path": role["Path"],
                "trust": decisions(role["AssumeRolePolicyDocument"]),
                "attached": sorted(
                    one["PolicyArn"] for one in iam.list_attached_role_policies(**of)["AttachedPolicies"]
                ),
                "inline": inline,
                "tags": tagged(iam.list_role_tags(**of)["Tags"]),
                "hours": role.get("MaxSessionDuration", 3600),
            }
    for policy in iam.list_policies(Scope="Local")["Policies"]:
        name = policy["PolicyName"]
        if wanted(name):
            version = iam.get_policy_version(PolicyArn=policy["Arn"], VersionId=policy["DefaultVersionId"])
            found["policy", name] = {
                "arn": policy["Arn"],
                "does": decisions(version["PolicyVersion"]["Document"]),
            }
    return found


def observe_ssm(ssm: Any, names: set[str] | None) -> Seen:
    found: Seen = {}
    for name in [one["Name"] for one in ssm.describe_parameters()["Parameters"]]:
        if names is not None and name not in names:
            continue
        now = ssm.get_parameter(Name=name, WithDecryption=True)["Parameter"]
        history = ssm.get_parameter_history(Name=name)["Parameters"]
        found["parameter", name] = {
            "type": now["Type"],
            "value": now["Value"],
            "plain once": any(one["Type"] != "SecureString" for one in history),
            "tags": tagged(ssm.list_tags_for_resource(ResourceType="Parameter", ResourceId=name)["TagList"]),
        }
    return found


def observe_secretsmanager(secrets: Any, names: set[str] | None) -> Seen:
    found: Seen = {}
    for one in secrets.list_secrets(IncludePlannedDeletion=True)["SecretList"]:
        name = one["Name"]
        if names is not None and name not in names:
            continue
        value = asked(secrets.get_secret_value, "SecretString", SecretId=name)
        text = asked(secrets.get_resource_policy, "ResourcePolicy", SecretId=name)
        found["secret", name] = {
            "value": value,
            "deleted": "DeletedDate" in one,
            "tags": tagged(one.get("Tags")),
            "key": one.get("KmsKeyId"),
            "policy": text and decisions(text),
        }
    return found


# The services that a family of tasks changes.
FAMILIES = {
    "s3": {"s3api": observe_s3},
    "dynamodb": {"dynamodb": observe_dynamodb},
    "sqs": {"sqs": observe_sqs},
    "sns": {"sns": observe_sns, "sqs": observe_sqs},
    "iam": {"iam": observe_iam},
    "ssm": {"ssm": observe_ssm},
    "secretsmanager": {"secretsmanager": observe_secretsmanager},
}
# Things that the prompt of a task leaves open: any value is right.
OPEN = {
    "s3_private_vault": lambda thing, value: (
        sorted({"BlockPublicPolicy"} & set(value)) if thing == "blocked" else value
    ),
    "s3_public_policy_removed": lambda thing, value: (
        sorted({"BlockPublicPolicy"} & set(value)) if thing == "blocked" else value
    ),
}


def observe(clients: dict[str, Any], family: str, names: set[str] | None = None) -> Seen:
    """Return all resources of a family, or those of these names."""
    found: Seen = {}
    for service, ask in FAMILIES[family].items():
        found |= ask(clients[service], names)
    return found


def is_right(task: str, wanted: Seen, now: Seen, names: set[str]) -> list[str]:
    """Return how the resources of these names differ from the solution's end; none is right."""
    wrong = []
    left_open = OPEN.get(task, lambda thing, value: value)
    for resource in wanted.keys() | {one for one in now if one[1] in names}:
        if (resource in wanted) != (resource in now):
            wrong.append(f"{' '.join(resource)} {'is gone' if resource in wanted else 'is still there'}")
            continue
        things = wanted[resource].keys() | now[resource].keys()
        wrong += [
            f"{' '.join(resource)}: {thing}"
            for thing in sorted(things)
            if left_open(thing, wanted[resource].get(thing)) != left_open(thing, now[resource].get(thing))
        ]
    return wrong
