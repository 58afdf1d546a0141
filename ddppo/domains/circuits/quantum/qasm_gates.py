"""The gates of OpenQASM 2: those of qelib1.inc, and those that a text defines, expanded into h, x, cx and rz."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from ddppo.domains.circuits.quantum.circuit import CX, PI, RZ, TURN, Gate, H, X, of_radians
from ddppo.domains.circuits.quantum.qasm_tokens import Expression, Tokens, expression, value
from ddppo.errors import near

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


# -- The gates that an OpenQASM 2 file may call: built in, from qelib1.inc, or defined in the file -------------------


MOST_CALLS = 1_000_000  # gates after expansion of definitions
_DEEPEST = 100  # levels of definitions inside definitions


@dataclass(frozen=True)
class Definition:
    """A gate that is defined by other gates."""

    name: str
    parameters: tuple[str, ...]
    num_wires: int
    body: "tuple[Call, ...]"
    depth: int  # 1 + the largest depth of a gate in the body

    @property
    def num_parameters(self) -> int:
        return len(self.parameters)


AnyGate = Definition | Primitive


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
        # Nested definitions can describe an astronomical number of gates in a few lines: count them.
        self._num_calls += 1
        if self._num_calls > MOST_CALLS:
            raise TooManyCalls(
                f"the circuit has more than {MOST_CALLS:,} gates, definitions expanded: split it"
            )
        # A gate that the circuit has, or a fixed sequence of such gates.
        if isinstance(gate, Primitive):
            yield from (
                g for g in gate.gates_of(values, wires) if g.kind != RZ or g.angle or not is_inner
            )  # fmt: skip
            return
        # A definition: evaluate the arguments of each call with its parameters, and expand the call.
        given = dict(zip(gate.parameters, values, strict=True))
        for call in gate.body:
            inner = tuple(value(argument, given) for argument in call.arguments)
            yield from self.gates(call.gate, inner, tuple(wires[w] for w in call.wires), is_inner=True)


class Gates:
    """The gates that are defined so far, by name, and the reader of definitions."""

    def __init__(self, tokens: Tokens, included: dict[str, AnyGate]) -> None:
        self._tokens = tokens
        self._included = included
        self._known: dict[str, AnyGate] = dict(BUILT_IN)
        self._own: dict[str, int] = {}  # line of each gate that this file defines

    def include(self) -> None:
        """Add the gates of qelib1.inc, except those that the file has defined itself."""
        self._known |= {name: gate for name, gate in self._included.items() if name not in self._own}

    def called(
        self, word: str, line: int, parameters: Sequence[str]
    ) -> tuple[AnyGate, tuple[Expression, ...]]:
        """Read the arguments of the gate `word`; return the gate and its arguments."""
        tokens = self._tokens
        gate = self._known.get(word)
        if gate is None:
            tokens.fail(self._unknown(word), line)
        arguments: list[Expression] = []
        if tokens.take("(") and not tokens.take(")"):
            arguments.append(expression(tokens, parameters))
            while tokens.take(","):
                arguments.append(expression(tokens, parameters))
            tokens.expect(")", f"after the angles of {word}")
        if len(arguments) != gate.num_parameters:
            tokens.fail(f"{word} takes {_count(gate.num_parameters, 'angle')}, not {len(arguments)}", line)
        return gate, tuple(arguments)

    def define(self, line: int) -> None:
        """Read `name(parameters) wires { body }` and add the gate."""
        # 1. The name: a gate may be defined once.
        tokens = self._tokens
        name = tokens.word("a gate's name")
        if name in self._own or name in BUILT_IN:
            where = f" in line {self._own[name]}" if name in self._own else ""
            tokens.fail(f"gate {name} is defined already{where}: give it another name", line)
        # 2. Parameters and wires.
        parameters: list[str] = []
        if tokens.take("(") and not tokens.take(")"):
            parameters = _words(tokens, "a parameter's name")
            tokens.expect(")", f"after the parameters of {name}")
        wires = _words(tokens, "the name of a wire")
        for names in (parameters, wires):
            if len(set(names)) < len(names):
                tokens.fail(f"gate {name}: a name stands twice in {', '.join(names)}", line)
        # 3. The body.
        tokens.expect("{", f"before the body of {name}")
        body: list[Call] = []
        while not tokens.take("}"):
            body += self._call(name, parameters, wires)
        depth = 1 + max((call.gate.depth for call in body if isinstance(call.gate, Definition)), default=0)
        # Expansion is recursive: a deeper definition would exceed Python's stack.
        if depth > _DEEPEST:
            tokens.fail(f"gate {name}: definitions nest more than {_DEEPEST} deep; flatten them", line)
        self._known[name] = Definition(name, tuple(parameters), len(wires), tuple(body), depth)
        self._own[name] = line

    def _call(self, name: str, parameters: Sequence[str], wires: Sequence[str]) -> list[Call]:
        """Read one statement in the body of the gate `name`. A barrier yields no call."""
        tokens = self._tokens
        line, word = tokens.line, tokens.word(f"a gate, or }} at the end of gate {name}")
        calls: list[Call] = []
        if word == "barrier":
            _words(tokens, "a wire")
        else:
            gate, arguments = self.called(word, line, parameters)
            operands = _words(tokens, "a wire")
            for operand in operands:
                if operand not in wires:
                    tokens.fail(f"{operand} is no wire of gate {name}, which has {', '.join(wires)}", line)
            check_wires(tokens, gate, operands, line)
            calls.append(Call(gate, arguments, tuple(wires.index(operand) for operand in operands)))
        tokens.expect(";", "at the end of the statement")
        return calls

    def _unknown(self, word: str) -> str:
        if word in self._included:
            return f'{word} is no gate yet: add include "qelib1.inc"; above'
        alike = near(word, list(self._known))
        return f"there is no gate {word}{alike}: define it above by gate {word} ... {{ ... }}"


def known_after_reading(text: str) -> dict[str, AnyGate]:
    """Return the gates of a text that consists of definitions in h, x, cx and rz, by name."""
    tokens = Tokens(text, "qelib1.inc")
    gates = Gates(tokens, dict(NAM))
    gates.include()
    while tokens.take("gate"):
        gates.define(tokens.line)
    assert tokens.now.kind == "end", tokens.now
    return gates._known


def check_wires(tokens: Tokens, gate: AnyGate, names: Collection[str], line: int) -> None:
    """Raise ConfigError unless the names are different, and as many as the gate has wires."""
    if len(names) != gate.num_wires:
        tokens.fail(f"{gate.name} acts on {_count(gate.num_wires, 'qubit')}, not {len(names)}", line)
    if len(set(names)) < len(names):
        tokens.fail(f"{gate.name} is applied to one qubit twice ({', '.join(names)})", line)


def _words(tokens: Tokens, what: str) -> list[str]:
    words = [tokens.word(what)]
    while tokens.take(","):
        words.append(tokens.word(what))
    return words


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
