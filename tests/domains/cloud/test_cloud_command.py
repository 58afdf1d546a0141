"""Command lines are read as the AWS CLI reads them; a shell, files elsewhere and other worlds are out of reach."""

import pytest

pytest.importorskip("moto", reason="needs the extra cloud: pip install '.[cloud]'")
pytest.importorskip("boto3", reason="needs the extra cloud: pip install '.[cloud]'")

from ddppo.domains.cloud.cli import ApiCall, S3Command, parse
from ddppo.domains.cloud.cli_parameters import DEEPEST, Shorthand, ShorthandError, words
from ddppo.domains.cloud.folder import MOST_BYTES, MOST_FILES, CommandError, Folder

FILES = Folder({"n.txt": b"text", "sub/m.txt": b"more"})


def refused(line):
    with pytest.raises(CommandError) as error:
        parse(line, FILES)
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
        ("s3api put-object --bucket b --key k --body n.txt", {"Body": b"text"}),
        ("ssm put-parameter --name n --value file://n.txt --type String", {"Value": "text"}),
        ("secretsmanager create-secret --name n --secret-binary fileb://n.txt", {"SecretBinary": b"text"}),
        ("iam create-user --user-n u", {"UserName": "u"}),
        ("iam create-user --cli-input-json '{\"UserName\":\"u\"}'", {"UserName": "u"}),
        ("sns subscribe --topic-arn t --protocol sqs --notification-endpoint e", {"Endpoint": "e"}),
    ],
)  # fmt: skip
def test_options_take_the_types_of_the_services_model(options, params):
    found = parse(f"aws {options}", FILES).params
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


@pytest.mark.parametrize("text", ["", "a", "a=b,", "a={b", "a={b=c", "a=[b", "a='b", "a={b=c}d"])
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
        ("aws sqs receive-message --queue-url q --wait-time-seconds x", "invalid literal for int()", 255),
        ("aws s3api list-buckets --query 'a['", "Bad value for --query", 252),
        ("aws s3api list-buckets --region eu-west-1", "argument --region", 252),
        ("aws s3 website s3://a", "argument subcommand: Invalid choice", 252),
        ("aws s3 mb", "the following arguments are required: path", 252),
        ("aws s3api list-buckets --output yaml", "argument --output: Invalid choice", 252),
        ("aws iam list-users --no-paginate --page-size 2", "Cannot specify --no-paginate along with", 255),
        ("aws s3api create-bucket --buck b", "ambiguous option: --buck could match", 252),
    ],
)
def test_errors_are_worded_as_the_aws_cli_does(line, said, status):
    error = refused(line)
    assert said in error.output
    assert error.status == status


@pytest.mark.parametrize(
    "option",
    [
        "--endpoint-url http://x",
        "--endp http://x",
        "--profile x",
        "--no-verify-ssl",
        "--ca-bundle x",
        "--no-sign-request",
    ],
)
def test_options_that_lead_elsewhere_do_not_exist(option):
    assert refused(f"aws s3api list-buckets {option}").output.startswith("Unknown options")


@pytest.mark.parametrize("scheme", ["file:///etc/passwd", "file://../x", "fileb:///etc/shadow"])
def test_no_value_is_read_from_a_file_outside_the_folder(scheme):
    for line in (
        f"aws iam create-role --role-name r --assume-role-policy-document {scheme}",
        f"aws s3api create-bucket --cli-input-json {scheme}",
        f"aws iam tag-user --user-name u --tags {scheme}",
        f"aws dynamodb put-item --table-name ttt --item {scheme}",
    ):
        assert "leads out of the folder" in refused(line).output


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "a/../../x", "~/x", "$HOME/x", "/dev/stdin", "sub/../.."]
)
def test_no_path_leads_out_of_the_folder(path):
    for use in (
        FILES.read,
        FILES.is_file,
        FILES.is_folder,
        FILES.remove,
        lambda place: FILES.write(place, b""),
    ):
        with pytest.raises(CommandError, match="leads out of the folder"):
            use(path)
    if "$" not in path:
        assert (
            "leads out of the folder"
            in refused(f"aws s3api put-object --bucket b --key k --body {path}").output
        )


def test_a_folder_is_full_at_some_size_and_number_of_files():
    folder = Folder()
    with pytest.raises(OSError, match="No space left"):
        folder.write("large", b"x" * (MOST_BYTES + 1))
    for at in range(MOST_FILES):
        folder.write(f"{at}", b"x")
    with pytest.raises(OSError, match="No space left"):
        folder.write("one more", b"x")
    folder.write("0", b"y")  # in place of a file
    assert len(folder.held()) == MOST_FILES


def test_a_file_is_no_folder():
    folder = Folder({"a": b"x", "sub/b": b"y"})
    for path, error in (("a/b", NotADirectoryError), ("sub", IsADirectoryError), ("sub/", IsADirectoryError)):
        with pytest.raises(error):
            folder.write(path, b"z")
    assert [folder.is_folder(path) for path in (".", "sub/", "a")] == [True, True, False]
    assert folder.read("./sub/../a") == b"x"


def test_a_line_of_aws_s3_has_its_places_and_the_options_that_were_typed():
    assert parse("aws s3 cp s3://aaa/k s3://bbb/") == S3Command("cp", ("s3://aaa/k", "s3://bbb/"), {})
    found = parse("aws s3 sync site s3://bbb --exclude '*' --include='*.html' --del")
    filters = (("exclude", "*"), ("include", "*.html"))
    assert found == S3Command("sync", ("site", "s3://bbb"), {"filters": filters, "delete": True})
