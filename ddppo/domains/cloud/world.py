"""The simulated cloud of this process: moto behind boto3, reached by command lines only.

`CloudWorld.run` executes a line. moto keeps one world per process, so a process holds one CloudWorld; `reset` empties
it between episodes, and `warm` loads one in a parent process, so that its forks start at once. The last part of the
file draws the faults and drifted states of episodes.
"""

import base64
import contextlib
import datetime
import functools
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
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
from botocore.utils import set_value_from_jmespath
from botocore.validate import ParamValidator
from jmespath.exceptions import JMESPathError
from moto.core.botocore_stubber import MockRawResponse
from moto.moto_api._internal import mock_random
from moto.moto_api._internal.models import moto_api_backend

from ddppo.domains.cloud.cli import REGION, SERVICES, ApiCall, S3Command, parse
from ddppo.domains.cloud.cli_parameters import example_of, session
from ddppo.domains.cloud.folder import CommandError, Folder
from ddppo.domains.cloud.holdings import Address, holdings
from ddppo.domains.cloud.objects import ObjectAccess, act
from ddppo.domains.cloud.printing import printed
from ddppo.domains.cloud.refusals import check, invalid, refused
from ddppo.errors import EnvStateError

log = logging.getLogger(__name__)

ACCOUNT = "123456789012"  # moto's
MOMENT = "2026-01-01T00:00:00+00:00"  # printed for every time: observations must not depend on the clock
# Times that come as text.
TIMES = ("CreatedTimestamp", "LastModifiedTimestamp", "SentTimestamp", "ApproximateFirstReceiveTimestamp")
QUEUES = f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/"
PROFILES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")  # environment variables that name real accounts


@dataclass(frozen=True)
class CommandOutcome:
    """The result of a command line."""

    printed: str = ""  # to the standard output
    errors: str = ""  # to the standard error
    status: int = 0  # exit status
    code: str = ""  # the service's error code
    calls: tuple[ApiCall, ...] = ()  # API calls that succeeded
    broke: bool = False  # the simulator failed: a call may have done half of its work

    @property
    def output(self) -> str:
        """What a terminal shows."""
        shown = self.printed + (
            "\n" if self.printed and not self.printed.endswith("\n") and self.errors else ""
        )
        return (shown + self.errors).removesuffix("\n")


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
        self.folder = Folder()
        self._paginators: dict[tuple[str, str], Any] = {}
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
        self._clients["ssm"].meta.events.register_last("after-call.ssm.GetParameters", in_order_of_names)

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
        self.folder.fill({})

    def run(self, line: str) -> CommandOutcome:
        """Execute a line. Errors are part of the result; no input raises."""
        made: list[ApiCall] = []
        try:
            command = parse(line, self.folder)
            if isinstance(command, S3Command):
                return self._act(command, made)
            return CommandOutcome(self._answer(command, made), calls=tuple(made))
        except CommandError as error:
            return CommandOutcome("", error.output, error.status, error.code, tuple(made), error.broke)
        except RecursionError:  # from the parsers of JSON and JMESPath
            return CommandOutcome("", "aws: error: nested too deep", 252, calls=tuple(made))

    def _act(self, command: S3Command, made: list[ApiCall]) -> CommandOutcome:
        """Execute a command of `aws s3`."""
        said = act(
            command, ObjectAccess(self.folder, lambda call: self._call(call, made), self._presigned), MOMENT
        )
        shown = "".join(f"{line}\n" for line in said.out) + said.body.decode(errors="replace")
        return CommandOutcome(shown, "\n".join(said.errors), said.status, said.code, tuple(made))

    def _presigned(self, bucket: str, key: str, seconds: int) -> str:
        params = {"Bucket": bucket, "Key": key}
        with _as_commands(ApiCall("s3api", "get-object", params)):
            address = self._clients["s3api"].generate_presigned_url(
                "get_object", Params=params, ExpiresIn=seconds
            )
        end = int(datetime.datetime.fromisoformat(MOMENT).timestamp()) + int(seconds)
        # The signature depends on the clock.
        return re.sub(
            r"Expires=\d+", f"Expires={end}", re.sub(r"Signature=[^&]*", "Signature=simulated", address)
        )

    def operate(self, lines: tuple[str, ...], files: Mapping[str, bytes] | None = None) -> None:
        """Execute the setup of a task, with all rights and files of its own. Raises EnvStateError if a line fails."""
        with self._all_rights(files):
            for line in lines:
                outcome = self.run(line)
                if outcome.status != 0:
                    raise EnvStateError(f"a task's command failed: {line}: {outcome.output}")

    def disturb(self, lines: tuple[str, ...], files: Mapping[str, bytes] | None = None) -> None:
        """Execute a fault, with all rights. A line that finds nothing to break has no effect."""
        with self._all_rights(files):
            for line in lines:
                self.run(line)

    @contextlib.contextmanager
    def _all_rights(self, files: Mapping[str, bytes] | None) -> Iterator[None]:
        before = self.reads_only, self.folder
        self.reads_only, self.folder = False, Folder(files)
        try:
            yield
        finally:
            self.reads_only, self.folder = before

    def look(self, line: str) -> tuple[Any, str]:
        """Return the result of a reading command, through its --query, and the error code, "" for success."""
        command = _parsed(line)
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

    def _answer(self, call: ApiCall, made: list[ApiCall]) -> str:
        """Make a call, with all pages of its answer if that is asked for; return what is printed."""
        view = call.view
        if view.skeleton:
            return self._skeleton(call)
        # 1. Text is printed page by page, the other formats as a whole, as the --query goes through it.
        if view.paginate and view.output == "text":
            parts = [plain(page) for page in self._pages(call)]
            shown = [_through(call.query, part) for part in parts]
            made.append(replace(call, answer=shown[0] if len(shown) == 1 else shown))
            return "".join(_shown(part, view.output, call) for part in shown)
        if view.paginate:
            answer = plain(self._all_pages(call))
            made.append(replace(call, answer=_through(call.query, answer, quietly=True)))
            return _shown(_through(call.query, answer), view.output, call)
        answer = plain(self._call(call, made))
        # 2. The body of an object goes to a file, or before the rest.
        body = b""
        if view.outfile and "Body" in answer:
            body = answer.pop("Body").encode()
            if view.outfile != "/dev/stdout":
                self._save(view.outfile, body)
                body = b""
        return body.decode() + _shown(_through(call.query, answer), view.output, call)

    def _call(self, call: ApiCall, made: list[ApiCall]) -> dict[str, Any]:
        """Make a call, and record it in `made`."""
        # In a read-only task, refuse a change as IAM does for a user without the right.
        if self.reads_only and not call.is_read:
            who = f"arn:aws:iam::{ACCOUNT}:user/operator"
            what = f"{SERVICES[call.service]}:{call.api_name}"
            raise refused(call, "AccessDenied", f"User: {who} is not authorized to perform: {what}")
        found = self._perform(call)
        shown = None
        if call.is_read:
            shown = _through(call.query, plain(found), quietly=True)
        made.append(replace(call, answer=shown))
        return found

    def _perform(self, call: ApiCall) -> dict[str, Any]:
        check(call, QUEUES)
        params = call.params
        # botocore would fill idempotency tokens from the system's randomness: draw them by the episode's seed.
        for name in call.model.idempotent_members:
            params = {name: str(mock_random.uuid4())} | params
        if call.operation == "receive-message":
            params = params | {"WaitTimeSeconds": 0}  # no message can arrive during the wait
        # boto3 names its methods as the CLI names operations.
        method = call.operation.replace("-", "_")
        with _as_commands(call):
            found: dict[str, Any] = getattr(self._clients[call.service], method)(**params)
            if isinstance(found.get("Body"), StreamingBody):
                found["Body"] = found["Body"].read()
            return found

    def _page_iterator(self, call: ApiCall) -> Any:
        key = (call.service, call.operation)
        if key not in self._paginators:
            method = call.operation.replace("-", "_")
            self._paginators[key] = self._clients[call.service].get_paginator(method)
        return self._paginators[key].paginate(**call.params, PaginationConfig=dict(call.view.pages))

    def _all_pages(self, call: ApiCall) -> dict[str, Any]:
        with _as_commands(call):
            found: dict[str, Any] = self._page_iterator(call).build_full_result()
            return found

    def _pages(self, call: ApiCall) -> Iterator[dict[str, Any]]:
        """Yield the pages of an answer, and how to go on behind the last one."""
        with _as_commands(call):
            pages = self._page_iterator(call)
            for at, page in enumerate(pages):
                part: dict[str, Any] = {} if at else dict(pages.non_aggregate_part)
                for key in pages.result_keys:
                    set_value_from_jmespath(part, key.expression, key.search(page))
                yield part
            if pages.resume_token:
                yield {"NextToken": {"NextToken": pages.resume_token}}

    def _skeleton(self, call: ApiCall) -> str:
        """Return an example of the parameters of a call, or of its answer. Nothing is called."""
        shape = call.model.input_shape
        if call.view.skeleton == "input":
            return json.dumps(example_of(shape, named=False), indent=4) + "\n"
        with _as_commands(call):
            report = ParamValidator().validate(call.params, shape)
            if report.has_errors():
                raise ParamValidationError(report=report.generate_report())
        answer = example_of(call.model.output_shape, named=True)
        return _shown(_through(call.query, answer), call.view.output, call)

    def _save(self, path: str, content: bytes) -> None:
        """Write an outfile, which needs its folder to be there."""
        if path in ("/dev/null", "/dev/stderr"):
            return
        try:
            above = path.rpartition("/")[0]
            if above and not self.folder.is_folder(above):
                raise FileNotFoundError(f"[Errno 2] No such file or directory: {path!r}")
            self.folder.write(path, content)
        except OSError as error:
            raise CommandError(str(error), 255) from error


@contextlib.contextmanager
def _as_commands(call: ApiCall) -> Iterator[None]:
    """Raise the errors of a call as CommandError, with the AWS CLI's message and exit status."""
    try:
        yield
    except CommandError:
        raise
    except ClientError as error:
        output = str(error).replace(" (reached max retries: 0)", "")
        raise CommandError(output, 254, error.response["Error"].get("Code", "")) from error
    except ParamValidationError as error:
        raise CommandError(str(error)) from error
    except BotoCoreError as error:
        raise CommandError(str(error), 255) from error
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith("Bad starting token"):
            raise CommandError(str(error), 255) from error
        # A fault of the simulator, nearly always at a value that a service would have refused: the episode goes on.
        log.debug("moto failed at %s %s", call.service, call.operation, exc_info=True)
        raise invalid(call) from error


@functools.lru_cache(maxsize=1024)
def _parsed(line: str) -> ApiCall | S3Command:
    """Return the command of a goal, which names no files."""
    return parse(line)


def in_order_of_names(parsed: dict[str, Any], **_: Any) -> None:
    """Sort the parameters of an answer. moto's order is that of a set, and differs between processes."""
    parsed.get("Parameters", []).sort(key=lambda parameter: parameter["Name"])


def _no_network(request: Any, **_: Any) -> AWSResponse:
    """Answer a request that moto has left unanswered with status 501, so that botocore does not send it."""
    return AWSResponse(request.url, 501, {}, MockRawResponse(b""))


def plain(value: Any) -> Any:
    """Return an answer as JSON types: times as MOMENT, bytes as base64, without the metadata of the response.

    The body of an object is a text.
    """
    # Containers first, then the types that JSON does not have.
    if isinstance(value, dict):
        return {
            key: MOMENT if key in TIMES else _text(inner) if key == "Body" else plain(inner)
            for key, inner in value.items()
            if key != "ResponseMetadata"
        }
    if isinstance(value, list | tuple | set):
        return [plain(inner) for inner in value]
    if isinstance(value, datetime.datetime | datetime.date):
        return MOMENT
    return base64.b64encode(value).decode() if isinstance(value, bytes | bytearray) else value


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else plain(value)


def _shown(found: Any, output: str, call: ApiCall) -> str:
    """Return the output of the AWS CLI for an answer that went through --query."""
    try:
        return printed(found, output, call.api_name)
    except (AttributeError, TypeError, ValueError) as error:  # of an answer that has no place in a table
        raise CommandError(str(error), 255) from error


def _through(query: str | None, answer: Any, *, quietly: bool = False) -> Any:
    """Return what the --query of a command selects of its answer; `quietly`, None if it cannot."""
    if query is None:
        return answer
    try:
        return jmespath.search(query, answer)
    except JMESPathError as error:
        if quietly:
            return None
        raise CommandError(str(error), 255) from error


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
