"""The AWS CLI itself (awscli 1.46.3, `make test-aws-cli`) in process, as the oracle of our command line.

`TrueCLI.run` types a line into the AWS CLI under moto, and `Ours.run` types it into a CloudWorld; both return what was
seen: exit status, output, errors and API calls. Each line runs in a fork of this process, so all lines begin in the
same state (`SCENE`), and none sees what another one left.
"""

import dataclasses
import functools
import gc
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import boto3  # noqa: F401 (first, and moto: awscli would put a botocore of its own in place of the true one)
from moto.moto_api._internal import mock_random

from ddppo.domains.cloud.world import MOMENT, TIMES, CloudWorld, in_order_of_names
from tests.support import PATIENCE_S

BUILT = Path(__file__).parents[3] / "build" / "awscli"
SERVICES = ("s3api", "s3", "dynamodb", "sqs", "sns", "iam", "ssm", "secretsmanager")
# Options that lead out of the simulator, or out of the folder of a test. They are refused before the AWS CLI runs.
FORBIDDEN = (
    "--endpoint-url",
    "--profile",
    "--ca-bundle",
    "--no-verify-ssl",
    "--no-sign-request",
    "--v2-debug",
)
CONFIG = """[default]
region = us-east-1
cli_timestamp_format = iso8601
s3 =
  max_concurrent_requests = 1
"""


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a line did."""

    status: (
        int  # as in version 2: 252 could not be parsed, 254 the service refused, 255 other; 1, 2 of aws s3
    )
    output: str  # stdout
    errors: str  # stderr
    calls: list[Any]  # [operation, parameters] of each API call
    files: dict[str, str]  # files in the folder afterwards


def is_there() -> bool:
    return (BUILT / "awscli" / "clidriver.py").exists()


def in_fork(work: Callable[[], Any]) -> Any:
    """Return the result of `work`, which a fork of this process computes."""
    reading, writing = os.pipe()
    gc.freeze()  # else the collector of the fork goes through all that this process holds, and so copies it
    child = os.fork()
    if child == 0:
        try:
            result = {"ok": work()}
        except BaseException:
            result = {"failed": traceback.format_exc()}
        with os.fdopen(writing, "w") as pipe:
            json.dump(result, pipe)
        os._exit(0)
    gc.unfreeze()
    os.close(writing)
    with os.fdopen(reading) as pipe:
        result = json.load(pipe)
    os.waitpid(child, 0)
    if "failed" in result:
        raise RuntimeError(result["failed"])
    return result["ok"]


class Recorder:
    """Collects the API calls of botocore clients."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def listen(self, emitter: Any) -> None:
        emitter.register_first("before-parameter-build", self.note)

    def note(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        # Idempotency tokens are drawn at random.
        kept = {key: _plain(value) for key, value in params.items() if key not in model.idempotent_members}
        self.calls.append([model.name, kept])


def _plain(value: Any) -> Any:
    """Return a parameter as JSON types. The content of a file is read, and left where it was."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("latin-1")
    if hasattr(value, "read"):
        at = value.tell() if not hasattr(value, "seekable") or value.seekable() else None
        text = value.read()
        if at is not None:
            value.seek(at)
        return _plain(text)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


class TrueCLI:
    """The AWS CLI in this process. It needs moto to be started (a CloudWorld does that)."""

    def __init__(self) -> None:
        sys.path.append(str(BUILT))
        config = Path(tempfile.mkdtemp()) / "config"
        config.write_text(CONFIG)
        os.environ.update(AWS_CONFIG_FILE=str(config), AWS_SHARED_CREDENTIALS_FILE=os.devnull)
        os.environ.update(AWS_ACCESS_KEY_ID="simulated", AWS_SECRET_ACCESS_KEY="simulated")
        os.environ.update(AWS_MAX_ATTEMPTS="1", TZ="UTC")
        import awscli.clidriver

        self._module = awscli.clidriver
        self._driver = awscli.clidriver.create_clidriver()
        # Models are loaded once, for all forks.
        table = self._driver._get_command_table()
        for service in SERVICES:
            if service != "s3":
                table[service]._get_command_table()
                self._driver.session.create_client("s3" if service == "s3api" else service)
        # Version 2 calls the services at their own addresses.
        from awscli.customizations import overridesslcommonname

        overridesslcommonname.SSL_COMMON_NAMES.pop("sqs", None)
        # moto's answers, in the order of a CloudWorld.
        emitter = self._driver.session.get_component("event_emitter")
        emitter.register_last("after-call.ssm.GetParameters", in_order_of_names)

    def operations(self, service: str) -> list[str]:
        table = self._driver._get_command_table()[service]
        found = table.subcommand_table if service == "s3" else table._get_command_table()
        return list(found)

    def run(self, line: str, files: dict[str, str]) -> Seen:
        typed = split_by_shell(line)
        forbid(typed)

        def typed_alone() -> dict[str, Any]:
            mock_random.seed(0)
            return self._run(typed[1:], files)

        return Seen(**in_fork(typed_alone))

    def solve(self, lines: Iterable[str], files: dict[str, str]) -> list[Any]:
        """Type lines one after another in this process, which has to be a fork; return the calls of each."""
        done = [self._run(split_by_shell(line)[1:], files) for line in lines]
        assert all(seen["status"] == 0 for seen in done), done
        return [seen["calls"] for seen in done]

    def _run(self, typed: list[str], files: dict[str, str]) -> dict[str, Any]:
        recorder, raised = Recorder(), list[Exception]()
        if typed and "s3" not in typed:
            # All times are one, as in a CloudWorld, since tables are as wide as their times.
            self._driver.session.get_component("event_emitter").register_last("after-call", _one_moment)
        emitter = self._driver.session.get_component("event_emitter")
        recorder.listen(emitter)
        shown = self._module.write_exception

        def note(error: Exception, outfile: Any) -> None:
            raised.append(error)
            shown(error, outfile=outfile)

        self._module.write_exception = note
        random.choice = lambda choices: choices[0]  # of an enumeration, in a skeleton
        sys.argv = ["aws"]
        try:
            with tempfile.TemporaryDirectory() as folder:
                return self._typed(typed, files, Path(folder), recorder, raised)
        finally:
            emitter.unregister("before-parameter-build", recorder.note)
            self._module.write_exception = shown

    def _typed(
        self,
        typed: list[str],
        files: dict[str, str],
        folder: Path,
        recorder: Recorder,
        raised: list[Exception],
    ) -> dict[str, Any]:
        here, outside = folder / "here", folder / "outside"
        here.mkdir()
        outside.mkdir()
        os.chdir(here)
        for name, text in files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_bytes(text.encode("latin-1"))
            os.utime(name, (FILES_FROM, FILES_FROM))
        # The AWS CLI writes to the true stdout if it is told /dev/stdout.
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            to = os.open(outside / name, os.O_CREAT | os.O_RDWR | os.O_APPEND)
            os.dup2(to, descriptor)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        try:
            status = self._driver.main(typed)
        except SystemExit as error:
            status = 252 if error.code == 2 else error.code
        sys.stdout.flush()
        sys.stderr.flush()
        errors = (outside / "stderr").read_text()
        if status == 255:
            status = status_of(raised[-1] if raised else None)
        return {
            "status": status or 0,
            "output": (outside / "stdout").read_bytes().decode("utf-8", "replace"),
            "errors": errors,
            "calls": recorder.calls,
            "files": {
                str(path.relative_to(here)): path.read_bytes().decode("latin-1")
                for path in sorted(here.rglob("*"))
                if path.is_file()
            },
        }


TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?")


def _one_moment(parsed: Any, **_: Any) -> None:
    """Replace all times of an answer."""
    for key, value in parsed.items() if isinstance(parsed, dict) else enumerate(parsed):
        if isinstance(value, dict | list):
            _one_moment(value)
        elif key in TIMES or (isinstance(value, str) and TIME.fullmatch(value)):
            parsed[key] = MOMENT


FILES_FROM = 1767225600  # 2026-01-01: when the files were written that a task brings


def status_of(error: Exception | None) -> int:
    """Return the exit status of version 2 for an error that version 1 ends with 255."""
    name = "" if error is None else type(error).__name__
    if "ClientError" in {one.__name__ for one in type(error).__mro__}:
        return 254
    if name == "ValueError":  # of a number, or of what an option or a place may be
        return 255 if re.search("invalid literal|could not convert", str(error)) else 252
    return 252 if name in ("ParamError", "ParamValidationError", "TypeError", "") else 255


def forbid(typed: list[str]) -> None:
    """Raise ValueError if a line might leave the simulator, or the folder of a test."""
    if not typed or typed[0] != "aws":
        raise ValueError(f"no command of the AWS CLI: {typed}")
    if len(typed) > 1 and not {*SERVICES, "s4"} & set(typed):
        raise ValueError(f"none of the services {SERVICES}: {typed}")
    for word in typed[1:]:
        name = word.partition("=")[0]
        if len(name) > 4 and any(option.startswith(name) for option in FORBIDDEN):
            raise ValueError(f"an option that leads out of the simulator: {word}")
        path = re.sub(r"^fileb?://", "", word)
        if (
            path != "/dev/stdout"
            and word.startswith("file")
            and (path.startswith(("/", "~")) or ".." in path)
        ):
            raise ValueError(f"a file outside the folder: {word}")


def is_allowed(line: str) -> bool:
    try:
        forbid(split_by_shell(line))
    except ValueError:
        return False
    return True


class Ours:
    """A CloudWorld, as a user of the environment reaches it."""

    def __init__(self, world: CloudWorld) -> None:
        self.world = world

    def run(self, line: str, files: dict[str, str], *, alone: bool = True) -> Seen:
        """Type a line; `alone` in a fork. A line that only reads needs none."""

        def typed() -> dict[str, Any]:
            mock_random.seed(0)
            return self.type(line, files)

        return Seen(**(in_fork(typed) if alone else typed()))

    def type(self, line: str, files: dict[str, str]) -> dict[str, Any]:
        self.world.folder.fill({name: text.encode("latin-1") for name, text in files.items()})
        recorder = Recorder()
        emitters = [client.meta.events for client in self.world._clients.values()]
        for emitter in emitters:
            recorder.listen(emitter)
        outcome = self.world.run(line)
        for emitter in emitters:
            emitter.unregister("before-parameter-build", recorder.note)
        held = self.world.folder.held()
        return {
            "status": outcome.status,
            "output": outcome.printed,
            "errors": outcome.errors,
            "calls": recorder.calls,
            "files": {name: content.decode("latin-1") for name, content in sorted(held.items())},
        }


# -- the state in which all lines begin --------------------------------------------------------------------------------

ACCOUNT = "123456789012"
SNS = f"arn:aws:sns:us-east-1:{ACCOUNT}"
QUEUES = f"https://sqs.us-east-1.amazonaws.com/{ACCOUNT}/"
TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
        ],
    }
)
POLICY = json.dumps(
    {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}
)
FILES = {
    "note.txt": "hello",
    "other.txt": "a longer text\n",
    "site/index.html": "<p>welcome</p>",
    "site/about.html": "<p>us</p>",
    "site/img/logo.svg": "<svg/>",
    "trust.json": TRUST,
    "policy.json": POLICY,
    "versioning.json": '{"Status": "Enabled"}',
    "tags.json": '[{"Key": "team", "Value": "x"}, {"Key": "env", "Value": "y"}]',
    "item.json": '{"id": {"S": "three"}, "n": {"N": "3"}}',
    "bucket.json": '{"Bucket": "from-json"}',
    "bytes.bin": "\x00\x01\xff",
}


def set_scene(world: CloudWorld) -> None:
    """Fill an empty world, by boto3."""
    of = world._clients
    for bucket in ("ledger", "archive", "empty"):
        of["s3api"].create_bucket(Bucket=bucket)
    for key, text in (("a.txt", "one"), ("b.csv", "1,2"), ("logs/x.log", "xx"), ("logs/deep/y.log", "yyy")):
        of["s3api"].put_object(Bucket="ledger", Key=key, Body=text.encode())
    of["s3api"].put_object(Bucket="archive", Key="a.txt", Body=b"old and long")
    of["s3api"].put_bucket_tagging(Bucket="ledger", Tagging={"TagSet": [{"Key": "team", "Value": "money"}]})
    of["s3api"].put_bucket_versioning(Bucket="ledger", VersioningConfiguration={"Status": "Enabled"})
    of["s3api"].put_bucket_policy(Bucket="archive", Policy=POLICY)
    of["dynamodb"].create_table(
        TableName="people",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    for name, number in (("one", "1"), ("two", "2")):
        item = {"id": {"S": name}, "n": {"N": number}, "tags": {"SS": ["x", "y"]}, "raw": {"B": b"\x00abc"}}
        of["dynamodb"].put_item(TableName="people", Item=item)
    queue = of["sqs"].create_queue(QueueName="jobs", Attributes={"VisibilityTimeout": "60"})["QueueUrl"]
    of["sqs"].create_queue(QueueName="dead")
    of["sqs"].send_message(QueueUrl=queue, MessageBody="work")
    of["sqs"].tag_queue(QueueUrl=queue, Tags={"team": "x"})
    topic = of["sns"].create_topic(Name="news")["TopicArn"]
    of["sns"].create_topic(Name="alarms")
    of["sns"].subscribe(TopicArn=topic, Protocol="sqs", Endpoint=f"arn:aws:sqs:us-east-1:{ACCOUNT}:jobs")
    for user in ("ann", "bob", "cleo"):
        of["iam"].create_user(UserName=user)
    of["iam"].create_group(GroupName="staff")
    of["iam"].add_user_to_group(GroupName="staff", UserName="ann")
    of["iam"].create_role(RoleName="reader", AssumeRolePolicyDocument=TRUST)
    of["iam"].create_policy(PolicyName="reads", PolicyDocument=POLICY)
    of["iam"].attach_role_policy(RoleName="reader", PolicyArn=f"arn:aws:iam::{ACCOUNT}:policy/reads")
    for name, value in (("/web/color", "red"), ("/web/size", "3"), ("/db/url", "here")):
        of["ssm"].put_parameter(Name=name, Value=value, Type="String")
    of["ssm"].put_parameter(Name="/db/password", Value="pw", Type="SecureString")
    for name in ("prod/db", "prod/key"):
        of["secretsmanager"].create_secret(Name=name, SecretString="s3cret")


def split_by_shell(line: str) -> list[str]:
    """Return the words of a line, as a shell splits it. Nothing is executed but printf."""
    # Names with * and ? are not looked up.
    done = subprocess.run(
        ["sh", "-f", "-c", f"printf '%s\\0' {line}"], check=True, capture_output=True, timeout=PATIENCE_S
    )
    return done.stdout.decode().split("\0")[:-1]


# -- what counts as the same -------------------------------------------------------------------------------------------

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
SECRET = re.compile(r"(secretsmanager:[\w-]+:\d+:secret:[\w/.@+=-]+?)-[A-Za-z0-9]{6}\b")
SIGNED = re.compile(r"Signature=[^&]*&Expires=\d+")
LISTED = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", re.MULTILINE)


def plain_text(text: str) -> str:
    """Return an output without progress bars, times and random identifiers."""
    text = re.sub(r"[^\r\n]*\r", "", text)  # progress, which the next output overwrites
    text = "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")
    text = LISTED.sub("TIME", SIGNED.sub("Signature", TIME.sub(MOMENT, text)))
    return SECRET.sub(r"\1-random", UUID.sub("UUID", text))


def comparable(seen: Seen, line: str) -> dict[str, Any]:
    """Return what has to be the same of two Seen of a line."""
    output, calls = plain_text(seen.output), [[name, dict(params)] for name, params in seen.calls]
    is_s3 = "s3" in line.split()
    if is_s3:
        # Transfers run at the same time, in any order.
        calls = sorted(calls, key=json.dumps)
        output = "\n".join(sorted(output.split("\n"))) if " ls" not in line else output
    if "--generate-cli-skeleton" in line:
        calls = []  # that are stubbed
    for _, params in calls:
        params.pop("WaitTimeSeconds", None)  # no command waits
    return {
        "status": seen.status,
        "output": output,
        "calls": calls,
        "files": seen.files,
        "errors": said(seen),
    }


def said(seen: Seen) -> str:
    """Return the line of an error that says what is wrong, without usages."""
    if seen.status == 0:
        return ""
    lines = [
        line for line in plain_text(seen.errors).replace(" (reached max retries: 0)", "").split("\n") if line
    ]
    telling = [
        line for line in lines if re.search("rror|Unknown options", line) and not line.startswith("usage:")
    ]
    line = (telling or lines or [""])[0]
    # The choices of version 1 are others, and its operations.
    return line.split(":", 1)[0] if "Unknown options" in line else line


def canonical(value: Any) -> Any:
    """Return facts as JSON, with sets and mappings in one order."""
    if isinstance(value, Mapping):
        return sorted(([canonical(key), canonical(inner)] for key, inner in value.items()), key=repr)
    if isinstance(value, set | frozenset):
        return sorted(map(canonical, value), key=repr)
    return list(map(canonical, value)) if isinstance(value, list | tuple) else str(value)


# -- what was seen, and what is refused --------------------------------------------------------------------------------

RECORDED = Path(__file__).parent / "lines" / "seen.json"  # what the AWS CLI did, by line; written by `record`
REFUSED = Path(__file__).parent / "lines" / "refused.md"  # what ours refuses; written by `record`


@functools.cache
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found


def record(true: TrueCLI) -> None:
    """Write what the AWS CLI does at each line, and the table of all that it accepts and ours refuses."""
    from tests.domains.cloud.command_lines import WRONG, accepted

    seen = {line: changes(comparable(true.run(line, FILES), line)) for line in (*accepted(), *WRONG)}
    rows = ",\n".join(f"{json.dumps(line)}: {json.dumps(what)}" for line, what in seen.items())
    RECORDED.write_text(f"{{\n{rows}\n}}\n")
    REFUSED.write_text(refused(true))


def changes(what: dict[str, Any]) -> dict[str, Any]:
    """Return what was seen without the files that are as they were. A file that is gone is None."""
    names = {**FILES, **what["files"]}
    files = {name: what["files"].get(name) for name in names if what["files"].get(name) != FILES.get(name)}
    return what | {"files": files}


def only_reads(what: dict[str, Any]) -> bool:
    """Return whether a line leaves the world as it is."""
    reads = ("Get", "List", "Describe", "Head", "Scan", "Query")
    return all(name.startswith(reads) for name, _ in what["calls"])


def refused(true: TrueCLI) -> str:
    """Return, as a table, the operations and options of the AWS CLI that ours does not have."""
    from ddppo.domains.cloud.cli import operations
    from ddppo.domains.cloud.cli_options import UNUSED, VERBS
    from tests.domains.cloud.command_lines import EXCLUDED

    table = true._driver._get_command_table()
    rows = [
        (
            "services",
            ", ".join(SERVICES),
            f"{len(table) - len(SERVICES)} others, aliases, `configure`, `help`",
        )
    ]
    for service in SERVICES:
        theirs = set(true.operations(service)) - {"help"}
        ours = set(VERBS if service == "s3" else operations(service))
        assert ours <= theirs
        rows.append(
            (f"operations of {service}", f"{len(ours)} of {len(theirs)}", ", ".join(sorted(theirs - ours)))
        )
    rows.append(("options of all", "the rest", ", ".join((*FORBIDDEN, "--version", "--color on"))))
    rows.append(("options of cp, mv, sync", "the rest", ", ".join(f"--{name}" for name in UNUSED)))
    rows += [("for example", reason, f"`{line}`") for reason, line in EXCLUDED]
    lines = [
        "# What the AWS CLI accepts and ours refuses",
        "",
        "Written by `python -m tests.domains.cloud.true_cli record`.",
        "",
    ]
    lines += ["| | ours | refused |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> None:
    """Type lines into both, and print the differences.

    Words choose lines, `mutated=300 seed=1` types broken ones; `record` writes lines/seen.json and lines/refused.md.
    """
    from tests.domains.cloud.command_lines import accepted, mutated

    options = dict(word.split("=") for word in arguments if re.fullmatch(r"(mutated|seed)=\d+", word))
    words = [word for word in arguments if word.split("=")[0] not in options]
    lines = accepted()
    if "mutated" in options:
        lines = [
            line for line in mutated(int(options["mutated"]), int(options.get("seed", 0))) if is_allowed(line)
        ]
    lines = [line for line in lines if not words or any(word in line for word in words)]
    true, ours = both()
    if words == ["record"]:
        record(true)
        return
    same = 0
    for line in lines:
        want, got = comparable(true.run(line, FILES), line), comparable(ours.run(line, FILES), line)
        if want == got:
            same += 1
            continue
        print(f"\n>> {line}")
        for key in want:
            if want[key] != got[key]:
                print(f"  {key}:\n    true {want[key]!r}\n    ours {got[key]!r}", flush=True)
    print(f"{same} of {len(lines)} lines agree")


def both() -> tuple[TrueCLI, Ours]:
    world = CloudWorld()
    world.reset(0)
    set_scene(world)
    return TrueCLI(), Ours(world)


if __name__ == "__main__":
    main(sys.argv[1:])
