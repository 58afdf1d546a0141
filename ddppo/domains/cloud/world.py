"""The simulated cloud of this process: moto behind boto3, reached by command lines and by nothing else.

moto keeps one world a process, so there is one CloudWorld a process: eight at once take eight processes (`warm` in
their parent makes a fork of it ready at once). Between episodes `reset` empties it. The last part of the file draws the
faults and the drifted states of episodes.
"""

import base64
import datetime
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import boto3
import jmespath
import moto
import numpy as np
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
from ddppo.errors import EnvStateError

log = logging.getLogger(__name__)

ACCOUNT = "123456789012"  # moto's
MOMENT = (
    "2026-01-01T00:00:00+00:00"  # printed for every time of day: what is seen must not depend on the clock
)
TIMES = ("CreatedTimestamp", "LastModifiedTimestamp")  # which come as text
QUEUES = f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/"
PROFILES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")  # of real accounts
BROKE = "InternalFailure"  # the code of a fault of the simulator
PROTOCOLS = ("sqs", "email")  # of subscriptions; moto would call an http endpoint for real


@dataclass(frozen=True)
class CommandOutcome:
    """What a command line came to: what is printed, the exit status, the service's error code, and the calls made."""

    said: str
    status: int = 0
    code: str = ""
    calls: tuple[ApiCall, ...] = ()


class CloudWorld:
    """One simulated account in one region. Close it before another is made in the same process."""

    _open: ClassVar["CloudWorld | None"] = None
    _warm: ClassVar["CloudWorld | None"] = None  # open, and free until it is taken

    def __init__(self) -> None:
        if CloudWorld._open is not None:
            raise EnvStateError("this process holds a cloud already: close it, or start a process for each")
        self._hidden = {
            name: os.environ.pop(name) for name in PROFILES if name in os.environ
        }  # moto looks for it
        self._mock = moto.mock_aws()
        self._mock.start()
        CloudWorld._open = self
        self.reads_only = False
        config = Config(retries={"max_attempts": 0}, ignore_configured_endpoint_urls=True)
        keys = {"aws_access_key_id": "simulated", "aws_secret_access_key": "simulated"}
        aws = boto3.Session(botocore_session=session())
        self._clients = {
            name: aws.client(service, region_name=REGION, config=config, **keys)
            for name, service in SERVICES.items()
        }
        for client in self._clients.values():
            client.meta.events.register_last("before-send", _no_network)

    @classmethod
    def take(cls) -> "CloudWorld":
        """Return this process's warm world, a parent's before the fork maybe, or a new one. Nobody else has it."""
        if cls._warm is None:
            return cls()
        world, cls._warm = cls._warm, None
        return world

    def reset(self, seed: int) -> None:
        """Empty the world. The identifiers that follow are those of `seed`."""
        moto_api_backend.reset()
        mock_random.seed(seed)
        self.reads_only = False

    def run(self, line: str) -> CommandOutcome:
        """Do what a line says, or say why not. Whatever is typed, this returns."""
        made: list[ApiCall] = []
        try:
            command = parse(line)
            if isinstance(command, S3Command):
                said = act(command, lambda call: self._made(call, made), MOMENT)
            else:
                said = printed(self._made(command, made), command.query)
        except CommandError as error:
            return CommandOutcome(error.said, error.status, error.code, tuple(made))
        except RecursionError:  # from the readers of JSON and JMESPath
            return CommandOutcome("aws: error: nested too deep", 252, calls=tuple(made))
        return CommandOutcome(said, calls=tuple(made))

    def operate(self, lines: tuple[str, ...]) -> None:
        """Do what a task's author wrote, as the world's operator. Raises EnvStateError where a line fails."""
        before, self.reads_only = self.reads_only, False
        try:
            for line in lines:
                outcome = self.run(line)
                if outcome.status != 0:
                    raise EnvStateError(f"a task's command failed: {line}: {outcome.said}")
        finally:
            self.reads_only = before

    def disturb(self, lines: tuple[str, ...]) -> None:
        """Do what chaos does; a line that finds nothing to break does nothing."""
        before, self.reads_only = self.reads_only, False
        for line in lines:
            self.run(line)
        self.reads_only = before

    def look(self, line: str) -> tuple[Any, str]:
        """Return what a reading command finds, through its --query, and the error code ("" where it succeeded)."""
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
        except JMESPathError:  # a function of what is not there (yet)
            return None, "BadQuery"

    def close(self) -> None:
        """End this world. Twice does nothing more."""
        if CloudWorld._open is self:
            CloudWorld._open = None
            for client in self._clients.values():
                client.close()
            self._mock.stop()
            os.environ.update(self._hidden)

    def _made(self, call: ApiCall, made: list[ApiCall]) -> dict[str, Any]:
        if self.reads_only and not call.is_read:
            who = f"arn:aws:iam::{ACCOUNT}:user/operator"
            what = f"{SERVICES[call.service]}:{call.api_name}"
            raise _refused(call, "AccessDenied", f"User: {who} is not authorized to perform: {what}")
        answer = self._perform(call)
        made.append(call)
        return answer

    def _perform(self, call: ApiCall) -> dict[str, Any]:
        params = _inside(call)
        for name in call.model.idempotent_members:  # which botocore would fill from the system's randomness
            params = {name: str(mock_random.uuid4())} | params
        if call.operation == "receive-message":
            params = params | {"WaitTimeSeconds": 0}  # nothing arrives while one waits
        method = call.operation.replace("-", "_")
        try:
            return getattr(self._clients[call.service], method)(**params)
        except ClientError as error:
            said = str(error).replace(" (reached max retries: 0)", "")
            raise CommandError(said, 254, error.response["Error"].get("Code", "")) from error
        except ParamValidationError as error:
            raise CommandError(str(error)) from error
        except BotoCoreError as error:
            raise CommandError(str(error), 255) from error
        except Exception as error:  # a fault of the simulator: the typist's, as far as an episode goes
            log.debug("moto failed at %s %s", call.service, call.operation, exc_info=True)
            raise _refused(call, BROKE, f"the simulator failed: {type(error).__name__}") from error


def _no_network(request: Any, **_: Any) -> AWSResponse:
    """Answer what moto, asked before and heard first, leaves unanswered: botocore would send it for real."""
    return AWSResponse(request.url, 501, {}, MockRawResponse(b""))


def _inside(call: ApiCall) -> dict[str, Any]:
    """Return a call's parameters. Raises CommandError where one leads out of this world."""
    url = call.params.get("QueueUrl")
    if isinstance(url, str) and "/" in url and not url.startswith(QUEUES):
        raise _refused(
            call, "AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist.", 254
        )
    if call.operation == "subscribe" and call.params.get("Protocol") not in PROTOCOLS:
        raise _refused(call, "InvalidParameter", f"Invalid parameter: Protocol: here one of {PROTOCOLS}")
    return call.params


def _refused(call: ApiCall, code: str, why: str, status: int = 254) -> CommandError:
    said = f"An error occurred ({code}) when calling the {call.api_name} operation: {why}"
    return CommandError(said, status, code)


def plain(value: Any) -> Any:
    """Return an answer in JSON's types: no times of day, bytes as text, without what concerns the wire."""
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
    """Return what the AWS CLI prints: JSON by 4, or nothing for an empty answer."""
    found = plain(answer)
    if query is not None:
        try:
            found = jmespath.search(query, found)
        except JMESPathError as error:
            raise CommandError(f"Bad value for --query {query}: {error}", 255) from error
    return json.dumps(found, indent=4) if found != {} else ""


def warm() -> None:
    """Make a world with all that it loads when first used, for forks of this process to take."""
    if CloudWorld._warm is not None:
        return
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


# -- aws s3: ls, mb, rb, rm and cp between buckets, as the calls that they stand for -----------------------------------

Perform = Callable[[ApiCall], dict[str, Any]]
FAILED = {"mb": "make_bucket", "rb": "remove_bucket", "rm": "delete", "cp": "copy"}


def act(command: S3Command, perform: Perform, moment: str) -> str:
    """Make the calls of a command and return what is printed; `moment` stands for every time of day."""
    try:
        if command.verb == "ls":
            return "\n".join(_listed(command, perform, moment))
        return "\n".join(_changed(command, perform))
    except CommandError as error:
        if command.verb == "ls":
            raise
        said = f"{FAILED[command.verb]} failed: {command.places[0]} {error.said}"
        raise CommandError(said, status=1, code=error.code) from error


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


# -- faults that strike while a task is being done, and states that have drifted when it begins ------------------------

Commands = tuple[str, ...]

CHANCE = {  # by tier, unless the options of reset() say otherwise
    "warm-up": 0.0,
    "beginner": 0.0,
    "intermediate": 0.1,
    "advanced": 0.2,
    "expert": 0.3,
}
TIERS = tuple(CHANCE)
# After how many steps chaos may strike: once something is there to break, before most is done.
FIRST, LAST = 1, 3


@dataclass(frozen=True)
class Strike:
    """Commands that the operator runs, unseen, after `after` steps."""

    after: int
    commands: Commands


def drawn(chance: float, faults: Sequence[Commands], random: np.random.Generator) -> Strike | None:
    """Draw an episode's chaos: with that chance one of the task's faults, at one of its first steps."""
    if not faults or random.random() >= chance:
        return None
    which = int(random.integers(len(faults)))
    return Strike(int(random.integers(FIRST, LAST + 1)), faults[which])


def drifted(num: int, drifts: Sequence[Commands], random: np.random.Generator) -> Commands:
    """Draw `num` different drifts and return their commands, in the order of the task."""
    which = sorted(int(at) for at in random.permutation(len(drifts))[:num])
    return tuple(line for at in which for line in drifts[at])
