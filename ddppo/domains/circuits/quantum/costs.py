"""Costs of a circuit: counts and depths in a gate set, weighted sums of them, and functions of a user.

`gate_count` counts gates of nam (h, x, cx, rz), `ibm.gate_count` those of the circuit as it is written in ibm
(gate_sets.py). `cost` reads a cost by its name.
"""

import functools
import importlib
import math
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ddppo.domains.circuits.quantum.circuit import CX, KINDS, RZ, TURN, Circuit, Gate, H, X
from ddppo.domains.circuits.quantum.gate_sets import GATE_SETS, NAM, GateSet, NamedGate
from ddppo.errors import ConfigError, in_one_line, near

Cost = Callable[[Circuit], float]

# -- Costs in nam, from the arrays of a circuit ------------------------------------------------------------------------


def gate_count(circuit: Circuit) -> float:
    """The number of gates."""
    return len(circuit)


def cx_count(circuit: Circuit) -> float:
    """The number of gates on two qubits, which have the largest error rates on hardware."""
    return int(np.count_nonzero(circuit.kinds == CX))


def cx_weighted(circuit: Circuit) -> float:
    """2 cx_count + gate_count."""
    return 2 * cx_count(circuit) + len(circuit)


def t_count(circuit: Circuit) -> float:
    """The number of rotations that are no multiples of pi/2, the expensive ones on error-corrected machines."""
    return int(np.count_nonzero((circuit.kinds == RZ) & (circuit.angles % (TURN // 4) != 0)))


def depth(circuit: Circuit) -> float:
    """The number of gates on the longest path."""
    return circuit.depth


def cx_depth(circuit: Circuit) -> float:
    """The number of cx on the path with the most cx."""
    return _longest(circuit.wires[circuit.kinds == CX].tolist(), circuit.num_qubits)


def _longest(gates: Iterable[Sequence[int]], num_qubits: int) -> int:
    """Return the number of gates on the longest path, from the wires of each gate."""
    levels = [0] * num_qubits
    for wires in gates:
        level = 1 + max(levels[wire] for wire in wires)
        for wire in wires:
            levels[wire] = level
    return max(levels)


COSTS: dict[str, Cost] = {
    f.__name__: f for f in (gate_count, cx_count, cx_weighted, t_count, depth, cx_depth)
}


def measures(circuit: Circuit) -> dict[str, float]:
    """Return the numbers that are shown for every circuit, under any cost: gates, cx and depth."""
    return {"gates": len(circuit), "cx": cx_count(circuit), "depth": circuit.depth}


# -- Costs in any gate set, from the gates that are written ------------------------------------------------------------


@functools.lru_cache(maxsize=4)
def _gates(gate_set: str, circuit: Circuit) -> list[NamedGate]:
    # Cached, because a weighted sum asks several times for the same circuit.
    return GATE_SETS[gate_set].of(circuit)


def _in(gate_set: str, name: str, circuit: Circuit) -> float:
    """Return the cost `name` of the circuit in a gate set."""
    gates = _gates(gate_set, circuit)
    match name:
        case "gate_count":
            return len(gates)
        case "cx_count":
            return cx_count(circuit)  # no translation adds or removes a cx
        case "cx_weighted":
            return 2 * cx_count(circuit) + len(gates)
        case "t_count":
            eighths = ("t", "tdg")
            return sum(g.name in eighths or (g.name == "rz" and g.angle % (TURN // 4) != 0) for g in gates)
        case "depth":
            return _longest((gate.wires for gate in gates), circuit.num_qubits)
        case "cx_depth":
            return _longest((gate.wires for gate in gates if gate.name == "cx"), circuit.num_qubits)
        case _:
            return sum(gate.name == name.removesuffix("_count") for gate in gates)


def _named(gate_set: GateSet, name: str) -> Cost:
    """Return a cost by its name in a gate set; from arrays if it is nam, and from the translation otherwise."""
    if gate_set is not NAM:
        return functools.partial(_in, gate_set.name, name)
    if name in COSTS:
        return COSTS[name]
    kind = KINDS.index(name.removesuffix("_count"))
    return lambda circuit: int(np.count_nonzero(circuit.kinds == kind))


def names_in(gate_set: GateSet) -> list[str]:
    """Return the names of all costs in a gate set."""
    return list(dict.fromkeys([*COSTS, *(f"{gate}_count" for gate in gate_set.gates)]))


def counts(circuit: Circuit, gate_set: GateSet = NAM) -> str:
    """Return in words the numbers of gates by name, of qubits, and the depth."""
    gates = gate_set.of(circuit)
    names = [gate.name for gate in gates]
    parts = ", ".join(f"{names.count(name)} {name}" for name in gate_set.gates)
    longest = _longest((gate.wires for gate in gates), circuit.num_qubits)
    return f"{len(gates)} gates ({parts}) on {circuit.num_qubits} qubits, depth {longest}"


# -- A cost by its name: one of the above, a weighted sum of them, or the import path of a function --------------------


_TERM = re.compile(
    r"\s*(?P<sign>[+-]?)\s*(?:(?P<weight>\d+\.?\d*|\.\d+)\s*\*\s*)?(?:(?P<set>[a-z]\w*)\.)?(?P<name>[a-z]\w*)\s*"
)
_FORM = "one of {known}, a sum such as gate_count+2*cx_count, or the import path of a function, my_pkg:cost"


def cost(text: str, gate_set: GateSet = NAM) -> Cost:
    """Return a cost by its name, a sum such as `gate_count+2*cx_count`, or a user's function, my_pkg.costs:cost.

    `ibm.gate_count` counts in the gate set ibm; names without a gate set count in `gate_set`. A user's function takes a
    Circuit; each call checks that it returns a finite number. Raises ConfigError.
    """
    if ":" in text:
        return _imported(text)
    terms = _terms(text, gate_set)
    if len(terms) == 1 and terms[0][0] == 1:
        return terms[0][1]
    return lambda circuit: sum(weight * term(circuit) for weight, term in terms)


def by_gate(text: str, gate_set: GateSet = NAM) -> tuple[float, ...] | None:
    """Return the cost of one h, x, cx and rz, and what an rz that is no multiple of pi/2 costs more.

    None if the cost is no such sum over the gates of nam. Raises ConfigError for a wrong name.
    """
    if ":" in text:
        return None
    for term in _TERM.finditer(text):
        if term["name"] in ("depth", "cx_depth") or (term["set"] or gate_set.name) != NAM.name:
            return None
    of = cost(text, gate_set)
    gates = (
        Gate(H, (0,)),
        Gate(X, (0,)),
        Gate(CX, (0, 1)),
        Gate(RZ, (0,), TURN // 4),
        Gate(RZ, (0,), TURN // 8),
    )
    *costs, of_eighth = (float(of(Circuit.from_gates(2, [gate]))) for gate in gates)
    return (*costs, of_eighth - costs[RZ])


def qualified(text: str, gate_set: GateSet) -> str:
    """Return the text of the same cost with the gate set in front of each name that has none. Raises ConfigError."""
    if ":" in text or gate_set is NAM:
        return text
    _terms(text, gate_set)
    return _TERM.sub(
        lambda term: (
            term[0]
            if term["set"]
            else f"{term['sign']}{term['weight'] + '*' if term['weight'] else ''}{gate_set.name}.{term['name']}"
        ),
        text,
    )


def _terms(text: str, gate_set: GateSet) -> list[tuple[float, Cost]]:
    """Return weight and cost of each term of a sum."""
    # Terms have to follow one another without a gap, all but the first with a sign.
    found: list[tuple[float, Cost]] = []
    at = 0
    while at < len(text) or not found:
        term = _TERM.match(text, at)
        if term is None or (found and not term["sign"]):
            raise ConfigError(f"cost={text}: not {_FORM.format(known=', '.join(COSTS))}")
        if term["set"] and term["set"] not in GATE_SETS:
            known = ", ".join(GATE_SETS)
            raise ConfigError(
                f"cost={text}: {term['set']}{near(term['set'], list(GATE_SETS))} is none of the gate sets {known}"
            )
        chosen = GATE_SETS[term["set"]] if term["set"] else gate_set
        names = names_in(chosen)
        if term["name"] not in names:
            form = _FORM.format(known=", ".join(names))
            raise ConfigError(
                f"cost={text}: {term['name']}{near(term['name'], names)} is no cost in {chosen.name}: give {form}"
            )
        weight = float(term["weight"] or 1) * (-1 if term["sign"] == "-" else 1)
        found.append((weight, _named(chosen, term["name"])))
        at = term.end()
    return found


def _imported(text: str) -> Cost:
    """Return a user's function by its import path."""
    module, _, attribute = text.partition(":")
    if not (module and attribute):
        raise ConfigError(f"cost={text}: not {_FORM.format(known=', '.join(COSTS))}")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as e:  # a user's module may raise anything
        raise ConfigError(f"cost={text}: cannot be imported: {in_one_line(e)}") from e
    if not callable(function):
        raise ConfigError(f"cost={text}: has to be a function of a ddppo.domains.circuits.quantum.Circuit")
    return _checked(function, text)


def _checked(function: Cost, text: str) -> Cost:
    def checked(circuit: Circuit) -> float:
        try:
            found = float(function(circuit))
        except Exception as e:  # a user's function may raise anything
            raise ConfigError(f"cost={text}: raised {in_one_line(e)}") from e
        if not math.isfinite(found):
            raise ConfigError(f"cost={text}: returned {found}; a cost is a finite number")
        return found

    return checked
