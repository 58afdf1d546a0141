"""Quantum circuits of the gates h, x, cx and rz; angles as whole parts of a turn; what a circuit costs."""

import hashlib
import importlib
import math
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation, Overflow, localcontext
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddppo.errors import ConfigError, in_one_line, near

# -- Angles of rotations in fixed point: whole numbers modulo TURN, one turn of 2 pi being 2^48, a unit 2.2e-14 radians
# Sums are exact and wrap. Multiples of pi / 2^47 are held exactly; others, such as pi / 3, to half a unit.


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


# -- A circuit: gates on the wires of qubits, which are the nodes of a DAG with an edge wherever a wire joins two


KINDS = ("h", "x", "cx", "rz")
H, X, CX, RZ = range(4)
MOST_QUBITS = 2**15 - 1  # wires are int16


class Gate(NamedTuple):
    """One gate: its kind (H, X, CX or RZ), its wires (of CX control and target), the angle of an RZ in units.

    RZ is diag(1, e^{i angle}) up to phase; phases of a whole circuit are never kept.
    """

    kind: int
    wires: tuple[int, ...]
    angle: int = 0


class Links(NamedTuple):
    """What each port of each gate is joined to; -1 where the wire begins or ends, or the gate has no such port.

    Port p of gate i is where wires[i, p] passes. previous and next [N, 2] int32 are gates; previous_port and
    next_port [N, 2] int8 the ports there; first and last [num_qubits] int32 the gates at a wire's ends.
    """

    previous: NDArray[np.int32]
    previous_port: NDArray[np.int8]
    next: NDArray[np.int32]
    next_port: NDArray[np.int8]
    first: NDArray[np.int32]
    last: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Circuit:
    """Gates in an order in which they may be applied; equal to any that differs by swaps of gates on disjoint wires.

    kinds [N] uint8; wires [N, 2] int16, the second -1 for gates of one qubit; angles [N] int64 in [0, 2^48), 0 where
    there is none; copies of what is given, read-only.
    """

    num_qubits: int
    kinds: NDArray[np.uint8]
    wires: NDArray[np.int16]
    angles: NDArray[np.int64]

    def __post_init__(self) -> None:
        if not 1 <= self.num_qubits <= MOST_QUBITS:
            raise ConfigError(f"num_qubits={self.num_qubits}: a circuit has 1 to {MOST_QUBITS} qubits")
        for name, values in _checked(self).items():
            values.flags.writeable = False
            object.__setattr__(self, name, values)

    @classmethod
    def from_gates(cls, num_qubits: int, gates: Iterable[Gate]) -> "Circuit":
        """Return the circuit of these gates, applied from the first to the last."""
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
        """For each gate, how many gates are on the longest path that ends before it: 0 for those that come first."""
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
        """Gates on the longest path."""
        return int(self.levels.max(initial=-1)) + 1

    def remember(self, depth: int, digest: bytes) -> None:
        """Keep both, which C++ has computed."""
        self.__dict__.update(depth=depth, _digest=digest)

    @cached_property
    def links(self) -> Links:
        """The edges of the DAG."""
        gate, port = np.nonzero(self.wires >= 0)
        wire = self.wires[gate, port]
        along = np.argsort(wire, kind="stable")  # wire by wire, each from its first gate to its last
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
        """Return the same circuit in the one order by (level, first wire): gates of a level share no wire."""
        order = np.lexsort((self.wires[:, 0], self.levels))
        return Circuit(self.num_qubits, self.kinds[order], self.wires[order], self.angles[order])

    def digest(self) -> bytes:
        """Return 16 bytes that tell this circuit from others; the order of gates on disjoint wires does not matter.

        BLAKE2b of num_qubits as uint32, then kinds (uint8), wires (int16, row by row) and angles (int64) of the
        canonical order, all little-endian. Two different circuits share one with a chance of 2^-128.
        """
        return self._digest

    @cached_property
    def _digest(self) -> bytes:
        ordered = self.canonical()
        said = hashlib.blake2b(struct.pack("<I", self.num_qubits), digest_size=16)
        said.update(ordered.kinds.tobytes())
        said.update(ordered.wires.astype("<i2").tobytes())
        said.update(ordered.angles.astype("<i8").tobytes())
        return said.digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Circuit) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())


def _checked(circuit: Circuit) -> dict[str, NDArray[Any]]:
    """Return the three arrays in their types. Raises ConfigError that names the first gate that breaks a rule."""
    given: tuple[NDArray[Any], ...] = (circuit.kinds, circuit.wires, circuit.angles)
    kinds, wires, angles = (np.asarray(values) for values in given)
    if kinds.ndim != 1 or wires.shape != (len(kinds), 2) or angles.shape != kinds.shape:
        raise ConfigError(
            f"a circuit's arrays are kinds [N], wires [N, 2], angles [N], not {kinds.shape}, {wires.shape}, "
            f"{angles.shape}"
        )
    first, second = wires[:, 0], wires[:, 1]
    two = kinds == CX
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


# -- What is to become small: costs of a circuit, by name or by a user's import path ---------------------------------


Cost = Callable[[Circuit], float]


def gate_count(circuit: Circuit) -> float:
    """Gates of all kinds."""
    return len(circuit)


def cx_count(circuit: Circuit) -> float:
    """Gates of two qubits, the ones that fail most on hardware."""
    return int(np.count_nonzero(circuit.kinds == CX))


def cx_weighted(circuit: Circuit) -> float:
    """2 cx_count + gate_count."""
    return 2 * cx_count(circuit) + len(circuit)


def depth(circuit: Circuit) -> float:
    """Gates on the longest path."""
    return circuit.depth


def counts(circuit: Circuit) -> str:
    """Return in words how many gates of which kinds there are, on how many qubits, and the depth."""
    kinds = circuit.kinds.tolist()
    parts = ", ".join(f"{kinds.count(k)} {kind}" for k, kind in enumerate(KINDS))
    return f"{len(circuit)} gates ({parts}) on {circuit.num_qubits} qubits, depth {circuit.depth}"


def measures(circuit: Circuit) -> dict[str, float]:
    """Return the numbers that are shown of every circuit, under any cost: gates, cx and depth."""
    return {"gates": len(circuit), "cx": cx_count(circuit), "depth": circuit.depth}


COSTS: dict[str, Cost] = {f.__name__: f for f in (gate_count, cx_count, cx_weighted, depth)}


def cost(name: str) -> Cost:
    """Return the cost of this name, or a user's function by its import path, my_pkg.costs:cost.

    A user's function takes a Circuit; each call checks that it returns a finite number. Raises ConfigError.
    """
    if name in COSTS:
        return COSTS[name]
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        known = ", ".join(COSTS)
        raise ConfigError(
            f"cost={name}{near(name, list(COSTS))}: neither one of {known} nor an import path like my_pkg:cost"
        )
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as e:  # a user's module may raise anything
        raise ConfigError(f"cost={name}: cannot be imported: {in_one_line(e)}") from e
    if not callable(function):
        raise ConfigError(f"cost={name}: has to be a function of a ddppo.domains.circuits.quantum.Circuit")
    return _checked_cost(function, name)


def _checked_cost(function: Cost, name: str) -> Cost:
    def checked(circuit: Circuit) -> float:
        try:
            found = float(function(circuit))
        except Exception as e:  # a user's function may raise anything
            raise ConfigError(f"cost={name}: raised {in_one_line(e)}") from e
        if not math.isfinite(found):
            raise ConfigError(f"cost={name}: returned {found}; a cost is a finite number")
        return found

    return checked
