"""A value that a service would refuse is refused in its words, also where the simulator fails at it."""

import random
import re

import pytest

pytest.importorskip("moto", reason="needs the extra cloud: pip install '.[cloud]'")
pytest.importorskip("boto3", reason="needs the extra cloud: pip install '.[cloud]'")

from ddppo.domains.cloud.cli import SERVICES, ApiCall, operations
from ddppo.domains.cloud.folder import CommandError
from ddppo.domains.cloud.world import CloudWorld
from tests.domains.cloud.true_cli import POLICY, QUEUES, SNS, TRUST, set_scene


@pytest.fixture(scope="module")
def world():
    world = CloudWorld()
    world.reset(0)
    set_scene(world)
    yield world
    world.close()


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("sqs create-queue --queue-name q --attributes VisibilityTimeout=x", "InvalidAttributeValue",
         "Invalid value for the parameter VisibilityTimeout."),
        (f"sqs set-queue-attributes --queue-url {QUEUES}jobs --attributes DelaySeconds=1s", "InvalidAttributeValue",
         "Invalid value for the parameter DelaySeconds."),
        ("sns get-topic-attributes --topic-arn news", "InvalidParameter",
         "Invalid parameter: TopicArn Reason: An ARN must have at least 6 elements, not 1"),
        ("sns publish --message x", "InvalidParameter", "no value for required parameter"),
        ("sns list-topics --next-token x", "InvalidParameter", "Invalid token: NextToken"),
        ("ssm describe-parameters --next-token x", "InvalidNextToken", "Invalid token"),
        ("secretsmanager list-secrets --next-token x", "InvalidNextTokenException", "Invalid token"),
        ("secretsmanager list-secret-version-ids --secret-id none", "ResourceNotFoundException",
         "Secrets Manager can't find the specified secret."),
        ("s3api copy-object --bucket empty --key k --copy-source ledger", "InvalidArgument", "Copy Source must"),
        ("dynamodb create-table --table-name t", "ValidationException", "parameter values were invalid"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_as_by_the_service(world, line, code, said):
    outcome = world.run(f"aws {line}")
    assert (outcome.status, outcome.code) == (254, code)
    assert said in outcome.output
    assert outcome.calls == ()


@pytest.mark.parametrize("place", ["s3://", "s3://ledger", "ledger", "s3://led@ger/x"])
def test_an_address_of_what_is_no_object_is_an_error_of_the_line(world, place):
    outcome = world.run(f"aws s3 presign {place}")
    assert outcome.status == 252
    assert "Parameter validation failed" in outcome.output


def test_a_copy_with_a_wrong_grant_is_not_said_to_lack_its_source(world):
    assert world.run("aws s3api put-object --bucket ledger --key may.csv").status == 0
    outcome = world.run("aws s3 cp s3://ledger/may.csv s3://empty/k --grants read=x")
    assert outcome.code == "InvalidArgument"
    assert "One or more parameter values were invalid" in outcome.errors


# -- random parameters of every operation ------------------------------------------------------------------------------

TEXTS = [
    "",
    "x",
    "none",
    "ledger",
    "people",
    "jobs",
    "ann",
    "reader",
    "/web/color",
    "prod/db",
    "All",
    "-1",
    "99999999999",
]
TEXTS += [
    "{}",
    "[]",
    "null",
    "*",
    "ü",
    "x" * 300,
    "id = :i",
    "ledger/a.txt",
    "arn:aws:x",
    f"{QUEUES}jobs",
    f"{SNS}:news",
]
TEXTS += [POLICY, TRUST, "DelaySeconds", "RedrivePolicy", "2030-01-01"]
NUMBERS = [0, 1, 2, -1, 30, 1000, 10**12]


def value(shape, draw, depth=0):
    """Return a random value of a shape."""
    kind = shape.type_name
    if kind == "structure":
        chosen = [
            name
            for name in shape.members
            if name in shape.required_members or draw.random() < (0.5 if depth else 0.35)
        ]
        if shape.name == "AttributeValue":
            chosen = [draw.choice(list(shape.members))]
        return {name: value(shape.members[name], draw, depth + 1) for name in chosen if depth < 6}
    many = range(draw.choice((0, 1, 1, 2)) if depth < 6 else 0)
    if kind == "list":
        return [value(shape.member, draw, depth + 1) for _ in many]
    if kind == "map":
        return {draw.choice(TEXTS): value(shape.value, draw, depth + 1) for _ in many}
    if kind == "string":
        return draw.choice(shape.enum if shape.enum and draw.random() < 0.7 else TEXTS)
    simple = {"boolean": [True, False], "blob": [b"", b"\x00\xff"], "timestamp": ["2030-01-01", "0"]}
    return draw.choice(simple.get(kind, NUMBERS))


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_random_parameters_are_answered_or_refused_by_a_code_of_the_service(world, service, seed):
    draw = random.Random(f"{service} {seed}")
    world.reset(0)
    set_scene(world)
    wrong = []
    for operation in operations(service):
        shape = ApiCall(service, operation).model.input_shape
        params = value(shape, draw) if shape else {}
        try:
            world._perform(ApiCall(service, operation, params))
        except CommandError as error:
            if not is_worded_as_by_a_service(error):
                wrong.append((operation, params, error.output))
    assert wrong == []


def is_worded_as_by_a_service(error):
    """Return whether an error has a code of the service, and no words of Python."""
    refused = re.match(r"(?s)An error occurred \((\S+)\) when calling the \w+ operation: ", error.output)
    has_code = error.status != 254 or (refused is not None and refused[1] == error.code)
    return has_code and not re.search(
        r"Internal|Traceback|object has no attribute|invalid literal", error.output
    )
