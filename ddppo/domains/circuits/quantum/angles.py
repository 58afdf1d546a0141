"""Angles of rotations in fixed point: whole numbers modulo TURN, one turn of 2 pi being 2^48, a unit 2.2e-14 radians.

Sums are exact and wrap. Multiples of pi / 2^47 are held exactly; others, such as pi / 3, to half a unit.
"""

import math
from decimal import Decimal, InvalidOperation, Overflow, localcontext
from fractions import Fraction

TURN = 1 << 48
PI = TURN // 2
DIGITS = 60  # of the arithmetic of expressions: 10^6 pi keeps its phase, which a float would lose
DECIMAL_PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534"
)
_LARGEST_DENOMINATOR = 256
_SHOWN_WITHIN = 1e-9  # of a turn


class NoAngle(ValueError):
    """A number or an expression that is no angle: not finite, too large, or without a value."""


def of_radians(radians: float | Decimal) -> int:
    """Return round(radians 2^48 / (2 pi)) mod 2^48. Raises NoAngle for what is not finite, or beyond 10^50."""
    with localcontext() as context:
        context.prec = DIGITS + 20
        try:
            turns = Decimal(radians) / (2 * DECIMAL_PI) % 1
            return int((turns * TURN).to_integral_value()) % TURN
        except (InvalidOperation, Overflow, ValueError) as e:  # ValueError: NaN
            raise NoAngle(f"{radians} is no angle: it has to be finite and below 1e50") from e


def of_fraction(numerator: int, denominator: int) -> int:
    """Return the angle pi numerator / denominator, rounded to a unit."""
    return round(Fraction(PI * numerator, denominator)) % TURN


def signed(angle: int) -> int:
    """Return the same angle in (-TURN / 2, TURN / 2]."""
    angle %= TURN
    return angle - TURN if angle > PI else angle


def radians(angle: int) -> float:
    """Return the angle in (-pi, pi]."""
    return signed(angle) * (math.pi / PI)


def written(angle: int) -> str:
    """Return text that reads as exactly this angle: a fraction of pi, its denominator at most 256, else a decimal."""
    part = _fraction(angle)
    if of_fraction(part.numerator, part.denominator) == angle % TURN:
        return _of_pi(part, "pi", "*")
    texts = (f"{radians(angle):.{digits}g}" for digits in range(1, 17))
    return next((text for text in texts if of_radians(Decimal(text)) == angle % TURN), repr(radians(angle)))


def shown(angle: int) -> str:
    """Return short text for pictures: a fraction of pi that fits to 1e-9 of a turn, such as -3π/4, else 4 digits."""
    part = _fraction(angle)
    if abs(Fraction(signed(angle), TURN) - part / 2) <= _SHOWN_WITHIN:
        return _of_pi(part, "π", "")
    return f"{radians(angle):.4g}"


def _fraction(angle: int) -> Fraction:
    """Return the nearest fraction of pi with a small denominator, in (-1, 1]."""
    return Fraction(signed(angle), PI).limit_denominator(_LARGEST_DENOMINATOR)


def _of_pi(part: Fraction, pi: str, times: str) -> str:
    if part == 0:
        return "0"
    size = abs(part.numerator)
    return (
        ("-" if part < 0 else "")
        + (pi if size == 1 else f"{size}{times}{pi}")
        + (f"/{part.denominator}" if part.denominator > 1 else "")
    )
