"""Command lines are read as the AWS CLI reads them; a shell, files and other worlds are out of reach."""

import pytest

pytest.importorskip("moto", reason="needs the extra cloud: pip install '.[cloud]'")
pytest.importorskip("boto3", reason="needs the extra cloud: pip install '.[cloud]'")

from ddppo.domains.cloud.cli import ApiCall, S3Command, parse
from ddppo.domains.cloud.cli_parameters import DEEPEST, CommandError, Shorthand, ShorthandError, words


def refused(line):
    with pytest.raises(CommandError) as error:
        parse(line)
    return error.value


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("a  b\tc", ["a", "b", "c"]),
        ("a 'b c' \"d e\"", ["a", "b c", "d e"]),
        ("a '' b", ["a", "", "b"]),
        ("x'y'\"z\"", ["xyz"]),
        (r"a\ b \' ", ["a b", "'"]),
        (r'"a\"b" "c\d"', ['a"b', r"c\d"]),
        ("'`|;$'", ["`|;$"]),
        ("", []),
    ],
)
def test_words_are_quoted_as_in_sh(line, found):
    assert words(line) == found


@pytest.mark.parametrize(
    "line",
    [
        "aws s3 ls | cat",
        "aws s3 ls; aws s3 ls",
        "aws s3 ls && aws s3 ls",
        "aws s3 ls > /tmp/x",
        "aws s3 ls $(id)",
        "aws s3 ls `id`",
        'aws s3 ls "$HOME"',
        "aws s3 ls\naws s3 ls",
        "aws s3 ls 'a",
    ],
)
def test_what_only_a_shell_could_do_is_a_syntax_error(line):
    assert refused(line).output.startswith("syntax error")


def test_a_call_has_the_parameters_of_botocore():
    line = "aws s3api put-bucket-versioning --bucket books --versioning-configuration Status=Enabled"
    params = {"Bucket": "books", "VersioningConfiguration": {"Status": "Enabled"}}
    assert parse(line) == ApiCall("s3api", "put-bucket-versioning", params)
    assert parse(line).api_name == "PutBucketVersioning"


@pytest.mark.parametrize(
    ("options", "params"),
    [
        ("sqs receive-message --queue-url q --max-number-of-messages 3", {"MaxNumberOfMessages": 3}),
        ("ssm put-parameter --name n --value v --overwrite", {"Overwrite": True}),
        ("ssm put-parameter --name n --value v --no-overwrite", {"Overwrite": False}),
        ("ssm put-parameter --name=n --value=v=w", {"Name": "n", "Value": "v=w"}),
        ("sqs get-queue-attributes --queue-url q --attribute-names A B", {"AttributeNames": ["A", "B"]}),
        ("sqs create-queue --queue-name q --attributes A=1,B=2", {"Attributes": {"A": "1", "B": "2"}}),
        ("sqs create-queue --queue-name q --attributes '{\"A\":\"1\"}'", {"Attributes": {"A": "1"}}),
        ("iam tag-user --user-name u --tags Key=a,Value=b Key=c,Value=d",
         {"Tags": [{"Key": "a", "Value": "b"}, {"Key": "c", "Value": "d"}]}),
        ("iam tag-user --user-name u --tags '[{\"Key\":\"a\",\"Value\":\"b\"}]'",
         {"Tags": [{"Key": "a", "Value": "b"}]}),
        ("s3api put-object --bucket b --key k --body text", {"Body": b"text"}),
        ("sns subscribe --topic-arn t --protocol sqs --notification-endpoint e", {"Endpoint": "e"}),
    ],
)  # fmt: skip
def test_options_take_the_types_of_the_services_model(options, params):
    found = parse(f"aws {options}").params
    assert {key: found[key] for key in params} == params


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=b", {"a": "b"}),
        ("a=b,c=d", {"a": "b", "c": "d"}),
        ("a=b,c,d=e", {"a": ["b", "c"], "d": "e"}),
        ("a=[b,c],d={e=f,g=h}", {"a": ["b", "c"], "d": {"e": "f", "g": "h"}}),
        ("a=[{b=c},{b=d}]", {"a": [{"b": "c"}, {"b": "d"}]}),
        ("a='b,c',d=\"e=f\"", {"a": "b,c", "d": "e=f"}),
        ("a=", {"a": ""}),
        ("a=[]", {"a": []}),
        ("a=b=c", {"a": "b=c"}),
    ],
)
def test_shorthand_is_read(text, found):
    assert Shorthand(text).read() == found


@pytest.mark.parametrize("text", ["", "a", "a=b,", "a={b", "a={b=c", "a=[b", "a='b", "=a", "a={b=c}d"])
def test_what_is_no_shorthand_is_pointed_at(text):
    with pytest.raises(ShorthandError, match=r"Expected: .* received: .* for input:"):
        Shorthand(text).read()


def test_shorthand_nests_only_so_deep():
    with pytest.raises(ShorthandError, match="deeper"):
        Shorthand("a=" + "{a=" * (DEEPEST + 1) + "b" + "}" * (DEEPEST + 1)).read()


@pytest.mark.parametrize(
    ("line", "said", "status"),
    [
        ("ls", "ls: command not found", 127),
        ("", ": command not found", 127),
        ("aws", "the following arguments are required: command", 252),
        ("aws s4 ls", "argument command: Invalid choice, valid choices are:", 252),
        ("aws sts get-caller-identity", "argument command: Invalid choice, valid choices are:", 252),
        ("aws sqs", "the following arguments are required: operation", 252),
        ("aws sqs list-pigeons", "argument operation: Invalid choice, valid choices are:", 252),
        ("aws s3api create-bucket", "the following arguments are required: --bucket", 252),
        ("aws s3api create-bucket --bucket", "argument --bucket: expected one argument", 252),
        ("aws s3api create-bucket --bucket b --colour red", "Unknown options: --colour, red", 252),
        ("aws s3api list-buckets stray", "Unknown options: stray", 252),
        ("aws s3api create-bucket --bucket a b", "Unknown options: b", 252),
        ("aws sqs create-queue --queue-name q --attributes x", "Error parsing parameter '--attributes'", 252),
        ("aws sqs create-queue --queue-name q --attributes '{\"a'", "Invalid JSON", 252),
        ("aws sqs receive-message --queue-url q --wait-time-seconds x", "invalid literal for int()", 252),
        ("aws s3api list-buckets --query 'a['", "Bad value for --query", 252),
        ("aws s3api list-buckets --region eu-west-1", "argument --region", 252),
        ("aws s3 sync s3://a s3://b", "argument subcommand: Invalid choice", 252),
        ("aws s3 mb", "takes 1 places, here are 0", 252),
    ],
)
def test_errors_are_worded_as_the_aws_cli_does(line, said, status):
    error = refused(line)
    assert said in error.output
    assert error.status == status


@pytest.mark.parametrize(
    "option", ["--endpoint-url http://x", "--profile x", "--debug", "--no-verify-ssl", "--cli-input-json {}"]
)
def test_options_that_lead_elsewhere_do_not_exist(option):
    assert refused(f"aws s3api list-buckets {option}").output.startswith("Unknown options")


@pytest.mark.parametrize("scheme", ["file:///etc/passwd", "file://../x", "fileb:///etc/shadow"])
def test_no_value_is_read_from_a_file(scheme):
    for line in (
        f"aws iam create-role --role-name r --assume-role-policy-document {scheme}",
        f"aws s3api put-object --bucket bbb --key k --body {scheme}",
        f"aws iam tag-user --user-name u --tags {scheme}",
        f"aws dynamodb put-item --table-name ttt --item {scheme}",
    ):
        assert "there are no files here" in refused(line).output


@pytest.mark.parametrize("places", ["/etc/passwd s3://bbb/x", "s3://bbb/x /tmp/x", "s3://bbb/x -"])
def test_aws_s3_copies_between_buckets_alone(places):
    assert "only s3:// places" in refused(f"aws s3 cp {places}").output
    assert parse("aws s3 cp s3://aaa/k s3://bbb/") == S3Command(
        "cp", ("s3://aaa/k", "s3://bbb/"), frozenset()
    )
