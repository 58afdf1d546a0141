"""Quantum circuits of the gates h, x, cx and rz.

In this order: angles in fixed point, and `Circuit` with its DAG and its canonical order.
"""

import hashlib
import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation, Overflow, localcontext
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddppo.errors import ConfigError

# -- Angles of rotations in fixed point ------------------------------------------------------------------------------
# An angle is an integer modulo TURN = 2^48, which is one turn of 2 pi; a unit is 2.2e-14 radians. Sums are exact and
# wrap around. Multiples of pi / 2^47 are exact; other angles, such as pi / 3, are rounded to half a unit.


TURN = 1 << 48
PI = TURN // 2
DIGITS = 60  # decimal digits of expressions: 10^6 pi keeps its phase, which a float would lose
DECIMAL_PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534"
)
_LARGEST_DENOMINATOR = 256
_SHOWN_WITHIN = 1e-9  # turns: pictures show the nearest fraction of pi if it is this close


class NoAngle(ValueError):
    """A number or an expression that is not finite, too large, or has no value."""


def of_radians(radians: float | Decimal) -> int:
    """Return round(radians 2^48 / (2 pi)) mod 2^48. Raises NoAngle for numbers that are not finite or above 10^50."""
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
    """Return text that is read back as exactly this angle: a fraction of pi with a denominator up to 256, or a
    decimal.
    """
    part = _fraction(angle)
    if of_fraction(part.numerator, part.denominator) == angle % TURN:
        return _of_pi(part, "pi", "*")
    texts = (f"{radians(angle):.{digits}g}" for digits in range(1, 17))
    return next((text for text in texts if of_radians(Decimal(text)) == angle % TURN), repr(radians(angle)))


def shown(angle: int) -> str:
    """Return short text for pictures: a fraction of pi such as -3π/4 if one is within 1e-9 turns, else 4 digits."""
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


# -- A circuit: gates on wires. Gates are the nodes of a DAG, with an edge wherever a wire joins two gates. ----------


KINDS = ("h", "x", "cx", "rz")
H, X, CX, RZ = range(4)
MOST_QUBITS = 2**15 - 1  # wires are int16


class Gate(NamedTuple):
    """One gate. An RZ is diag(1, e^{i angle}) up to a phase; the global phase of a circuit is never kept."""

    kind: int  # H, X, CX or RZ
    wires: tuple[int, ...]  # one, or control and target of a CX
    angle: int = 0  # of an RZ, in units


class Links(NamedTuple):
    """The edges of the DAG. Port p of gate i is where wire wires[i, p] passes through the gate.

    -1 stands for no gate: the wire begins or ends there, or the gate has no such port.
    """

    previous: NDArray[np.int32]  # [N, 2] the gate before each port
    previous_port: NDArray[np.int8]  # [N, 2] its port
    next: NDArray[np.int32]  # [N, 2] the gate after each port
    next_port: NDArray[np.int8]  # [N, 2] its port
    first: NDArray[np.int32]  # [num_qubits] the first gate on each wire
    last: NDArray[np.int32]  # [num_qubits] the last gate on each wire


@dataclass(frozen=True, eq=False)
class Circuit:
    """A sequence of N gates. Circuits that differ by swaps of gates on disjoint wires are equal.

    The arrays are read-only copies of the arguments.
    """

    num_qubits: int
    kinds: NDArray[np.uint8]  # [N]
    wires: NDArray[np.int16]  # [N, 2], the second is -1 for gates of one qubit
    angles: NDArray[np.int64]  # [N] in [0, 2^48), 0 for gates other than rz

    def __post_init__(self) -> None:
        if not 1 <= self.num_qubits <= MOST_QUBITS:
            raise ConfigError(f"num_qubits={self.num_qubits}: a circuit has 1 to {MOST_QUBITS} qubits")
        for name, values in _checked(self).items():
            values.flags.writeable = False
            object.__setattr__(self, name, values)

    @classmethod
    def from_gates(cls, num_qubits: int, gates: Iterable[Gate]) -> "Circuit":
        """Return the circuit that applies these gates from the first to the last."""
        gates = list(gates)
        for gate in gates:
            if not 1 <= len(gate.wires) <= 2:
                raise ConfigError(f"{gate}: a gate has one wire, or two if it is cx")
        kinds: NDArray[Any] = np.array([g.kind for g in gates], np.int64)
        wires: NDArray[Any] = np.array([(*g.wires, -1)[:2] for g in gates], np.int64).reshape(-1, 2)
        return cls(num_qubits, kinds, wires, np.array([g.angle % TURN for g in gates], np.int64))

    def gates(self) -> list[Gate]:
        """Return the gates in this circuit's order."""
        return list(self)

    def __iter__(self) -> Iterator[Gate]:
        for kind, (a, b), angle in zip(
            self.kinds.tolist(), self.wires.tolist(), self.angles.tolist(), strict=True
        ):
            yield Gate(kind, (a,) if b < 0 else (a, b), angle)

    def __len__(self) -> int:
        return len(self.kinds)

    @cached_property
    def levels(self) -> NDArray[np.int32]:
        """For each gate, the number of gates on the longest path that ends before it; 0 for the first gates."""
        free_at = [0] * self.num_qubits
        levels = np.empty(len(self), np.int32)
        for i, (a, b) in enumerate(self.wires.tolist()):
            level = free_at[a] if b < 0 else max(free_at[a], free_at[b])
            levels[i] = level
            free_at[a] = level + 1
            if b >= 0:
                free_at[b] = level + 1
        levels.flags.writeable = False
        return levels

    @cached_property
    def depth(self) -> int:
        """The number of gates on the longest path."""
        return int(self.levels.max(initial=-1)) + 1

    def set_computed(self, depth: int, digest: bytes) -> None:
        """Store the depth and digest that C++ has computed, so that they are not computed again."""
        self.__dict__.update(depth=depth, _digest=digest)

    @cached_property
    def links(self) -> Links:
        """The edges of the DAG."""
        # List all (gate, port) wire by wire, each wire from its first gate to its last. Neighbours in this list that
        # have the same wire are joined by an edge.
        gate, port = np.nonzero(self.wires >= 0)
        wire = self.wires[gate, port]
        along = np.argsort(wire, kind="stable")
        gate, port, wire = gate[along], port[along], wire[along]
        joined = wire[1:] == wire[:-1]
        before, after = np.flatnonzero(joined), np.flatnonzero(joined) + 1
        none, no_port = np.full((len(self), 2), -1, np.int32), np.full((len(self), 2), -1, np.int8)
        links = Links(none, no_port, none.copy(), no_port.copy(),
                      np.full(self.num_qubits, -1, np.int32), np.full(self.num_qubits, -1, np.int32))  # fmt: skip
        links.previous[gate[after], port[after]] = gate[before]
        links.previous_port[gate[after], port[after]] = port[before]
        links.next[gate[before], port[before]] = gate[after]
        links.next_port[gate[before], port[before]] = port[after]
        begins, ends = np.append(True, ~joined), np.append(~joined, True)
        if len(self):
            links.first[wire[begins]] = gate[begins]
            links.last[wire[ends]] = gate[ends]
        for values in links:
            values.flags.writeable = False
        return links

    def canonical(self) -> "Circuit":
        """Return the circuit sorted by (level, first wire). The order is unique: gates of a level share no wire."""
        order = np.lexsort((self.wires[:, 0], self.levels))
        return Circuit(self.num_qubits, self.kinds[order], self.wires[order], self.angles[order])

    def digest(self) -> bytes:
        """Return a hash of 16 bytes, equal for circuits that differ by swaps of gates on disjoint wires.

        BLAKE2b of num_qubits as uint32, then kinds (uint8), wires (int16, row by row) and angles (int64) in canonical
        order, all little-endian. Two different circuits share a hash with probability 2^-128.
        """
        return self._digest

    @cached_property
    def _digest(self) -> bytes:
        ordered = self.canonical()
        found = hashlib.blake2b(struct.pack("<I", self.num_qubits), digest_size=16)
        found.update(ordered.kinds.tobytes())
        found.update(ordered.wires.astype("<i2").tobytes())
        found.update(ordered.angles.astype("<i8").tobytes())
        return found.digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Circuit) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())


def _checked(circuit: Circuit) -> dict[str, NDArray[Any]]:
    """Return the three arrays in their types. Raises ConfigError that names the first invalid gate and the rule."""
    given: tuple[NDArray[Any], ...] = (circuit.kinds, circuit.wires, circuit.angles)
    kinds, wires, angles = (np.asarray(values) for values in given)
    if kinds.ndim != 1 or wires.shape != (len(kinds), 2) or angles.shape != kinds.shape:
        raise ConfigError(
            f"a circuit's arrays are kinds [N], wires [N, 2], angles [N], not {kinds.shape}, {wires.shape}, "
            f"{angles.shape}"
        )
    first, second = wires[:, 0], wires[:, 1]
    two = kinds == CX
    # Each rule, with the gates that break it.
    rules = {
        f"its kind is none of 0 to 3 ({', '.join(KINDS)})": (kinds < 0) | (kinds >= len(KINDS)),
        f"its wires are not among 0 to {circuit.num_qubits - 1}": (first < 0)
        | (wires >= circuit.num_qubits).any(1)
        | (two & (second < 0)),
        "a gate of one qubit has -1 as second wire": ~two & (second != -1),
        "control and target are the same wire": two & (first == second),
        f"its angle is not in [0, {TURN}), one turn": (angles < 0) | (angles >= TURN),
        "only rz has an angle": (kinds != RZ) & (angles != 0),
    }
    for rule, broken in rules.items():
        if broken.any():
            i = int(np.argmax(broken))
            gate = f"kind {kinds[i]}, wires {first[i]} and {second[i]}, angle {angles[i]}"
            raise ConfigError(f"gate {i} of the circuit ({gate}): {rule}")
    return {
        "kinds": kinds.astype(np.uint8),
        "wires": wires.astype(np.int16),
        "angles": angles.astype(np.int64),
    }
