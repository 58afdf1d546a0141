"""Expressions of angles in OpenQASM 2: + - * / ^, pi, sin cos tan exp ln sqrt, and the parameters of a gate.

Computed with 60 decimal digits, so that pi/3 is off by rounding to an angle's unit alone; sin, cos and tan as floats.
"""

import math
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal, DecimalException, localcontext

from ddppo.domains.circuits.quantum.angles import DECIMAL_PI, DIGITS, NoAngle
from ddppo.domains.circuits.quantum.qasm.tokens import Tokens
from ddppo.errors import near

Expression = Callable[[Mapping[str, Decimal]], Decimal]
_DEEPEST = 100


def _by_float(function: Callable[[float], float]) -> Callable[[Decimal], Decimal]:
    return lambda x: Decimal(function(float(x)))


_FUNCTIONS: dict[str, Callable[[Decimal], Decimal]] = {
    "sin": _by_float(math.sin),
    "cos": _by_float(math.cos),
    "tan": _by_float(math.tan),
    "exp": Decimal.exp,
    "ln": Decimal.ln,
    "sqrt": Decimal.sqrt,
}


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
    """Read a sum. parameters: names that may stand in it. Raises ConfigError for what is none."""
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
    """-a^b is -(a^b), and a^-b is read."""
    if depth > _DEEPEST:
        tokens.fail(f"an expression of more than {_DEEPEST} levels: write its value")
    if tokens.take("-"):
        inner = _signed(tokens, names, depth + 1)
        return lambda given: -inner(given)
    if tokens.take("+"):
        return _signed(tokens, names, depth + 1)
    base = _atom(tokens, names, depth + 1)
    if tokens.take("^"):
        return _joined("^", base, _signed(tokens, names, depth + 1))
    return base


def _atom(tokens: Tokens, names: Collection[str], depth: int) -> Expression:
    if tokens.now.kind == "number":
        text = tokens.next().text
        return lambda _: Decimal(text)
    if tokens.take("("):
        inner = _sum(tokens, names, depth)
        tokens.expect(")", "at the end of an expression")
        return inner
    line = tokens.line
    word = tokens.word("a number, pi, a function or (")
    if word in names:  # before pi: a parameter may have any name
        return lambda given: given[word]
    if word == "pi":
        return lambda _: DECIMAL_PI
    if word not in _FUNCTIONS:
        known = ["pi", *names, *_FUNCTIONS]
        tokens.fail(f"{word} is no number{near(word, known)}: an angle is made of {', '.join(known)}", line)
    tokens.expect("(", f"after {word}")
    argument = _sum(tokens, names, depth)
    tokens.expect(")", f"after the argument of {word}")
    function = _FUNCTIONS[word]
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
