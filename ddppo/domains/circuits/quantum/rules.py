"""A rule: two small circuits that are equal up to a phase for all values of the angles a, b, c and d.

    cx 0 1; rz(a) 0 -> rz(a) 0; cx 0 1
    rz(a) 0; rz(b) 0 -> rz(a+b) 0

In this order: rules as text, their properties, their canonical form, the numerical proof that both sides are equal
(`difference`), and files of rules.
"""

import functools
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddppo.domains.circuits.quantum.circuit import CX, KINDS, RZ, TURN, Circuit, Gate, X, of_fraction, written
from ddppo.errors import ConfigError
from ddppo.files import write_text

PARAMETERS = "abcd"
MOST_WIRES, MOST_GATES = 4, 8  # of a rule; src/rewriting.hpp has the same limits
_TERM = re.compile(rf"([+-]?)(?:([{PARAMETERS}])|(?:(\d+)\*)?pi(?:/(\d+))?)")


class Expression(NamedTuple):
    """An angle: constant + sum of coefficients * parameters, in units, modulo one turn."""

    coefficients: tuple[int, ...] = (0,) * len(PARAMETERS)
    constant: int = 0

    @property
    def parameters(self) -> frozenset[int]:
        return frozenset(k for k, c in enumerate(self.coefficients) if c)

    def at(self, values: Sequence[int]) -> int:
        """Return the angle for these values of the parameters."""
        return (self.constant + sum(c * v for c, v in zip(self.coefficients, values, strict=False))) % TURN

    def __str__(self) -> str:
        terms = [f"{'+' if c > 0 else '-'}{PARAMETERS[k]}" * abs(c) for k, c in enumerate(self.coefficients)]
        if self.constant or not any(terms):
            text = written(self.constant)
            terms.append(text if text.startswith("-") else f"+{text}")
        return "".join(terms).removeprefix("+")


NO_ANGLE = Expression()


class SymbolicGate(NamedTuple):
    """One gate of a rule; an rz has an expression as its angle."""

    kind: int
    wires: tuple[int, ...]
    angle: Expression = NO_ANGLE

    def __str__(self) -> str:
        angle = f"({self.angle})" if self.kind == RZ else ""
        return f"{KINDS[self.kind]}{angle} {' '.join(map(str, self.wires))}"


Gates = tuple[SymbolicGate, ...]


class Rule(NamedTuple):
    """`source` in a circuit may be replaced by `target`."""

    source: Gates
    target: Gates

    def __str__(self) -> str:
        return " -> ".join("; ".join(map(str, gates)) for gates in self)

    @property
    def num_wires(self) -> int:
        return 1 + max(wires_of(itertools.chain(*self)))


def parse(text: str) -> Rule:
    """Return the rule that `str` wrote. Raises ValueError with a phrase that completes the caller's message."""
    sides = text.split("->")
    if len(sides) != 2:
        raise ValueError("a rule is `source -> target`")
    rule = Rule(*map(parsed_gates, sides))
    check(rule)
    return rule


def parsed_gates(text: str) -> Gates:
    """Return the gates of one side of a rule. Raises ValueError."""
    return tuple(_gate(word) for word in text.split(";") if word.strip())


def check(rule: Rule) -> None:
    """Raise ValueError, with a phrase that completes the caller's message, if the rule cannot be matched."""
    if not 1 <= len(rule.source) <= MOST_GATES or len(rule.target) > MOST_GATES:
        raise ValueError(f"source and target have at most {MOST_GATES} gates, the source at least 1")
    if any(w >= MOST_WIRES for gates in rule for gate in gates for w in gate.wires):
        raise ValueError(f"the wires of a rule are 0 to {MOST_WIRES - 1}")
    if not is_connected(rule.source):
        raise ValueError("the gates of its source are not all connected by wires")
    if not wires_of(rule.target) <= wires_of(rule.source):
        raise ValueError("its target has wires that its source has not")
    for gate in rule.source:
        angle = gate.angle
        if angle.parameters and (sorted(angle.coefficients) != [0, 0, 0, 1] or angle.constant):
            raise ValueError(f"angles of its source are a constant or one parameter, not {angle}")
    if not parameters_of(rule.target) <= parameters_of(rule.source):
        raise ValueError("its target has parameters that its source has not")


def _gate(word: str) -> SymbolicGate:
    found = re.fullmatch(r"\s*(h|x|cx|rz)(?:\((.*)\))?((?:\s+\d+)+)\s*", word)
    if found is None:
        raise ValueError(f"`{word.strip()}` is no gate such as h 0, x 0, cx 0 1 or rz(a) 0")
    kind, wires = KINDS.index(found[1]), tuple(map(int, found[3].split()))
    if (
        len(set(wires)) != (2 if kind == CX else 1)
        or len(wires) > 2
        or (kind == RZ) != (found[2] is not None)
    ):
        raise ValueError(f"`{word.strip()}` has the wrong number of wires or angles")
    return SymbolicGate(kind, wires, NO_ANGLE if found[2] is None else _expression(found[2]))


def _expression(text: str) -> Expression:
    # Terms have to follow one another without a gap, all but the first with a sign.
    coefficients, constant, at = [0] * len(PARAMETERS), 0, 0
    for term in _TERM.finditer(text):
        if term.start() != at or (at and not term[1]):
            break
        sign, at = -1 if term[1] == "-" else 1, term.end()
        if term[2]:
            coefficients[PARAMETERS.index(term[2])] += sign
        else:
            constant += sign * of_fraction(int(term[3] or 1), int(term[4] or 1))
    if not text or at != len(text):
        raise ValueError(f"`{text}` is no sum of {', '.join(PARAMETERS)} and fractions of pi")
    return Expression(tuple(coefficients), constant % TURN)


# -- properties -----------------------------------------------------------------------------------------------------


def wires_of(gates: Iterable[SymbolicGate]) -> set[int]:
    return {wire for gate in gates for wire in gate.wires}


def parameters_of(gates: Iterable[SymbolicGate]) -> set[int]:
    return {k for gate in gates for k in gate.angle.parameters}


def is_connected(gates: Gates) -> bool:
    """Return whether every gate is reached from every other along wires."""
    # Each gate joins the groups of wires that it touches.
    groups: list[set[int]] = []
    for gate in gates:
        joined = [group for group in groups if group & set(gate.wires)]
        groups = [group for group in groups if group not in joined]
        groups.append(set(gate.wires).union(*joined))
    return len(groups) == 1


def front(gates: Iterable[SymbolicGate]) -> set[SymbolicGate]:
    """Return the gates that can come first, in any order of gates on disjoint wires."""
    passed: set[int] = set()
    found = set()
    for gate in gates:
        if not passed & set(gate.wires):
            found.add(gate)
        passed |= set(gate.wires)
    return found


def circuit(gates: Gates, num_qubits: int, values: Sequence[int]) -> Circuit:
    """Return the circuit of these gates for these values of the parameters, without rz of angle 0."""
    angles = [gate.angle.at(values) for gate in gates]
    kept = [pair for pair in zip(gates, angles, strict=True) if pair[0].kind != RZ or pair[1]]
    return Circuit.from_gates(num_qubits, [Gate(gate.kind, gate.wires, angle) for gate, angle in kept])


# -- canonical form -------------------------------------------------------------------------------------------------


def canonical(rule: Rule) -> Rule:
    """Return the common form of all rules that are the same rule written differently.

    They differ by names of wires and parameters, signs of parameters (a for -a), and the order of gates on disjoint
    wires. The form is the least of all renamings, by `_order`.
    """
    wires = sorted(wires_of(rule.source))
    parameters = sorted(parameters_of(rule.source))
    # Make the first use of each parameter positive.
    signs = {k: gate.angle.coefficients[k] for gate in reversed(rule.source) for k in gate.angle.parameters}
    # All renamings: at most 4! * 4! forms.
    forms = []
    for names in itertools.permutations(range(len(wires))):
        wire_of = dict(zip(wires, names, strict=True))
        for places in itertools.permutations(range(len(parameters))):
            place_of = dict(zip(parameters, places, strict=True))
            forms.append(Rule(*(_normal(_renamed(gates, wire_of, place_of, signs)) for gates in rule)))
    return min(forms, key=_order)


def _renamed(
    gates: Gates, wire_of: dict[int, int], place_of: dict[int, int], signs: dict[int, int]
) -> Iterator[SymbolicGate]:
    for gate in gates:
        angle = gate.angle
        if angle.parameters:
            coefficients = [0] * len(PARAMETERS)
            for k in angle.parameters:
                coefficients[place_of[k]] = signs[k] * angle.coefficients[k]
            angle = Expression(tuple(coefficients), angle.constant)
        yield SymbolicGate(gate.kind, tuple(wire_of[w] for w in gate.wires), angle)


def _normal(gates: Iterable[SymbolicGate]) -> Gates:
    """Return the gates in a unique order: of all gates that can come next, the one with the least wires comes first."""
    left, order = list(gates), []
    while left:
        passed: set[int] = set()
        least = -1
        for i, gate in enumerate(left):
            if not passed & set(gate.wires) and (least < 0 or gate.wires < left[least].wires):
                least = i
            passed |= set(gate.wires)
        order.append(left.pop(least))
    return tuple(order)


def _order(rule: Rule) -> list[list[tuple[object, ...]]]:
    """Return a sort key. Parameter a comes before b, and b before a constant."""
    return [
        [
            (gate.kind, gate.wires, [-c for c in gate.angle.coefficients], gate.angle.constant)
            for gate in gates
        ]
        for gates in rule
    ]


def constant(eighths: int) -> Expression:
    """Return a constant angle in eighths of a turn."""
    return Expression(constant=of_fraction(eighths, 4))


# -- Numerical proof that both sides of a rule are equal up to a phase for all values of its parameters --------------


TOLERANCE = 1e-10
_OFFSET = 0.1  # radians: keeps the grid away from multiples of pi/4, where different circuits may agree


def difference(rule: Rule) -> float:
    """Return the largest entry of U - c V, |c| = 1, over a grid of parameters. 0 proves the rule for all parameters.

    With z = e^{ia}, each entry of U and V is a polynomial in z and 1/z. U and V are equal up to a phase if and only if
    all U_ij V_kl - U_kl V_ij vanish. A gate with coefficient c contributes z^0 or z^c. So these polynomials have powers
    of z from some m to m + D, where D is the sum of |c| over the gates of both sides, and D + 1 equidistant points on
    the circle determine them, by a Fourier transform that multiplies errors by at most D + 1. The same holds for each
    further parameter.
    """
    # 1. The grid: D + 1 points for each parameter.
    parameters = sorted(parameters_of(rule.source))
    axes = []
    for k in parameters:
        degree = sum(abs(gate.angle.coefficients[k]) for gates in rule for gate in gates)
        axes.append(_OFFSET + 2 * np.pi * np.arange(degree + 1) / (degree + 1))
    points = np.array(list(itertools.product(*axes))).reshape(math.prod(map(len, axes)), len(axes))
    # 2. Both unitaries at all points.
    source, target = (unitaries(gates, rule.num_wires, parameters, points) for gates in rule)
    flat, other = source.reshape(len(points), -1), target.reshape(len(points), -1)
    # 3. The phase c of each point, from the largest entry of V, and the largest difference; |c| has to be 1 as well.
    largest = np.argmax(np.abs(other), axis=1)[:, None]
    phase = np.take_along_axis(flat, largest, 1) / np.take_along_axis(other, largest, 1)
    return float(max(np.abs(flat - phase * other).max(), np.abs(np.abs(phase) - 1).max()))


def unitaries(
    gates: Gates, num_wires: int, parameters: list[int], points: NDArray[np.float64]
) -> NDArray[np.complex128]:
    """Return unitaries [K, 2^num_wires, 2^num_wires] at points [K, parameters] in radians; wire 0 is the lowest bit."""
    # Rows of `state` are basis states: x and cx permute them, rz multiplies half of them by a phase, h mixes pairs.
    size = 2**num_wires
    index = np.arange(size)
    state = np.tile(np.eye(size, dtype=np.complex128), (len(points), 1, 1))
    for gate in gates:
        bit = 1 << gate.wires[0]
        is_one = (index & bit) > 0
        if gate.kind == X:
            state = state[:, index ^ bit]
        elif gate.kind == CX:
            state = state[:, np.where(is_one, index ^ (1 << gate.wires[1]), index)]
        elif gate.kind == RZ:
            coefficients = np.array([gate.angle.coefficients[k] for k in parameters], np.float64)
            angle = points @ coefficients + 2 * np.pi * gate.angle.constant / TURN
            state[:, is_one] *= np.exp(1j * angle)[:, None, None]
        else:
            zero, one = state[:, ~is_one], state[:, is_one]
            state[:, ~is_one], state[:, is_one] = (zero + one) / math.sqrt(2), (zero - one) / math.sqrt(2)
    return state


# -- Files of rules: a header in JSON, then one rule a line. A file is used only if it is complete and all rules hold.


VERSION = 1
PACKAGED = Path(__file__).with_name("nam.rules")
_NAME = "ddppo rules"
_REMEDY = "make it again by `python -m ddppo.domains.circuits rules out=...`"


class RuleFile(NamedTuple):
    """The content of a file of rules."""

    rules: tuple[Rule, ...]
    made_by: Mapping[str, Any]  # the header: the command that made it, its seconds and counts


def write(path: Path, rules: Sequence[Rule], made_by: Mapping[str, Any]) -> None:
    """Write a file of rules with its header."""
    body = "".join(f"{rule}\n" for rule in rules)
    header = {"format": _NAME, "version": VERSION, "rules": len(rules), "sha256": _sum(body), **made_by}
    write_text(path, f"{json.dumps(header)}\n{body}")


@functools.cache
def packaged() -> RuleFile:
    """Return the rules that come with the package."""
    return read(PACKAGED)


def read(path: Path) -> RuleFile:
    """Read a file of rules. Raises ConfigError if it is damaged, of another version, or a rule does not hold."""
    try:
        first, _, body = path.read_text(encoding="utf-8").partition("\n")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"rules={path}: cannot be read ({e}): name a file of rules, or {_REMEDY}") from e
    # The header counts the rules and has their checksum: a file cut short or edited by hand is found.
    header = _header(path, first)
    lines = body.splitlines()
    if header.get("sha256") != _sum(body) or header.get("rules") != len(lines):
        raise ConfigError(
            f"rules={path}: damaged, its {len(lines)} rules do not match number and checksum in its first line: "
            f"{_REMEDY}"
        )
    # Every rule is proved again at each reading: a wrong rule would make wrong circuits.
    rules = [_true(line, f"rules={path}, line {number}", _REMEDY) for number, line in enumerate(lines, 2)]
    return RuleFile(tuple(rules), header)


def read_own(path: Path) -> list[Rule]:
    """Read a user's rules, one a line; # starts a comment. Raises ConfigError if one does not hold."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"own={path}: cannot be read ({e}): name a text file with a rule a line") from e
    return [
        _true(line, f"own={path}, line {number}", "correct it, or leave it out")
        for number, line in enumerate((line.partition("#")[0] for line in lines), 1)
        if line.strip()
    ]


def _true(line: str, where: str, remedy: str) -> Rule:
    """Return the rule of a line. Raises ConfigError if it is no rule, or if its sides are not equal."""
    try:
        rule = parse(line)
    except ValueError as e:
        raise ConfigError(f"{where}: {e}: {remedy}") from e
    if not (wrong := difference(rule)) < TOLERANCE:
        raise ConfigError(f"{where}: `{line.strip()}` is not true, its sides differ by {wrong:.1g}: {remedy}")
    return rule


def in_order(rules: Sequence[Rule]) -> list[Rule]:
    """Return each rule once, rules of the same source side by side, otherwise in the given order."""
    sources: dict[Any, list[Rule]] = {}
    for rule in dict.fromkeys(map(canonical, rules)):
        sources.setdefault(rule.source, []).append(rule)
    return [rule for group in sources.values() for rule in group]


def _header(path: Path, line: str) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("format") != _NAME:
        raise ConfigError(f"rules={path}: not a file of rules, its first line is no header of one: {_REMEDY}")
    if header.get("version") != VERSION:
        raise ConfigError(
            f"rules={path}: its version is {header.get('version')}, and this program reads version {VERSION}: {_REMEDY}"
        )
    return header


def _sum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
