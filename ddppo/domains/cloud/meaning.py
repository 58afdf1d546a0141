"""What documents mean: policies, rules of a lifecycle, tags. Two spellings of one meaning have equal results here.

A goal compares the meaning of what a service answers with the meaning of what the task asks for. Each function returns
None for what is no such document, so that a broken document equals nothing.
"""

import functools
import json
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from ddppo.domains.cloud.cli_parameters import operation_names

# -- policies ----------------------------------------------------------------------------------------------------------

# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_grammar.html. Where capital letters count, pages
# beside it say: reference_policies_elements.html, reference_policies_elements_condition.html.
PARTS = ("Principal", "Action", "Resource")
ELEMENTS = {"Sid", "Effect", "Condition", *PARTS, *(f"Not{part}" for part in PARTS)}
ACCOUNT_ID = re.compile(r"\d{12}")
EVERYONE = ("AWS", "*")
NEWER, OLDER = "2012-10-17", "2008-10-17"  # versions of the language; the older one is the default
# Operators that decide alike if a value is an ARN without wildcards.
OF_ARNS = {"stringequals", "stringlike", "arnequals", "arnlike"}
SOURCES = (
    "aws:sourcearn",
    "aws:sourceaccount",
)  # keys of a request that a service makes for one of its resources
ALIKE = ("sqs", "sns")  # services that call actions as they call operations

Part = tuple[
    str, Any
]  # ("Action", "s3:getobject") or ("NotAction", frozenset(...)); ("Action", None): has none
Atom = tuple[str, Part, Part, Part, frozenset[Any]]  # effect, principal, action, resource, conditions


def policy(document: Any, own: str = "") -> frozenset[Atom] | None:
    """Return the atoms of a policy: one for each effect, principal, action and resource, with its conditions.

    `own` is the ARN of the only resource that the policy is for, as that of a queue or a topic is.

        atoms = union over statements of {Effect} x Principal x Action x Resource x {Condition}

    less those that another atom covers. So it is all the same whether an element is a text or a list, and how grants
    are shared out to statements, in which order; Sid does not count, and Version only with policy variables, `${...}`.
    """
    given = _of_json(document)
    if not isinstance(given, Mapping) or not isinstance(given.get("Statement"), Mapping | list):
        return None
    if set(given) - {"Version", "Id", "Statement"} or given.get("Version", NEWER) not in (NEWER, OLDER):
        return None
    statements = given["Statement"] if isinstance(given["Statement"], list) else [given["Statement"]]
    atoms: set[Atom] = set()
    for statement in statements:
        found = _atoms(statement, own)
        if found is None:
            return None
        atoms |= {atom for atom in found if not _never_applies(atom)}
    if "${" in json.dumps(given) and given.get("Version") != NEWER:
        atoms = {(f"{effect} {OLDER}", *rest) for effect, *rest in atoms}  # type: ignore[misc]
    return _uncovered(atoms, _atom_covers)


def _atoms(statement: Any, own: str) -> set[Atom] | None:
    """Return the atoms of one statement, or None if it breaks the grammar."""
    if not isinstance(statement, Mapping) or set(statement) - ELEMENTS:
        return None
    if statement.get("Effect") not in ("Allow", "Deny"):
        return None
    if not any(name in statement for name in ("Action", "NotAction")):
        return None
    conditions = _conditions(statement.get("Condition", {}))
    principals, actions, resources = (_part(statement, part) for part in PARTS)
    if conditions is None or principals is None or actions is None or resources is None:
        return None
    if own:
        # Whether the statement is for this resource is all that its resources say.
        matched = any(_part_covers(("Resource", text), ("Resource", own)) for text in _texts_in(resources))
        resources = {("Resource", own)} if matched is ("NotResource" not in statement) else set()
    return {
        (statement["Effect"], principal, action, resource, conditions)
        for principal in principals
        for action in actions
        for resource in resources
    }


def _part(statement: Mapping[str, Any], part: str) -> set[Part] | None:
    """Return the alternatives of an element. A negated element is one alternative, as its values act together."""
    negated = f"Not{part}"
    if part in statement and negated in statement:
        return None
    read = {"Principal": _principals, "Action": _actions, "Resource": _texts}[part]
    if negated in statement:
        found = read(statement[negated])
        return None if found is None else {(negated, frozenset(found))}
    if part not in statement:
        return {(part, None)}
    found = read(statement[part])
    return None if not found else {(part, value) for value in found}


def _texts_in(parts: set[Part]) -> set[str]:
    """Return the texts in an element, negated or not."""
    return {
        text for _, value in parts for text in (value if isinstance(value, frozenset) else {value}) if text
    }


def _texts(given: Any) -> set[str] | None:
    many = given if isinstance(given, list) else [given]
    return set(many) if all(isinstance(value, str) for value in many) else None


def _actions(given: Any) -> set[str] | None:
    # The service and the name of an action are not case-sensitive.
    found = _texts(given)
    return None if found is None else {name for action in found for name in _matching(action.lower())}


@functools.lru_cache(maxsize=256)
def _matching(action: str) -> frozenset[str]:
    """Return the actions that a pattern stands for, if its service calls actions as it calls operations."""
    service, _, pattern = action.partition(":")
    if service not in ALIKE or not {"*", "?"} & set(pattern) or pattern == "*":
        return frozenset({action})
    # A batch needs the right of the single operation.
    names = {name.lower().removesuffix("batch") for name in operation_names(service)}
    return frozenset(f"{service}:{name}" for name in names if fnmatchcase(name, pattern)) or frozenset(
        {action}
    )


def _principals(given: Any) -> set[tuple[str, str]] | None:
    # "*" is {"AWS": "*"}, and the number of an account is its root.
    if given == "*":
        return {EVERYONE}
    if not isinstance(given, Mapping):
        return None
    found: set[tuple[str, str]] = set()
    for kind, values in given.items():
        texts = _texts(values)
        if kind not in ("AWS", "Service", "Federated", "CanonicalUser") or texts is None:
            return None
        found |= {
            (kind, f"arn:aws:iam::{text}:root" if ACCOUNT_ID.fullmatch(text) else text) for text in texts
        }
    return found


def _conditions(given: Any) -> frozenset[Any] | None:
    """Return (operator, key, values) of each condition; all of them have to hold. Keys are not case-sensitive."""
    found = set()
    if not isinstance(given, Mapping):
        return None
    for operator, tests in given.items():
        if not isinstance(tests, Mapping):
            return None
        for key, values in tests.items():
            many = values if isinstance(values, list) else [values]
            texts = frozenset(str(value).lower() if isinstance(value, bool) else str(value) for value in many)
            name, plain = operator.lower(), not any(char in text for text in texts for char in "*?$")
            if plain and name in OF_ARNS and key.lower().endswith("arn"):
                name = "arnlike"
            elif plain and name == "stringlike":
                name = "stringequals"
            elif (
                name == "arnequals"
            ):  # https://.../reference_policies_elements_condition_operators.html: the same
                name = "arnlike"
            found.add((name, key.lower(), texts))
    return frozenset(found)


def _never_applies(atom: Atom) -> bool:
    """Return whether no request fits.

    Only requests of services name a source, and the principal is an account or user; or the source has to be equal to
    texts with a `*`, which no ARN has.
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html#condition-keys-sourcearn
    """
    (name, value), conditions = atom[1], atom[4]
    for operator, key, texts in conditions:
        if operator == "stringequals" and key in SOURCES and all("*" in text for text in texts):
            return True
    is_of_service = name != "Principal" or value is None or value == EVERYONE or value[0] == "Service"
    return not is_of_service and any(
        key in SOURCES and operator in OF_ARNS for operator, key, _ in conditions
    )


def _atom_covers(wide: Atom, narrow: Atom) -> bool:
    """Return whether `wide` decides every request that `narrow` decides, and alike."""
    return (
        wide[0] == narrow[0]
        and all(map(_part_covers, wide[1:4], narrow[1:4]))
        and wide[4] <= narrow[4]  # the fewer conditions, the more requests
    )


def _part_covers(wide: Part, narrow: Part) -> bool:
    if wide == narrow:
        return True
    (name, pattern), (other, value) = wide, narrow
    if name != other or name.startswith("Not") or pattern is None or value is None:
        return False
    if name == "Principal":
        return bool(pattern == EVERYONE)
    # `*` stands for any letters, wildcards of `value` included. `?` could not stand for a `*`.
    glob = ".*".join(map(re.escape, pattern.split("*")))
    return "?" not in pattern and re.fullmatch(glob, value, re.DOTALL) is not None


# -- rules of a lifecycle ----------------------------------------------------------------------------------------------

# https://docs.aws.amazon.com/AmazonS3/latest/userguide/intro-lifecycle-rules.html
SOONER = (
    "Expiration",
    "NoncurrentVersionExpiration",
    "AbortIncompleteMultipartUpload",
)  # the fewest days count


def lifecycle(rules: Any) -> frozenset[Any] | None:
    """Return (prefix, other conditions, action, parameters) for each action of each enabled rule.

    Less those that another one covers: more objects, and the same action as soon. The ID of a rule does not count, nor
    does a disabled rule. Without a filter, with an empty one or with an empty prefix a rule is for all objects.
    """
    given = _of_json(rules)
    if isinstance(given, Mapping):
        given = given.get("Rules")
    if not isinstance(given, list):
        return None
    found = set()
    for rule in given:
        where = _filter(rule) if isinstance(rule, Mapping) else None
        if where is None:
            return None
        if rule.get("Status") != "Enabled":
            continue
        for action, what in rule.items():
            if action in ("ID", "Status", "Filter", "Prefix"):
                continue
            for one in what if isinstance(what, list) else [what]:
                found.add((*where, action, _frozen(one)))
    return _uncovered(found, _rule_covers)


def _filter(rule: Mapping[str, Any]) -> tuple[str, frozenset[Any]] | None:
    """Return the prefix and the other conditions of a rule."""
    given = rule.get("Filter") or {}
    if not isinstance(given, Mapping) or ("Prefix" in rule and given):
        return None
    flat = {**given, **(given.get("And") or {})}
    flat.pop("And", None)
    prefix = flat.pop("Prefix", None) or rule.get("Prefix") or ""
    tagged = [*flat.pop("Tags", []), *([flat.pop("Tag")] if "Tag" in flat else [])]
    others = {("Tag", tag.get("Key"), tag.get("Value", "")) for tag in tagged}
    return prefix, frozenset(others | {(key, str(value)) for key, value in flat.items()})


def _rule_covers(wide: Any, narrow: Any) -> bool:
    prefix, others, action, what = wide
    if not (narrow[0].startswith(prefix) and others <= narrow[1] and action == narrow[2]):
        return False
    if what == narrow[3]:
        return True
    # The same single key, such as Days, with as many days or fewer.
    one, other = dict(what), dict(narrow[3])
    if action not in SOONER or len(one) != 1 or set(one) != set(other):
        return False
    (days,), (later,) = one.values(), other.values()
    return str(days).isdigit() and str(later).isdigit() and int(days) <= int(later)


# -- tags, and JSON ----------------------------------------------------------------------------------------------------


def tags(given: Any) -> dict[str, str] | None:
    """Return tags as a map, from a map or from a list of {Key, Value} in any order. No tags are an empty map."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {str(key): str(value) for key, value in given.items()}
    if not isinstance(given, list) or not all(isinstance(tag, Mapping) and "Key" in tag for tag in given):
        return None
    return {str(tag["Key"]): str(tag.get("Value") or "") for tag in given}


def settings(given: Any) -> Any:
    """Return JSON in a text, or a map, with its numbers as texts, as services accept 3 for "3"."""
    found = _of_json(given)
    return None if found is None else _frozen(found)


# The kinds of documents that a goal can name.
MEANINGS: dict[str, Callable[[Any], Any]] = {"policy": policy, "lifecycle": lifecycle, "tags": tags}


def name_of(text: str) -> str:
    """Return the name in an ARN or a URL, or the text itself, as services take either for the same resource."""
    if text.startswith("https://"):
        return text.rstrip("/").rpartition("/")[2]
    if not text.startswith("arn:"):
        return text
    name = text.split(":", 5)[-1]
    if ":secret:" in text:  # six random letters end it
        return re.sub(r"-[A-Za-z0-9]{6}$", "", name.removeprefix("secret:"))
    return name.rpartition("/")[2]


def _of_json(given: Any) -> Any:
    if not isinstance(given, str | bytes):
        return given
    try:
        return json.loads(given)
    except ValueError:
        return None


def _frozen(value: Any) -> Hashable:
    """Return JSON without regard to the order of lists and keys, with scalars as texts."""
    if isinstance(value, Mapping):
        return frozenset((key, _frozen(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return frozenset(_frozen(inner) for inner in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _uncovered(found: Iterable[Any], covers: Callable[[Any, Any], bool]) -> frozenset[Any]:
    # Of two that cover each other, which is two spellings of one, the first in order stays.
    kept: list[Any] = []
    for one in sorted(found, key=repr):
        if not any(covers(other, one) for other in kept):
            kept = [other for other in kept if not covers(one, other)] + [one]
    return frozenset(kept)
