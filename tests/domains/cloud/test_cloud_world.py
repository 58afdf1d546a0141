"""The world of a process: empty after a reset, the same by the same seed, and without a way out."""

import multiprocessing
import os
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("moto", reason="needs the extra cloud: pip install '.[cloud]'")
pytest.importorskip("boto3", reason="needs the extra cloud: pip install '.[cloud]'")

from ddppo.domains.cloud import cli
from ddppo.domains.cloud.cli_parameters import operation_model
from ddppo.domains.cloud.tasks import own_tasks
from ddppo.domains.cloud.world import MOMENT, QUEUES, CloudWorld
from ddppo.errors import EnvStateError
from tests.support import PATIENCE_S


@pytest.fixture(scope="module")
def open_world():
    world = CloudWorld()
    yield world
    world.close()


@pytest.fixture
def world(open_world):
    open_world.reset(seed=0)
    return open_world


def buckets(world):
    return world.look("aws s3api list-buckets --query Buckets[].Name")[0]


def test_a_profile_of_a_real_account_has_no_part_in_it(tmp_path):
    (tmp_path / "config").write_text("[default]\nuse_fips_endpoint = true\nregion = eu-west-1\n")
    program = """
from ddppo.domains.cloud.world import CloudWorld
world = CloudWorld()
for line in ("aws s3 mb s3://aaa", "aws sqs create-queue --queue-name q", "aws iam list-users"):
    assert world.run(line).status == 0, world.run(line)
"""
    theirs = {
        "AWS_PROFILE": "work",
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_USE_FIPS_ENDPOINT": "true",
    }
    subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **theirs}, check=True, timeout=PATIENCE_S
    )


def test_the_order_of_an_answer_does_not_depend_on_the_hashes_of_this_process(world):
    names = [f"/p{at}" for at in range(8)]  # moto's order is this one in one process of 40,000
    for name in names:
        assert world.run(f"aws ssm put-parameter --name {name} --type String --value x").status == 0
    asked = " ".join(reversed(names))
    assert world.look(f"aws ssm get-parameters --names {asked} --query Parameters[].Name")[0] == names


def test_a_reset_empties_the_world(world):
    for name in ("aaa", "bbb"):
        assert world.run(f"aws s3 mb s3://{name}").status == 0
    assert buckets(world) == ["aaa", "bbb"]
    world.reset(seed=0)
    assert buckets(world) == []


@pytest.mark.slow
def test_all_that_is_printed_follows_from_the_seed(world):
    def transcript(seed):
        printed = []
        for task in own_tasks().values():
            world.reset(seed)
            reads = [goal.read for goal in task.goals if hasattr(goal, "read")]
            printed += [world.run(line) for line in (*task.setup, *task.solution, *reads)]
        return printed

    first = transcript(1)
    assert transcript(1) == first
    assert transcript(2) != first


def test_a_process_holds_one_world(world):
    with pytest.raises(EnvStateError, match="holds a cloud already"):
        CloudWorld()


def _slot(release, made, world, name):
    """A slot's process: it holds its world until all slots have made their bucket and looked."""
    world.reset(seed=0)
    world.run(f"aws s3 mb s3://{name}")
    made.wait(PATIENCE_S)
    release.put(buckets(world))


def test_worlds_of_forked_processes_do_not_see_each_other(world):
    world.run("aws s3 mb s3://of-the-parent")
    context = multiprocessing.get_context("fork")
    made, found = context.Barrier(2), context.Queue()
    slots = [context.Process(target=_slot, args=(found, made, world, name)) for name in ("aaa", "bbb")]
    for slot in slots:
        slot.start()
    assert sorted(found.get(timeout=PATIENCE_S) for _ in slots) == [["aaa"], ["bbb"]]
    for slot in slots:
        slot.join(PATIENCE_S)
        assert slot.exitcode == 0
    assert buckets(world) == ["of-the-parent"]


@pytest.mark.parametrize(
    "line",
    [
        "aws sqs send-message --queue-url http://motoapi.amazonaws.com/moto-api/reset --message-body x",
        f"aws sqs send-message --queue-url {QUEUES}../../moto-api/reset --message-body x",
        "aws sns subscribe --topic-arn arn:aws:sns:us-east-1:123456789012:top --protocol http"
        " --notification-endpoint http://motoapi.amazonaws.com/moto-api/reset",
        "aws s3api get-object --bucket moto-api --key reset",
        "aws s3api get-object --bucket ../moto-api --key reset",
        "aws s3api get-object --bucket aaa --key ../../moto-api/reset",
        "aws s3api copy-object --bucket aaa --key k --copy-source ../moto-api/reset",
        "aws s3api list-buckets --endpoint-url http://motoapi.amazonaws.com",
        "aws ssm get-parameter --name /../../moto-api/reset",
        "aws moto-api reset",
    ],
)
def test_the_simulators_own_routes_are_out_of_reach(world, line):
    world.operate(("aws s3 mb s3://aaa", "aws sns create-topic --name top"))
    outcome = world.run(line)
    assert outcome.status != 0
    assert outcome.calls == ()
    assert buckets(world) == ["aaa"]


@pytest.mark.parametrize(
    "line",
    [
        "aws s3api list-objects-v2 --bucket arn:aws:s3:us-west-2:123456789012:accesspoint/foo",
        "aws s3api list-objects-v2 --bucket arn:aws:s3-object-lambda:us-east-1:123456789012:accesspoint/foo",
        "aws s3api list-objects-v2 --bucket arn:aws:s3-outposts:us-east-1:123456789012:outpost/op-1/accesspoint/f",
        "aws s3api list-objects-v2 --bucket arn:aws:s3::123456789012:accesspoint:foo.mrap",
        "aws s3api list-objects-v2 --bucket foo--use1-az5--x-s3",
        "aws dynamodb describe-table --table-name arn:aws:dynamodb:us-west-2:999999999999:table/ttt",
        "aws sns publish --phone-number +15550100 --message hello",
        "aws sqs get-queue-attributes --queue-url https://sqs.eu-west-1.amazonaws.com/123456789012/q",
        "aws secretsmanager get-secret-value --secret-id arn:aws:secretsmanager:eu-west-1:123456789012:secret:a-b",
    ],
)
def test_nothing_is_sent_over_the_network(world, line, monkeypatch):
    sent = []

    def send(session, request):
        sent.append(request.url)
        raise OSError("no network in tests")

    monkeypatch.setattr("botocore.httpsession.URLLib3Session.send", send)
    monkeypatch.setattr("requests.Session.send", send)
    world.run(line)
    assert sent == []


@pytest.mark.parametrize(
    "line", ["aws s3 ls", "aws dynamodb list-tables", "aws iam list-users", "aws sqs list-queues"]
)
def test_what_the_simulator_leaves_unanswered_is_an_error_and_not_sent(world, line, monkeypatch):
    monkeypatch.setattr("moto.core.models.botocore_stubber.enabled", False)
    monkeypatch.setattr("botocore.httpsession.URLLib3Session.send", lambda *_: pytest.fail("sent"))
    assert "(501)" in world.run(line).output


def test_no_command_waits(world, monkeypatch):
    url = f"{QUEUES}slow"
    world.operate(("aws sqs create-queue --queue-name slow --attributes ReceiveMessageWaitTimeSeconds=20",))
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waits"))
    assert world.run(f"aws sqs receive-message --queue-url {url}").status == 0
    assert world.run(f"aws sqs receive-message --queue-url {url} --wait-time-seconds 20").status == 0


def test_a_world_that_is_only_read_refuses_every_write_as_a_service_would(world):
    world.operate(("aws s3 mb s3://aaa",))
    world.reads_only = True
    outcome = world.run("aws s3 rb s3://aaa")
    assert outcome.code == "AccessDenied"
    assert "not authorized to perform: s3:DeleteBucket" in outcome.output
    assert world.run("aws s3 ls").status == 0
    assert buckets(world) == ["aaa"]


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("aws s3api get-bucket-tagging --bucket none", "NoSuchBucket",
         "An error occurred (NoSuchBucket) when calling the GetBucketTagging operation: The specified bucket does not"
         " exist"),
        ("aws iam get-user --user-name none", "NoSuchEntity", "when calling the GetUser operation"),
        ("aws dynamodb describe-table --table-name none", "ResourceNotFoundException", "DescribeTable"),
        ("aws s3api create-bucket --bucket a/b", "", "Invalid bucket name"),
        ("aws dynamodb describe-table --table-name none --query Table.x", "ResourceNotFoundException", "Describe"),
    ],
)  # fmt: skip
def test_a_services_refusal_is_printed_as_the_aws_cli_does(world, line, code, said):
    outcome = world.run(line)
    assert outcome.status != 0
    assert outcome.code == code
    assert said in outcome.output


def test_times_are_one_moment_and_the_wire_is_not_shown(world):
    world.operate(("aws s3 mb s3://aaa",))
    said = world.run("aws s3api list-buckets").output
    assert MOMENT in said
    assert "ResponseMetadata" not in said


def test_a_grader_that_looks_leaves_no_trace(world):
    world.operate(("aws sqs create-queue --queue-name qqq", f"aws sqs send-message --queue-url {QUEUES}qqq"
                   " --message-body hello"))  # fmt: skip
    read = f"aws sqs get-queue-attributes --queue-url {QUEUES}qqq --attribute-names All"
    assert world.look(read) == world.look(read)
    assert world.look("aws s3api head-bucket --bucket none") == (None, "404")


def test_every_verb_is_an_operation_of_botocore_and_none_is_of_two_kinds():
    for service in cli.SERVICES:
        for operation in cli.operations(service):
            assert operation_model(cli.SERVICES[service], operation).name
        assert not set(cli.READS[service].split()) & set(cli.WRITES[service].split())


def test_whatever_is_typed_is_answered(world):
    lines = [f"aws {service} {verb}" for service in cli.SERVICES for verb in cli.operations(service)]
    odd = ["--x", "--bucket ''", "--name \x00", "--key " + "k" * 1500, "--query '[?'", "--tags {", "''", "-1"]
    for at, line in enumerate(lines):
        outcome = world.run(f"{line} {odd[at % len(odd)]}")
        assert outcome.output or outcome.status == 0


@pytest.mark.parametrize(
    "line",
    [
        f"aws s3api list-buckets --query '{'(' * 1900}'",
        f"aws s3api list-buckets --query '{'a.' * 900}b'",
        f"aws s3api list-buckets --query '{'[' * 1900}'",
        f"aws dynamodb put-item --table-name ttt --item '{'[' * 1900}'",
        f"""aws dynamodb put-item --table-name ttt --item '{'{"a":' * 350}1{"}" * 350}'""",
        f"aws sqs create-queue --queue-name q --attributes a={'{a=' * 500}",
        f"aws sqs receive-message --queue-url q --max-number-of-messages {'9' * 1900}",
        "aws s3api list-buckets --query 'sort_by(Buckets, &Name) | sum(@)'",
    ],
)
def test_depth_and_size_break_nothing(world, line):
    assert world.run(line).output


def test_garbled_commands_are_answered_and_leave_a_world_that_works(world):
    random = np.random.default_rng(0)
    lines = [line for task in own_tasks().values() for line in (*task.setup, *task.solution)]
    pieces = [*"'\"{}[]=,- \\", "--", "s3://", "file://", "\x00", "é", "null", "aws "]
    for _ in range(600):
        line = str(random.choice(lines))
        for _ in range(int(random.integers(1, 5))):
            at, piece = int(random.integers(len(line))), str(random.choice(pieces))
            line = line[:at] + piece + line[at + int(random.integers(4)) :]
        world.run(line)
    world.reset(seed=0)
    assert world.run("aws s3 mb s3://aaa").status == 0
    assert buckets(world) == ["aaa"]


FORKS = """
import os
from ddppo.domains.cloud.env import CloudEnv
from ddppo.domains.cloud.world import CloudWorld, warm

warm()
for _ in range(2):
    child = os.fork()
    if child == 0:
        env = CloudEnv(["s3_make_bucket"])
        env.reset(seed=0)
        assert env._world.run("aws s3 ls").output.endswith(" old-photos")
        try:
            CloudWorld.take()
        except Exception as error:
            os._exit(0 if "holds a cloud already" in str(error) else 3)
        os._exit(4)
    assert os.waitpid(child, 0)[1] == 0
CloudWorld.take().close()
CloudWorld().close()
"""


def test_each_fork_of_a_warm_parent_takes_the_world_once():
    subprocess.run([sys.executable, "-c", FORKS], check=True, timeout=PATIENCE_S)
