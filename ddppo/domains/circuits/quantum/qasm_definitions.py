"""The gates that a text in OpenQASM may call, by name: those of the library, and those that it defines."""

import functools
from collections.abc import Collection, Sequence

from ddppo.domains.circuits.quantum.qasm_gates import (
    BUILT_IN,
    DEEPEST,
    GPHASE,
    NAM,
    TEXT,
    AnyGate,
    Call,
    Definition,
    depth_of,
)
from ddppo.domains.circuits.quantum.qasm_modifiers import (
    CONTROLLED,
    CONTROLLED_TEXT,
    MODIFIERS,
    TEXT_3,
    Controlled,
    Modifier,
    NotControlled,
    modified,
    modifier,
)
from ddppo.domains.circuits.quantum.qasm_tokens import Expression, Tokens, expression
from ddppo.errors import near

# -- The libraries -----------------------------------------------------------------------------------------------------


def known_after_reading(text: str) -> dict[str, AnyGate]:
    """Return the gates of a text that consists of definitions in h, x, cx and rz, by name."""
    tokens = Tokens(text, "qelib1.inc")
    gates = Gates(tokens, dict(NAM), is_own=False)
    gates.include()
    while tokens.take("gate"):
        gates.define(tokens.line)
    assert tokens.now.kind == "end", tokens.now
    return gates._known


@functools.cache
def library(version: int) -> dict[str, AnyGate]:
    """Return the gates of `include` in this version of OpenQASM, by name."""
    return known_after_reading(TEXT + (TEXT_3 if version == 3 else ""))


@functools.cache
def controlled_gates() -> dict[str, Controlled]:
    """Return each gate of OpenQASM 3 that has a known controlled form, and that form, by name."""
    known = library(3) | BUILT_IN | {"gphase": GPHASE}
    forms = known_after_reading(TEXT + CONTROLLED_TEXT) | library(3)  # the same objects, so that they nest
    return {name: Controlled(known[name], forms[form]) for name, form in CONTROLLED.items()}


LIBRARIES = {2: "qelib1.inc", 3: "stdgates.inc"}  # by version of OpenQASM


# -- The gates that a file may call: built in, from the library, or defined in the file --------------------------------


class Gates:
    """The gates that are defined so far, by name, and the reader of definitions."""

    def __init__(self, tokens: Tokens, included: dict[str, AnyGate], *, is_own: bool = True) -> None:
        self._tokens = tokens
        self._is_own = is_own
        self._included = included
        self._controlled = controlled_gates() if tokens.version == 3 else {}
        self._known: dict[str, AnyGate] = dict(BUILT_IN)
        if tokens.version == 3:
            self._known["gphase"] = GPHASE
        self._own: dict[str, int] = {}  # line of each gate that this file defines

    def include(self) -> None:
        """Add the gates of the library, except those that the file has defined itself."""
        self._known |= {name: gate for name, gate in self._included.items() if name not in self._own}

    def called(
        self, word: str, line: int, parameters: Sequence[str]
    ) -> tuple[AnyGate, tuple[Expression, ...]]:
        """Read the arguments of the gate `word`; return the gate and its arguments."""
        tokens = self._tokens
        modifiers: list[Modifier] = []
        while tokens.version == 3 and word in MODIFIERS:
            modifiers.append(modifier(tokens, word))
            word = tokens.word("a gate")
        gate = self._known.get(word)
        if gate is None:
            tokens.fail(self._unknown(word), line)
        if modifiers:
            try:
                gate = modified(gate, modifiers, self._controlled)
            except NotControlled as e:
                tokens.fail(str(e), line)
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
        if name in self._own or name in BUILT_IN or self._known.get(name) is GPHASE:
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
        depth = 1 + max((depth_of(call.gate) for call in body), default=0)
        # Expansion is recursive: a deeper definition would exceed Python's stack.
        if depth > DEEPEST:
            tokens.fail(f"gate {name}: definitions nest more than {DEEPEST} deep; flatten them", line)
        self._known[name] = Definition(name, tuple(parameters), len(wires), tuple(body), depth, self._is_own)
        self._own[name] = line

    def _call(self, name: str, parameters: Sequence[str], wires: Sequence[str]) -> list[Call]:
        """Read one statement in the body of the gate `name`. A barrier yields no call."""
        tokens = self._tokens
        line, word = tokens.line, tokens.word(f"a gate, or }} at the end of gate {name}")
        calls: list[Call] = []
        if word == "barrier":
            if tokens.now.text != ";":
                _words(tokens, "a wire")
        else:
            gate, arguments = self.called(word, line, parameters)
            operands = _words(tokens, "a wire") if gate.num_wires else []
            for operand in operands:
                if operand not in wires:
                    tokens.fail(f"{operand} is no wire of gate {name}, which has {', '.join(wires)}", line)
            check_wires(tokens, gate, operands, line)
            calls.append(Call(gate, arguments, tuple(wires.index(operand) for operand in operands)))
        tokens.expect(";", "at the end of the statement")
        return calls

    def _unknown(self, word: str) -> str:
        if word in self._included:
            return f'{word} is no gate yet: add include "{LIBRARIES[self._tokens.version]}"; above'
        alike = near(word, list(self._known))
        return f"there is no gate {word}{alike}: define it above by gate {word} ... {{ ... }}"


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
