"""Tasks of the cloud at an endpoint that others use, too: a server of moto (make test-aws installs it).

Worlds make everything below their own prefix, delete it, and neither touch nor show anything else.
"""

import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("moto", reason="needs the extra cloud: pip install '.[cloud]'")
pytest.importorskip("boto3", reason="needs the extra cloud: pip install '.[cloud]'")

import boto3
from botocore.awsrequest import AWSResponse
from moto.core.botocore_stubber import MockRawResponse

from ddppo.config.settings import EnvConfig
from ddppo.domains.cloud import access
from ddppo.domains.cloud import endpoint as endpoint_module
from ddppo.domains.cloud.access import Access, Endpoint
from ddppo.domains.cloud.cli import SERVICES, parse
from ddppo.domains.cloud.cli_parameters import CommandError
from ddppo.domains.cloud.endpoint import EndpointLost, EndpointWorld, check_tasks
from ddppo.domains.cloud.env import CloudEnv
from ddppo.domains.cloud.leftovers import is_abandoned, is_of_a_world, token_of_this_process
from ddppo.domains.cloud.prefixed_names import PrefixedNames, check
from ddppo.domains.cloud.tasks import own_tasks
from ddppo.domains.text.turns import make_turns
from ddppo.errors import ConfigError
from ddppo.processes.signals import die_with_parent
from tests.domains.cloud.graded_cases import files_of, near_misses
from tests.support import CHECKOUT, PATIENCE_S, TINY, door, free_port, summary, wait_until

SERVER = (
    CHECKOUT / "build" / "moto_server"
)  # packages that the server of moto needs beside those of the extra
CANARY = {
    "AWS_ACCESS_KEY_ID": "AKIACANARY0000000001",
    "AWS_SECRET_ACCESS_KEY": "canary/secret/of/forty/letters/00000001",
}
TASKS = own_tasks()
QUICK = ("s3_versioned_and_tagged", "sqs_dead_letters", "iam_role_with_policy", "secretsmanager_restore")


@pytest.fixture(scope="module")
def url():
    """The address of a server of moto with things of somebody else in it."""
    if not SERVER.is_dir():
        pytest.skip("needs a server of moto: make test-aws")
    port = free_port()
    paths = os.pathsep.join([str(SERVER), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "moto.server", "-p", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    ends = functools.partial(die_with_parent, os.getpid())  # also if the tests are killed
    environ = {**os.environ, "PYTHONPATH": paths}
    server = subprocess.Popen(command, env=environ, preexec_fn=ends, **quiet)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_until(lambda: _answers(address), "server of moto")
        plant(clients_of(address))
        yield address
    finally:
        server.kill()
        server.wait()


def _answers(address):
    try:
        return bool(clients_of(address)["sqs"].list_queues())
    except Exception:
        return False


def clients_of(address, region="us-east-1"):
    keys = {"aws_access_key_id": "theirs", "aws_secret_access_key": "theirs"}
    config = access.Config(
        connect_timeout=2, retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}
    )
    make = {"endpoint_url": address, "region_name": region, "config": config, **keys}
    return {name: boto3.client(service, **make) for name, service in SERVICES.items()}


@pytest.fixture
def keys(monkeypatch):
    for name, value in CANARY.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_ENDPOINT_URL", NEAR)  # which some services would ignore, and ours all do
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)


@pytest.fixture
def endpoint(url, keys):
    return Endpoint(url, allow_real_cloud=True)


@pytest.fixture
def world(endpoint):
    world = EndpointWorld(endpoint)
    yield world
    world.close()


# -- things of somebody else -------------------------------------------------------------------------------------------

FOREIGN = "foreign-payroll"
TRUST = json.dumps(
    {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}}
)


def plant(clients):
    clients["s3api"].create_bucket(Bucket=FOREIGN)
    clients["s3api"].put_object(Bucket=FOREIGN, Key="may.csv", Body=b"1,2")
    clients["s3api"].create_bucket(Bucket="ddppo-data-1-theirs")  # begins like ours, and is none
    by_id = {"AttributeName": "id"}
    clients["dynamodb"].create_table(
        TableName=FOREIGN, BillingMode="PAY_PER_REQUEST", KeySchema=[{**by_id, "KeyType": "HASH"}],
        AttributeDefinitions=[{**by_id, "AttributeType": "S"}],
    )  # fmt: skip
    clients["sqs"].create_queue(QueueName=FOREIGN)
    clients["sqs"].send_message(
        QueueUrl=clients["sqs"].get_queue_url(QueueName=FOREIGN)["QueueUrl"], MessageBody="x"
    )
    topic = clients["sns"].create_topic(Name=FOREIGN)["TopicArn"]
    clients["sns"].subscribe(TopicArn=topic, Protocol="email", Endpoint="them@example.com")
    clients["iam"].create_user(UserName=FOREIGN)
    clients["iam"].create_group(GroupName=FOREIGN)
    clients["iam"].add_user_to_group(GroupName=FOREIGN, UserName=FOREIGN)
    clients["iam"].create_access_key(UserName=FOREIGN)
    clients["iam"].create_role(RoleName=FOREIGN, AssumeRolePolicyDocument=TRUST)
    clients["iam"].create_policy(PolicyName=FOREIGN, PolicyDocument=TRUST)
    clients["ssm"].put_parameter(Name=f"/{FOREIGN}/rate", Value="1", Type="String")
    clients["secretsmanager"].create_secret(Name=FOREIGN, SecretString="s")


def all_there_is(address):
    """What a server holds."""
    clients = clients_of(address)
    s3, sqs, sns, iam = (clients[name] for name in ("s3api", "sqs", "sns", "iam"))
    tables = clients["dynamodb"].list_tables()["TableNames"]
    urls = sqs.list_queues().get("QueueUrls", [])
    of_queue = {"AttributeNames": ["All"]}
    groups = iam.list_groups()["Groups"]
    found = {
        "buckets": s3.list_buckets()["Buckets"],
        "objects": s3.list_objects_v2(Bucket=FOREIGN)["Contents"],
        "tables": [clients["dynamodb"].describe_table(TableName=name)["Table"] for name in tables],
        "queues": {url: sqs.get_queue_attributes(QueueUrl=url, **of_queue)["Attributes"] for url in urls},
        "topics": sns.list_topics()["Topics"],
        "subscriptions": sns.list_subscriptions()["Subscriptions"],
        "users": iam.list_users()["Users"],
        "keys": iam.list_access_keys(UserName=FOREIGN)["AccessKeyMetadata"],
        "groups": [iam.get_group(GroupName=group["GroupName"])["Users"] for group in groups],
        "roles": iam.list_roles()["Roles"],
        "policies": iam.list_policies(Scope="Local")["Policies"],
        "parameters": clients["ssm"].describe_parameters()["Parameters"],
        "secrets": clients["secretsmanager"].list_secrets(IncludePlannedDeletion=True)["SecretList"],
    }
    return json.loads(json.dumps(found, default=str))


# -- consent -----------------------------------------------------------------------------------------------------------

FAR, NEAR = "https://cloud.example.com", "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"endpoint_url": NEAR}, "set allow_real_cloud=true to agree"),
        ({"allow_real_cloud": True}, "AWS itself, which is not on this machine: name the account"),
        ({"allow_real_cloud": True, "endpoint_url": FAR}, "account_id=<12 digits>"),
        ({"allow_real_cloud": True, "endpoint_url": FAR, "account_id": "mine"}, "account_id=<12 digits>"),
        ({"allow_real_cloud": True, "endpoint_url": "ftp://x"}, "endpoint_url must be http:// or https://"),
        (
            {"allow_real_cloud": True, "endpoint_url": "http://me:hunter2@localhost:1"},
            "without a user or a password",
        ),
        ({"allow_real_cloud": True, "endpoint_url": NEAR, "name_prefix": "My-Run"}, "name_prefix=My-Run"),
        ({"backend_cloud": "gcp"}, "backend_cloud=gcp: must be moto"),
        (
            {"backend_cloud": "moto", "endpoint_url": NEAR},
            "endpoint_url has no effect with backend_cloud=moto",
        ),
        ({"backend_cloud": "moto", "allow_real_cloud": True}, "allow_real_cloud has no effect"),
    ],
)
def test_a_real_cloud_is_asked_nothing_before_the_user_has_agreed(settings, said, keys):
    with pytest.raises(ConfigError) as refused:
        CloudEnv(**{"backend_cloud": "aws", **settings})
    assert said in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_addresses_of_this_machine_are_told_from_others():
    for near in (NEAR, "http://localhost:4566", "http://[::1]:4566", "http://s3.localhost:80"):
        assert Endpoint(near).is_loopback
    for far in (FAR, None, "http://10.0.0.1:4566", "http://localhost.example.com"):
        assert not Endpoint(far).is_loopback


def test_an_endpoint_that_does_not_answer_or_has_another_account_is_one_sentence(url, keys, monkeypatch):
    monkeypatch.setitem(access.PATIENCE, "retries", {"total_max_attempts": 1})
    with pytest.raises(
        ConfigError, match=r"does not name the account of the credentials: EndpointConnectionError"
    ):
        Access(Endpoint(f"http://127.0.0.1:{free_port()}", allow_real_cloud=True))
    with pytest.raises(ConfigError, match="belong to another account, which ends in 9012"):
        Access(Endpoint(url, allow_real_cloud=True, account_id=999))
    for name in CANARY:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ConfigError, match="finds no credentials"):
        Access(Endpoint(url, allow_real_cloud=True))


def test_tasks_about_the_whole_account_or_mail_are_refused_by_name_but_on_this_machine():
    check_tasks(TASKS, Endpoint(NEAR))
    with pytest.raises(ConfigError) as refused:
        check_tasks(TASKS, Endpoint(None))
    for name in (
        "s3_public_policy_removed",
        "s3_private_vault",
        "sns_topic_with_email",
        "sns_list_subscriptions",
    ):
        assert name in str(refused.value)
    kept = {name: task for name, task in TASKS.items() if name not in str(refused.value)}
    assert len(kept) >= 60
    check_tasks(kept, Endpoint(None))


# -- names -------------------------------------------------------------------------------------------------------------

THERE = PrefixedNames("ddppo-w-1", "210987654321", "eu-west-1", lambda name: f"https://q/210987654321/{name}")
HERE = "us-east-1:123456789012"


Q, ARN_THERE = "https://sqs.us-east-1.amazonaws.com/123456789012", "arn:aws:{}:eu-west-1:210987654321:{}"
TOPIC, TABLE = f"arn:aws:sns:{HERE}:t", f"arn:aws:dynamodb:{HERE}:table/t"


@pytest.mark.parametrize(
    ("line", "there"),
    [
        ("s3api create-bucket --bucket logs", {"Bucket": "ddppo-w-1-logs"}),
        ("s3api list-buckets --prefix lo", {"Prefix": "ddppo-w-1-lo"}),
        ("s3api copy-object --bucket a --key k --copy-source b/k", {"CopySource": "ddppo-w-1-b/k"}),
        (f"sqs delete-queue --queue-url {Q}/q", {"QueueUrl": "https://q/210987654321/ddppo-w-1-q"}),
        (f"sns delete-topic --topic-arn {TOPIC}", {"TopicArn": ARN_THERE.format("sns", "ddppo-w-1-t")}),
        (
            f"dynamodb list-tags-of-resource --resource-arn {TABLE}",
            {"ResourceArn": ARN_THERE.format("dynamodb", "table/ddppo-w-1-t")},
        ),
        (
            "iam get-policy --policy-arn arn:aws:iam::123456789012:policy/team/p",
            {"PolicyArn": "arn:aws:iam::210987654321:policy/team/ddppo-w-1-p"},
        ),
        (
            "iam put-role-policy --role-name r --policy-name p --policy-document {}",
            {"RoleName": "ddppo-w-1-r", "PolicyName": "p"},  # of a policy within the role
        ),
        ("iam create-policy --policy-name p --policy-document {}", {"PolicyName": "ddppo-w-1-p"}),
        ("ssm get-parameters --names /a/b rate", {"Names": ["/ddppo-w-1/a/b", "ddppo-w-1-rate"]}),
        ("ssm get-parameters-by-path --path /", {"Path": "/ddppo-w-1"}),
        (
            "secretsmanager list-secrets --filters Key=name,Values=db",
            {"Filters": [{"Key": "name", "Values": ["ddppo-w-1-db"]}]},
        ),
    ],
)
def test_names_get_the_prefix_on_their_way_and_lose_it_on_the_way_back(line, there):
    call = parse(f"aws {line}")
    check(call, is_loopback=True)
    found = THERE.inward(call)
    assert {key: found[key] for key in there} == there
    back = {"QueueUrl": call.params.get("QueueUrl"), **{key: call.params[key] for key in found}}
    assert THERE.outward(found) == {key: back[key] for key in found}


def test_documents_are_translated_and_words_that_are_no_names_are_not():
    policy = {"Resource": "arn:aws:s3:::payroll/*", "Principal": {"AWS": "123456789012"}, "Action": "s3:*"}
    call = parse(f"aws s3api put-bucket-policy --bucket payroll --policy '{json.dumps(policy)}'")
    found = json.loads(THERE.inward(call)["Policy"])
    assert found == {
        "Resource": "arn:aws:s3:::ddppo-w-1-payroll/*",
        "Principal": {"AWS": "210987654321"},
        "Action": "s3:*",
    }
    assert json.loads(THERE.outward(THERE.inward(call))["Policy"]) == policy
    other = "arn:aws:sqs:us-east-1:999999999999:q"  # of another account, in a document
    assert (
        THERE.inward(parse(f"aws sqs send-message --queue-url q --message-body {other}"))["MessageBody"]
        == other
    )
    assert THERE.outward("1210987654321") == "1210987654321"


@pytest.mark.parametrize(
    "line",
    [
        "iam create-access-key",
        "iam delete-access-key --access-key-id AKIACANARY0000000001",
        "sns publish --phone-number +41000000000 --message hi",
        "sns delete-topic --topic-arn arn:aws:sns:us-east-1:999999999999:t",
        "sns delete-topic --topic-arn arn:aws:sns:eu-west-1:123456789012:t",
        f"sns subscribe --topic-arn {TOPIC} --protocol sqs --notification-endpoint arn:aws:lambda:{HERE}:function:f",
        "s3api get-object --bucket a --key ../foreign-payroll/may.csv /dev/stdout",
        f"s3api copy-object --bucket a --key k --copy-source arn:aws:s3:{HERE}:accesspoint/x/object/k",
        "s3api create-bucket --bucket a --object-lock-enabled-for-bucket",
        "ssm put-parameter --name a --value b --type SecureString --key-id alias/theirs",
        "secretsmanager create-secret --name a --secret-string b --add-replica-regions Region=eu-west-1",
        "dynamodb describe-table --table-name arn:aws:dynamodb:us-east-1:999999999999:table/t",
        f"sns set-topic-attributes --topic-arn {TOPIC} --attribute-name KmsMasterKeyId --attribute-value alias/theirs",
        "sqs get-queue-url --queue-name q --queue-owner-aws-account-id 999999999999",
        *(
            f"sqs set-queue-attributes --queue-url q --attributes '{json.dumps({'RedrivePolicy': policy})}'"
            for policy in (
                '{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:999999999999:q", "maxReceiveCount": 1}',
                '{"deadLetterTargetArn": "arn:\\u0061ws:sqs:us-east-1:999999999999:q", "maxReceiveCount": 1}',
                "no JSON",
            )
        ),
    ],
)  # fmt: skip
def test_a_call_that_reaches_outside_is_refused(line):
    call = parse(f"aws {line}")
    with pytest.raises(CommandError, match="AccessDenied"):
        check(call, is_loopback=True) or THERE.inward(call)


@pytest.mark.parametrize("written", ["arn:", r"\u0061rn:", r"\u0061\u0072n:"])
def test_messages_that_fail_go_to_no_queue_of_others_however_its_name_is_written(written):
    policy = f'{{"deadLetterTargetArn": "{written}aws:sqs:{HERE}:{FOREIGN}", "maxReceiveCount": 1}}'
    name, value = "--attribute-name RedrivePolicy", f"--attribute-value '{policy}'"
    attributes = json.dumps({"RedrivePolicy": policy})
    for line in (
        f"sqs set-queue-attributes --queue-url q --attributes '{attributes}'",
        f"sqs create-queue --queue-name q --attributes '{attributes}'",
        f"sns set-subscription-attributes --subscription-arn {TOPIC}:1 {name} {value}",
    ):
        found = THERE.inward(parse(f"aws {line}"))
        given = json.loads(found.get("AttributeValue") or found["Attributes"]["RedrivePolicy"])
        assert given["deadLetterTargetArn"] == ARN_THERE.format("sqs", f"ddppo-w-1-{FOREIGN}")


@pytest.mark.parametrize(
    "line",
    [
        "iam create-user --cli-input-json '{\"UserName\": 5}'",
        "ssm get-parameters --cli-input-json '{\"Names\": [5]}'",
        'dynamodb describe-table --cli-input-json \'{"TableName": {"a": 1}}\'',
        'ssm describe-parameters --cli-input-json \'{"ParameterFilters": [{"Key": "Name", "Values": 5}]}\'',
    ],
)
def test_names_that_are_no_texts_are_errors_of_the_line(world, line):
    outcome = world.run(f"aws {line}")
    assert outcome.status == 252
    assert outcome.errors


def test_owners_of_buckets_and_objects_are_those_of_the_simulated_cloud(world, monkeypatch):
    monkeypatch.setattr(endpoint_module, "OWNER", {"DisplayName": "stand-in", "ID": "stand-in"})
    world.reset(1)
    assert world.run("aws s3 mb s3://b").status == 0
    assert world.run("aws s3api put-object --bucket b --key k").status == 0
    for line in ("list-buckets", "list-objects-v2 --bucket b --fetch-owner"):
        shown = world.run(f"aws s3api {line} --query '[Owner, Contents[].Owner][]' --output json").output
        assert "stand-in" in shown
        assert "webfile" not in shown


def test_names_of_a_process_that_lives_of_one_that_has_ended_and_of_others():
    token = token_of_this_process()
    dead = token[:4] + "0zzzz" + token[9:]
    for name in (f"ddppo-{token}-1-logs", f"/ddppo-{token}-12/a", f"https://sqs/1/ddppo-{token}-1-q"):
        assert not is_abandoned(name, "ddppo")
        assert is_abandoned(name.replace(token, dead), "ddppo")
        assert is_of_a_world(name.replace(token, "9999" + token[4:]), "ddppo")
    for name in ("ddppo-logs", f"my-ddppo-{dead}-1-x", f"ddppo-{dead}-x", f"other-{dead}-1-x"):
        assert not is_of_a_world(name, "ddppo")


# -- worlds ------------------------------------------------------------------------------------------------------------


@pytest.mark.quick_cases(*QUICK)
@pytest.mark.parametrize("name", TASKS)
def test_tasks_have_the_same_solutions_and_near_misses_as_in_the_simulated_cloud(name, endpoint):
    env = CloudEnv(
        [name], chaos=False, backend_cloud="aws", endpoint_url=endpoint.endpoint_url, allow_real_cloud=True
    )
    # All of a drift at once: else a near miss may miss what has not drifted.
    task = TASKS[name]
    env.tasks = {name: dataclasses.replace(task, num_drifts=len(task.drifts), files=files_of(task))}
    try:
        ways = [(TASKS[name].solution, True)]
        if name in QUICK:
            ways += [(lines, False) for lines in list(near_misses(TASKS[name]).values())[-2:]]
        for lines, is_right in ways:
            env.reset(seed=0, options={"task": name})
            for line in lines:
                *_, terminated, truncated, info = env.step(line)
                if terminated or truncated:
                    break
            assert info["is_success"] is is_right, lines
    finally:
        env.close()


def test_what_others_have_is_neither_shown_nor_touched_and_what_a_world_makes_is_gone(url, endpoint):
    before = all_there_is(url)
    env = CloudEnv(chaos=False, backend_cloud="aws", endpoint_url=url, allow_real_cloud=True)
    try:
        shown = ""
        env.reset(seed=0, options={"task": "s3_make_bucket"})
        for line in LISTING:
            shown += env._world.run(line).output
        for line in TOUCHING:
            outcome = env._world.run(line)
            assert outcome.status != 0, (line, outcome.output)
            shown += outcome.output.replace(FOREIGN, "")  # the name that was typed
        assert "foreign" not in shown
        assert "theirs" not in shown
        assert "them@" not in shown
        assert "old-photos" in shown  # its own
        assert "ddppo-" not in shown
        # Drift and a fault, too, are within the world.
        env.reset(seed=0, options={"task": "iam_members_drift", "chaos": 1.0})
        struck = [env.step("aws iam list-groups")[-1]["chaos_struck"] for _ in range(3)]
        assert True in struck
        assert all_there_is(url) != before
    finally:
        env.close()
    assert all_there_is(url) == before


LISTING = (
    "aws s3 ls", "aws s3api list-buckets", "aws dynamodb list-tables", "aws sqs list-queues", "aws sns list-topics",
    "aws sns list-subscriptions", "aws iam list-users", "aws iam list-groups", "aws iam list-roles",
    "aws iam list-policies --scope Local", "aws ssm describe-parameters",
    "aws ssm get-parameters-by-path --path / --recursive", "aws secretsmanager list-secrets",
)  # fmt: skip
TOUCHING = (
    f"aws s3 ls s3://{FOREIGN}",
    f"aws s3 rm s3://{FOREIGN}/may.csv",
    f"aws s3 rb s3://{FOREIGN} --force",
    f"aws s3 cp s3://{FOREIGN}/may.csv s3://old-photos/may.csv",
    f"aws s3api put-bucket-versioning --bucket {FOREIGN} --versioning-configuration Status=Enabled",
    f"aws dynamodb delete-table --table-name {FOREIGN}",
    f"aws sqs purge-queue --queue-url https://sqs.us-east-1.amazonaws.com/123456789012/{FOREIGN}",
    f"aws sqs receive-message --queue-url {FOREIGN}",
    f"aws sns publish --topic-arn arn:aws:sns:{HERE}:{FOREIGN} --message hi",
    f"aws iam delete-user --user-name {FOREIGN}",
    f"aws iam list-access-keys --user-name {FOREIGN}",
    "aws iam get-user",
    f"aws iam attach-role-policy --role-name {FOREIGN} --policy-arn arn:aws:iam::aws:policy/ReadOnlyAccess",
    f"aws iam delete-policy --policy-arn arn:aws:iam::123456789012:policy/{FOREIGN}",
    f"aws ssm get-parameter --name /{FOREIGN}/rate",
    f"aws ssm delete-parameter --name /{FOREIGN}/rate",
    f"aws secretsmanager get-secret-value --secret-id {FOREIGN}",
    f"aws secretsmanager delete-secret --secret-id arn:aws:secretsmanager:{HERE}:secret:{FOREIGN}-AbCdEf",
)

HOLDER = """
import sys, time
from ddppo.domains.cloud.access import Endpoint
from ddppo.domains.cloud.endpoint import EndpointWorld
world = EndpointWorld(Endpoint(sys.argv[1], allow_real_cloud=True))
for line in ("s3 mb s3://mine", "s3api put-object --bucket mine --key a", "iam create-user --user-name me"):
    assert world.run(f"aws {line}").status == 0
print("made", flush=True)
time.sleep(86400)
"""


@pytest.mark.slow
def test_worlds_do_not_see_one_another_and_the_next_one_deletes_what_a_killed_one_left(
    url, endpoint, tmp_path
):
    before = all_there_is(url)
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, url], stdout=subprocess.PIPE, text=True, cwd=CHECKOUT
    )
    try:
        assert other.stdout.readline() == "made\n"
        world = EndpointWorld(endpoint)
        assert "mine" not in world.run("aws s3 ls").output
        assert world.run("aws s3 mb s3://mine").status == 0  # its own of that name
        world.close()
        names = [bucket["Name"] for bucket in all_there_is(url)["buckets"]]
        assert [name for name in names if name.endswith("-mine")] != []  # the other one lives
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
        other.stdout.close()
    EndpointWorld(endpoint).close()
    assert all_there_is(url) == before


@pytest.mark.slow
def test_the_command_deletes_what_worlds_of_other_machines_have_left(url, endpoint, tmp_path):
    before = all_there_is(url)
    left = f"ddppo-zzzz{token_of_this_process()[4:]}-3-left"
    clients_of(url)["s3api"].create_bucket(Bucket=left)
    clients_of(url)["ssm"].put_parameter(Name=f"/{left[:-5]}/a", Value="1", Type="String")
    EndpointWorld(endpoint).close()
    assert left in str(all_there_is(url)["buckets"])  # of a machine that may live
    module = "ddppo.domains.cloud.leftovers"
    refused = door(f"endpoint_url={url}", run_dir=tmp_path, module=module)
    assert refused.code == 2
    assert "allow_real_cloud=true" in refused.stderr
    done = door(f"endpoint_url={url}", "allow_real_cloud=true", run_dir=tmp_path, module=module)
    assert (done.code, done.stdout) == (0, "deleted: 1 of s3api, 1 of ssm\n"), done.stderr
    assert all_there_is(url) == before


def test_in_another_region_the_policy_sees_the_region_of_the_simulated_cloud(url, keys, monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    world = EndpointWorld(Endpoint(url, allow_real_cloud=True))
    try:
        made = world.run("aws sqs create-queue --queue-name q")
        assert json.loads(made.output)["QueueUrl"] == "https://sqs.us-east-1.amazonaws.com/123456789012/q"
        assert len(clients_of(url, "eu-central-1")["sqs"].list_queues()["QueueUrls"]) == 1
        topic = json.loads(world.run("aws sns create-topic --name t").output)["TopicArn"]
        assert topic == f"arn:aws:sns:{HERE}:t"
        assert world.run(f"aws sns delete-topic --topic-arn {topic}").status == 0
        assert world.run("aws s3 mb s3://abc").status == 0
        location = world.run("aws s3api get-bucket-location --bucket abc").output
        assert json.loads(location)["LocationConstraint"] is None
    finally:
        world.close()
    assert clients_of(url, "eu-central-1")["sqs"].list_queues().get("QueueUrls", []) == []


BUSY = f"<Error><Code>SlowDown</Code><Message>{CANARY['AWS_SECRET_ACCESS_KEY']}</Message></Error>".encode()


@pytest.fixture
def slow(monkeypatch):
    """A function that answers requests as a busy service does, and counts them."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the tries

    def answer(request, **_):
        answer.num += 1
        return AWSResponse(request.url, 503, {}, MockRawResponse(BUSY))

    answer.num = 0
    return answer


def test_an_endpoint_that_is_busy_is_tried_a_few_times_and_no_error_tells_keys(world, slow):
    world.run("aws s3 mb s3://abc")
    client = world._clients["s3api"]
    client.meta.events.register("before-send.s3", slow)
    with pytest.raises(EndpointLost, match="SlowDown") as lost:
        world.run("aws s3 mb s3://def")
    assert slow.num == access.PATIENCE["retries"]["total_max_attempts"]
    assert "canary" not in str(lost.value)
    assert "ddppo-" not in str(lost.value)
    client.meta.events.unregister("before-send.s3", slow)
    world.reset(1)
    assert world.run("aws s3 ls").output == ""


def test_an_episode_at_a_busy_endpoint_is_lost_and_earns_nothing(endpoint, slow):
    kwargs = {"backend_cloud": "aws", "endpoint_url": endpoint.endpoint_url, "allow_real_cloud": True}
    env = EnvConfig(id="ddppo/Cloud-v0", backend="sync", kwargs=kwargs)
    turns = make_turns(env, range(1), rank=0, timeout_s=PATIENCE_S, max_restarts=1)
    try:
        turns.begin(0, 1, {"task": "s3_make_bucket"})
        assert not turns.ready(None)[0].is_over
        client = turns._envs[0].unwrapped._world._clients["s3api"]
        client.meta.events.register("before-send.s3", slow)
        turns.act(0, TASKS["s3_make_bucket"].solution[0])
        (turn,) = turns.ready(None)
        assert (turn.failed, turn.reward, turns.num_lost_episodes) == (True, 0.0, 1)
        client.meta.events.unregister("before-send.s3", slow)
        turns.begin(0, 2, {"task": "s3_make_bucket"})
        assert not turns.ready(None)[0].is_over
    finally:
        turns.close()


def test_a_key_that_a_command_makes_is_not_printed(world):
    world.run("aws iam create-user --user-name ann")
    made = json.loads(world.run("aws iam create-access-key --user-name ann").output)["AccessKey"]
    assert made["SecretAccessKey"] == "not-shown"
    assert made["UserName"] == "ann"


# -- training ----------------------------------------------------------------------------------------------------------


def settings_of(url):
    return (
        *TINY, "env=cloud", "env.tasks=[s3_make_bucket,ssm_put_parameter,iam_list_users]", "env.num_envs=8", "ppo=grpo",
        "ppo.group_size=8", "model=token_policy", "ppo.total_steps=60", "env.backend_cloud=aws",
        f"env.endpoint_url={url}",
    )  # fmt: skip


@pytest.mark.slow
def test_without_consent_a_run_is_refused_before_it_starts(tmp_path):
    done = door(*settings_of(NEAR), run_dir=tmp_path / "run")
    assert done.code == 2
    assert "set allow_real_cloud=true to agree" in done.stderr


@pytest.mark.slow
def test_a_group_of_8_trains_at_an_endpoint_and_leaves_neither_resources_nor_keys_behind(url, tmp_path):
    before = all_there_is(url)
    run_dir = tmp_path / "run"
    done = door(*settings_of(url), "env.allow_real_cloud=true", run_dir=run_dir, **CANARY)
    assert done.code == 0, done.stderr
    assert summary(run_dir)["status"] == "completed"
    assert all_there_is(url) == before
    printed = [
        done.stdout,
        done.stderr,
        *(path.read_bytes().decode(errors="replace") for path in files(run_dir)),
    ]
    for text in printed:
        assert "canary" not in text.lower()


def files(folder: Path):
    return [path for path in folder.rglob("*") if path.is_file()]
