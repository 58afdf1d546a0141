"""The words of a command line, and its options as the parameters that botocore takes.

`words` splits a line by the quoting rules of a shell, `Shorthand` reads the AWS CLI's shorthand syntax, and
`value_of` converts what was typed behind an option to the types of the service's model.
"""

import functools
import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import botocore.session
from botocore import xform_name
from botocore.exceptions import DataNotFoundError
from botocore.model import OperationModel, ServiceModel, Shape

from ddppo.domains.cloud.folder import CommandError, Folder

OPERATORS = set("|&;<>()\n")
NO_SHELL = "there is no shell here: one aws command a line, without pipes, redirections or substitutions"


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
            if after == "\n":  # the line goes on
                at += 1
                continue
            kept = "\\" if quote and after not in ('"', "\\", "$", "`") else ""
            word = (word or "") + kept + after
        elif quote:
            word, quote = (word, "") if char == quote else ((word or "") + char, quote)
        elif char in "'\"":
            word, quote = word or "", char
        elif char == "#" and word is None:
            break  # a comment, up to the end of the line
        elif char in ";\n" and not line[at:].strip(" \t\n;") and ";;" not in line:
            break  # an end of the line that changes nothing
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

DEEPEST = 8  # levels of nesting
SPACE = re.compile(r"[ \t\n\r\x0b\x0c]*")
KEY = re.compile(r"[a-zA-Z0-9\-_.#/:]*")
# A bare value begins with START. The first of a list goes on up to a comma or a bracket that closes, so it may hold =;
# later ones go on up to a comma, and an = shows that they are keys. `\,` is a comma of the value.
START = r"[^\x00-\x20\"',=\[{\U00010000-\U0010ffff]"
FIRST = re.compile(rf"(?:\\,|{START})(?:\\,|[^\x00-\x08\x0e-\x1b\"',\]}}\U00010000-\U0010ffff])*")
LATER = re.compile(rf"(?:\\,|{START})(?:\\,|[^\x00-\x08\x0e-\x1b\"',=\U00010000-\U0010ffff])*")
QUOTED = {"'": re.compile(r"'(?:\\'|[^'])*'"), '"': re.compile(r'"(?:\\"|[^"])*"')}

Load = Callable[
    [str], str | bytes | None
]  # the content of the file that a value names, None if it names none


class ShorthandError(ValueError):
    """A text is not valid shorthand. The message is worded as in the AWS CLI."""


class Shorthand:
    """A parser of one text: `key=value` pairs separated by commas; values are texts, lists or maps.

    `key@=file://name` is the content of a file, by `load`.
    """

    def __init__(self, text: str, load: Load = lambda _: None) -> None:
        self._text, self._at, self._depth, self._load = text, 0, 0, load
        self._is_file = False  # the value behind `@=` may name a file

    def read(self) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        key = self._key()
        pairs[key] = self._values()
        while self._at < len(self._text):
            before = self._at
            self._expect(",")
            key = self._key()
            value = self._values()
            if key in pairs:
                raise ShorthandError(
                    f'Second instance of key "{key}" encountered for input:\n{self._pointed(before + 1)}\n'
                    'This is often because there is a preceding "," instead of a space.'
                )
            pairs[key] = value
        return pairs

    def _key(self) -> str:
        """Read a key and its =."""
        key = KEY.match(self._text, self._at)
        assert key is not None  # it may be empty
        self._at = key.end()
        self._is_file = False
        self._skip_space()
        if self._peek() == "@":
            self._expect("@")
            self._is_file = True
        self._expect("=")
        return key.group()

    def _values(self) -> Any:
        """Return a value, or the list `a,b,c` if no key follows the commas."""
        if self._peek() in ("[", "{"):
            return self._nested()
        many = [self._value(FIRST)]
        self._skip_space()
        while self._peek() == ",":
            back = self._at
            self._expect(",")
            try:
                value = self._value(LATER)
                self._skip_space()
                if self._peek() not in ("", ","):
                    raise self._wrong(",")
            except ShorthandError:
                if not self._peek():
                    raise
                self._at = back  # a key follows
                break
            many.append(value)
        return many[0] if len(many) == 1 else many

    def _value(self, bare: re.Pattern[str]) -> Any:
        """Return a quoted or bare value. One that begins a list may be empty."""
        quote = self._peek()
        if quote in QUOTED and quote:
            found = QUOTED[quote].match(self._text, self._at)
            if found is None:
                raise self._wrong(f"<{'singled' if quote == chr(39) else 'double'} quoted>", "<none>")
            text = found.group()[1:-1].replace(f"\\{quote}", quote).replace("\\\\", "\\")
        else:
            found = bare.match(self._text, self._at)
            if found is None:
                if bare is LATER:
                    raise self._wrong("<second>", "<none>")
                return ""
            text = found.group().replace("\\,", ",").rstrip()
        self._at = found.end()
        content = self._load(text) if self._is_file else None
        return text if content is None else content

    def _nested(self) -> Any:
        """Return a list in brackets, a map in braces, or a value."""
        opening = self._peek()
        if opening not in ("[", "{"):
            return self._value(FIRST)
        self._depth += 1
        if self._depth > DEEPEST:
            raise ShorthandError(f"nested deeper than {DEEPEST}")
        closing = {"[": "]", "{": "}"}[opening]
        self._expect(opening)
        pairs: dict[str, Any] = {}
        members: list[Any] = []
        while self._peek() != closing:
            if opening == "{":
                key = self._key()
                pairs[key] = self._nested()
            else:
                members.append(self._nested())
            self._skip_space()
            if self._peek() != closing:
                self._expect(",")
        self._at += 1
        self._depth -= 1
        return pairs if opening == "{" else members

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip_space(self) -> None:
        space = SPACE.match(self._text, self._at)
        assert space is not None
        self._at = space.end()

    def _expect(self, char: str) -> None:
        """Skip a character, and the blanks around it."""
        self._skip_space()
        if self._peek() != char:
            raise self._wrong(char)
        self._at += 1
        self._skip_space()

    def _wrong(self, expected: str, received: str = "") -> ShorthandError:
        received = received or self._peek() or "EOF"
        return ShorthandError(
            f"Expected: '{expected}', received: '{received}' for input:\n{self._pointed(self._at)}"
        )

    def _pointed(self, at: int) -> str:
        """Return the text, with a line under the one that `at` is in, which points there."""
        end = self._text.find("\n", at)
        end = len(self._text) if end < 0 else end
        return f"{self._text[:end]}\n{' ' * (at - self._text.rfind(chr(10), 0, at) - 1)}^{self._text[end:]}"


# -- the values of options ---------------------------------------------------------------------------------------------

SCALARS = ("string", "integer", "long", "float", "double", "boolean", "blob", "timestamp", "character")
NUMBERS = {"integer": int, "long": int, "float": float, "double": float}
# Option names that the AWS CLI changes.
RENAMED = {("sns", "subscribe", "Endpoint"): "--notification-endpoint"}
# The values of these options are never loaded from a file or an address.
AS_TYPED = ("--queue-url", "--website-redirect-location", "--website-redirect", "--notification-endpoint")
FILES = ("file://", "fileb://")
ADDRESSES = ("http://", "https://")


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


@functools.lru_cache(maxsize=16)
def _paginators(service: str) -> Any:
    return session().get_paginator_model(service)


@functools.lru_cache(maxsize=512)
def pagination(service: str, operation: str) -> dict[str, Any] | None:
    """Return how botocore pages through an operation, None if it does not."""
    try:
        found: dict[str, Any] = _paginators(service).get_paginator(operation_model(service, operation).name)
    except (ValueError, DataNotFoundError):
        return None
    return found


@functools.lru_cache(maxsize=512)
def members(service: str, operation: str) -> dict[str, tuple[str, Shape]]:
    """Return the parameter of each option, and its shape."""
    shape = operation_model(service, operation).input_shape
    return {
        RENAMED.get((service, operation, name), f"--{xform_name(name, '-')}"): (name, of)
        for name, of in (shape.members if shape else {}).items()
    }


def value_of(option: str, shape: Shape, typed: Any, folder: Folder) -> Any:
    """Return the value of a parameter from what was typed: a text, or a list of texts for a list.

    Raises CommandError in the words of the AWS CLI.
    """
    # 1. file://name stands for the content of a file.
    alone = typed[0] if isinstance(typed, list) and len(typed) == 1 else typed
    if isinstance(alone, str) and option not in AS_TYPED:
        _refuse_address(option, shape, alone)
        content = content_of(option, alone, folder)
        typed = typed if content is None else content
    # 2. Shorthand, for structures, maps, and lists of them; JSON if it begins so.
    first = typed[0] if isinstance(typed, list) and typed else typed
    looks_like_json = isinstance(first, str) and first.strip().startswith(("[", "{"))
    if _is_nested(shape) and not looks_like_json:
        return _short(option, shape, typed, folder)
    return _unpacked(option, shape, typed, folder)


def _is_nested(shape: Shape) -> bool:
    return shape.type_name in ("structure", "map") or (shape.type_name == "list" and _is_group(shape.member))


def _is_group(shape: Shape) -> bool:
    return shape.type_name in ("structure", "list", "map")


def _refuse_address(option: str, shape: Shape, value: str) -> None:
    """Refuse values that the AWS CLI would load from the network. In a text parameter, an address is a value."""
    if value.startswith(ADDRESSES) and shape.type_name not in ("string", "list"):
        raise CommandError(
            f"Error parsing parameter '{option}': Unable to retrieve {value}: there is no network here"
        )


def content_of(option: str, value: str, folder: Folder) -> str | bytes | None:
    """Return the content of the file that a value names by file:// or fileb://, None if it names none."""
    scheme = next((scheme for scheme in FILES if value.startswith(scheme)), None)
    if scheme is None:
        return None
    path = value.removeprefix(scheme)
    try:
        content = folder.read(path)
    except (OSError, CommandError) as error:
        raise _wrong(option, f"Unable to load paramfile {value}: {error}") from error
    if scheme == "fileb://":
        return content
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        said = "text contents could not be decoded.  If this is a binary file, please use the fileb:// prefix instead"
        raise _wrong(option, f"Unable to load paramfile ({path}), {said} of the file:// prefix.") from error


def _wrong(option: str, message: str) -> CommandError:
    return CommandError(f"Error parsing parameter '{option}': {message}")


def _short(option: str, shape: Shape, typed: Any, folder: Folder) -> Any:
    def load(text: str) -> str | bytes | None:
        return content_of(option, text, folder)

    try:
        if isinstance(typed, list):
            return _fitted(shape, [Shorthand(text, load).read() for text in typed])
        return _fitted(shape, Shorthand(typed, load).read())
    except ShorthandError as error:
        raise _wrong(option, str(error)) from error
    except ValueError as error:  # of a number
        raise CommandError(str(error), 255) from error


def _fitted(shape: Shape, value: Any) -> Any:
    """Convert the texts of shorthand to the types of a shape, and a single value to the list that it should be."""
    kind = shape.type_name
    if kind == "structure" and isinstance(value, dict):
        of = shape.members
        return {key: _member(of[key], inner) if key in of else inner for key, inner in value.items()}
    if kind == "map" and isinstance(value, dict):
        return {key: _member(shape.value, inner) for key, inner in value.items()}
    if kind == "list" and isinstance(value, list):
        return [_member(shape.member, inner) for inner in value]
    if kind in NUMBERS and not isinstance(value, dict | list):
        return NUMBERS[kind](value)
    if kind == "boolean" and isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return value


def _member(shape: Shape, value: Any) -> Any:
    return [value] if shape.type_name == "list" and not isinstance(value, list) else _fitted(shape, value)


def _unpacked(option: str, shape: Shape, typed: Any, folder: Folder) -> Any:
    """Return a value that is not shorthand. What JSON holds keeps its types: botocore refuses those that do not fit."""
    kind = shape.type_name
    if kind in ("structure", "map"):
        if typed.lstrip().startswith("{"):
            return _json(option, typed)
        raise _wrong(option, f"Invalid JSON:\n{typed}")
    if kind == "list":
        alone = typed[0] if isinstance(typed, list) and len(typed) == 1 else typed
        if isinstance(alone, str) and alone.strip().startswith("["):
            return _json(option, alone)
        try:
            return [_unpacked(option, shape.member, one, folder) for one in typed]
        except (ValueError, TypeError) as error:
            raise _wrong(option, str(typed[0])) from error
        except CommandError as error:
            if error.status == 255 and not _is_group(shape.member):
                raise _wrong(option, str(typed[0])) from error
            raise
    if kind in NUMBERS:
        try:
            return NUMBERS[kind](typed)
        except ValueError as error:
            raise CommandError(str(error), 255) from error
    if kind == "blob" and shape.serialization.get("streaming"):
        if not folder.is_file(typed):
            raise _wrong(option, "Blob values must be a path to a file.")
        return folder.read(typed)
    return typed


def _json(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(option, f"Invalid JSON: {error}\nJSON received: {text}") from error


# -- examples ----------------------------------------------------------------------------------------------------------

FIRST_MOMENT = "1970-01-01T00:00:00"


def example_of(shape: Shape | None, *, named: bool, name: str = "", above: tuple[str, ...] = ()) -> Any:
    """Return an example of a value, as --generate-cli-skeleton shows it: texts are empty, or `named` by their members.

    Of an enumeration it is the first text. A structure within itself is empty.
    """
    if shape is None:
        return {}
    above = (*above, shape.name)
    if shape.type_name == "structure":
        inner = shape.members.items() if above.count(shape.name) == 1 else ()
        return {key: example_of(of, named=named, name=key, above=above) for key, of in inner}
    if shape.type_name == "list":
        return [example_of(shape.member, named=named, name=shape.member.name, above=above)]
    if shape.type_name == "map":
        return {"KeyName": example_of(shape.value, named=named, name=shape.value.name, above=above)}
    if shape.type_name == "string":
        return name if named else (shape.enum or [""])[0]
    plain = {"integer": 0, "long": 0, "float": 0.0, "double": 0.0, "boolean": True, "timestamp": FIRST_MOMENT}
    return plain.get(shape.type_name)
