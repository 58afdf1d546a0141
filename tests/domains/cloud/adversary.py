"""Search for states that a grader judges wrongly: random edits of right end states, judged by an independent oracle.

    python -m tests.domains.cloud.adversary family=iam edits=10000 seed=0 [out=experiments/cloud/adversary.csv]

For each task of a family it makes the solution's end state, edits it through boto3 (up to three edits on one another),
and compares what the grader says (a score of 1 or not) with the oracle (oracle.py). It prints the disagreements, and
exits with 1 if there are any. An edit that the simulator refuses is not counted. `out` is a table that gets a row.
"""

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from ddppo.domains.cloud.goals import Grader
from ddppo.domains.cloud.tasks import CloudTask, own_tasks
from ddppo.domains.cloud.world import CloudWorld
from tests.domains.cloud.oracle import ACCOUNT, FAMILIES, Seen, is_right, observe

MOST_EDITS = 3  # of one end state
Edit = Callable[[Any, random.Random], str]  # makes one change with the clients, and describes it


# -- documents, edited -------------------------------------------------------------------------------------------------


def edited_policy(document: Any, rng: random.Random, *, own: str = "") -> dict[str, Any]:
    """Return a policy with one or two edits, some of which change only its spelling."""
    given = json.loads(document) if isinstance(document, str) else json.loads(json.dumps(document))
    statements = given.get("Statement", [])
    given["Statement"] = statements if isinstance(statements, list) else [statements]
    for _ in range(rng.choice((1, 1, 2))):
        _edit_statements(given["Statement"], rng, own)
    if rng.random() < 0.2 and len(given["Statement"]) == 1:
        given["Statement"] = given["Statement"][0]
    given["Version"] = "2012-10-17"
    if rng.random() < 0.2:
        given["Id"] = "edited"
    return given


def _edit_statements(statements: list[dict[str, Any]], rng: random.Random, own: str) -> None:
    one = rng.choice(statements) if statements else {}
    is_trust = not own and "Resource" not in one
    actions = (
        ["sts:AssumeRole"] if is_trust else ["sqs:SendMessage", "sqs:ReceiveMessage", "s3:GetObject", "*"]
    )
    sns, topic = {"Service": "sns.amazonaws.com"}, f"arn:aws:sns:us-east-1:{ACCOUNT}:alerts"
    whom = [
        {"Service": "lambda.amazonaws.com"},
        {"Service": "ec2.amazonaws.com"},
        {"AWS": "*"},
        "*",
        {"AWS": ACCOUNT},
        sns,
    ]
    fresh = {"Effect": "Allow", "Principal": rng.choice(whom), "Action": rng.choice(actions)}
    fresh |= {} if is_trust else {"Resource": own or "arn:aws:s3:::payroll/*"}
    kind = rng.randrange(14)
    if kind == 0 and one:
        one["Sid"] = f"s{rng.randrange(9)}"
    elif kind == 1 and "Action" in one:
        one["Action"] = one["Action"] if isinstance(one["Action"], list) else [one["Action"]]
    elif kind == 2 and one:
        statements.append(dict(one))
    elif kind == 3 and len(statements) > 1:
        statements.reverse()
    elif kind == 4 and isinstance(one.get("Principal"), dict):
        one["Principal"] = {
            key: value if isinstance(value, list) else [value] for key, value in one["Principal"].items()
        }
    elif kind == 5 and isinstance(one.get("Principal"), dict):
        one["Principal"] = {
            **one["Principal"],
            **rng.choice([{"AWS": "*"}, {"AWS": ACCOUNT}, {"Service": "ecs.amazonaws.com"}]),
        }
    elif kind == 6 and one:
        one["Principal"] = rng.choice(whom)
    elif kind == 7:
        statements.append(fresh)
    elif kind == 8:
        statements.append({**fresh, "Effect": "Deny"})
    elif kind == 9 and one:
        statements.remove(one)
    elif kind == 10 and one.get("Principal") in ("*", {"AWS": "*"}, sns):  # no other caller gives a topic
        operator, key = (
            rng.choice(["ArnEquals", "ArnLike", "StringEquals", "StringLike"]),
            rng.choice(["aws:SourceArn", "AWS:SourceARN"]),
        )
        one["Condition"] = {
            operator: {key: rng.choice([topic, topic, [topic], topic[:-6] + "other", topic[:-6] + "*"])}
        }
    elif kind == 11 and one:
        one.pop("Condition", None)
    elif kind == 12 and "Action" in one and not is_trust:
        one["Action"] = rng.choice(
            ["sqs:*", "SQS:SendMessage", ["sqs:SendMessage", "sqs:DeleteQueue"], "sqs:Send*", "s3:GetObject"]
        )
    elif kind == 13 and "Resource" in one:
        one["Resource"] = rng.choice(
            ["*", own or "arn:aws:s3:::payroll/*", [own or "arn:aws:s3:::payroll/*", "*"]]
        )


def lifecycle_rules(rules: list[dict[str, Any]], rng: random.Random) -> list[dict[str, Any]]:
    """Return edited rules."""
    rules = json.loads(json.dumps(rules, default=str))
    everything = rng.choice([{"Filter": {}}, {"Filter": {"Prefix": ""}}, {"Prefix": ""}])
    some = rng.choice(
        [
            {"Filter": {"Prefix": "logs/"}},
            {"Filter": {"Tag": {"Key": "old", "Value": "yes"}}},
            {"Filter": {"And": {"Prefix": "a", "Tags": [{"Key": "a", "Value": "b"}]}}},
        ]
    )
    days = rng.choice([1, 7, 29, 30, 30, 31, 60])
    action = rng.choice([
        {"Expiration": {"Days": days}},
        {"Expiration": {"Days": days}},
        {"NoncurrentVersionExpiration": {"NoncurrentDays": days}},
        {"Transitions": [{"Days": days, "StorageClass": "GLACIER"}]},
        {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7}},
    ])  # fmt: skip
    fresh = {
        "ID": f"r{rng.randrange(99)}",
        "Status": rng.choice(["Enabled", "Enabled", "Disabled"]),
        **rng.choice([everything, some]),
        **action,
    }
    kind = rng.randrange(6)
    if kind == 0 or not rules:
        return [*rules, fresh]
    one = rng.choice(rules)
    if kind == 1:
        return [fresh]
    if kind == 2:
        one["Status"] = rng.choice(["Enabled", "Disabled"])
    elif kind == 3:
        for key in ("Filter", "Prefix"):
            one.pop(key, None)
        one |= everything if rng.random() < 0.7 else some
    elif kind == 4:
        one["Expiration"] = {"Days": days}
    else:
        one["ID"] = f"r{rng.randrange(99)}"
        rules.reverse()
    return rules


# -- edits of the services ---------------------------------------------------------------------------------------------

TAG = [
    ("team", "finance"),
    ("owner", "finance"),
    ("owner", "plant"),
    ("keep", "forever"),
    ("team", "post"),
    ("a", "b"),
]


def tag_list(rng: random.Random) -> list[dict[str, str]]:
    return [
        {"Key": key, "Value": value} for key, value in dict(rng.sample(TAG, rng.choice((0, 1, 1, 2)))).items()
    ]


def edit_s3(clients: Any, rng: random.Random) -> str:
    s3 = clients["s3api"]
    names = [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
    name = rng.choice(names) if names and rng.random() < 0.95 else "beside-it"
    if name == "beside-it" and name not in names:
        s3.create_bucket(Bucket=name)
        return "create beside-it"
    of = {"Bucket": name}
    keys = [one["Key"] for one in s3.list_objects_v2(**of).get("Contents", [])]
    key = rng.choice([*keys, *keys, "new.txt"])
    kind = rng.randrange(17)
    if kind == 0:
        status = rng.choice(["Enabled", "Suspended"])
        s3.put_bucket_versioning(**of, VersioningConfiguration={"Status": status})
        return f"versioning {name} {status}"
    if kind == 1:
        tags = tag_list(rng)
        s3.put_bucket_tagging(**of, Tagging={"TagSet": tags})
        return f"tags {name} {tags}"
    if kind == 2:
        s3.delete_bucket_tagging(**of)
        return f"no tags {name}"
    if kind in (3, 4):
        try:
            old = s3.get_bucket_policy(**of)["Policy"]
        except ClientError:
            old = {
                "Statement": [
                    {
                        "Effect": "Allow",
                        "Principal": "*",
                        "Action": "s3:GetObject",
                        "Resource": f"arn:aws:s3:::{name}/*",
                    }
                ]
            }
        text = json.dumps(edited_policy(old, rng))
        s3.put_bucket_policy(**of, Policy=text)
        return f"policy {name} {text}"
    if kind == 5:
        s3.delete_bucket_policy(**of)
        return f"no policy {name}"
    if kind in (6, 7):
        try:
            old = s3.get_bucket_lifecycle_configuration(**of)["Rules"]
        except ClientError:
            old = []
        rules = lifecycle_rules(old, rng)
        s3.put_bucket_lifecycle_configuration(**of, LifecycleConfiguration={"Rules": rules})
        return f"lifecycle {name} {json.dumps(rules)}"
    if kind == 8:
        s3.delete_bucket_lifecycle(**of)
        return f"no lifecycle {name}"
    if kind == 9:
        flags = {
            flag: rng.random() < 0.6 for flag in ("BlockPublicPolicy", "BlockPublicAcls", "IgnorePublicAcls")
        }
        s3.put_public_access_block(**of, PublicAccessBlockConfiguration=flags)
        return f"block {name} {flags}"
    if kind == 10:
        s3.delete_public_access_block(**of)
        return f"no block {name}"
    if kind == 11:
        rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": rng.choice(["AES256", "aws:kms"])}}
        s3.put_bucket_encryption(**of, ServerSideEncryptionConfiguration={"Rules": [rule]})
        return f"encryption {name} {rule}"
    if kind == 12:
        s3.delete_bucket_encryption(**of)
        return f"no encryption {name}"
    if kind == 13:
        body = rng.choice(["hello", "step-1", "welcome", "now", "x", "signed", "all", "us", "1,2"])
        more = rng.choice(
            [{}, {}, {}, {"ACL": "public-read"}, {"Tagging": "a=b"}, {"ContentType": "text/plain"}]
        )
        s3.put_object(**of, Key=key, Body=body.encode(), **more)
        return f"object {name}/{key} {body} {more}"
    if kind == 14:
        s3.delete_object(**of, Key=key)
        return f"no object {name}/{key}"
    if kind == 15:
        s3.put_object_tagging(**of, Key=key, Tagging={"TagSet": tag_list(rng)})
        return f"object tags {name}/{key}"
    s3.delete_bucket(**of)
    if rng.random() < 0.5:
        s3.create_bucket(**of)
        return f"bucket {name} made again"
    return f"no bucket {name}"


def edit_dynamodb(clients: Any, rng: random.Random) -> str:
    dynamodb = clients["dynamodb"]
    names = dynamodb.list_tables()["TableNames"]
    by_id = {
        "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
        "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
    }
    if not names or rng.random() < 0.05:
        dynamodb.create_table(TableName="beside", BillingMode="PAY_PER_REQUEST", **by_id)
        return "create beside"
    name = rng.choice(names)
    of = {"TableName": name}
    table = dynamodb.describe_table(**of)["Table"]
    items = dynamodb.scan(**of)["Items"]
    keys = [key["AttributeName"] for key in table["KeySchema"]]
    kind = rng.randrange(10)
    if kind == 0:
        mode = rng.choice(["PAY_PER_REQUEST", "PROVISIONED"])
        units = {"ProvisionedThroughput": {"ReadCapacityUnits": rng.choice((1, 5)), "WriteCapacityUnits": 1}}
        dynamodb.update_table(**of, BillingMode=mode, **(units if mode == "PROVISIONED" else {}))
        return f"billing {name} {mode}"
    if kind == 1:
        spec = {"Enabled": rng.random() < 0.6, "AttributeName": rng.choice(["expires", "at"])}
        dynamodb.update_time_to_live(**of, TimeToLiveSpecification=spec)
        return f"expiry {name} {spec}"
    if kind == 2:
        on = rng.random() < 0.6
        dynamodb.update_continuous_backups(
            **of, PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": on}
        )
        return f"recovery {name} {on}"
    if kind == 3:
        tags = tag_list(rng) or [{"Key": "a", "Value": "b"}]
        dynamodb.tag_resource(ResourceArn=table["TableArn"], Tags=tags)
        if rng.random() < 0.4:
            dynamodb.untag_resource(ResourceArn=table["TableArn"], TagKeys=[tag["Key"] for tag in tags])
        return f"tags {name} {tags}"
    if kind == 4 and items:
        item = rng.choice(items)
        dynamodb.delete_item(**of, Key={key: item[key] for key in keys})
        if rng.random() < 0.5:
            dynamodb.put_item(**of, Item=dict(reversed(item.items())))
            return f"item {name} put again"
        return f"no item {name} {item}"
    if kind == 5 and items:
        item = dict(rng.choice(items))
        other = rng.choice(
            [
                {"note": {"S": "x"}},
                {"colour": {"S": "blue"}},
                {"count": {"N": "5"}},
                {"count": {"S": "5"}},
                {"colour": {"S": "red"}},
            ]
        )
        dynamodb.put_item(**of, Item=item | other)
        return f"item {name} {item | other}"
    if kind == 6:
        kinds = {one["AttributeName"]: one["AttributeType"] for one in table["AttributeDefinitions"]}
        item = {key: {kinds[key]: rng.choice(["7", "8", "9", "14"])} for key in keys}
        dynamodb.put_item(**of, Item=item)
        return f"new item {name} {item}"
    if kind == 7:
        on = rng.random() < 0.6
        dynamodb.update_table(**of, DeletionProtectionEnabled=on)
        return f"protection {name} {on}"
    if kind == 8:
        dynamodb.update_table(
            **of, StreamSpecification={"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"}
        )
        return f"stream {name}"
    dynamodb.delete_table(**of)
    if rng.random() < 0.5:
        dynamodb.create_table(**of, BillingMode="PAY_PER_REQUEST", **by_id)
        return f"table {name} made again"
    return f"no table {name}"


def edit_sqs(clients: Any, rng: random.Random) -> str:
    sqs = clients["sqs"]
    urls = sqs.list_queues().get("QueueUrls", [])
    if not urls or rng.random() < 0.05:
        sqs.create_queue(QueueName="beside")
        return "create beside"
    url = rng.choice(urls)
    name, of = url.rpartition("/")[2], {"QueueUrl": url}
    kind = rng.randrange(9)
    if kind in (0, 1):
        which = rng.choice(
            ["VisibilityTimeout", "MessageRetentionPeriod", "DelaySeconds", "ReceiveMessageWaitTimeSeconds"]
        )
        value = rng.choice({
            "VisibilityTimeout": ["30", "60", "45", "20", "0"],
            "MessageRetentionPeriod": ["345600", "86400", "7200", "60"],
            "DelaySeconds": ["0", "5", "6"],
            "ReceiveMessageWaitTimeSeconds": ["0", "2"],
        }[which])  # fmt: skip
        sqs.set_queue_attributes(**of, Attributes={which: value})
        return f"{which} {name} {value}"
    if kind == 2:
        others = [other.rpartition("/")[2] for other in urls]
        redrive = {
            "maxReceiveCount": rng.choice([3, "3", 5, "5", 1]),
            "deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:{rng.choice(others)}",
        }
        sqs.set_queue_attributes(
            **of, Attributes={"RedrivePolicy": json.dumps(redrive) if rng.random() < 0.9 else ""}
        )
        return f"redrive {name} {redrive}"
    if kind == 3:
        arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{name}"
        old = sqs.get_queue_attributes(**of, AttributeNames=["All"])["Attributes"].get(
            "Policy", '{"Statement":[]}'
        )
        text = json.dumps(edited_policy(old, rng, own=arn))
        sqs.set_queue_attributes(**of, Attributes={"Policy": text if rng.random() < 0.95 else ""})
        return f"policy {name} {text}"
    if kind == 4:
        tags = dict(rng.sample(TAG, 1))
        sqs.tag_queue(**of, Tags=tags)
        if rng.random() < 0.4:
            sqs.untag_queue(**of, TagKeys=list(tags))
        return f"tags {name} {tags}"
    if kind == 5:
        sqs.send_message(**of, MessageBody=rng.choice(["win", "job-1"]), DelaySeconds=rng.choice((0, 0, 60)))
        return f"message to {name}"
    if kind == 6:
        got = sqs.receive_message(**of, MaxNumberOfMessages=rng.choice((1, 10)), WaitTimeSeconds=0).get(
            "Messages", []
        )
        if got and rng.random() < 0.4:
            sqs.delete_message(**of, ReceiptHandle=got[0]["ReceiptHandle"])
            return f"message of {name} deleted"
        return f"messages of {name} received"
    if kind == 7:
        sqs.purge_queue(**of)
        return f"purge {name}"
    sqs.delete_queue(**of)
    if rng.random() < 0.5:
        sqs.create_queue(QueueName=name)
        return f"queue {name} made again"
    return f"no queue {name}"


def edit_sns(clients: Any, rng: random.Random) -> str:
    if rng.random() < 0.4:
        return edit_sqs(clients, rng)
    sns = clients["sns"]
    arns = [topic["TopicArn"] for topic in sns.list_topics()["Topics"]]
    if not arns or rng.random() < 0.05:
        sns.create_topic(Name="beside")
        return "create topic beside"
    arn = rng.choice(arns)
    name, of = arn.rpartition(":")[2], {"TopicArn": arn}
    subscriptions = sns.list_subscriptions_by_topic(**of)["Subscriptions"]
    kind = rng.randrange(8)
    if kind == 0:
        value = rng.choice(["Outage", "News", ""])
        sns.set_topic_attributes(**of, AttributeName="DisplayName", AttributeValue=value)
        return f"display name {name} {value}"
    if kind == 1:
        tags = tag_list(rng) or [{"Key": "a", "Value": "b"}]
        sns.tag_resource(ResourceArn=arn, Tags=tags)
        if rng.random() < 0.4:
            sns.untag_resource(ResourceArn=arn, TagKeys=[tag["Key"] for tag in tags])
        return f"tags {name} {tags}"
    if kind == 2:
        where = rng.choice(
            [
                ("email", "ops@example.com"),
                ("email", "dev@example.com"),
                ("sqs", f"arn:aws:sqs:us-east-1:{ACCOUNT}:pager"),
            ]
        )
        sns.subscribe(**of, Protocol=where[0], Endpoint=where[1])
        return f"subscribe {name} {where}"
    if kind == 3 and subscriptions:
        sns.unsubscribe(SubscriptionArn=rng.choice(subscriptions)["SubscriptionArn"])
        return f"unsubscribe {name}"
    if kind == 4 and subscriptions:
        which, value = rng.choice(
            [
                ("FilterPolicy", "{}"),
                ("FilterPolicy", '{"level":["none"]}'),
                ("RawMessageDelivery", "true"),
                ("RawMessageDelivery", "false"),
            ]
        )
        sns.set_subscription_attributes(
            SubscriptionArn=rng.choice(subscriptions)["SubscriptionArn"],
            AttributeName=which,
            AttributeValue=value,
        )
        return f"subscription of {name} {which} {value}"
    if kind == 5:
        old = sns.get_topic_attributes(**of)["Attributes"]["Policy"]
        text = json.dumps(edited_policy(old, rng, own=arn))
        sns.set_topic_attributes(**of, AttributeName="Policy", AttributeValue=text)
        return f"policy of topic {name} {text}"
    if kind == 6:
        sns.publish(**of, Message="hi")
        return f"publish {name}"
    sns.delete_topic(**of)
    if rng.random() < 0.5:
        sns.create_topic(Name=name)
        return f"topic {name} made again"
    return f"no topic {name}"


def edit_iam(clients: Any, rng: random.Random) -> str:
    iam = clients["iam"]
    users = [one["UserName"] for one in iam.list_users()["Users"]]
    groups = [one["GroupName"] for one in iam.list_groups()["Groups"]]
    roles = [one["RoleName"] for one in iam.list_roles()["Roles"]]
    arns = [one["Arn"] for one in iam.list_policies(Scope="Local")["Policies"]]
    user, group, role, arn = (
        rng.choice(found) if found else "none" for found in (users, groups, roles, arns)
    )
    anything = {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}
    kind = rng.randrange(20)
    if kind == 0:
        name = rng.choice(["beside", "eve", "zoe"])
        iam.create_user(UserName=name)
        return f"user {name}"
    if kind == 1:
        iam.create_group(GroupName="besides")
        return "group besides"
    if kind in (2, 3):
        iam.add_user_to_group(GroupName=group, UserName=user)
        return f"{user} into {group}"
    if kind == 4:
        iam.remove_user_from_group(GroupName=group, UserName=user)
        return f"{user} out of {group}"
    if kind in (5, 6, 7):
        old = iam.get_role(RoleName=role)["Role"]["AssumeRolePolicyDocument"]
        text = json.dumps(edited_policy(old, rng))
        iam.update_assume_role_policy(RoleName=role, PolicyDocument=text)
        return f"trust of {role} {text}"
    if kind == 8:
        iam.attach_role_policy(RoleName=role, PolicyArn=arn)
        return f"attach {arn} to role {role}"
    if kind == 9:
        iam.detach_role_policy(RoleName=role, PolicyArn=arn)
        return f"detach {arn} from role {role}"
    if kind == 10:
        iam.attach_group_policy(GroupName=group, PolicyArn=arn)
        return f"attach {arn} to group {group}"
    if kind == 11:
        iam.attach_user_policy(UserName=user, PolicyArn=arn)
        if rng.random() < 0.4:
            iam.detach_user_policy(UserName=user, PolicyArn=arn)
        return f"attach {arn} to user {user}"
    if kind == 12:
        iam.create_policy(PolicyName="more", PolicyDocument=json.dumps(anything))
        return "policy more"
    if kind == 13:
        iam.put_role_policy(RoleName=role, PolicyName="inline", PolicyDocument=json.dumps(anything))
        if rng.random() < 0.4:
            iam.delete_role_policy(RoleName=role, PolicyName="inline")
        return f"inline of role {role}"
    if kind == 14:
        iam.create_access_key(UserName=user)
        return f"key of {user}"
    if kind == 15:
        keys = iam.list_access_keys(UserName=user)["AccessKeyMetadata"]
        key = keys[0]["AccessKeyId"] if keys else "none"
        if rng.random() < 0.5:
            iam.update_access_key(UserName=user, AccessKeyId=key, Status=rng.choice(["Active", "Inactive"]))
            return f"status of the key of {user}"
        iam.delete_access_key(UserName=user, AccessKeyId=key)
        return f"no key of {user}"
    if kind == 16:
        tags = tag_list(rng) or [{"Key": "a", "Value": "b"}]
        iam.tag_user(UserName=user, Tags=tags)
        if rng.random() < 0.4:
            iam.untag_user(UserName=user, TagKeys=[tag["Key"] for tag in tags])
        return f"tags of {user} {tags}"
    if kind == 17:
        tags = tag_list(rng) or [{"Key": "a", "Value": "b"}]
        iam.tag_role(RoleName=role, Tags=tags)
        if rng.random() < 0.4:
            iam.untag_role(RoleName=role, TagKeys=[tag["Key"] for tag in tags])
        return f"tags of {role} {tags}"
    if kind == 18:
        which = rng.choice(["user", "group", "role", "policy"])
        {
            "user": lambda: iam.delete_user(UserName=user),
            "group": lambda: iam.delete_group(GroupName=group),
            "role": lambda: iam.delete_role(RoleName=role),
            "policy": lambda: iam.delete_policy(PolicyArn=arn),
        }[which]()
        return f"delete a {which} of {user}, {group}, {role}, {arn}"
    iam.create_role(
        RoleName="besides", AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": []})
    )
    return "role besides"


def edit_ssm(clients: Any, rng: random.Random) -> str:
    ssm = clients["ssm"]
    names = [one["Name"] for one in ssm.describe_parameters()["Parameters"]]
    name = rng.choice([*names, *names, *names, "/beside/it", "/old/host", "/db/password-copy", "/old/flag"])
    kind = rng.randrange(6)
    if kind in (0, 1, 2):
        old = (
            ssm.get_parameter(Name=name, WithDecryption=True)["Parameter"]
            if name in names
            else {"Value": "x", "Type": "String"}
        )
        value = (
            old["Value"] if rng.random() < 0.5 else rng.choice(["x", "CHF", "db1", "hunter2", "eu", "info"])
        )
        of_type = old["Type"] if rng.random() < 0.6 else rng.choice(["String", "SecureString", "StringList"])
        ssm.put_parameter(Name=name, Value=value, Type=of_type, Overwrite=True)
        return f"{name} = {value} {of_type}"
    if kind == 3:
        old = ssm.get_parameter(Name=name, WithDecryption=True)["Parameter"]
        ssm.delete_parameter(Name=name)
        if rng.random() < 0.5:
            ssm.put_parameter(Name=name, Value=old["Value"], Type=old["Type"])
            return f"{name} made again"
        return f"no {name}"
    if kind == 4:
        tags = tag_list(rng) or [{"Key": "a", "Value": "b"}]
        ssm.add_tags_to_resource(ResourceType="Parameter", ResourceId=name, Tags=tags)
        return f"tags {name} {tags}"
    ssm.remove_tags_from_resource(ResourceType="Parameter", ResourceId=name, TagKeys=[key for key, _ in TAG])
    return f"no tags {name}"


def edit_secretsmanager(clients: Any, rng: random.Random) -> str:
    secrets = clients["secretsmanager"]
    names = [one["Name"] for one in secrets.list_secrets(IncludePlannedDeletion=True)["SecretList"]]
    name = rng.choice([*names, *names, *names, "beside"])
    kind = rng.randrange(8)
    text = rng.choice(["s3same", "guest-2026", "guest-2025", "fresh-token", "leaked", "x"])
    if kind == 0:
        secrets.create_secret(Name=name, SecretString=text)
    elif kind == 1:
        secrets.put_secret_value(SecretId=name, SecretString=text)
    elif kind == 2:
        secrets.put_secret_value(
            SecretId=name, SecretString=text, VersionStages=[rng.choice(["AWSPENDING", "AWSCURRENT"])]
        )
    elif kind == 3:
        secrets.update_secret(SecretId=name, SecretString=text)
    elif kind == 4:
        secrets.tag_resource(SecretId=name, Tags=tag_list(rng) or [{"Key": "a", "Value": "b"}])
    elif kind == 5:
        secrets.untag_resource(SecretId=name, TagKeys=[key for key, _ in TAG])
    elif kind == 6:
        secrets.delete_secret(SecretId=name, ForceDeleteWithoutRecovery=rng.random() < 0.3)
    else:
        secrets.restore_secret(SecretId=name)
    return f"{kind} {name} {text}"


EDITS: dict[str, Edit] = {
    "s3": edit_s3,
    "dynamodb": edit_dynamodb,
    "sqs": edit_sqs,
    "sns": edit_sns,
    "iam": edit_iam,
    "ssm": edit_ssm,
    "secretsmanager": edit_secretsmanager,
}


# -- the search --------------------------------------------------------------------------------------------------------


def tasks_of(family: str) -> list[CloudTask]:
    """The tasks of a family that are graded by the state: those that only read have no state to edit."""
    return [
        task for name, task in own_tasks().items() if name.split("_")[0] == family and not task.reads_only
    ]


# Families in which a change of one resource leaves the others as they are, unlike groups, topics and their members.
APART = ("s3", "dynamodb", "sqs", "ssm", "secretsmanager")
READING = ("Get", "List", "Describe", "Head", "Scan")


class Changes:
    """The parameters of calls that may change something, of all clients of a world."""

    def __init__(self, clients: dict[str, Any]) -> None:
        self._texts: list[str] = []
        self._clients = clients

    def __enter__(self) -> "Changes":
        for client in self._clients.values():
            client.meta.events.register("provide-client-params", self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            client.meta.events.unregister("provide-client-params", self._note)

    def _note(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        if not model.name.startswith(READING):
            self._texts.append(json.dumps(params, default=str))

    def of(self, names: set[str]) -> set[str]:
        """Return the names that occur in the parameters."""
        return {name for name in names if any(json.dumps(name)[1:-1] in text for text in self._texts)}


def observe_again(
    clients: dict[str, Any], family: str, wanted: Seen, names: set[str], changes: Changes
) -> Seen:
    """Return what the oracle sees of these names. What no call has named is as it was: at the solution's end."""
    if family not in APART:
        return observe(clients, family, names)
    changed = changes.of(names)
    rest = {resource: seen for resource, seen in wanted.items() if resource[1] not in changed}
    return rest | observe(clients, family, changed)


def search(world: CloudWorld, family: str, edits: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Make `edits` random edits; return how they were judged, and a description of each disagreement."""
    rng, judged, wrong = random.Random(f"{family} {seed}"), Counter[str](), list[str]()
    wanted = {task.name: _end(world, family, task) for task in tasks_of(family)}
    while sum(judged.values()) < edits:
        for task in tasks_of(family):
            _search_one(world, family, task, wanted[task.name], rng, judged, wrong)
    return judged, wrong


def _made(world: CloudWorld, task: CloudTask, *, solved: bool = True) -> Grader:
    """Make the state at the end of a task's solution, or at its start; return the task's grader."""
    world.reset(0)
    world.operate(task.setup, task.setup_files)
    for drift in task.drifts:
        world.operate(drift, task.setup_files)
    grader = Grader(world, task.goals, task.keep, ordered=task.ordered)
    if solved:
        world.folder.fill(task.files)
        for line in task.solution:
            world.run(line)
    return grader


def _end(world: CloudWorld, family: str, task: CloudTask) -> tuple[Seen, set[str]]:
    """Return what the oracle sees at the end of a task's solution, and the names that count."""
    _made(world, task, solved=False)
    before = observe(world._clients, family)
    _made(world, task)
    wanted = observe(world._clients, family)
    return wanted, {name for _, name in before | wanted}


def _search_one(
    world: CloudWorld,
    family: str,
    task: CloudTask,
    end: tuple[Seen, set[str]],
    rng: random.Random,
    judged: Counter[str],
    wrong: list[str],
) -> None:
    """Edit the end state of a task; each state is judged twice."""
    grader, clients = _made(world, task), world._clients
    wanted, names = end
    done: list[str] = []
    with Changes(clients) as changes:
        for _ in range(MOST_EDITS):
            try:
                done.append(EDITS[family](clients, rng))
            except (ClientError, BotoCoreError):
                continue
            except Exception as error:  # moto's own faults
                done.append(f"moto failed: {type(error).__name__}")
            grader.look_again()
            by_grader = grader.progress() == 1.0 and grader.num_kept() == len(grader.keep)
            seen = observe_again(clients, family, wanted, names, changes)
            differs = is_right(task.name, wanted, seen, names)
            judged[f"{'right' if not differs else 'wrong'}, {'passed' if by_grader else 'refused'}"] += 1
            if by_grader != (not differs):
                said = "passed" if by_grader else "refused"
                wrong.append(f"{task.name}: {said} after {'; '.join(done)} ({', '.join(differs) or 'right'})")


def main(arguments: list[str]) -> int:
    given = dict(argument.split("=", 1) for argument in arguments)
    families = [given["family"]] if "family" in given else list(FAMILIES)
    world, failed = CloudWorld.take(), False
    for family in families:
        begun = time.process_time()
        judged, wrong = search(world, family, int(given.get("edits", "300")), int(given.get("seed", "0")))
        spent = time.process_time() - begun
        num = f"{sum(judged.values()):,} edits of {len(tasks_of(family))} tasks"
        print(
            f"{family}: {num}, {dict(judged)}, {len(wrong)} disagreements, {spent:.0f} s of a core",
            flush=True,
        )
        if "out" in given:
            kinds = ("right, passed", "wrong, refused", "right, refused", "wrong, passed")
            row = [family, given.get("seed", "0"), sum(judged.values()), *(judged[kind] for kind in kinds)]
            with Path(given["out"]).open("a") as table:
                table.write(",".join(map(str, [*row, round(spent)])) + "\n")
        for line in sorted(set(wrong))[: int(given.get("show", "20"))]:
            print(f"  {line}", flush=True)
        failed = failed or bool(wrong)
    world.close()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
