"""The words of an OpenQASM 2 file, each with its line."""

import re
from typing import NamedTuple, NoReturn

from ddppo.errors import ConfigError

_PATTERN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
      | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<string>"[^"\n]*")
      | (?P<symbol>->|==|[;,()\[\]{}+\-*/^])""",
    re.VERBOSE | re.ASCII,
)
_LONGEST_SHOWN = 30
_END = "the end of the file"


class Token(NamedTuple):
    """kind is number, word, string, symbol or end."""

    kind: str
    text: str
    line: int


class Tokens:
    """The tokens of a text, read one after another; `fail` raises the ConfigError that names file and line."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self._tokens = self._split(text)
        self._at = 0

    @property
    def now(self) -> Token:
        return self._tokens[self._at]

    @property
    def line(self) -> int:
        return self.now.line

    def take(self, *texts: str) -> Token | None:
        """Go past the next token if it is one of these symbols or words; else return None."""
        if self.now.kind in ("symbol", "word") and self.now.text in texts:
            return self.next()
        return None

    def next(self) -> Token:
        token = self.now
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def expect(self, text: str, where: str) -> Token:
        """Go past the symbol `text`; where: after what it belongs, for the message."""
        if (token := self.take(text)) is None:
            before = self._tokens[self._at - 1].line if self._at else 1
            self.fail(f"expected {text} {where}, found {self.found()}", line=before)
        return token

    def word(self, what: str) -> str:
        """Go past a word, which is `what`, and return it."""
        if self.now.kind != "word":
            self.fail(f"expected {what}, found {self.found()}")
        return self.next().text

    def whole(self, what: str) -> int:
        """Go past a whole number, which is `what`, and return it."""
        if self.now.kind != "number" or not self.now.text.isdigit() or len(self.now.text) > 9:
            self.fail(f"expected {what}, a whole number below 10^9, found {self.found()}")
        return int(self.next().text)

    def found(self) -> str:
        text = self.now.text
        return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."

    def fail(self, said: str, line: int | None = None) -> NoReturn:
        raise ConfigError(f"{self.name}, line {self.line if line is None else line}: {said}")

    def _split(self, text: str) -> list[Token]:
        tokens: list[Token] = []
        line, at = 1, 0
        while at < len(text):
            match = _PATTERN.match(text, at)
            if match is None:
                shown = text[at] if text[at].isprintable() else repr(text[at])
                why = (
                    "a text in quotes that does not end on its line"
                    if shown == '"'
                    else "no part of OpenQASM 2"
                )
                raise ConfigError(f"{self.name}, line {line}: {shown} is {why}; comments begin with //")
            kind = match.lastgroup or ""
            if kind != "space":
                tokens.append(Token(kind, match.group(), line))
            line += match.group().count("\n")
            at = match.end()
        tokens.append(Token("end", _END, line))
        return tokens
