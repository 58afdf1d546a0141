"""The words of a command line, and its options as the parameters that botocore takes.

`words` splits a line by the quoting rules of a shell, `Shorthand` reads the AWS CLI's shorthand syntax, and
`parameters` converts texts to the types of the service's model.
"""

import functools
import json
import os
import re
from collections.abc import Sequence
from typing import Any

import botocore.session
from botocore import xform_name
from botocore.model import OperationModel, ServiceModel, Shape

OPERATORS = set("|&;<>()\n")
NO_SHELL = "there is no shell here: one aws command a line, without pipes, redirections or substitutions"


class CommandError(Exception):
    """A command that failed: its output, and its exit status as in version 2 of the AWS CLI.

    252: the line could not be parsed. 254: the service refused. 255: any other error.
    (https://docs.aws.amazon.com/cli/latest/userguide/cli-usage-returncodes.html)
    """

    def __init__(self, output: str, status: int = 252, code: str = "") -> None:
        super().__init__(output)
        self.output, self.status, self.code = output, status, code


def words(line: str) -> list[str]:
    """Split a line at blanks, with single quotes, double quotes and backslashes as in sh.

    Raises CommandError for everything else that a shell would interpret: operators, variables, substitutions.
    """
    found: list[str] = []
    word: str | None = None  # None between words; "" is a word if it was quoted
    quote = ""
    at = 0
    while at < len(line):
        char = line[at]
        # Single quotes keep everything; double quotes keep all but $, ` and \; then comes plain text.
        if quote == "'":
            word, quote = (word, "") if char == quote else ((word or "") + char, quote)
        elif char in "$`":
            raise CommandError(f"syntax error near `{char}': {NO_SHELL}")
        elif char == "\\":
            at += 1
            after = line[at : at + 1]
            kept = "\\" if quote and after not in ('"', "\\", "$", "`") else ""
            word = (word or "") + kept + after
        elif quote:
            word, quote = (word, "") if char == quote else ((word or "") + char, quote)
        elif char in "'\"":
            word, quote = word or "", char
        elif char in OPERATORS:
            raise CommandError(f"syntax error near {char!r}: {NO_SHELL}")
        elif char in " \t":
            if word is not None:
                found.append(word)
            word = None
        else:
            word = (word or "") + char
        at += 1
    if quote:
        raise CommandError(f"syntax error: the quote {quote} is never closed")
    return found if word is None else [*found, word]


# -- the AWS CLI's shorthand -------------------------------------------------------------------------------------------

# Key=Name,Value=x, lists as a,b or [a,b], maps as {a=b}:
# https://docs.aws.amazon.com/cli/latest/userguide/cli-usage-shorthand.html

KEY = re.compile(r"[\w.:/#-]+(?==)")
STOPS = {"": ",", "]": ",]", "}": ",}"}  # characters that end a bare value, by the bracket around it
DEEPEST = 8  # levels of nesting


class ShorthandError(ValueError):
    """A text is not valid shorthand. The message is worded as in the AWS CLI."""


class Shorthand:
    """A parser of one text: `key=value` pairs separated by commas; values are texts, lists or maps."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0

    def read(self) -> dict[str, Any]:
        pairs = self._pairs(closed_by="")
        if self._at < len(self._text):
            raise self._wrong("','")
        return pairs

    def _pairs(self, closed_by: str) -> dict[str, Any]:
        # key=value, until no comma follows. Of a wrong key, the error points behind its letters, as in the AWS CLI.
        pairs: dict[str, Any] = {}
        while True:
            key = KEY.match(self._text, self._at)
            if key is None:
                bare = re.compile(r"[\w.:/#-]*").match(self._text, self._at)
                self._at = bare.end() if bare else self._at
                raise self._wrong("'='")
            self._at = key.end() + 1
            pairs[key.group()] = self._values(closed_by)
            if not self._skip(","):
                return pairs

    def _values(self, closed_by: str) -> Any:
        """Return a value, or the list `a,b,c` if no key follows the commas."""
        first = self._value(closed_by)
        many = [first]
        while self._peek() == "," and KEY.match(self._text, self._at + 1) is None and closed_by != "]":
            self._at += 1
            if not self._peek():
                raise self._wrong("a value")
            many.append(self._value(closed_by))
        return first if len(many) == 1 else many

    def _value(self, closed_by: str) -> Any:
        opening = self._peek()
        if opening in ("{", "["):
            return self._nested(opening)
        if opening in ("'", '"') and opening:
            return self._quoted(opening)
        end = self._at
        while end < len(self._text) and self._text[end] not in STOPS[closed_by]:
            end += 1
        value, self._at = self._text[self._at : end], end
        return value

    def _nested(self, opening: str) -> Any:
        self._depth += 1
        if self._depth > DEEPEST:
            raise ShorthandError(f"nested deeper than {DEEPEST}")
        self._at += 1
        if opening == "{":
            found: Any = self._pairs(closed_by="}")
        else:
            found = [self._value("]")] if self._peek() != "]" else []
            while self._skip(","):
                found.append(self._value("]"))
        closing = {"{": "}", "[": "]"}[opening]
        if not self._skip(closing):
            raise self._wrong(repr(closing))
        self._depth -= 1
        return found

    def _quoted(self, quote: str) -> str:
        end = self._at + 1
        while end < len(self._text) and self._text[end] != quote:
            end += 2 if self._text[end] == "\\" else 1
        if end >= len(self._text):
            self._at = len(self._text)
            raise self._wrong(repr(quote))
        value = re.sub(r"\\(.)", r"\1", self._text[self._at + 1 : end])
        self._at = end + 1
        return value

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, char: str) -> bool:
        if self._peek() != char:
            return False
        self._at += 1
        return True

    def _wrong(self, expected: str) -> ShorthandError:
        received = repr(self._peek()) if self._peek() else "'EOF'"
        pointer = " " * self._at + "^"
        return ShorthandError(
            f"Expected: {expected}, received: {received} for input:\n{self._text}\n{pointer}"
        )


# -- options as parameters ---------------------------------------------------------------------------------------------

SCALARS = ("string", "integer", "long", "float", "double", "boolean", "blob", "timestamp", "character")
NUMBERS = {"integer": int, "long": int, "float": float, "double": float}
# Option names that the AWS CLI changes.
RENAMED = {("sns", "subscribe", "Endpoint"): "--notification-endpoint"}
FILES = ("file://", "fileb://", "http://", "https://")  # prefixes from which the AWS CLI would load a value


def session() -> botocore.session.Session:
    """Return a botocore session that reads no profile and no file in ~/.aws, which may hold keys of real accounts."""
    # botocore: (name in the config file, environment variable, default, conversion).
    unset = (None, None, None, None)
    nowhere = (None, None, os.devnull, None)
    return botocore.session.Session(
        {
            "profile": unset,
            "config_file": nowhere,
            "credentials_file": nowhere,
            "use_fips_endpoint": unset,
            "use_dualstack_endpoint": unset,
        }
    )


@functools.lru_cache(maxsize=16)
def _service_model(service: str) -> ServiceModel:
    return session().get_service_model(service)


def operation_names(service: str) -> Sequence[str]:
    """Return the names of all operations of a service, as in its API: `SendMessage`."""
    return _service_model(service).operation_names


@functools.lru_cache(maxsize=512)
def operation_model(service: str, operation: str) -> OperationModel:
    """Return botocore's model of an operation, which is named as in the CLI (`list-buckets`)."""
    model = _service_model(service)
    names = {xform_name(name, "-"): name for name in model.operation_names}
    return model.operation_model(names[operation])


@functools.lru_cache(maxsize=512)
def members(service: str, operation: str) -> dict[str, tuple[str, Shape]]:
    """Return the parameter of each option, and its shape."""
    shape = operation_model(service, operation).input_shape
    return {
        RENAMED.get((service, operation, name), f"--{xform_name(name, '-')}"): (name, of)
        for name, of in (shape.members if shape else {}).items()
    }


def parameters(service: str, operation: str, typed: dict[str, list[str]]) -> dict[str, Any]:
    """Return the parameters of an operation from its options. Raises CommandError in the words of the AWS CLI."""
    # 1. Known options, with --no-x for x = false. Words that belong to no option are unknown.
    known = members(service, operation)
    found: dict[str, Any] = {}
    unknown: list[str] = []
    for option, values in typed.items():
        negated = "--" + option.removeprefix("--no-")
        if option in known:
            name, shape = known[option]
            found[name] = _value(option, shape, values, unknown)
        elif option.startswith("--no-") and negated in known and known[negated][1].type_name == "boolean":
            found[known[negated][0]] = False
            unknown += values
        else:
            unknown += [option, *values]
    # 2. Required options. The CLI reports them before unknown ones.
    shape = operation_model(service, operation).input_shape
    missing = [f"--{xform_name(name, '-')}" for name in (shape.required_members if shape else [])]
    missing = [option for option in missing if option not in typed]
    if missing:
        raise CommandError(f"aws: error: the following arguments are required: {', '.join(missing)}")
    if unknown:
        raise CommandError(f"Unknown options: {', '.join(unknown)}")
    return found


def _value(option: str, shape: Shape, values: list[str], unknown: list[str]) -> Any:
    """Return the value of an option from its words; words that are too many are added to `unknown`."""
    if shape.type_name == "boolean":
        unknown += values[1:]
        return _typed(option, shape, values[0]) if values else True
    if not values:
        raise CommandError(f"aws: error: argument {option}: expected one argument")
    # A list is given as JSON in one word, or as one word for each member.
    for value in values:
        _refuse_file(option, shape, value)
    if shape.type_name == "list":
        if values[0].lstrip().startswith("["):
            unknown += values[1:]
            return _typed(option, shape, _json(option, values[0]))
        return [_one(option, shape.member, value) for value in values]
    unknown += values[1:]
    return _one(option, shape, values[0])


def _refuse_file(option: str, shape: Shape, value: str) -> None:
    """Refuse values that the CLI would load from a file or an address. In a text parameter, an address is a value."""
    scheme = next((scheme for scheme in FILES if value.startswith(scheme)), None)
    if scheme and (scheme.startswith("file") or shape.type_name not in ("string", "list")):
        raise CommandError(
            f"Error parsing parameter '{option}': Unable to load paramfile {value}: there are no files here"
        )


def _one(option: str, shape: Shape, value: str) -> Any:
    if shape.type_name in SCALARS:
        return _typed(option, shape, value)
    if value.lstrip().startswith(("{", "[")):
        return _typed(option, shape, _json(option, value))
    try:
        return _typed(option, shape, Shorthand(value).read())
    except ShorthandError as error:
        raise CommandError(f"Error parsing parameter '{option}': {error}") from error


def _json(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"Error parsing parameter '{option}': Invalid JSON: {error}") from error


def _typed(option: str, shape: Shape, value: Any) -> Any:
    """Convert texts to the numbers, booleans and bytes of a shape. botocore refuses values that do not fit."""
    # Structures, maps and lists convert their members. botocore reports unknown members.
    kind = shape.type_name
    if kind == "structure" and isinstance(value, dict):
        of = shape.members
        return {key: _typed(option, of[key], inner) if key in of else inner for key, inner in value.items()}
    if kind == "map" and isinstance(value, dict):
        return {key: _typed(option, shape.value, inner) for key, inner in value.items()}
    if kind == "list":
        many: Sequence[Any] = value if isinstance(value, list) else [value]
        return [_typed(option, shape.member, inner) for inner in many]
    # Scalars: JSON has types already, the words of a command line are texts.
    if not isinstance(value, str):
        return value
    if kind in NUMBERS:
        try:
            return NUMBERS[kind](value)
        except ValueError as error:
            raise CommandError(f"aws: error: argument {option}: {error}") from error
    if kind == "boolean" and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return value.encode() if kind == "blob" else value
