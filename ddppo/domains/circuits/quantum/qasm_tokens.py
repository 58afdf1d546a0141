"""The tokens of a text in OpenQASM 2 or 3, and the values of its expressions."""

import math
import re
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal, DecimalException, localcontext
from typing import NamedTuple, NoReturn

from ddppo.domains.circuits.quantum.circuit import DECIMAL_PI, DIGITS, NoAngle
from ddppo.errors import ConfigError, near

# -- Tokens, each with its line --------------------------------------------------------------------------------------


_PATTERNS = {
    2: re.compile(
        r"""(?P<space>\s+|//[^\n]*)
          | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
          | (?P<word>[A-Za-z_]\w*)
          | (?P<string>"[^"\n]*")
          | (?P<symbol>->|==|[;,()\[\]{}+\-*/^])""",
        re.VERBOSE | re.ASCII,
    ),
    3: re.compile(  # also /* comments */, letters as in π, digits as in 1_000, and symbols of other statements
        r"""(?P<space>\s+|//[^\n]*|/\*(?s:.*?)\*/)
          | (?P<number>(?:[0-9](?:_?[0-9])*\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
          | (?P<word>[^\W\d]\w*)
          | (?P<string>"[^"\n]*")
          | (?P<symbol>->|==|\*\*|(?!/\*)[;,()\[\]{}+\-*/^@=:<>!&|%~.])""",
        re.VERBOSE,
    ),
}
_IS_3 = re.compile(r"(?:\s|//[^\n]*\n|/\*.*?\*/)*OPENQASM\s+3", re.DOTALL)
_LONGEST_SHOWN = 30
_END = "the end of the file"


class Token(NamedTuple):
    """A token of the text."""

    kind: str  # number, word, string, symbol or end
    text: str
    line: int


class Tokens:
    """The tokens of a text, read one after another. `fail` raises a ConfigError with file and line.

    `version` is 3 if the text begins with OPENQASM 3, else 2. `constants` are the names that expressions may use
    everywhere.
    """

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.version = 3 if _IS_3.match(text) else 2
        self.constants: dict[str, Decimal] = {"pi": DECIMAL_PI}
        if self.version == 3:
            euler = Decimal(1).exp()
            self.constants |= {"π": DECIMAL_PI, "euler": euler, "ℇ": euler}
            self.constants |= dict.fromkeys(("tau", "τ"), 2 * DECIMAL_PI)
        self._tokens = self._split(text)
        self._at = 0

    @property
    def now(self) -> Token:
        return self._tokens[self._at]

    @property
    def line(self) -> int:
        return self.now.line

    def take(self, *texts: str) -> Token | None:
        """Consume and return the next token if it is one of these symbols or words, else return None."""
        if self.now.kind in ("symbol", "word") and self.now.text in texts:
            return self.next()
        return None

    def next(self) -> Token:
        token = self.now
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def expect(self, text: str, where: str) -> Token:
        """Consume the symbol `text`. `where` describes its place in the error message."""
        if (token := self.take(text)) is None:
            before = self._tokens[self._at - 1].line if self._at else 1
            self.fail(f"expected {text} {where}, found {self.found()}", line=before)
        return token

    def word(self, what: str) -> str:
        """Consume and return a word. `what` describes it in the error message."""
        if self.now.kind != "word":
            self.fail(f"expected {what}, found {self.found()}")
        return self.next().text

    def whole(self, what: str) -> int:
        """Consume and return a whole number. `what` describes it in the error message."""
        known = self.constants.get(self.now.text) if self.now.kind == "word" else None
        if known is not None and known == int(known) and 0 <= known < 10**9:
            self.next()
            return int(known)
        if self.now.kind != "number" or not self.now.text.isdigit() or len(self.now.text) > 9:
            self.fail(f"expected {what}, a whole number below 10^9, found {self.found()}")
        return int(self.next().text)

    def found(self) -> str:
        text = self.now.text
        return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."

    def fail(self, message: str, line: int | None = None) -> NoReturn:
        raise ConfigError(f"{self.name}, line {self.line if line is None else line}: {message}")

    def _split(self, text: str) -> list[Token]:
        # Match one token after the other from the start; a place where none matches is an error.
        tokens: list[Token] = []
        line, at = 1, 0
        while at < len(text):
            match = _PATTERNS[self.version].match(text, at)
            if match is None:
                shown = text[at] if text[at].isprintable() else repr(text[at])
                why = {
                    '"': "a text in quotes that does not end on its line; comments begin with //",
                    "/": "the beginning of a comment that does not end: add */",
                    "$": "a physical qubit, and these are not read: declare qubit[n] q; and write q[0]",
                    "#": "the beginning of a pragma, and these are not read: remove the line",
                }.get(shown, f"no part of OpenQASM {self.version}; comments begin with //")
                raise ConfigError(f"{self.name}, line {line}: {shown} is {why}")
            kind = match.lastgroup or ""
            if kind != "space":
                found = match.group().replace("_", "") if kind == "number" else match.group()
                tokens.append(Token(kind, found, line))
            line += match.group().count("\n")
            at = match.end()
        # A last token, so that a reader never runs past the end.
        tokens.append(Token("end", _END, line))
        return tokens


# -- Expressions of angles: + - * / and powers, constants, functions, and the parameters of a gate ---------------------
# A recursive-descent parser, one function for each level of precedence. Values have 60 decimal digits, so that the only
# error of pi/3 is its rounding to a unit; sin, cos and tan are computed as floats.


Expression = Callable[[Mapping[str, Decimal]], Decimal]  # from the values of parameters to the value
_DEEPEST = 100  # levels of nesting


def _by_float(function: Callable[[float], float]) -> Callable[[Decimal], Decimal]:
    return lambda x: Decimal(function(float(x)))


_COMMON: dict[str, Callable[[Decimal], Decimal]] = {
    "sin": _by_float(math.sin),
    "cos": _by_float(math.cos),
    "tan": _by_float(math.tan),
    "exp": Decimal.exp,
    "sqrt": Decimal.sqrt,
}
_FUNCTIONS = {  # by version of OpenQASM
    2: {**_COMMON, "ln": Decimal.ln},
    3: {
        **_COMMON,
        "log": Decimal.ln,
        "arcsin": _by_float(math.asin),
        "arccos": _by_float(math.acos),
        "arctan": _by_float(math.atan),
        "floor": _by_float(math.floor),
        "ceiling": _by_float(math.ceil),
    },
}
_POWERS = {2: "^", 3: "**"}


def value(expression: Expression, parameters: Mapping[str, Decimal]) -> Decimal:
    """Return the expression's value with these parameters. Raises NoAngle."""
    with localcontext() as context:
        context.prec = DIGITS
        try:
            result = expression(parameters)
        except (DecimalException, ValueError, OverflowError) as e:
            raise NoAngle("its angle has no value (a division by zero, or beyond all bounds)") from e
        if not result.is_finite():
            raise NoAngle("its angle is infinite")
        return result


def expression(tokens: Tokens, parameters: Collection[str]) -> Expression:
    """Read an expression, in which the names of `parameters` may occur. Raises ConfigError."""
    return _sum(tokens, parameters, 0)


def _sum(tokens: Tokens, names: Collection[str], depth: int) -> Expression:
    left = _product(tokens, names, depth)
    while sign := tokens.take("+", "-"):
        left = _joined(sign.text, left, _product(tokens, names, depth))
    return left


def _product(tokens: Tokens, names: Collection[str], depth: int) -> Expression:
    left = _signed(tokens, names, depth)
    while sign := tokens.take("*", "/"):
        left = _joined(sign.text, left, _signed(tokens, names, depth))
    return left


def _signed(tokens: Tokens, names: Collection[str], depth: int) -> Expression:
    """Read a sign or a power: -a^b is -(a^b), and a^-b is allowed."""
    if depth > _DEEPEST:
        tokens.fail(f"an expression of more than {_DEEPEST} levels: write its value")
    if tokens.take("-"):
        inner = _signed(tokens, names, depth + 1)
        return lambda given: -inner(given)
    if tokens.take("+"):
        return _signed(tokens, names, depth + 1)
    base = _atom(tokens, names, depth + 1)
    if tokens.take(_POWERS[tokens.version]):
        return _joined("^", base, _signed(tokens, names, depth + 1))
    if tokens.version == 3 and tokens.now.text == "^":
        tokens.fail("^ joins bits in OpenQASM 3: write ** for a power")
    return base


def _atom(tokens: Tokens, names: Collection[str], depth: int) -> Expression:
    # A number, an expression in brackets, a parameter, a constant, or a function with its argument.
    if tokens.now.kind == "number":
        text = tokens.next().text
        return lambda _: Decimal(text)
    if tokens.take("("):
        inner = _sum(tokens, names, depth)
        tokens.expect(")", "at the end of an expression")
        return inner
    line = tokens.line
    word = tokens.word("a number, pi, a function or (")
    if word in names:  # before pi, because a parameter may be called pi
        return lambda given: given[word]
    if word in tokens.constants:
        constant = tokens.constants[word]
        return lambda _: constant
    functions = _FUNCTIONS[tokens.version]
    if word not in functions:
        known = [*tokens.constants, *names, *functions]
        tokens.fail(f"{word} is no number{near(word, known)}: an angle is made of {', '.join(known)}", line)
    tokens.expect("(", f"after {word}")
    argument = _sum(tokens, names, depth)
    tokens.expect(")", f"after the argument of {word}")
    function = functions[word]
    return lambda given: function(argument(given))


def _joined(sign: str, left: Expression, right: Expression) -> Expression:
    match sign:
        case "+":
            return lambda given: left(given) + right(given)
        case "-":
            return lambda given: left(given) - right(given)
        case "*":
            return lambda given: left(given) * right(given)
        case "/":
            return lambda given: left(given) / right(given)
        case _:
            return lambda given: left(given) ** right(given)
