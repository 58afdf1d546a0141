"""Two spellings of one meaning are equal, and what means something else is not."""

import pytest

pytest.importorskip("moto", reason="needs the extra cloud: pip install '.[cloud]'")
pytest.importorskip("boto3", reason="needs the extra cloud: pip install '.[cloud]'")

from ddppo.domains.cloud.cli import READS
from ddppo.domains.cloud.env import CloudEnv
from ddppo.domains.cloud.goals import ABOUT, RestOfWorld, StateGoal
from ddppo.domains.cloud.meaning import lifecycle, name_of, policy, settings, tags
from ddppo.domains.cloud.tasks import task_of
from ddppo.errors import ConfigError
from tests.domains.cloud.test_cloud_tasks import GOOD

TOPIC = "arn:aws:sns:us-east-1:123456789012:alerts"


def allows(**changes):
    """A policy of one statement."""
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "a.amazonaws.com"},
        "Action": "sts:AssumeRole",
    } | changes
    return {"Statement": [{key: value for key, value in statement.items() if value is not None}]}


def under(operator, key, value):
    return allows(Condition={operator: {key: value}})


SAME = {
    "a list of one": (
        allows(),
        allows(Action=["sts:AssumeRole"], Principal={"Service": ["a.amazonaws.com"]}),
    ),
    "a statement without a list": (allows(), {"Statement": allows()["Statement"][0]}),
    "a text": (
        allows(),
        '{"Statement":[{"Action":"sts:AssumeRole","Principal":{"Service":"a.amazonaws.com"},"Effect":"Allow"}]}',
    ),
    "Version, Id and Sid": (allows(), {"Version": "2012-10-17", "Id": "x"} | allows(Sid="y")),
    "letters of actions": (allows(), allows(Action="STS:assumerole")),
    "two statements for one": (
        allows(Action=["s3:GetObject", "s3:PutObject"]),
        {
            "Statement": allows(Action="s3:PutObject")["Statement"]
            + allows(Action="s3:GetObject")["Statement"]
        },
    ),
    "a statement twice": (allows(), {"Statement": allows()["Statement"] * 2}),
    "a grant within another": (allows(Action="s3:*"), allows(Action=["s3:Get*", "s3:*", "s3:GetObject"])),
    "everyone": (allows(Principal="*"), allows(Principal={"AWS": ["*"]})),
    "everyone and someone": (allows(Principal="*"), allows(Principal={"AWS": ["*", "123456789012"]})),
    "an account and its root": (
        allows(Principal={"AWS": "123456789012"}),
        allows(Principal={"AWS": "arn:aws:iam::123456789012:root"}),
    ),
    "an empty condition": (allows(), allows(Condition={})),
    "letters of a condition's key": (
        under("ArnLike", "aws:SourceArn", TOPIC),
        under("ArnLike", "AWS:SOURCEARN", TOPIC),
    ),
    "operators for a whole ARN": (
        under("ArnEquals", "aws:SourceArn", TOPIC),
        under("StringEquals", "aws:SourceArn", [TOPIC]),
    ),
    "a boolean as a text": (
        under("Bool", "aws:SecureTransport", True),
        under("Bool", "aws:SecureTransport", "true"),
    ),
    "a pattern of one action": (allows(Action="sqs:SendMessage"), allows(Action="SQS:Send*")),
    "a pattern of two actions": (
        allows(Action=["sns:Subscribe", "sns:Unsubscribe"]),
        allows(Action=["sns:*ubscribe"]),
    ),
    "a user under a source, which only services name": (
        under("ArnLike", "aws:SourceArn", TOPIC),
        allows(
            Principal={
                "Service": "a.amazonaws.com",
                "AWS": ["123456789012", "arn:aws:iam::123456789012:user/eve"],
            },
            Condition={"ArnLike": {"aws:SourceArn": TOPIC}},
        ),
    ),
    "the order of values": (
        under("StringEquals", "a:b", ["x", "y"]),
        under("StringEquals", "a:b", ["y", "x"]),
    ),
}
OTHER = {
    "another principal": allows(Principal={"Service": "b.amazonaws.com"}),
    "a principal too many": allows(Principal={"Service": ["a.amazonaws.com", "b.amazonaws.com"]}),
    "everyone": allows(Principal={"Service": "a.amazonaws.com", "AWS": "*"}),
    "everyone else": allows(Principal=None, NotPrincipal={"Service": "a.amazonaws.com"}),
    "a wider action": allows(Action="sts:*"),
    "all other actions": allows(Action=None, NotAction="sts:AssumeRole"),
    "letters of a principal": allows(Principal={"Service": "A.amazonaws.com"}),
    "a resource": allows(Resource="*"),
    "a refusal": allows(Effect="Deny"),
    "a condition": under("StringEquals", "a:b", "x"),
    "a user": allows(Principal={"Service": "a.amazonaws.com", "AWS": "123456789012"}),
    "nothing": {"Statement": []},
    "a refusal beside it": {"Statement": [*allows()["Statement"], *allows(Effect="Deny", Action="s3:*")["Statement"]]},
}  # fmt: skip
BROKEN = [
    None, "hello", {}, [], {"Statement": "x"}, allows(Effect="allow"), allows(Action=None), allows(Action=[]),
    allows(Grant="x"), allows(Principal="lambda.amazonaws.com"), allows(NotAction="s3:*"),
    {"Version": "2020-01-01"} | allows(),
]  # fmt: skip


@pytest.mark.parametrize("case", SAME)
def test_a_policy_means_the_same_in_other_words(case):
    one, other = SAME[case]
    assert policy(one) == policy(other)
    assert policy(one) is not None


@pytest.mark.parametrize("case", OTHER)
def test_another_policy_means_something_else(case):
    assert policy(OTHER[case]) is not None
    assert policy(OTHER[case]) != policy(allows())


def test_a_source_that_equals_a_pattern_to_the_letter_is_of_no_request():
    every = "arn:aws:sns:us-east-1:123456789012:*"
    assert policy(under("StringEquals", "aws:SourceArn", every)) == policy({"Statement": []})
    for operator, values in (("ArnLike", every), ("StringLike", every), ("StringEquals", [every, TOPIC])):
        assert policy(under(operator, "aws:SourceArn", values)) != policy({"Statement": []})


def test_a_user_whose_request_may_lack_the_source_counts():
    for operator in ("ArnLikeIfExists", "ArnNotLike", "StringNotEquals"):
        given = allows(Principal={"AWS": "123456789012"}, Condition={operator: {"aws:SourceArn": TOPIC}})
        assert policy(given) != policy({"Statement": []})


@pytest.mark.parametrize("document", BROKEN, ids=str)
def test_what_breaks_the_grammar_means_nothing(document):
    assert policy(document) is None


def test_wildcards_and_variables_count():
    assert policy(allows(Action="s3:Get?bject")) != policy(allows(Action=["s3:Get?bject", "s3:Get*bject"]))
    assert policy(allows(Action="s3:Get*")) == policy(allows(Action=["s3:Get*", "s3:Get?bject"]))
    assert policy(allows(Resource="arn:aws:s3:::A")) != policy(allows(Resource="arn:aws:s3:::a"))
    assert policy(under("StringLike", "a:b", "x*")) != policy(under("StringEquals", "a:b", "x*"))
    assert policy(allows(Resource="${aws:username}")) != policy(
        {"Version": "2012-10-17"} | allows(Resource="${aws:username}")
    )


def rule(**changes):
    return {"ID": "x", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 30}} | changes


OLD_PREFIX = {"Status": "Enabled", "Prefix": "", "Expiration": {"Days": 30}}


@pytest.mark.parametrize(
    "rules",
    [
        [rule(ID="y")],
        [rule(Filter={})],
        [OLD_PREFIX],
        [rule(Filter={"And": {"Prefix": "", "Tags": []}})],
        [rule(), rule(Status="Disabled", Expiration={"Days": 1})],
        [rule(), rule()],
        [rule(Filter={"Prefix": "logs/"}, Expiration={"Days": 60}), rule()],
        {"Rules": [rule()]},
    ],
)
def test_rules_of_a_lifecycle_mean_the_same_in_other_words(rules):
    assert lifecycle(rules) == lifecycle([rule()])


@pytest.mark.parametrize(
    "rules",
    [
        [],
        [rule(Status="Disabled")],
        [rule(Expiration={"Days": 31})],
        [rule(Filter={"Prefix": "a"})],
        [rule(Filter={"Tag": {"Key": "a", "Value": "b"}})],
        [rule(), rule(Filter={"Prefix": "logs/"}, Expiration={"Days": 1})],
        [rule(), rule(Expiration={"ExpiredObjectDeleteMarker": True})],
        [rule(NoncurrentVersionExpiration={"NoncurrentDays": 30})],
        [rule(Transitions=[{"Days": 1, "StorageClass": "GLACIER"}])],
    ],
)
def test_other_rules_of_a_lifecycle_mean_something_else(rules):
    assert lifecycle(rules) is not None
    assert lifecycle(rules) != lifecycle([rule()])
    assert lifecycle("hello") is lifecycle([1]) is lifecycle([rule(Prefix="a")]) is None


def test_tags_settings_and_names_are_read_in_all_their_forms():
    assert tags([{"Key": "a", "Value": "b"}]) == tags({"a": "b"}) == {"a": "b"}
    assert tags(None) == tags([]) == {}
    assert tags("a=b") is tags([{"a": "b"}]) is None
    assert settings('{"a": 3, "b": [1, 2]}') == settings({"b": ["2", "1"], "a": "3"})
    assert settings("{") is None
    for text in (
        "q",
        "https://sqs.us-east-1.amazonaws.com/123456789012/q",
        "arn:aws:sqs:us-east-1:123456789012:q",
    ):
        assert name_of(text) == "q"
    assert name_of("arn:aws:secretsmanager:us-east-1:123456789012:secret:db/key-AbC123") == "db/key"
    assert name_of("arn:aws:iam::123456789012:policy/team/read") == "read"


def test_each_reading_operation_says_which_facts_it_is_about():
    assert set(ABOUT) == {
        f"{service} {operation}" for service in READS for operation in READS[service].split()
    }


@pytest.fixture(scope="module")
def world():
    env = CloudEnv(chaos=False)
    yield env._world
    env.close()


@pytest.fixture
def begun(world):
    world.reset(0)
    world.operate(
        ("aws s3 mb s3://old", "aws iam create-group --group-name ops", "aws iam create-user --user-name eve")
    )
    return world


MADE = StateGoal("aws s3api get-bucket-versioning --bucket new --query Status", equals="Enabled")
JOINED = StateGoal("aws iam get-group --group-name ops --query Users[].UserName", equals=["eve"])
GONE = StateGoal("aws s3api head-bucket --bucket old", error="404")


@pytest.mark.parametrize(
    ("goal", "lines", "stays"),
    [
        (MADE, ["aws s3 mb s3://new"], True),
        (
            MADE,
            [
                "aws s3 mb s3://new",
                "aws s3api put-bucket-versioning --bucket new --versioning-configuration Status=Enabled",
            ],
            True,
        ),
        (MADE, ["aws s3 mb s3://beside", "aws s3api put-object --bucket beside --key a"], True),
        (MADE, ["aws s3 rb s3://old", "aws s3 mb s3://old"], True),
        (MADE, ["aws s3 mb s3://new", "aws s3api put-object --bucket new --key a"], False),
        (MADE, ["aws s3 rb s3://old"], False),
        (MADE, ["aws s3api put-object --bucket old --key a"], False),
        (JOINED, ["aws iam add-user-to-group --group-name ops --user-name eve"], True),
        (JOINED, ["aws iam create-access-key --user-name eve"], False),
        (JOINED, ["aws iam delete-user --user-name eve"], False),
        (GONE, ["aws s3 rb s3://old"], True),
        (GONE, ["aws s3 rb s3://old", "aws iam delete-group --group-name ops"], False),
    ],
)
def test_all_that_no_goal_is_about_has_to_stay(begun, goal, lines, stays):
    rest = RestOfWorld(begun, [goal])
    assert rest.holds(begun)
    begun.operate(tuple(lines))
    assert rest.holds(begun) is stays


def test_looking_at_all_of_the_world_changes_nothing_in_it(begun):
    url = "https://sqs.us-east-1.amazonaws.com/123456789012/q"
    begun.operate(
        ("aws sqs create-queue --queue-name q", f"aws sqs send-message --queue-url {url} --message-body hi")
    )
    read = f"aws sqs get-queue-attributes --queue-url {url} --attribute-names All"
    before = begun.look(read)
    assert begun.holdings()["queue", "q", "messages"] == ("hi",)
    assert begun.look(read) == before
    begun.run(f"aws sqs receive-message --queue-url {url}")
    assert begun.holdings()["queue", "q", "messages"] == ("hi",)


@pytest.mark.parametrize(
    ("goal", "said"),
    [
        (
            {"read": "aws iam get-role --role-name a", "policy": {"Statement": "x"}},
            "policy: .* has not the form of one",
        ),
        ({"read": "aws s3api list-buckets", "lifecycle": [1]}, "lifecycle: .* has not the form of one"),
        (
            {"read": "aws s3api list-buckets", "polices": {}},
            "one of equals, contains, error, policy, lifecycle, tags",
        ),
        ({"call": "aws s3api list-buckets", "shows": "a"}, "`shows: "),
    ],
)
def test_a_goal_that_says_no_document_is_refused(goal, said):
    with pytest.raises(ConfigError, match=f"(?s)task wrong: .*{said}"):
        task_of("wrong", GOOD | {"goals": [goal]})
