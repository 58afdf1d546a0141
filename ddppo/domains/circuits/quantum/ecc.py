"""Quartz's files of equivalent circuit classes (ECC, arXiv:2204.09033) as rules, `rules=classes.json`.

A file is `[parameters, {class: [circuit, ...]}]`, and a circuit `[[qubits, ...], [[gate, outputs, inputs], ...]]`, with
wires Q0, Q1, ... and angles P0, P1, .... Angles are computed by the gates add, neg, mult and pi (pi / n), which stand
in the list of parameters, or, in older files, among the gates of a circuit.

Each circuit of a class gives a rule to the representative, the shortest circuit, and a rule back.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from ddppo.domains.circuits.quantum import rules
from ddppo.domains.circuits.quantum.circuit import RZ, TURN, H, of_fraction, of_radians
from ddppo.domains.circuits.quantum.rules import (
    MOST_GATES,
    PARAMETERS,
    TOLERANCE,
    Expression,
    Gates,
    Rule,
    RuleFile,
    SymbolicGate,
    canonical,
    check,
    difference,
    in_order,
    parameters_of,
    parsed_gates,
)
from ddppo.errors import ConfigError

# Gates of Quartz in h, x, cx and rz, up to a phase; a, b and c are their angles.
_TEMPLATES = {
    "h": "h 0", "x": "x 0", "cx": "cx 0 1", "rz": "rz(a) 0", "u1": "rz(a) 0", "p": "rz(a) 0", "pdg": "rz(-a) 0",
    "z": "rz(pi) 0", "s": "rz(pi/2) 0", "sdg": "rz(-pi/2) 0", "t": "rz(pi/4) 0", "tdg": "rz(-pi/4) 0",
    "y": "rz(pi) 0; x 0", "sx": "h 0; rz(pi/2) 0; h 0", "sxdg": "h 0; rz(-pi/2) 0; h 0", "rx": "h 0; rz(a) 0; h 0",
    "rx1": "h 0; rz(pi/2) 0; h 0", "rx3": "h 0; rz(-pi/2) 0; h 0",
    "ry": "rz(-pi/2) 0; h 0; rz(a) 0; h 0; rz(pi/2) 0", "u2": "rz(b-pi/2) 0; h 0; rz(pi/2) 0; h 0; rz(a+pi/2) 0",
    "u3": "rz(c-pi/2) 0; h 0; rz(a) 0; h 0; rz(b+pi/2) 0", "cz": "h 1; cx 0 1; h 1", "swap": "cx 0 1; cx 1 0; cx 0 1",
}  # fmt: skip
_NATIVE = ("h", "x", "cx", "rz")
_REMEDY = "correct or remove it, or export the file again"


class Wrong(ValueError):
    """An entry of the file that cannot be read. The text completes the caller's message."""


# -- Angles ------------------------------------------------------------------------------------------------------------


class Angle(NamedTuple):
    """Sum of coefficients * symbols + constant. A number without a unit has only `number`: 4 in pi/4, or radians."""

    coefficients: Mapping[str, int]
    constant: int = 0  # in units
    number: float | None = None


def _as_angle(given: Angle) -> Angle:
    return given if given.number is None else Angle({}, of_radians(given.number))


def _computed(operation: str, inputs: Sequence[Angle]) -> Angle:
    """Return the result of add, neg, mult or pi."""
    match operation, len(inputs):
        case "add", 2:
            a, b = inputs
            if a.number is not None and b.number is not None:
                return Angle({}, number=a.number + b.number)
            a, b = _as_angle(a), _as_angle(b)
            names = [*a.coefficients, *(name for name in b.coefficients if name not in a.coefficients)]
            sums = {name: a.coefficients.get(name, 0) + b.coefficients.get(name, 0) for name in names}
            return Angle(sums, (a.constant + b.constant) % TURN)
        case "neg", 1:
            return _times(-1, inputs[0])
        case "mult", 2:
            factor, other = inputs if inputs[0].number is not None else reversed(inputs)
            if factor.number is None:
                raise Wrong("mult of two symbols is no sum of symbols")
            if other.number is not None:
                return Angle({}, number=factor.number * other.number)
            if factor.number != int(factor.number):
                raise Wrong(f"mult by {factor.number}: only whole numbers are read")
            return _times(int(factor.number), other)
        case "pi", 1 if inputs[0].number is not None and inputs[0].number != 0:
            share = 1 / Fraction(inputs[0].number)
            return Angle({}, of_fraction(share.numerator, share.denominator))
    raise Wrong(
        f"{operation} of {len(inputs)} angles is none of add, neg, mult by a number, and pi of a number"
    )


def _times(factor: int, angle: Angle) -> Angle:
    if angle.number is not None:
        return Angle({}, number=factor * angle.number)
    scaled = {name: factor * c for name, c in angle.coefficients.items()}
    return Angle(scaled, factor * angle.constant % TURN)


def _parameters(given: Any) -> dict[str, Angle] | None:
    """Return the angles P0, P1, ... of the file's first part; None if circuits compute their own, as in older files."""
    if given == []:
        return None
    listed = given[0] if isinstance(given, list) and given and isinstance(given[0], list) else None
    if not listed or not isinstance(listed[0], int) or len(listed) != listed[0] + 1:
        raise Wrong("its first part is no list of parameters, [[number, parameter, ...], [...]]")
    found: dict[str, Angle] = {}
    for k, each in enumerate(listed[1:]):
        name = f"P{k}"
        if each == "":
            found[name] = Angle({name: 1})
        elif isinstance(each, (int, float)) and not isinstance(each, bool):
            found[name] = Angle({}, number=each)
        else:
            operation, outputs, inputs = _entry(each)
            if outputs != [name]:
                raise Wrong(f"parameter {k} computes {', '.join(outputs)} instead of {name}")
            found[name] = _computed(operation, [_known(found, each) for each in inputs])
    return found


def _known(angles: Mapping[str, Angle], name: str) -> Angle:
    if name not in angles:
        raise Wrong(f"{name} is used before it is defined")
    return angles[name]


def _entry(given: Any) -> tuple[str, list[str], list[str]]:
    """Return name, outputs and inputs of `[name, outputs, inputs]`."""
    try:
        name, outputs, inputs = given
    except (TypeError, ValueError):
        raise Wrong(f"{json.dumps(given)[:60]} is no [gate, outputs, inputs]") from None
    lists = (outputs, inputs)
    if not isinstance(name, str) or not all(
        isinstance(each, list) and all(isinstance(w, str) for w in each) for each in lists
    ):
        raise Wrong(f"{json.dumps(given)[:60]} is no [gate, outputs, inputs]")
    return name, outputs, inputs


# -- Circuits ----------------------------------------------------------------------------------------------------------


class NotInRules(Exception):
    """A circuit that cannot be part of a rule. The text is the reason, by which circuits are counted."""


def _circuit(given: Any, parameters: Mapping[str, Angle] | None) -> list[tuple[SymbolicGate, list[Angle]]]:
    """Return the gates of a circuit, each a gate of a template with the angles of its call."""
    try:
        (num_qubits, *_), entries = given
    except (TypeError, ValueError):
        raise Wrong("it is no [[qubits, ...], [gate, ...]]") from None
    if not isinstance(num_qubits, int) or not isinstance(entries, list):
        raise Wrong("it is no [[qubits, ...], [gate, ...]]")
    own: dict[str, Angle] = {}
    found = []
    is_native = True
    for entry in entries:
        name, outputs, inputs = _entry(entry)
        if name in ("add", "neg", "mult", "pi"):
            own[outputs[0]] = _computed(name, [_angle(each, parameters, own) for each in inputs])
            continue
        wires = [_wire(each, num_qubits) for each in inputs if each.startswith("Q")]
        angles = [_angle(each, parameters, own) for each in inputs if not each.startswith("Q")]
        if name not in _TEMPLATES:
            raise NotInRules(f"gate {name}")
        template = parsed_gates(_TEMPLATES[name])
        num_angles, num_wires = (
            len(parameters_of(template)),
            1 + max(w for gate in template for w in gate.wires),
        )
        if len(angles) != num_angles or len(set(wires)) != num_wires or len(wires) != num_wires:
            raise Wrong(
                f"{name} has {len(wires)} wires and {len(angles)} angles, instead of {num_wires} and {num_angles}"
            )
        is_native &= name in _NATIVE
        found += [(gate._replace(wires=tuple(wires[w] for w in gate.wires)), angles) for gate in template]
    return found if is_native else _shortened(found)


def _wire(name: str, num_qubits: int) -> int:
    if not name[1:].isdigit() or int(name[1:]) >= num_qubits:
        raise Wrong(f"{name} is none of its {num_qubits} qubits")
    return int(name[1:])


def _angle(name: str, parameters: Mapping[str, Angle] | None, own: Mapping[str, Angle]) -> Angle:
    if name in own:
        return own[name]
    if parameters is None and name[:1] == "P" and name[1:].isdigit():
        return Angle({name: 1})  # in older files, every P that nothing computes is a symbol
    return _known(parameters or {}, name)


def _shortened(
    gates: list[tuple[SymbolicGate, list[Angle]]],
) -> list[tuple[SymbolicGate, list[Angle]]]:
    """Leave out h h, and add up neighbouring rotations by constants, which templates leave where they meet."""
    kept: list[tuple[SymbolicGate, list[Angle]] | None] = []
    last: dict[int, list[int]] = {}  # of `kept`, by wire
    for gate, angles in gates:
        before = last.setdefault(gate.wires[0], [])
        met = kept[before[-1]] if before else None
        if met is not None and len(gate.wires) == 1 and met[0].kind == gate.kind:
            both = met[0].angle, gate.angle
            if gate.kind == H:
                kept[before.pop()] = None
                continue
            if gate.kind == RZ and not any(each.parameters for each in both):
                total = Expression(constant=sum(each.constant for each in both) % TURN)
                kept[before[-1]] = (gate._replace(angle=total), [])
                if not total.constant:
                    kept[before.pop()] = None
                continue
        for wire in gate.wires:
            last.setdefault(wire, []).append(len(kept))
        kept.append((gate, angles))
    return [each for each in kept if each is not None]


def _symbolic(gates: list[tuple[SymbolicGate, list[Angle]]], places: Mapping[str, int]) -> Gates:
    """Return the gates with their angles as expressions in a, b, c and d. Raises NotInRules for a circuit too large."""
    if len(gates) > MOST_GATES:
        raise NotInRules(f"more than {MOST_GATES} gates in h, x, cx and rz")
    found = []
    for gate, angles in gates:
        coefficients, constant = [0] * len(PARAMETERS), gate.angle.constant
        for k, times in enumerate(gate.angle.coefficients):
            if times:
                given = _as_angle(angles[k])
                constant += times * given.constant
                for name, c in given.coefficients.items():
                    coefficients[places[name]] += times * c
        found.append(gate._replace(angle=Expression(tuple(coefficients), constant % TURN)))
    return tuple(found)


# -- Classes -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Reading:
    """What is read so far."""

    where: str
    rules: list[Rule] = field(default_factory=list)
    num_circuits: int = 0
    left_out: Counter[str] = field(default_factory=Counter)  # circuits by reason
    no_source: int = 0  # rules that cannot be matched

    def add_class(self, name: str, members: Any, parameters: Mapping[str, Angle] | None) -> None:
        """Add the rules of a class."""
        where = f"{self.where}, class {name}"
        if not isinstance(members, list):
            raise ConfigError(f"{where}: it is no list of circuits: {_REMEDY}")
        # 1. Its circuits, with common names of parameters.
        read: list[tuple[int, list[tuple[SymbolicGate, list[Angle]]]]] = []
        for number, member in enumerate(members):
            self.num_circuits += 1
            try:
                read.append((number, _circuit(member, parameters)))
            except NotInRules as e:
                self.left_out[str(e)] += 1
            except Wrong as e:
                raise ConfigError(f"{where}, circuit {number}: {e}: {_REMEDY}") from e
        names = sorted(
            {n for _, gates in read for _, angles in gates for a in angles for n in a.coefficients}
        )
        if len(names) > len(PARAMETERS):
            self.left_out[f"more than {len(PARAMETERS)} parameters in a class"] += len(read)
            return
        places = {each: k for k, each in enumerate(names)}
        circuits: list[tuple[int, Gates]] = []
        for number, gates in read:
            try:
                circuits.append((number, _symbolic(gates, places)))
            except NotInRules as e:
                self.left_out[str(e)] += 1
        # 2. Pairs with the shortest circuit, in both directions.
        circuits.sort(key=lambda each: len(each[1]))
        for number, member in circuits[1:]:
            for rule in (Rule(member, circuits[0][1]), Rule(circuits[0][1], member)):
                self._add(rule, f"{where}, circuits {circuits[0][0]} and {number}")

    def _add(self, rule: Rule, where: str) -> None:
        if rule.source == rule.target:
            return
        angles = [gate.angle.coefficients for gate in rule.source if gate.angle.parameters]
        if not rule.source or any(sorted(map(abs, each)) != [0, 0, 0, 1] for each in angles):
            self.no_source += 1  # a sum in its source, or nothing to match
            return
        # A parameter that the source has only as -a is renamed to a.
        signs = {k: c for each in reversed(angles) for k, c in enumerate(each) if c}
        try:
            if any(each[k] not in (0, c) for each in angles for k, c in signs.items()):
                raise ValueError("a parameter has both signs in its source")
            named = canonical(rule)
            check(named)
        except (ValueError, KeyError):
            self.no_source += 1
            return
        if not (wrong := difference(named)) < TOLERANCE:
            raise ConfigError(f"{where}: they are not equal, but differ by {wrong:.1g}: {_REMEDY}")
        self.rules.append(named)

    def reasons(self) -> Iterator[str]:
        """Yield in words what was left out."""
        for reason, number in self.left_out.most_common():
            yield f"{number} circuits ({reason})"
        if self.no_source:
            why = "no gate, gates that are not connected, sums of angles, or fewer wires than its target"
            yield f"{self.no_source} rules with a source of {why}"


def read(path: Path) -> RuleFile:
    """Read a file of rules, or one of Quartz if it ends in .json. Raises ConfigError."""
    return read_ecc(path, "rules") if path.suffix == ".json" else rules.read(path)


def read_ecc(path: Path, setting: str) -> RuleFile:
    """Read a file of Quartz, and print on stderr what is left out. Raises ConfigError, which names the setting."""
    # 1. The two parts of the file.
    where = f"{setting}={path}"
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as e:
        raise ConfigError(f"{where}, line {e.lineno}: {e.msg}: it is no JSON; {_REMEDY}") from e
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(
            f"{where}: cannot be read ({e}): name a file of rules, or an ECC file of Quartz"
        ) from e
    if not isinstance(held, list) or len(held) != 2 or not isinstance(held[1], dict):
        raise ConfigError(
            f"{where}: it is no ECC file of Quartz, [parameters, {{class: circuits}}]: {_REMEDY}"
        )
    try:
        parameters = _parameters(held[0])
    except Wrong as e:
        raise ConfigError(f"{where}, parameters: {e}: {_REMEDY}") from e
    # 2. The classes.
    reading = _Reading(where)
    for name, members in held[1].items():
        reading.add_class(name, members, parameters)
    found = in_order(reading.rules)
    if not found:
        raise ConfigError(
            f"{where}: none of its {reading.num_circuits} circuits gives a rule: {'; '.join(reading.reasons())}"
        )
    left_out = list(reading.reasons())
    said = f"; left out: {'; '.join(left_out)}" if left_out else ""
    print(
        f"note: {path}: {len(held[1])} classes of {reading.num_circuits} circuits, {len(found)} rules{said}",
        file=sys.stderr,
    )
    return RuleFile(tuple(found), {"file": path.name, "classes": len(held[1]), "left_out": left_out})
