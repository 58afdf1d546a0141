"""Goals in the cloud, and whether they hold: `Grader` decides, from the state of the world and the calls it made.

A goal is about some facts of the world (holdings.py). All facts that no goal of the task is about have to stay as they
are, which `RestOfWorld` checks. Documents are compared by their meaning (meaning.py).
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddppo.domains.cloud.cli import ApiCall, parse
from ddppo.domains.cloud.holdings import Address, of_key
from ddppo.domains.cloud.meaning import MEANINGS, name_of, settings
from ddppo.domains.cloud.world import CloudWorld

MISSING = object()  # for a goal without `equals` or `contains`, as None is a value that an answer can have

# The facts that a reading operation is about. {X} is the name in the parameter X, * any word, and ? each field that the
# --query names, or any word without one. One word is an operation that lists all resources of a kind.
ABOUT = {
    "s3api list-buckets": "bucket",
    "s3api head-bucket": "bucket {Bucket}",
    "s3api get-bucket-location": "bucket {Bucket}",
    "s3api get-bucket-versioning": "bucket {Bucket} versioning",
    "s3api get-bucket-tagging": "bucket {Bucket} tag *",
    "s3api get-bucket-policy": "bucket {Bucket} policy",
    "s3api get-bucket-encryption": "bucket {Bucket} encryption",
    "s3api get-public-access-block": "bucket {Bucket} public_access_block *",
    "s3api get-bucket-lifecycle-configuration": "bucket {Bucket} lifecycle",
    "s3api get-bucket-notification-configuration": "bucket {Bucket} notification",
    "s3api list-objects-v2": "bucket {Bucket} object *",
    "s3api head-object": "bucket {Bucket} object {Key}",
    "s3api get-object": "bucket {Bucket} object {Key}",
    "s3api get-object-tagging": "bucket {Bucket} object {Key} tag *",
    "dynamodb list-tables": "table",
    "dynamodb describe-table": "table {TableName} ?",
    "dynamodb get-item": "table {TableName} item {Key}",
    "dynamodb query": "table {TableName} item *",
    "dynamodb scan": "table {TableName} item *",
    "dynamodb describe-time-to-live": "table {TableName} TimeToLiveDescription",
    "dynamodb list-tags-of-resource": "table {ResourceArn} tag *",
    "dynamodb describe-continuous-backups": "table {TableName} ContinuousBackupsDescription",
    "sqs list-queues": "queue",
    "sqs get-queue-url": "queue {QueueName}",
    "sqs get-queue-attributes": "queue {QueueUrl} ?",
    "sqs list-queue-tags": "queue {QueueUrl} tag *",
    "sns list-topics": "topic",
    "sns get-topic-attributes": "topic {TopicArn} ?",
    "sns list-subscriptions": "topic * subscription *",
    "sns list-subscriptions-by-topic": "topic {TopicArn} subscription *",
    "sns get-subscription-attributes": "topic * subscription * ?",
    "sns list-tags-for-resource": "topic {ResourceArn} tag *",
    "iam list-users": "user",
    "iam get-user": "user {UserName}",
    "iam list-groups": "group",
    "iam get-group": "group {GroupName} member *",
    "iam list-groups-for-user": "group * member {UserName}",
    "iam list-roles": "role",
    "iam get-role": "role {RoleName} ?",
    "iam list-policies": "policy",
    "iam get-policy": "policy {PolicyArn}",
    "iam get-policy-version": "policy {PolicyArn} Document",
    "iam list-attached-role-policies": "role {RoleName} attached *",
    "iam list-attached-user-policies": "user {UserName} attached *",
    "iam list-attached-group-policies": "group {GroupName} attached *",
    "iam list-role-policies": "role {RoleName} inline *",
    "iam get-role-policy": "role {RoleName} inline {PolicyName}",
    "iam list-access-keys": "user {UserName} AccessKeyMetadata",
    "iam list-role-tags": "role {RoleName} tag *",
    "iam list-user-tags": "user {UserName} tag *",
    "ssm get-parameter": "parameter {Name} ?",
    "ssm get-parameters": "parameter * ?",
    "ssm get-parameters-by-path": "parameter * ?",
    "ssm describe-parameters": "parameter",
    "ssm list-tags-for-resource": "parameter {ResourceId} tag *",
    "ssm get-parameter-history": "parameter {Name} ?",
    "secretsmanager list-secrets": "secret",
    "secretsmanager describe-secret": "secret {SecretId} ?",
    "secretsmanager get-secret-value": "secret {SecretId} SecretString",
    "secretsmanager list-secret-version-ids": "secret {SecretId} SecretString",
    "secretsmanager get-resource-policy": "secret {SecretId} Policy",
}
COUNTS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
# Facts that the maker of a resource has to choose. Without a goal about them, any choice is right.
CHOSEN = {
    "table": ("KeySchema", "AttributeDefinitions", "BillingModeSummary"),
    "role": ("AssumeRolePolicyDocument",),
    "policy": ("Document",),
    "parameter": ("Type", "Value"),
    "secret": ("SecretString",),
}


# -- goals -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StateGoal:
    """A goal for the state of the world: the answer of a reading command, through its --query.

    Lists are compared without regard to order. If `equals` is a mapping and the answer is text, the text is read as
    JSON, with numbers as text, because services accept 3 for "3".
    """

    read: str  # the command
    equals: Any = MISSING  # the answer has to equal this,
    contains: Any = MISSING  # or contain this,
    error: str = ""  # or be an error of this code
    meaning: str = (
        ""  # the kind of document that `equals` is, one of MEANINGS; a list of policies is a choice
    )

    def holds(self, world: CloudWorld) -> bool:
        found, code = world.look(self.read)
        if self.error or code:
            return self.error == code
        if self.contains is not MISSING:
            return isinstance(found, list | str | dict) and self.contains in found
        if self.meaning:
            return MEANINGS[self.meaning](found) in self.wanted
        if isinstance(self.equals, dict) and isinstance(found, str):
            return settings(found) == settings(self.equals)
        return _sorted(found) == _sorted(self.equals)

    @functools.cached_property
    def wanted(self) -> list[Any]:
        """The meanings that are right. None is no document, and so a mistake."""
        choice = self.equals if self.meaning == "policy" and isinstance(self.equals, list) else [self.equals]
        return [MEANINGS[self.meaning](document) for document in choice]

    @functools.cached_property
    def about(self) -> tuple[Address, ...]:
        """The addresses of the facts that the goal is about, with * for any word."""
        call = parse(self.read)
        assert isinstance(call, ApiCall)
        spec = ABOUT[f"{call.service} {call.operation}"].split()
        words = [_named(call, word[1:-1]) if word[0] == "{" else word for word in spec]
        if "?" not in words:
            return (tuple(words),)
        fields = set(re.findall(r"[A-Za-z]+", call.query or "")) or {"*"}
        fields |= {"messages"} if fields & set(COUNTS) else set()
        return tuple((*words[:-1], field) for field in sorted(fields))


def _named(call: ApiCall, parameter: str) -> str:
    given = call.params.get(parameter, "*")
    return of_key(given) if isinstance(given, dict) else name_of(str(given))


@dataclass(frozen=True)
class CallGoal:
    """A goal that a call has succeeded, with these parameters among others. For tasks that only read."""

    service: str
    operation: str
    params: dict[str, Any]
    shows: tuple[str, ...] = ()  # keys or values that the answer had, through its --query

    def is_met_by(self, call: ApiCall) -> bool:
        return (
            (call.service, call.operation) == (self.service, self.operation)
            and all(_alike(call.params.get(key), value) for key, value in self.params.items())
            and set(self.shows) <= set(_texts_of(call.answer))
        )


def _alike(given: Any, wanted: Any) -> bool:
    """Return whether two values of a parameter stand for the same: an ARN, a URL or a name, a path with a last /."""
    if isinstance(given, str) and isinstance(wanted, str):
        return name_of(given) == name_of(wanted) or given.rstrip("/") == wanted.rstrip("/")
    return bool(_sorted(given) == _sorted(wanted))


def _texts_of(answer: Any) -> Iterator[str]:
    """Yield all keys and values in an answer as texts."""
    if isinstance(answer, Mapping):
        for key, value in answer.items():
            yield str(key)
            yield from _texts_of(value)
    elif isinstance(answer, list):
        for value in answer:
            yield from _texts_of(value)
    elif answer is not None:
        yield str(answer)


def _sorted(value: Any) -> Any:
    """Return `value` with its lists in one order."""
    if isinstance(value, list):
        return sorted((_sorted(inner) for inner in value), key=repr)
    if isinstance(value, dict):
        return {key: _sorted(inner) for key, inner in sorted(value.items())}
    return value


# -- all that no goal is about -----------------------------------------------------------------------------------------


class RestOfWorld:
    """Has to stay as it is at the start of the episode: each fact that no goal of the task is about.

    A resource that a goal names and that is new has to be as it is made by default, but for what goals say. Other new
    resources do not count: they change nothing that was there, or is asked for.
    """

    read = "the rest of the world"

    def __init__(self, world: CloudWorld, goals: Sequence[StateGoal]) -> None:
        self._start = world.holdings()
        self._exact: set[Address] = set()  # addresses that goals are about
        self._patterns: set[Address] = set()  # the same with * in them
        self._gone: set[Address] = set()  # what is below these may go
        self._only: dict[str, set[str]] = {}  # by kind: names that may stay; others may go
        self._named: set[Address] = set()  # resources that goals name
        for goal in goals:
            self._add(goal)

    def _add(self, goal: StateGoal) -> None:
        for address in goal.about:
            if len(address) == 1:
                # A list of all resources of a kind.
                wanted = goal.equals if goal.contains is MISSING else goal.contains
                names = {name_of(text) for text in _texts_of(wanted)}
                self._named |= {(address[0], name) for name in names}
                if goal.contains is MISSING:
                    self._only[address[0]] = self._only.get(address[0], names) & names
                continue
            if "*" not in address[:2]:
                self._named.add(address[:2])
                self._exact.add(address[:2])
            (self._patterns if "*" in address else self._exact).add(address)
            if goal.error:
                self._gone.add(tuple(address[: address.index("*")] if "*" in address else address))

    def holds(self, world: CloudWorld) -> bool:
        now = world.holdings()
        changed = [address for address in self._start if now.get(address) != self._start[address]]
        added = [address for address in now if address not in self._start]
        return all(map(self._may_change, changed)) and all(map(self._may_be_new, added))

    def _may_change(self, address: Address) -> bool:
        """Whether a goal is about a fact, or the fact may go."""
        if address in self._exact or any(_fits(address, pattern) for pattern in self._patterns):
            return True
        if address[0] in self._only and address[1] not in self._only[address[0]]:
            return True
        return any(address[:length] in self._gone for length in range(1, len(address) + 1))

    def _may_be_new(self, address: Address) -> bool:
        resource = address[:2]
        if self._may_change(address):
            return True
        if resource in self._start:
            return False
        is_made = address == resource or address[2] in CHOSEN.get(address[0], ())
        return is_made or resource not in self._named


def _fits(address: Address, pattern: Address) -> bool:
    return len(address) == len(pattern) and all(
        wanted in ("*", word) for word, wanted in zip(address, pattern, strict=True)
    )


# -- one episode -------------------------------------------------------------------------------------------------------

Goal = StateGoal | CallGoal


class Grader:
    """Grades one episode. Goals that hold at its start become things to keep, so that they earn nothing."""

    def __init__(
        self,
        world: CloudWorld,
        goals: Sequence[Goal],
        keep: Sequence[StateGoal],
        *,
        ordered: bool,  # call goals count in their order only
    ) -> None:
        self._world, self._ordered = world, ordered
        of_state = [goal for goal in goals if isinstance(goal, StateGoal)]
        held = [goal for goal in of_state if goal.holds(world)]
        self.goals = tuple(goal for goal in goals if goal not in held)
        self.keep: tuple[StateGoal | RestOfWorld, ...] = (*keep, *held, RestOfWorld(world, of_state))
        self._met: set[int] = set()  # indices of call goals that are met; they stay met
        self.look_again()

    def note(self, calls: Sequence[ApiCall]) -> None:
        """Record the successful calls of a line."""
        # Reading calls leave the state, and so the cached results, as they are.
        if not all(call.is_read for call in calls):
            self.look_again()
        # Each call meets the first goal that it fits; with `ordered`, only if all call goals before it are met.
        for call in calls:
            for at, goal in enumerate(self.goals):
                if not isinstance(goal, CallGoal) or at in self._met or not goal.is_met_by(call):
                    continue
                if self._ordered and any(before not in self._met for before in self._call_goals(at)):
                    continue
                self._met.add(at)
                break  # a call meets one goal at most

    def look_again(self) -> None:
        """Drop cached results, because the world may have changed."""
        self._seen: dict[int, bool] = {}  # by id(goal): a goal may hold a list, which has no hash

    def progress(self) -> float:
        """Return the share of goals that hold now. Checking changes neither the world nor the recorded calls."""
        held = [
            at in self._met if isinstance(goal, CallGoal) else self._holds(goal)
            for at, goal in enumerate(self.goals)
        ]
        return sum(held) / len(held)

    def num_kept(self) -> int:
        return sum(map(self._holds, self.keep))

    def _holds(self, goal: StateGoal | RestOfWorld) -> bool:
        if id(goal) not in self._seen:
            self._seen[id(goal)] = goal.holds(self._world)
        return self._seen[id(goal)]

    def _call_goals(self, until: int) -> list[int]:
        return [at for at in range(until) if isinstance(self.goals[at], CallGoal)]
