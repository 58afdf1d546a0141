"""The gates that an OpenQASM 2 file may call: built in, of qelib1.inc, or defined in the file, which are expanded."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from ddppo.domains.circuits.quantum.circuit import RZ, Gate
from ddppo.domains.circuits.quantum.qasm import library
from ddppo.domains.circuits.quantum.qasm.expressions import Expression, expression, value
from ddppo.domains.circuits.quantum.qasm.tokens import Tokens
from ddppo.errors import near

MOST_CALLS = 1_000_000  # of gates, those inside definitions included
_DEEPEST = 100


@dataclass(frozen=True)
class Definition:
    """A gate of other gates; depth: 1 + the deepest of those."""

    name: str
    parameters: tuple[str, ...]
    num_wires: int
    body: "tuple[Call, ...]"
    depth: int

    @property
    def num_parameters(self) -> int:
        return len(self.parameters)


AnyGate = Definition | library.Primitive


@dataclass(frozen=True)
class Call:
    """A gate of a definition's body; wires: places among the wires of the definition."""

    gate: AnyGate
    arguments: tuple[Expression, ...]
    wires: tuple[int, ...]


class TooManyCalls(ValueError):
    """A circuit of more gates than `MOST_CALLS`, definitions expanded."""


class Expander:
    """Gates of calls, with definitions expanded, no more than MOST_CALLS in all."""

    def __init__(self) -> None:
        self._num_calls = 0

    def gates(
        self, gate: AnyGate, values: tuple[Decimal, ...], wires: tuple[int, ...], *, is_inner: bool = False
    ) -> Iterator[Gate]:
        """Yield the gates. Raises TooManyCalls, and NoAngle for an expression without a value.

        A rotation by zero that the file asks for stays; one that a decomposition makes is left out.
        """
        self._num_calls += 1
        if self._num_calls > MOST_CALLS:
            raise TooManyCalls(
                f"the circuit has more than {MOST_CALLS:,} gates, definitions expanded: split it"
            )
        if isinstance(gate, library.Primitive):
            yield from (
                g for g in gate.gates_of(values, wires) if g.kind != RZ or g.angle or not is_inner
            )  # fmt: skip
            return
        given = dict(zip(gate.parameters, values, strict=True))
        for call in gate.body:
            inner = tuple(value(argument, given) for argument in call.arguments)
            yield from self.gates(call.gate, inner, tuple(wires[w] for w in call.wires), is_inner=True)


class Gates:
    """The gates that are known at a place of the file, by name."""

    def __init__(self, tokens: Tokens, included: dict[str, AnyGate]) -> None:
        self._tokens = tokens
        self._included = included
        self._known: dict[str, AnyGate] = dict(library.BUILT_IN)
        self._own: dict[str, int] = {}  # gates that this file defines, and where

    def include(self) -> None:
        """Know the gates of qelib1.inc; where the file defined one itself, that stays."""
        self._known |= {name: gate for name, gate in self._included.items() if name not in self._own}

    def called(
        self, word: str, line: int, parameters: Sequence[str]
    ) -> tuple[AnyGate, tuple[Expression, ...]]:
        """Return the gate `word` and its arguments, which follow in the file."""
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
        """Read `name(parameters) wires { body }`, which follows in the file."""
        tokens = self._tokens
        name = tokens.word("a gate's name")
        if name in self._own or name in library.BUILT_IN:
            where = f" in line {self._own[name]}" if name in self._own else ""
            tokens.fail(f"gate {name} is defined already{where}: give it another name", line)
        parameters: list[str] = []
        if tokens.take("(") and not tokens.take(")"):
            parameters = _words(tokens, "a parameter's name")
            tokens.expect(")", f"after the parameters of {name}")
        wires = _words(tokens, "the name of a wire")
        for names in (parameters, wires):
            if len(set(names)) < len(names):
                tokens.fail(f"gate {name}: a name stands twice in {', '.join(names)}", line)
        tokens.expect("{", f"before the body of {name}")
        body: list[Call] = []
        while not tokens.take("}"):
            body += self._call(name, parameters, wires)
        depth = 1 + max((call.gate.depth for call in body if isinstance(call.gate, Definition)), default=0)
        if depth > _DEEPEST:
            tokens.fail(f"gate {name}: definitions nest more than {_DEEPEST} deep; flatten them", line)
        self._known[name] = Definition(name, tuple(parameters), len(wires), tuple(body), depth)
        self._own[name] = line

    def _call(self, name: str, parameters: Sequence[str], wires: Sequence[str]) -> list[Call]:
        """Read one statement in the body of the gate `name`; a barrier is none."""
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
    """Return the gates of a text of definitions in h, x, cx and rz, by name."""
    tokens = Tokens(text, "qelib1.inc")
    gates = Gates(tokens, dict(library.NAM))
    gates.include()
    while tokens.take("gate"):
        gates.define(tokens.line)
    assert tokens.now.kind == "end", tokens.now
    return gates._known


def check_wires(tokens: Tokens, gate: AnyGate, names: Collection[str], line: int) -> None:
    """Raise ConfigError unless these are as many different qubits as the gate has."""
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
