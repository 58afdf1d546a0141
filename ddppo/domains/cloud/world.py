"""The simulated cloud of this process: moto behind boto3, reached by command lines and by nothing else.

moto keeps one world a process, so there is one World a process; who needs eight at once starts eight processes (`warm`
in their parent makes a fork of it ready at once). Between episodes `reset` empties it.
"""

import base64
import datetime
import json
import logging
import os
from dataclasses import dataclass
from typing import Any, ClassVar

import boto3
import jmespath
import moto
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
from botocore.response import StreamingBody
from jmespath.exceptions import JMESPathError
from moto.core.botocore_stubber import MockRawResponse
from moto.moto_api._internal import mock_random
from moto.moto_api._internal.models import moto_api_backend

from ddppo.domains.cloud.cli import Call, CommandError, Objects, parse
from ddppo.domains.cloud.cli.command import REGION
from ddppo.domains.cloud.cli.parameters import session
from ddppo.domains.cloud.cli.verbs import SERVICES
from ddppo.domains.cloud.objects import act
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
class Outcome:
    """What a command line came to: what is printed, the exit status, the service's error code, and the calls made."""

    said: str
    status: int = 0
    code: str = ""
    calls: tuple[Call, ...] = ()


class World:
    """One simulated account in one region. Close it before another is made in the same process."""

    _open: ClassVar["World | None"] = None
    _warm: ClassVar["World | None"] = None  # open, and nobody's until it is taken

    def __init__(self) -> None:
        if World._open is not None:
            raise EnvStateError("this process holds a cloud already: close it, or start a process for each")
        self._hidden = {
            name: os.environ.pop(name) for name in PROFILES if name in os.environ
        }  # moto looks for it
        self._mock = moto.mock_aws()
        self._mock.start()
        World._open = self
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
    def take(cls) -> "World":
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

    def run(self, line: str) -> Outcome:
        """Do what a line says, or say why not. Whatever is typed, this returns."""
        made: list[Call] = []
        try:
            command = parse(line)
            if isinstance(command, Objects):
                said = act(command, lambda call: self._made(call, made), MOMENT)
            else:
                said = printed(self._made(command, made), command.query)
        except CommandError as error:
            return Outcome(error.said, error.status, error.code, tuple(made))
        except RecursionError:  # from the readers of JSON and JMESPath
            return Outcome("aws: error: nested too deep", 252, calls=tuple(made))
        return Outcome(said, calls=tuple(made))

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
        assert isinstance(command, Call), line
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
        if World._open is self:
            World._open = None
            for client in self._clients.values():
                client.close()
            self._mock.stop()
            os.environ.update(self._hidden)

    def _made(self, call: Call, made: list[Call]) -> dict[str, Any]:
        if self.reads_only and not call.is_read:
            who = f"arn:aws:iam::{ACCOUNT}:user/operator"
            what = f"{SERVICES[call.service]}:{call.api_name}"
            raise _refused(call, "AccessDenied", f"User: {who} is not authorized to perform: {what}")
        answer = self._perform(call)
        made.append(call)
        return answer

    def _perform(self, call: Call) -> dict[str, Any]:
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


def _inside(call: Call) -> dict[str, Any]:
    """Return a call's parameters. Raises CommandError where one leads out of this world."""
    url = call.params.get("QueueUrl")
    if isinstance(url, str) and "/" in url and not url.startswith(QUEUES):
        raise _refused(
            call, "AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist.", 254
        )
    if call.operation == "subscribe" and call.params.get("Protocol") not in PROTOCOLS:
        raise _refused(call, "InvalidParameter", f"Invalid parameter: Protocol: here one of {PROTOCOLS}")
    return call.params


def _refused(call: Call, code: str, why: str, status: int = 254) -> CommandError:
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
    if World._warm is not None:
        return
    world = World()
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
    World._warm = world
