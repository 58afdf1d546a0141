"""The simulated cloud of this process: moto behind boto3, reached by command lines only.

`CloudWorld.run` executes a line. moto keeps one world per process, so a process holds one CloudWorld; `reset` empties
it between episodes, and `warm` loads one in a parent process, so that its forks start at once. The last part of the
file draws the faults and drifted states of episodes.
"""

import base64
import datetime
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import boto3
import jmespath
import moto
import numpy as np
from botocore import UNSIGNED
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
from botocore.response import StreamingBody
from jmespath.exceptions import JMESPathError
from moto.core.botocore_stubber import MockRawResponse
from moto.moto_api._internal import mock_random
from moto.moto_api._internal.models import moto_api_backend

from ddppo.domains.cloud.cli import REGION, SERVICES, ApiCall, S3Command, parse
from ddppo.domains.cloud.cli_parameters import CommandError, session
from ddppo.domains.cloud.holdings import Address, holdings
from ddppo.errors import EnvStateError

log = logging.getLogger(__name__)

ACCOUNT = "123456789012"  # moto's
MOMENT = "2026-01-01T00:00:00+00:00"  # printed for every time: observations must not depend on the clock
TIMES = ("CreatedTimestamp", "LastModifiedTimestamp")  # times that come as text
QUEUES = f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/"
PROFILES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")  # environment variables that name real accounts
BROKE = "InternalFailure"  # error code of a fault of the simulator
PROTOCOLS = ("sqs", "email")  # allowed for subscriptions; moto would really call an http endpoint


@dataclass(frozen=True)
class CommandOutcome:
    """The result of a command line."""

    output: str  # the printed text
    status: int = 0  # exit status
    code: str = ""  # the service's error code
    calls: tuple[ApiCall, ...] = ()  # API calls that succeeded


class CloudWorld:
    """One simulated account in one region. Close it before making another one in the same process."""

    _open: ClassVar["CloudWorld | None"] = None  # the world of this process
    _warm: ClassVar["CloudWorld | None"] = None  # the same, while no environment uses it

    def __init__(self) -> None:
        if CloudWorld._open is not None:
            raise EnvStateError("this process holds a cloud already: close it, or start a process for each")
        # A profile of a real account would make boto3 read its keys. It is restored in `close`.
        self._hidden = {name: os.environ.pop(name) for name in PROFILES if name in os.environ}
        self._mock = moto.mock_aws()
        self._mock.start()
        CloudWorld._open = self
        self.reads_only = False
        # botocore would make a signature, and its own name, anew for every call: a quarter of the call. moto reads the
        # signature of S3 alone.
        config = Config(retries={"max_attempts": 0}, ignore_configured_endpoint_urls=True, user_agent="ddppo")
        unsigned = config.merge(Config(signature_version=UNSIGNED))
        keys = {"aws_access_key_id": "simulated", "aws_secret_access_key": "simulated"}
        aws = boto3.Session(botocore_session=session())
        self._clients = {
            name: aws.client(
                service, region_name=REGION, config=config if service == "s3" else unsigned, **keys
            )
            for name, service in SERVICES.items()
        }
        # A request that moto does not answer must not leave this machine.
        for client in self._clients.values():
            client.meta.events.register_last("before-send", _no_network)

    @classmethod
    def take(cls) -> "CloudWorld":
        """Return the warm world of this process, possibly inherited by a fork, or a new one. The caller owns it."""
        if cls._warm is None:
            return cls()
        world, cls._warm = cls._warm, None
        return world

    def reset(self, seed: int) -> None:
        """Empty the world. Later identifiers are determined by `seed`."""
        moto_api_backend.reset()
        mock_random.seed(seed)
        self.reads_only = False

    def run(self, line: str) -> CommandOutcome:
        """Execute a line. Errors are part of the result; no input raises."""
        made: list[ApiCall] = []
        try:
            command = parse(line)
            if isinstance(command, S3Command):
                output = act(command, lambda call: self._call(call, made), MOMENT)
            else:
                output = printed(self._call(command, made), command.query)
        except CommandError as error:
            return CommandOutcome(error.output, error.status, error.code, tuple(made))
        except RecursionError:  # from the parsers of JSON and JMESPath
            return CommandOutcome("aws: error: nested too deep", 252, calls=tuple(made))
        return CommandOutcome(output, calls=tuple(made))

    def operate(self, lines: tuple[str, ...]) -> None:
        """Execute the setup of a task, with all rights. Raises EnvStateError if a line fails."""
        before, self.reads_only = self.reads_only, False
        try:
            for line in lines:
                outcome = self.run(line)
                if outcome.status != 0:
                    raise EnvStateError(f"a task's command failed: {line}: {outcome.output}")
        finally:
            self.reads_only = before

    def disturb(self, lines: tuple[str, ...]) -> None:
        """Execute a fault, with all rights. A line that finds nothing to break has no effect."""
        before, self.reads_only = self.reads_only, False
        for line in lines:
            self.run(line)
        self.reads_only = before

    def look(self, line: str) -> tuple[Any, str]:
        """Return the result of a reading command, through its --query, and the error code, "" for success."""
        command = parse(line)
        assert isinstance(command, ApiCall), line
        assert command.is_read, line
        try:
            found = plain(self._perform(command))
        except CommandError as error:
            if not error.code:
                raise
            return None, error.code
        try:
            return (jmespath.search(command.query, found) if command.query else found), ""
        except JMESPathError:  # a function of a value that does not exist (yet)
            return None, "BadQuery"

    def ended(self) -> None:
        """Note that an episode is over, before the next reset. This world costs nothing while it is not used."""

    def holdings(self) -> dict[Address, Any]:
        """Return all that this world holds, as facts. Nothing that a command can see changes by that."""
        return holdings(ACCOUNT, REGION)

    def close(self) -> None:
        """End this world. A second call does nothing."""
        if CloudWorld._open is self:
            CloudWorld._open = None
            for client in self._clients.values():
                client.close()
            self._mock.stop()
            os.environ.update(self._hidden)

    def _call(self, call: ApiCall, made: list[ApiCall]) -> dict[str, Any]:
        # In a read-only task, refuse a change as IAM does for a user without the right.
        if self.reads_only and not call.is_read:
            who = f"arn:aws:iam::{ACCOUNT}:user/operator"
            what = f"{SERVICES[call.service]}:{call.api_name}"
            raise _refused(call, "AccessDenied", f"User: {who} is not authorized to perform: {what}")
        answer = plain(self._perform(call))
        made.append(replace(call, answer=_through(call.query, answer) if call.is_read else None))
        return answer

    def _perform(self, call: ApiCall) -> dict[str, Any]:
        params = checked_params(call)
        # botocore would fill idempotency tokens from the system's randomness: draw them by the episode's seed.
        for name in call.model.idempotent_members:
            params = {name: str(mock_random.uuid4())} | params
        if call.operation == "receive-message":
            params = params | {"WaitTimeSeconds": 0}  # no message can arrive during the wait
        # boto3 names its methods as the CLI names operations. Each error becomes the CLI's message and exit status.
        method = call.operation.replace("-", "_")
        try:
            return getattr(self._clients[call.service], method)(**params)
        except ClientError as error:
            output = str(error).replace(" (reached max retries: 0)", "")
            raise CommandError(output, 254, error.response["Error"].get("Code", "")) from error
        except ParamValidationError as error:
            raise CommandError(str(error)) from error
        except BotoCoreError as error:
            raise CommandError(str(error), 255) from error
        except Exception as error:
            # A fault of the simulator: the episode goes on, as if the command had failed.
            log.debug("moto failed at %s %s", call.service, call.operation, exc_info=True)
            raise _refused(call, BROKE, f"the simulator failed: {type(error).__name__}") from error


def _no_network(request: Any, **_: Any) -> AWSResponse:
    """Answer a request that moto has left unanswered with status 501, so that botocore does not send it."""
    return AWSResponse(request.url, 501, {}, MockRawResponse(b""))


def checked_params(call: ApiCall) -> dict[str, Any]:
    """Return the parameters of a call. Raises CommandError if one would reach outside the simulated account."""
    url = call.params.get("QueueUrl")
    if isinstance(url, str) and "/" in url and not url.startswith(QUEUES):
        raise _refused(
            call, "AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist.", 254
        )
    # moto would drop these, and make a rule for objects of all sizes.
    if call.operation == "put-bucket-lifecycle-configuration" and "ObjectSize" in str(call.params):
        raise _refused(call, "NotImplemented", "rules for objects of some size are not simulated")
    if call.operation == "subscribe" and call.params.get("Protocol") not in PROTOCOLS:
        raise _refused(call, "InvalidParameter", f"Invalid parameter: Protocol: here one of {PROTOCOLS}")
    return call.params


def _refused(call: ApiCall, code: str, why: str, status: int = 254) -> CommandError:
    output = f"An error occurred ({code}) when calling the {call.api_name} operation: {why}"
    return CommandError(output, status, code)


def plain(value: Any) -> Any:
    """Return an answer as JSON types: times as MOMENT, bytes as text, without the metadata of the response."""
    # Containers first, then the types that JSON does not have.
    if isinstance(value, dict):
        return {
            key: MOMENT if key in TIMES else plain(inner)
            for key, inner in value.items()
            if key != "ResponseMetadata"
        }
    if isinstance(value, list | tuple | set):
        return [plain(inner) for inner in value]
    if isinstance(value, datetime.datetime | datetime.date):
        return MOMENT
    if isinstance(value, StreamingBody):
        return plain(value.read())
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return value


def printed(answer: dict[str, Any], query: str | None) -> str:
    """Return the output of the AWS CLI: JSON with an indent of 4, or "" for an empty answer."""
    found = _through(query, plain(answer))
    return json.dumps(found, indent=4) if found != {} else ""


def _through(query: str | None, answer: dict[str, Any]) -> Any:
    """Return what the --query of a command selects of its answer."""
    if query is None:
        return answer
    try:
        return jmespath.search(query, answer)
    except JMESPathError as error:
        raise CommandError(f"Bad value for --query {query}: {error}", 255) from error


def warm() -> None:
    """Make a world and load every service, so that forks of this process can `take` it at once."""
    if CloudWorld._warm is not None:
        return
    # moto and botocore load a service at its first call.
    world = CloudWorld()
    for line in (
        "aws s3api list-buckets",
        "aws dynamodb list-tables",
        "aws sqs list-queues",
        "aws sns list-topics",
        "aws iam list-users",
        "aws ssm describe-parameters",
        "aws secretsmanager list-secrets",
    ):
        world.run(line)
    CloudWorld._warm = world


# -- aws s3: ls, mb, rb, rm and cp between buckets, translated to API calls --------------------------------------------
# Formats of the output: https://docs.aws.amazon.com/cli/latest/reference/s3/

Perform = Callable[[ApiCall], dict[str, Any]]
FAILED = {"mb": "make_bucket", "rb": "remove_bucket", "rm": "delete", "cp": "copy"}


def act(command: S3Command, perform: Perform, moment: str) -> str:
    """Make the API calls of a command; return its output, with `moment` in place of every time."""
    try:
        if command.verb == "ls":
            return "\n".join(_listed(command, perform, moment))
        return "\n".join(_changed(command, perform))
    except CommandError as error:
        if command.verb == "ls":
            raise
        output = f"{FAILED[command.verb]} failed: {command.places[0]} {error.output}"
        raise CommandError(output, status=1, code=error.code) from error


def _parted(place: str) -> tuple[str, str]:
    bucket, _, key = place.removeprefix("s3://").partition("/")
    return bucket, key


def _objects(bucket: str, prefix: str, perform: Perform) -> list[dict[str, Any]]:
    listed = perform(ApiCall("s3api", "list-objects-v2", {"Bucket": bucket, "Prefix": prefix}))
    return listed.get("Contents", [])


def _listed(command: S3Command, perform: Perform, moment: str) -> Iterator[str]:
    when = moment.replace("T", " ")[:19]
    if not command.places:
        for bucket in perform(ApiCall("s3api", "list-buckets")).get("Buckets", []):
            yield f"{when} {bucket['Name']}"
        return
    bucket, prefix = _parted(command.places[0])
    # Keys below a further "/" are printed once, as a folder.
    folders = set()
    for found in _objects(bucket, prefix, perform):
        below = found["Key"][prefix.rfind("/") + 1 :]
        if "/" in below and "--recursive" not in command.flags:
            folder = below.partition("/")[0]
            if folder not in folders:
                yield f"{'PRE':>30} {folder}/"
            folders.add(folder)
        else:
            shown = found["Key"] if "--recursive" in command.flags else below
            yield f"{when} {found['Size']:>10} {shown}"


def _changed(command: S3Command, perform: Perform) -> Iterator[str]:
    # Each verb prints a line for each object or bucket that it changes.
    bucket, key = _parted(command.places[0])
    if command.verb == "mb":
        perform(ApiCall("s3api", "create-bucket", {"Bucket": bucket}))
        yield f"make_bucket: {bucket}"
    elif command.verb == "rb":
        if "--force" in command.flags:
            yield from _removed(bucket, "", perform)
        perform(ApiCall("s3api", "delete-bucket", {"Bucket": bucket}))
        yield f"remove_bucket: {bucket}"
    elif command.verb == "rm" and "--recursive" in command.flags:
        yield from _removed(bucket, key, perform)
    elif command.verb == "rm":
        perform(ApiCall("s3api", "delete-object", {"Bucket": bucket, "Key": key}))
        yield f"delete: s3://{bucket}/{key}"
    else:
        # cp: a target that is a bucket or a folder keeps the name of the object.
        to, to_key = _parted(command.places[1])
        if not to_key or to_key.endswith("/"):
            to_key += key.rpartition("/")[2]
        source = {"Bucket": bucket, "Key": key}
        perform(ApiCall("s3api", "copy-object", {"Bucket": to, "Key": to_key, "CopySource": source}))
        yield f"copy: s3://{bucket}/{key} to s3://{to}/{to_key}"


def _removed(bucket: str, prefix: str, perform: Perform) -> Iterator[str]:
    for found in _objects(bucket, prefix, perform):
        perform(ApiCall("s3api", "delete-object", {"Bucket": bucket, "Key": found["Key"]}))
        yield f"delete: s3://{bucket}/{found['Key']}"


# -- faults during an episode (chaos), and drifted states at its start -------------------------------------------------

Commands = tuple[str, ...]

# Probability of a fault by tier, unless the options of reset() give another.
CHANCE = {
    "warm-up": 0.0,
    "beginner": 0.0,
    "intermediate": 0.1,
    "advanced": 0.2,
    "expert": 0.3,
}
TIERS = tuple(CHANCE)
# A fault may strike after these numbers of steps: when there is something to break, and before most of a task is done.
FIRST, LAST = 1, 3


@dataclass(frozen=True)
class Strike:
    """Commands that are executed after `after` steps; the policy does not see them."""

    after: int
    commands: Commands


def drawn(chance: float, faults: Sequence[Commands], random: np.random.Generator) -> Strike | None:
    """Draw the fault of an episode: with probability `chance`, one of `faults` after one of the first steps."""
    if not faults or random.random() >= chance:
        return None
    which = int(random.integers(len(faults)))
    return Strike(int(random.integers(FIRST, LAST + 1)), faults[which])


def drifted(num: int, drifts: Sequence[Commands], random: np.random.Generator) -> Commands:
    """Draw `num` different drifts and return their commands, in the order of the task."""
    which = sorted(int(at) for at in random.permutation(len(drifts))[:num])
    return tuple(line for at in which for line in drifts[at])
