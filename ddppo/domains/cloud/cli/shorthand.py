"""The AWS CLI's shorthand: Key=Name,Value=x, lists as a,b or [a,b], maps as {a=b}.

https://docs.aws.amazon.com/cli/latest/userguide/cli-usage-shorthand.html
"""

import re
from typing import Any

KEY = re.compile(r"[\w.:/#-]+(?==)")
STOPS = {"": ",", "]": ",]", "}": ",}"}  # what ends a bare value, by what it stands in
DEEPEST = 8


class ShorthandError(ValueError):
    """A text that is no shorthand; worded as the AWS CLI does."""


class Shorthand:
    """Reads one text: `key=value` pairs between commas; values are texts, lists or maps of the same."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0

    def read(self) -> dict[str, Any]:
        pairs = self._pairs(closed_by="")
        if self._at < len(self._text):
            raise self._wrong("','")
        return pairs

    def _pairs(self, closed_by: str) -> dict[str, Any]:
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
        """Return a value, or the list `a,b,c` where what follows a comma is no key."""
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
