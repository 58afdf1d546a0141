"""The gates of OpenQASM and their expansion into h, x, cx and rz.

Gates that a text defines are read in qasm_definitions.py, modifiers such as ctrl in qasm_modifiers.py.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from ddppo.domains.circuits.quantum.circuit import CX, PI, RZ, TURN, Gate, H, X, of_radians
from ddppo.domains.circuits.quantum.qasm_tokens import Expression, value

# -- The gates of `include "qelib1.inc";`, and a few that other programs add, in h, x, cx and rz up to a phase -------
# Source of each: Cross, Bishop, Smolin, Gambetta, "Open Quantum Assembly Language", arXiv:1707.03429.


class Primitive(NamedTuple):
    """A gate that is not defined by other gates."""

    name: str
    num_parameters: int
    num_wires: int
    gates_of: Callable[[tuple[Decimal, ...], tuple[int, ...]], list[Gate]]  # from parameters and wires


def u(angles: tuple[Decimal, ...], wires: tuple[int, ...]) -> list[Gate]:
    """Return U(theta, phi, lambda) = Rz(phi) Ry(theta) Rz(lambda), in as few gates as theta allows.

    Up to a phase, Ry(0) = 1, Ry(pi/2) = H Z, Ry(pi) = Z X, Ry(-pi/2) = Z H, and Ry(t) = S H Rz(t) H S^-1 in general.
    """
    # Angles are exact integers, so that multiples of pi/2 are found exactly.
    theta, phi, lam = (of_radians(angle) for angle in angles)
    quarter = TURN // 4
    h = Gate(H, wires)
    found = {
        0: [_rz(phi + lam, wires)],
        quarter: [_rz(lam + PI, wires), h, _rz(phi, wires)],
        PI: [Gate(X, wires), _rz(phi - lam + PI, wires)],
        3 * quarter: [_rz(lam, wires), h, _rz(phi + PI, wires)],
    }.get(theta, [_rz(lam - quarter, wires), h, _rz(theta, wires), h, _rz(phi + quarter, wires)])
    return [gate for gate in found if gate.kind != RZ or gate.angle]


def _rz(angle: int, wires: tuple[int, ...]) -> Gate:
    return Gate(RZ, wires, angle % TURN)


BUILT_IN = {
    "U": Primitive("U", 3, 1, u),
    "CX": Primitive("CX", 0, 2, lambda _, wires: [Gate(CX, wires)]),
}
GPHASE = Primitive("gphase", 1, 0, lambda _, wires: [])  # built in OpenQASM 3
NAM = {
    "h": Primitive("h", 0, 1, lambda _, wires: [Gate(H, wires)]),
    "x": Primitive("x", 0, 1, lambda _, wires: [Gate(X, wires)]),
    "cx": Primitive("cx", 0, 2, lambda _, wires: [Gate(CX, wires)]),
    "rz": Primitive("rz", 1, 1, lambda angles, wires: [_rz(of_radians(angles[0]), wires)]),
}
# The content of qelib1.inc.
TEXT = """
gate u3(theta,phi,lambda) q { U(theta,phi,lambda) q; }
gate u(theta,phi,lambda) q { U(theta,phi,lambda) q; }
gate u2(phi,lambda) q { U(pi/2,phi,lambda) q; }
gate u1(lambda) q { rz(lambda) q; }
gate p(lambda) q { rz(lambda) q; }
gate u0(gamma) q { }
gate id q { }
gate z a { rz(pi) a; }
gate s a { rz(pi/2) a; }
gate sdg a { rz(-pi/2) a; }
gate t a { rz(pi/4) a; }
gate tdg a { rz(-pi/4) a; }
gate y a { z a; x a; }
gate rx(theta) a { h a; rz(theta) a; h a; }
gate ry(theta) a { U(theta,0,0) a; }
gate sx a { h a; s a; h a; }
gate sxdg a { h a; sdg a; h a; }
gate cz a,b { h b; cx a,b; h b; }
gate cy a,b { sdg b; cx a,b; s b; }
gate swap a,b { cx a,b; cx b,a; cx a,b; }
gate iswap a,b { s a; s b; h a; cx a,b; cx b,a; h b; }
gate ch a,b { s b; h b; t b; cx a,b; tdg b; h b; sdg b; }
gate ccz a,b,c {
  cx b,c; tdg c; cx a,c; t c; cx b,c; tdg c; cx a,c; t b; t c; cx a,b; t a; tdg b; cx a,b; }
gate ccx a,b,c { h c; ccz a,b,c; h c; }
gate cswap a,b,c { cx c,b; ccx a,b,c; cx c,b; }
gate rccx a,b,c { h c; t c; cx b,c; tdg c; cx a,c; t c; cx b,c; tdg c; h c; }
gate crz(lambda) a,b { rz(lambda/2) b; cx a,b; rz(-lambda/2) b; cx a,b; }
gate crx(lambda) a,b { h b; crz(lambda) a,b; h b; }
gate cry(lambda) a,b { ry(lambda/2) b; cx a,b; ry(-lambda/2) b; cx a,b; }
gate cu1(lambda) a,b { rz(lambda/2) a; cx a,b; rz(-lambda/2) b; cx a,b; rz(lambda/2) b; }
gate cp(lambda) a,b { cu1(lambda) a,b; }
gate csx a,b { h b; cu1(pi/2) a,b; h b; }
gate cu3(theta,phi,lambda) c,t {
  rz((lambda+phi)/2) c; rz((lambda-phi)/2) t; cx c,t;
  U(-theta/2,0,-(phi+lambda)/2) t; cx c,t; U(theta/2,phi,0) t; }
gate cu(theta,phi,lambda,gamma) c,t { rz(gamma) c; cu3(theta,phi,lambda) c,t; }
gate rzz(theta) a,b { cx a,b; rz(theta) b; cx a,b; }
gate rxx(theta) a,b { h a; h b; rzz(theta) a,b; h a; h b; }
gate ryy(theta) a,b { rx(pi/2) a; rx(pi/2) b; rzz(theta) a,b; rx(-pi/2) a; rx(-pi/2) b; }
gate rzx(theta) a,b { h b; rzz(theta) a,b; h b; }
"""


# -- The gates that a file may call: built in, from qelib1.inc, or defined in the file -------------------


MOST_CALLS = 1_000_000  # gates after expansion of definitions
DEEPEST = 100  # levels of definitions inside definitions


@dataclass(frozen=True)
class Definition:
    """A gate that is defined by other gates."""

    name: str
    parameters: tuple[str, ...]
    num_wires: int
    body: "tuple[Call, ...]"
    depth: int  # 1 + the largest depth of a gate in the body
    is_own: bool  # defined by the file, not by the library

    @property
    def num_parameters(self) -> int:
        return len(self.parameters)


@dataclass(frozen=True)
class Modified:
    """A gate of OpenQASM 3 that is inverted, repeated, or controlled by zeros (qasm_modifiers.py)."""

    name: str
    gate: "AnyGate"
    power: int  # how often it is applied; of its inverse, if negative
    negated: tuple[int, ...]  # indices of the controls that have to be 0

    @property
    def num_parameters(self) -> int:
        return self.gate.num_parameters

    @property
    def num_wires(self) -> int:
        return self.gate.num_wires

    @property
    def depth(self) -> int:
        return 1 + depth_of(self.gate)


AnyGate = Definition | Primitive | Modified


def depth_of(gate: AnyGate) -> int:
    """Return how deep definitions nest in the gate."""
    return 0 if isinstance(gate, Primitive) else gate.depth


@dataclass(frozen=True)
class Call:
    """A gate in the body of a definition."""

    gate: AnyGate
    arguments: tuple[Expression, ...]
    wires: tuple[int, ...]  # indices of wires of the definition


class TooManyCalls(ValueError):
    """A circuit has more than `MOST_CALLS` gates after expansion."""


class Expander:
    """Expands definitions into gates, at most MOST_CALLS for a file."""

    def __init__(self) -> None:
        self._num_calls = 0

    def gates(
        self, gate: AnyGate, values: tuple[Decimal, ...], wires: tuple[int, ...], *, is_inner: bool = False
    ) -> Iterator[Gate]:
        """Yield the gates of a call. Raises TooManyCalls, and NoAngle for an expression without a value.

        A rotation by 0 in the file itself is kept; one that comes from a definition is left out.
        """
        self._count(1)
        # A gate that the circuit has, or a fixed sequence of such gates.
        if isinstance(gate, Primitive):
            yield from (
                g for g in gate.gates_of(values, wires) if g.kind != RZ or g.angle or not is_inner
            )  # fmt: skip
            return
        if isinstance(gate, Modified):
            yield from self._modified(gate, values, wires)
            return
        # A definition: evaluate the arguments of each call with its parameters, and expand the call.
        given = dict(zip(gate.parameters, values, strict=True))
        for call in gate.body:
            inner = tuple(value(argument, given) for argument in call.arguments)
            yield from self.gates(call.gate, inner, tuple(wires[w] for w in call.wires), is_inner=True)

    def _modified(
        self, gate: Modified, values: tuple[Decimal, ...], wires: tuple[int, ...]
    ) -> Iterator[Gate]:
        once = list(self.gates(gate.gate, values, wires, is_inner=True))
        if gate.power < 0:  # h, x and cx are their own inverses
            once = [each._replace(angle=-each.angle % TURN) for each in reversed(once)]
        flips = [Gate(X, (wires[k],)) for k in gate.negated] if gate.power else []
        yield from flips
        for _ in range(abs(gate.power)):
            self._count(max(1, len(once)))
            yield from once
        yield from flips

    def _count(self, number: int) -> None:
        # Nested definitions can describe an astronomical number of gates in a few lines.
        self._num_calls += number
        if self._num_calls > MOST_CALLS:
            raise TooManyCalls(
                f"the circuit has more than {MOST_CALLS:,} gates, definitions expanded: split it"
            )
