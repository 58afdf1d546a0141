"""A world at a real endpoint: `EndpointWorld`, the same as `CloudWorld` for tasks, goals and graders.

Many worlds share one account. The names of all resources of a world begin with its prefix (prefixed_names.py). It
deletes them when an episode ends, when it is closed, and, if its process was killed, when the next world starts
(leftovers.py).
"""

import logging
import time
from dataclasses import replace
from typing import Any, ClassVar

from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
from botocore.response import StreamingBody

from ddppo.domains.cloud.access import RETRIES, Access, Endpoint, said
from ddppo.domains.cloud.cli import REGION, SERVICES, ApiCall, S3Command, parse
from ddppo.domains.cloud.endpoint_facts import ALSO_CHANGES, facts_of
from ddppo.domains.cloud.folder import CommandError, Folder
from ddppo.domains.cloud.holdings import Address
from ddppo.domains.cloud.leftovers import delete_all, is_abandoned, token_of_this_process
from ddppo.domains.cloud.prefixed_names import LISTS, PAGES, PrefixedNames, Refused, check
from ddppo.domains.cloud.refusals import check as check_simulated
from ddppo.domains.cloud.tasks import CloudTask
from ddppo.domains.cloud.world import ACCOUNT, QUEUES, CloudWorld, plain
from ddppo.errors import ConfigError, EnvError, EnvStateError

log = logging.getLogger(__name__)

# Of buckets and objects, as in the simulated cloud: the real one names the account.
OWNER = {"DisplayName": "webfile", "ID": "bcaf1ffd86f41161ca5fb16fd081034f"}
SETTLED_S = 60.0  # for a table to become active, or to be gone
# Error codes that say nothing about the command: the endpoint is busy or broken, or the caller's keys are not valid.
FAULTS = (
    *(
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
    ),
    *(
        "TooManyRequestsException",
        "RequestLimitExceeded",
        "SlowDown",
        "BandwidthLimitExceeded",
        "PriorRequestNotComplete",
    ),
    *("ProvisionedThroughputExceededException", "ServiceUnavailable", "InternalError", "InternalFailure"),
    *("InternalServerError", "RequestTimeout", "RequestTimeoutException", "LimitExceeded", "TooManyBuckets"),
    *("ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "UnrecognizedClientException"),
    *(
        "SignatureDoesNotMatch",
        "InvalidAccessKeyId",
        "InvalidToken",
        "RequestExpired",
        "RequestTimeTooSkewed",
    ),
)


class EndpointLost(EnvError):
    """The endpoint gave no answer, or refused the caller: the episode is not valid, and no reward is due."""


def check_tasks(tasks: dict[str, CloudTask], endpoint: Endpoint) -> None:
    """Raise ConfigError for tasks that cannot work on an account that others share, by their names."""
    refused = {name: why for name, task in tasks.items() if (why := _why_not(task, endpoint.is_loopback))}
    if refused:
        one, why = next(iter(refused.items()))
        raise ConfigError(
            f"tasks: with backend_cloud=aws {', '.join(refused)} cannot be played ({one}: {why}): leave them out, "
            "as by naming the others in env.tasks"
        )


def _why_not(task: CloudTask, is_loopback: bool) -> str:
    """Return why a task cannot be played at an endpoint; "" if it can."""
    lines = [*task.setup, *(line for many in (*task.drifts, *task.chaos) for line in many), *task.solution]
    files = Folder({**task.setup_files, **task.files})
    for line in lines:
        call = parse(line, files)
        if isinstance(call, S3Command):
            continue
        try:
            check(call, is_loopback=is_loopback)
        except Refused as error:
            return f"{call.operation}: {error.why}"
        is_public = call.operation == "put-bucket-policy" and '"Principal":"*"' in str(call.params["Policy"])
        if (is_public or "public-access-block" in call.operation) and not is_loopback:
            return "whether buckets can be public is a setting of the whole account"
    return ""


# -- the world ---------------------------------------------------------------------------------------------------------


class EndpointWorld(CloudWorld):
    """The part of a real account whose names begin with this world's prefix."""

    # Episodes of this process. Names are not used again, because services remember deleted ones for a while.
    _episodes: ClassVar[int] = 0

    def __init__(self, endpoint: Endpoint) -> None:  # CloudWorld.__init__ would start the simulator
        if CloudWorld._open is not None:
            raise EnvStateError("this process holds a cloud already: close it, or start a process for each")
        self._access = access = Access(endpoint)
        self._clients = access.clients
        self.reads_only = False
        self.folder = Folder()
        self._prefix = f"{endpoint.name_prefix}-{token_of_this_process()}-"
        self._touched: set[str] = set()  # services in which this world may have made something
        self._start_names()
        CloudWorld._open = self
        # Worlds that were killed could not delete what they had made.
        try:
            delete_all(self._clients, lambda name: is_abandoned(name, endpoint.name_prefix))
        except (ClientError, BotoCoreError) as error:
            log.warning(
                "resources of worlds that were killed are left: %s", access.without_secrets(said(error))
            )

    def _start_names(self) -> None:
        EndpointWorld._episodes += 1
        stem = f"{self._prefix}{EndpointWorld._episodes}"
        self._urls: dict[str, str] = {}  # of queues, by their full names
        self._values: dict[str, Any] = {}  # of secrets, by version
        self._facts: dict[str, dict[Address, Any]] = {}  # by service, while it is unchanged
        self._names = PrefixedNames(
            stem, self._access.account, self._access.region, self._url_of, self._access.secrets
        )

    def reset(self, seed: int) -> None:
        """Delete everything of this world. Identifiers are the endpoint's, and do not follow from the seed."""
        self._delete()
        self._start_names()
        self.reads_only = False
        self.folder.fill({})

    def ended(self) -> None:
        """Delete what the episode made. If the endpoint cannot, the next reset does, or is refused."""
        try:
            self._delete()
        except EndpointLost as error:
            log.warning("%s", error)

    def _delete(self) -> None:
        try:
            delete_all(self._clients, lambda name: self._prefix in name, sorted(self._touched))
        except (ClientError, BotoCoreError) as error:
            raise EndpointLost(
                f"what the episode made is left: {self._access.without_secrets(said(error))}"
            ) from None
        self._touched, self._facts = set(), {}

    def holdings(self) -> dict[Address, Any]:
        found: dict[Address, Any] = {}
        for service in SERVICES:
            if service not in self._touched:  # nothing of this world is there
                continue
            if service not in self._facts:
                self._facts[service] = facts_of(service, self._ask, ACCOUNT)
            found |= self._facts[service]
        return found

    def close(self) -> None:
        if CloudWorld._open is not self:
            return
        CloudWorld._open = None
        self.ended()  # or the next world of this machine
        self._access.close()

    # -- commands -----------------------------------------------------------------------------------------------------

    def _answer(self, call: ApiCall, made: list[ApiCall]) -> str:
        # A list has one page here, which holds all.
        if call.view.pages:
            raise CommandError(
                f"at an endpoint there are no pages to choose: leave out {', '.join(call.view.pages)}"
            )
        return super()._answer(replace(call, view=replace(call.view, paginate=False)), made)

    def _presigned(self, bucket: str, key: str, seconds: int) -> str:
        raise CommandError("at an endpoint no address is signed: it would be valid outside of this world")

    # -- calls --------------------------------------------------------------------------------------------------------

    def _ask(self, service: str, operation: str, **params: Any) -> dict[str, Any]:
        """Return the answer for facts; {} if the service refuses, as it does for what a resource does not have."""
        if operation == "current-value":
            return {"value": self._secret(params["SecretId"], params["VersionId"])}
        try:
            found: dict[str, Any] = plain(self._perform(ApiCall(service, operation, params)))
            return found
        except CommandError:
            return {}

    def _secret(self, name: str, version: str) -> Any:
        # A secret that is deleted shows no value: remember those that this world has written.
        if version not in self._values:
            given = self._ask("secretsmanager", "get-secret-value", SecretId=name)
            self._values[version] = given.get("SecretString", given.get("SecretBinary"))
        return self._values[version]

    def _perform(self, call: ApiCall) -> dict[str, Any]:
        # 1. Into the names of the endpoint, unless the call reaches outside.
        check_simulated(call, QUEUES)
        check(call, is_loopback=self._access.endpoint.is_loopback)
        params = self._names.inward(call)
        self._adapt(call, params)
        # 2. The request. A change makes the facts of its service unknown.
        if call.operation in ("receive-message", "publish") or not _only_reads(call):
            for service in (call.service, *ALSO_CHANGES.get(call.service, ())):
                self._facts.pop(service, None)
            self._touched.add(call.service)
        is_list = f"{call.service} {call.operation}" in LISTS
        answer = self._listed(call, params) if is_list else self._request(call, params)
        self._settle(call, params)
        # 3. Back into the names of the task.
        shown: dict[str, Any] = self._names.outward(answer)
        if call.operation in ("list-buckets", "list-objects-v2"):
            for one in (shown, *shown.get("Contents", ())):
                if "Owner" in one:
                    one["Owner"] = dict(OWNER)
        if call.operation == "create-access-key":
            shown["AccessKey"]["SecretAccessKey"] = "not-shown"
        if call.operation == "get-bucket-location" and shown.get("LocationConstraint") == self._access.region:
            shown["LocationConstraint"] = None
        if "VersionId" in shown and call.service == "secretsmanager" and not call.is_read:
            value = call.params.get("SecretString", call.params.get("SecretBinary"))
            if value is not None:
                self._values[shown["VersionId"]] = value
        return shown

    def _adapt(self, call: ApiCall, params: dict[str, Any]) -> None:
        """Set what an endpoint needs and the simulated cloud does not, in place."""
        if call.operation == "receive-message":
            params["WaitTimeSeconds"] = 0
        if call.operation == "create-bucket" and self._access.region != REGION:
            params.setdefault("CreateBucketConfiguration", {"LocationConstraint": self._access.region})
        # Let the service leave out what others have, where it can.
        if call.operation == "list-buckets":
            params.setdefault("Prefix", f"{self._names.stem}-")
        if call.operation == "list-queues":
            params.setdefault("QueueNamePrefix", f"{self._names.stem}-")
        stems = [f"{self._names.stem}-", f"/{self._names.stem}/"]
        if call.operation == "describe-parameters" and not {"Filters", "ParameterFilters"} & set(params):
            params["ParameterFilters"] = [{"Key": "Name", "Option": "BeginsWith", "Values": stems}]
        if call.operation == "list-secrets":
            params.setdefault("Filters", [{"Key": "name", "Values": stems}])

    def _listed(self, call: ApiCall, params: dict[str, Any]) -> dict[str, Any]:
        """Return a list of all resources of a kind: all pages, without what is not of this episode."""
        field, _ = LISTS[f"{call.service} {call.operation}"]
        most = next((params.pop(key) for key in PAGES if isinstance(params.get(key), int)), None)
        if any(key in params for key in PAGES):
            raise Refused(call, "a list has one page here, so there is no token of another one")
        found: list[Any] = []
        answer = page = self._request(call, params)
        while True:
            found += page.get(field, [])
            tokens = {key: page[key] for key in PAGES if page.get(key)}
            if not tokens:
                break
            if "LastEvaluatedTableName" in tokens:
                tokens = {"ExclusiveStartTableName": tokens["LastEvaluatedTableName"]}
            page = self._request(call, params | tokens)
        own = self._names.own_entries(call, found)[:most]
        answer = {key: value for key, value in answer.items() if key not in PAGES}
        if "IsTruncated" in answer:
            answer["IsTruncated"] = False
        if not own and field == "QueueUrls":  # which no answer has if there are none
            return {key: value for key, value in answer.items() if key != field}
        return answer | {field: own}

    def _request(self, call: ApiCall, params: dict[str, Any]) -> dict[str, Any]:
        """Make one request. Raises CommandError if the service refuses, EndpointLost if it cannot answer."""
        method = getattr(self._clients[call.service], call.operation.replace("-", "_"))
        try:
            answer: dict[str, Any] = method(**params)
            if isinstance(answer.get("Body"), StreamingBody):
                answer["Body"] = answer["Body"].read()
            return answer
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            text = RETRIES.sub("", self._names.outward(str(error)))
            if code in FAULTS or status >= 500 or status == 429:
                raise EndpointLost(f"the endpoint cannot answer: {text}") from None
            raise CommandError(text, 254, code) from None
        except (ParamValidationError, AttributeError, TypeError, ValueError) as error:
            # The latter: botocore looks at some parameters before it checks their types.
            raise CommandError(self._names.outward(str(error))) from None
        except BotoCoreError as error:
            text = self._names.outward(said(error))
            raise EndpointLost(f"the endpoint does not answer: {text}") from None

    def _url_of(self, name: str) -> str:
        """Return the URL of a queue by its full name. Raises CommandError if there is none."""
        if name not in self._urls:
            call = ApiCall("sqs", "get-queue-url", {"QueueName": name})
            self._urls[name] = self._request(call, call.params)["QueueUrl"]
        return self._urls[name]

    def _settle(self, call: ApiCall, params: dict[str, Any]) -> None:
        """Wait until a table is ready: the next command of a task would fail before."""
        if call.operation not in ("create-table", "update-table", "delete-table"):
            return
        asked = ApiCall("dynamodb", "describe-table", {"TableName": params["TableName"]})
        until = time.monotonic() + SETTLED_S
        pause_s = 0.1
        while time.monotonic() < until:
            try:
                table = self._request(asked, asked.params)["Table"]
            except CommandError:
                return  # it is gone
            if table["TableStatus"] == "ACTIVE":
                return
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 2.0)
        raise EndpointLost(f"a table is {table['TableStatus']} after {SETTLED_S:g} s")


def _only_reads(call: ApiCall) -> bool:
    return call.is_read or call.operation.startswith(("get-", "list-", "describe-"))
