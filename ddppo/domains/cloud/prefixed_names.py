"""Names of a world on an account that it shares: `ledger` of a command is `ddppo-<world>-<episode>-ledger` there.

Prompts, solutions, goals and outputs have the short names, the account and the region of the simulated cloud. `inward`
translates the parameters of a call on their way to the endpoint, `outward` translates answers and messages back. A name
that a call gives always gets the stem in front, so no call can name a resource of anybody else.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from ddppo.domains.cloud.cli import REGION, ApiCall
from ddppo.domains.cloud.folder import CommandError
from ddppo.domains.cloud.world import ACCOUNT, QUEUES

# Parameters that are names of resources, by service.
NAMES = {
    "s3api": ("Bucket",),
    "dynamodb": ("TableName",),
    "sqs": ("QueueName", "QueueNamePrefix"),
    "sns": ("Name",),
    "iam": ("UserName", "GroupName", "RoleName"),
    "ssm": ("Name", "Names", "Path", "ResourceId"),
    "secretsmanager": ("Name", "SecretId"),
}
# The same, of one operation. (The name of an inline policy is a name within its role.)
NAMES_OF = {
    "s3api list-buckets": ("Prefix",),
    "iam create-policy": ("PolicyName",),
}
# Parameters that reach outside a world's own resources, or make what cannot be deleted again.
OUTSIDE = re.compile(
    r"(\w*kms\w*key\w*id|keyid|objectlock\w*|addreplicaregions|replicaupdates|globaltable\w*|multiregionconsistency|"
    r"phonenumber|eventbridgeconfiguration|crossaccountprimaryarn|queueownerawsaccountid|mfa|shared|bucketnamespace|"
    r"lambdafunctionconfigurations|\w*feedbackrolearn)",
    re.IGNORECASE,
)
DATA = (
    "Item",
    "Key",
    "Tags",
    "Metadata",
    "KeySchema",
    "AttributeDefinitions",
    "MessageAttributes",
)  # users' own words
OWN_KEYS = "alias/aws/"  # keys that AWS itself keeps for a service
# Parameters that are, or may be, the ARN of a resource that the call changes or reads.
BY_ARN = re.compile(r"\w*Arn|Endpoint|PermissionsBoundary|Bucket|TableName|SecretId|Names?|ResourceId")
# A user of IAM that is not named is the caller, whose keys are those of this run.
OF_CALLER = ("get-user", "create-access-key", "list-access-keys", "update-access-key", "delete-access-key")
# The words of an ARN in front of the name, for the services of the tasks.
ARN = re.compile(r"arn:aws:(?P<service>[\w-]+):(?P<region>[\w-]*):(?P<account>\w*):(?P<rest>[^\s\"',]*)")
KINDS = {
    "s3": r"",
    "sqs": r"",
    "sns": r"",
    "dynamodb": r"table/",
    "iam": r"(?:user|group|role|policy)/(?:[^/]+/)*(?=[^/]*$)",
    "secretsmanager": r"secret:",
}
MANAGED = "arn:aws:iam::aws:policy/"  # policies of AWS that every account has
ACCOUNT_ID = re.compile(rf"(?<!\d){ACCOUNT}(?!\d)")
LISTS = {  # operations that list all resources of a kind: the field of the list, and the name in each entry
    "s3api list-buckets": ("Buckets", "Name"),
    "dynamodb list-tables": ("TableNames", ""),
    "sqs list-queues": ("QueueUrls", ""),
    "sns list-topics": ("Topics", "TopicArn"),
    "sns list-subscriptions": ("Subscriptions", "TopicArn"),
    "iam list-users": ("Users", "UserName"),
    "iam list-groups": ("Groups", "GroupName"),
    "iam list-groups-for-user": ("Groups", "GroupName"),
    "iam list-roles": ("Roles", "RoleName"),
    "iam list-policies": ("Policies", "Arn"),
    "ssm describe-parameters": ("Parameters", "Name"),
    "ssm get-parameters-by-path": ("Parameters", "Name"),
    "secretsmanager list-secrets": ("SecretList", "Name"),
}
# Fields by which a service gives its list in pages. A world gives all of it at once.
PAGES = (
    *("NextToken", "Marker", "ContinuationToken", "ExclusiveStartTableName", "LastEvaluatedTableName"),
    *("MaxResults", "MaxItems", "MaxBuckets", "Limit"),
)


class Refused(CommandError):
    """A call that would reach outside its world."""

    def __init__(self, call: ApiCall, why: str) -> None:
        text = f"An error occurred (AccessDenied) when calling the {call.api_name} operation: {why}"
        super().__init__(text, 254, "AccessDenied")
        self.why = why


def check(call: ApiCall, *, is_loopback: bool) -> None:
    """Raise Refused if a call reaches outside what a prefix of names separates."""
    for key, value in _entries(call.params):
        if OUTSIDE.fullmatch(key) and not str(value).startswith(OWN_KEYS):
            raise Refused(call, f"{key} reaches outside the resources of this world")
    if call.service == "iam" and call.operation in OF_CALLER and "UserName" not in call.params:
        raise Refused(call, "without --user-name it is about the caller: name a user")
    if call.operation == "subscribe" and call.params.get("Protocol") != "sqs" and not is_loopback:
        raise Refused(call, "only queues may subscribe: any other protocol sends messages to others")
    place = call.params.get("Key")
    if isinstance(place, str) and {".", ".."} & set(place.split("/")):
        raise Refused(call, f"the key {place} has parts . or .., which are not passed on")


def _entries(value: Any) -> list[tuple[str, Any]]:
    """Return all keys with their values in nested parameters, but for data. The name of an attribute is a key, too."""
    if isinstance(value, list):
        return [entry for inner in value for entry in _entries(inner)]
    if not isinstance(value, Mapping):
        return []
    found: list[tuple[str, Any]] = (
        [(str(value["AttributeName"]), value["AttributeValue"])] if "AttributeValue" in value else []
    )
    for key, inner in value.items():
        if key not in DATA and not str(key).startswith("Expression"):
            found += [(str(key), inner), *_entries(inner)]
    return found


class PrefixedNames:
    """The names of one episode of one world, which all begin with its `stem`.

    Args:
        stem: letters, digits and -, unique to the episode.
        account, region: those of the endpoint.
        url_of: returns the URL of a queue of this full name.
        secrets: returns texts that nothing may show, such as the keys of the caller.
    """

    def __init__(
        self,
        stem: str,
        account: str,
        region: str,
        url_of: Callable[[str], str],
        secrets: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self.stem, self._account, self._region = stem, account, region
        self._url_of, self._secrets = url_of, secrets
        self._queue_url = re.compile(rf"https?://[^\s\"'/]+/{account}/{re.escape(stem)}-")
        self._in_arn = re.compile(rf"(arn:aws:[\w-]+:){re.escape(region)}:")
        self._real_account = re.compile(rf"(?<!\d){account}(?!\d)")

    def full(self, name: str) -> str:
        """Return the name at the endpoint. A path, as of a parameter, gets the stem as its first part."""
        if name.startswith("/"):
            return f"/{self.stem}{name}".rstrip("/")
        return f"{self.stem}-{name}"

    def owns(self, text: str) -> bool:
        """Return whether a full name, an ARN or a URL is of this episode."""
        return f"{self.stem}-" in text or f"/{self.stem}/" in text

    # -- to the endpoint ----------------------------------------------------------------------------------------------

    def inward(self, call: ApiCall) -> dict[str, Any]:
        """Return the parameters of a call for the endpoint. Raises CommandError."""
        named = (*NAMES[call.service], *NAMES_OF.get(f"{call.service} {call.operation}", ()))
        found = {}
        for key, value in call.params.items():
            if key == "QueueUrl":
                found[key] = self._url_of(self.full(str(value).removeprefix(QUEUES)))
            elif key == "CopySource":
                found[key] = self._source(call, value)
            elif key in named:
                found[key] = self._names(call, value)
            elif key == "AttributeValue":
                found[key] = self._within(call, str(call.params.get("AttributeName")), value)
            else:
                found[key] = self._within(call, key, value)
        return found

    def _names(self, call: ApiCall, value: Any) -> Any:
        if isinstance(value, list):
            return [self._names(call, name) for name in value]
        if not isinstance(value, str):
            return value  # of --cli-input-json; boto3 refuses it
        return self._own_arn(call, value) if value.startswith("arn:") else self.full(value)

    def _source(self, call: ApiCall, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {**value, "Bucket": self.full(str(value.get("Bucket", "")))}
        if str(value).startswith("arn:"):
            raise Refused(call, "a source is a bucket and a key, not an ARN")
        return self.full(str(value).lstrip("/"))

    def _within(self, call: ApiCall, key: str, value: Any) -> Any:
        if isinstance(value, list):
            # Filters by name.
            return [self._filter(self._within(call, key, inner)) for inner in value]
        if isinstance(value, Mapping):
            return {name: self._within(call, str(name), inner) for name, inner in value.items()}
        if not isinstance(value, str):
            return value
        if key == "RedrivePolicy" and value.strip():
            return self._redrive(call, value)
        if value.startswith("arn:") and BY_ARN.fullmatch(key):
            return self._own_arn(call, value)
        return ACCOUNT_ID.sub(self._account, ARN.sub(self._with_stem, value))

    def _redrive(self, call: ApiCall, text: str) -> str:
        """Return a RedrivePolicy, which sends messages to a queue. An ARN in JSON may be written `\\u0061rn:`."""
        try:
            found = json.loads(text)
            target = found["deadLetterTargetArn"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise Refused(call, "RedrivePolicy is JSON with a deadLetterTargetArn") from None
        return json.dumps({**found, "deadLetterTargetArn": self._own_arn(call, str(target))})

    def _filter(self, value: Any) -> Any:
        is_by_name = isinstance(value, dict) and str(value.get("Key", "")).lower() in ("name", "path")
        if not is_by_name or value.get("Option") == "Contains" or not isinstance(value.get("Values"), list):
            return value
        return {**value, "Values": [self.full(str(name)) for name in value["Values"]]}

    def _own_arn(self, call: ApiCall, arn: str) -> str:
        """Return the ARN of a resource of this episode. Raises Refused for any other."""
        parts = ARN.fullmatch(arn)
        found = ACCOUNT_ID.sub(self._account, ARN.sub(self._with_stem, arn))
        is_there = parts is not None and parts["region"] in ("", REGION) and self.owns(found)
        if not is_there and not arn.startswith(MANAGED):
            raise Refused(call, f"{arn} is no resource of this account")
        return found

    def _with_stem(self, found: re.Match[str]) -> str:
        """Put the stem in front of the name in an ARN of this account; other ARNs stay as they are."""
        service, rest = found["service"], found["rest"]
        if found["account"] not in ((ACCOUNT, "") if service == "s3" else (ACCOUNT,)):
            return found[0]
        region = self._region if found["region"] == REGION else found["region"]
        head = f"arn:aws:{service}:{region}:{found['account']}:"
        if service == "ssm" and rest.startswith("parameter/"):
            path = rest.removeprefix("parameter/")
            return f"{head}parameter{self.full('/' + path) if '/' in path else '/' + self.full(path)}"
        kind = re.match(KINDS[service], rest) if service in KINDS else None
        if kind is None:
            return f"{head}{rest}"
        return f"{head}{kind[0]}{self.full(rest[kind.end() :])}"

    # -- back ---------------------------------------------------------------------------------------------------------

    def outward(self, value: Any) -> Any:
        """Return an answer of the endpoint, or a message, with the names that the policy knows."""
        if isinstance(value, Mapping):
            return {self.outward(key): self.outward(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.outward(inner) for inner in value]
        if not isinstance(value, str):
            return value
        for secret in self._secrets():
            value = value.replace(secret, "***")
        if self.stem in value:
            value = self._queue_url.sub(QUEUES, value)
            value = value.replace(f"/{self.stem}/", "/").replace(f"{self.stem}-", "")
            value = value.replace(f"/{self.stem}", "/")
        if self._region != REGION:
            value = self._in_arn.sub(rf"\g<1>{REGION}:", value)
        if self._account != ACCOUNT:
            value = self._real_account.sub(ACCOUNT, value)
        return value

    def own_entries(self, call: ApiCall, entries: list[Any]) -> list[Any]:
        """Return those entries of a listing that are of this episode; policies of AWS itself stay, too."""
        _, name = LISTS[f"{call.service} {call.operation}"]
        texts = [str(entry[name]) if name else str(entry) for entry in entries]
        return [
            entry
            for entry, text in zip(entries, texts, strict=True)
            if self.owns(text) or text.startswith(MANAGED)
        ]
