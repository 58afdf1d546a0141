"""Rewriting circuits by rules, in C++ (src/rewriting.hpp), and merging their rotations."""

import ctypes
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits.quantum.circuit import CX, RZ, TURN, Circuit, Gate, H
from ddppo.errors import ConfigError

if TYPE_CHECKING:
    from ddppo.domains.circuits.quantum.rules import Rule, SymbolicGate


# -- Rewriting circuits by rules, in C++ (src/rewriting.hpp): where rules match, and what they make ------------------


_INT, _SHORT, _POINTER = ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p
_TYPES: dict[str, tuple[Any, list[Any]]] = {  # name: (result, arguments)
    "rules_new": (_POINTER, [_INT, *(_POINTER,) * 5]),
    "rules_free": (None, [_POINTER]),
    "mask": (None, [_POINTER, _INT, *(_POINTER,) * 6]),
    "rows": (None, [_POINTER, _INT, *(_POINTER,) * 7]),
    "pairs": (_INT, [_POINTER, _INT, _SHORT, *(_POINTER,) * 3, _INT, _POINTER]),
    "apply": (_INT, [_POINTER, _INT, *(_POINTER,) * 12]),
    "leads_to": (_SHORT, [_POINTER, _INT, *(_POINTER,) * 5, _INT, _INT]),
    "digest": (None, [_INT, _SHORT, *(_POINTER,) * 4]),
}


class Rewriter:
    """Rules made ready to be matched. Rule `nop`, the last one, changes nothing and matches at every gate."""

    def __init__(self, rules: Sequence["Rule"]) -> None:
        self.rules = tuple(rules)
        self._call = _functions()
        self.nop = len(rules)
        self.num_rules = len(rules) + 1
        self._growth = max([len(rule.target) - len(rule.source) for rule in rules], default=0)
        gates = [gate for rule in rules for side in rule for gate in side]
        arrays = (_array([[len(s), len(t)] for s, t in rules], np.int32), *_symbolic(gates))
        self._rules = self._call["rules_new"](len(rules), *map(_data, arrays))
        weakref.finalize(self, self._call["rules_free"], self._rules)

    @property
    def handle(self) -> int:
        """The rules' address in C++, as long as this rewriter lives."""
        return self._rules

    def __reduce__(self) -> tuple[type["Rewriter"], tuple[Any, ...]]:
        return Rewriter, (self.rules,)

    def matches(self, circuit: Circuit) -> NDArray[np.bool_]:
        """Return mask [N, num_rules]: where a rule's source is in the circuit with its first gate at that node.

        Nothing else stands between its gates on any way round, so that the target can take their place.
        """
        return self.matches_all([circuit])

    def matches_all(self, circuits: Sequence[Circuit]) -> NDArray[np.bool_]:
        """Return the masks of several circuits one below the other, [sum of N, num_rules]."""
        bounds, *arrays = _joined(circuits)
        mask = np.zeros((int(bounds[-1]), self.num_rules), np.bool_)
        self._call["mask"](self._rules, len(circuits), *map(_data, (bounds, *arrays, mask)))
        return mask

    def matches_at(
        self, circuits: Sequence[Circuit], nodes: Sequence[int] | NDArray[Any]
    ) -> NDArray[np.bool_]:
        """Return of each circuit the row of one node, [circuits, num_rules]: a fraction of the work of all rows."""
        arrays = (*_joined(circuits), _array(nodes, np.int32))
        if len(arrays[-1]) != len(circuits) or not all(
            0 <= node < len(circuit) for node, circuit in zip(nodes, circuits, strict=True)
        ):
            raise ConfigError(f"{len(circuits)} circuits have no such nodes: {nodes}")
        mask = np.zeros((len(circuits), self.num_rules), np.bool_)
        self._call["rows"](self._rules, len(circuits), *map(_data, (*arrays, mask)))
        return mask

    def pairs(self, circuit: Circuit) -> NDArray[np.int32]:
        """Return what `matches` does, without `nop`, as [M, 2]: node and rule."""
        arrays = [_data(circuit.kinds), _data(circuit.wires), _data(circuit.angles)]
        most = 16 * len(circuit) + 256
        while True:
            found = np.empty((most, 2), np.int32)
            there = self._call["pairs"](
                self._rules, len(circuit), circuit.num_qubits, *arrays, most, _data(found)
            )
            if there <= most:
                return found[:there]
            most = there

    def apply(self, circuit: Circuit, node: int, rule: int) -> tuple[Circuit, NDArray[np.int32]]:
        """Return the circuit with the rule applied at that node, in canonical order, and its next nodes.

        Those are the gates inserted and the gates just before the place, as indices of the new circuit, ascending;
        by `nop` the node itself. Rotations by 0 are left out. Raises ConfigError where the rule does not match.
        """
        return self.apply_all([circuit], [node], [rule])[0]

    def apply_all(
        self,
        circuits: Sequence[Circuit],
        nodes: Sequence[int] | NDArray[Any],
        rules: Sequence[int] | NDArray[Any],
    ) -> list[tuple[Circuit, NDArray[np.int32]]]:
        """Do the same for several circuits, each at its node with its rule."""
        bounds, num_qubits, *arrays = _joined(circuits)
        places, chosen = _array(nodes, np.int32), _array(rules, np.int32)
        if places.shape != (len(circuits),) or chosen.shape != places.shape:
            raise ConfigError(
                f"{len(circuits)} circuits need as many nodes and rules, not {nodes} and {rules}"
            )
        most = int(bounds[-1]) + max(self._growth, 0) * len(circuits)
        after = np.empty(len(circuits) + 1, np.int64)
        made = (np.empty(most, np.uint8), np.empty((most, 2), np.int16), np.empty(most, np.int64))
        marks = np.empty(most, np.uint8)
        failed = self._call["apply"](
            self._rules,
            len(circuits),
            *map(_data, (bounds, num_qubits, *arrays, places, chosen, after, *made, marks)),
        )
        if failed >= 0:
            raise ConfigError(
                f"rule {chosen[failed]} does not match at node {places[failed]} of a circuit of "
                f"{len(circuits[failed])} gates: choose one where matches() is true"
            )
        ends = after.tolist()
        return [
            (
                unchecked(before.num_qubits, *(array[begin:end] for array in made)),
                np.flatnonzero(marks[begin:end]).astype(np.int32),
            )
            for before, begin, end in zip(circuits, ends[:-1], ends[1:], strict=True)
        ]

    def leads_to(self, source: Circuit, target: Circuit, *, steps: int, most_gates: int) -> bool:
        """Return whether at most `steps` rules turn source into target by circuits of at most `most_gates` gates."""
        arrays = _joined([source, target])
        return bool(self._call["leads_to"](self._rules, 2, *map(_data, arrays), steps, most_gates))


def digest(circuit: Circuit) -> bytes:
    """Return circuit.digest(), computed in C++."""
    result = np.empty(16, np.uint8)
    arrays: tuple[NDArray[Any], ...] = (circuit.kinds, circuit.wires, circuit.angles, result)
    _functions()["digest"](len(circuit), circuit.num_qubits, *map(_data, arrays))
    return result.tobytes()


def unchecked(num_qubits: int, kinds: Any, wires: Any, angles: Any) -> Circuit:
    """Return a circuit of arrays in its types, without the checks and copies, which take longer than a rewrite."""
    circuit = object.__new__(Circuit)
    for name, value in (("kinds", kinds), ("wires", wires), ("angles", angles)):
        value.flags.writeable = False
        object.__setattr__(circuit, name, value)
    object.__setattr__(circuit, "num_qubits", num_qubits)
    return circuit


def _joined(circuits: Sequence[Circuit]) -> tuple[NDArray[Any], ...]:
    """Return bounds [B + 1], num_qubits [B], and kinds, wires and angles of all gates end to end."""
    bounds = np.zeros(len(circuits) + 1, np.int64)
    np.cumsum([len(c) for c in circuits], out=bounds[1:])
    num_qubits = _array([c.num_qubits for c in circuits], np.int32)
    if len(circuits) == 1:
        return bounds, num_qubits, circuits[0].kinds, circuits[0].wires, circuits[0].angles
    kinds, wires, angles = (
        np.concatenate([getattr(c, name) for c in circuits]) for name in ("kinds", "wires", "angles")
    )
    return bounds, num_qubits, kinds, wires, angles


def _symbolic(gates: Sequence["SymbolicGate"]) -> tuple[NDArray[Any], ...]:
    """Return kinds [G], wires [G, 2], coefficients [G, 4] and constants [G]."""
    return (
        _array([gate.kind for gate in gates], np.uint8),
        _array([(*gate.wires, -1)[:2] for gate in gates], np.int16),
        _array([gate.angle.coefficients for gate in gates], np.int8),
        _array([gate.angle.constant for gate in gates], np.int64),
    )


def _array(values: Any, dtype: Any) -> NDArray[Any]:
    return np.ascontiguousarray(values, dtype)


def _data(array: NDArray[Any]) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data


def _functions() -> dict[str, Any]:
    """Return the compiled functions. Raises ConfigError where there is no compiler to make them."""
    if not _compiled:
        if (why := PLUGIN.cpp.why_not()) is not None:
            raise ConfigError(f"circuits are rewritten in C++, which cannot be compiled here: {why}")
        for name, (result, arguments) in _TYPES.items():
            function = getattr(PLUGIN.cpp.load(), f"circuits_{name}")
            function.restype, function.argtypes = result, arguments
            _compiled[name] = function
    return _compiled


_compiled: dict[str, Any] = {}


# -- Rotation merging: rotations about the same parity of the same variables become one. A baseline without search
# Nam, Ross, Su, Childs, Maslov, arXiv:1710.07345, section 4.4. They cut the circuit into regions of cx, x and rz
# between the h gates; here an h begins a new variable on its wire, and parities are followed through the whole circuit
# (Amy, Maslov, Mosca, arXiv:1303.2042), which finds what they find and the pairs that no one region holds.


def merged(circuit: Circuit) -> Circuit:
    """Return an equal circuit with at most one rz for each parity, at its first place; none of angle 0.

    A sum over paths x of the variables gives each path the phase sum over rz of angle f(x), f the Boolean affine
    function on the wire there: so rotations of one f add up, and about 1 - f the angle counts with the other sign.
    """
    labels = [1 << wire for wire in range(circuit.num_qubits)]  # sets of variables: a bit for each
    negated = [False] * circuit.num_qubits
    num_variables = circuit.num_qubits
    sums: dict[int, int] = {}  # parity -> angle
    places: dict[int, bool] = {}  # parity -> whether its first place has the negation
    kept: list[tuple[Gate, int]] = []  # gates, and for rotations their parity
    for gate in circuit:
        wire = gate.wires[-1]
        if gate.kind == RZ:
            parity = labels[wire]
            sums[parity] = sums.get(parity, 0) + (-gate.angle if negated[wire] else gate.angle)
            if parity not in places:
                places[parity] = negated[wire]
                kept.append((gate, parity))
            continue
        kept.append((gate, 0))
        if gate.kind == CX:
            control = gate.wires[0]
            labels[wire] ^= labels[control]
            negated[wire] ^= negated[control]
        elif gate.kind == H:
            labels[wire], negated[wire] = 1 << num_variables, False
            num_variables += 1
        else:
            negated[wire] = not negated[wire]
    gates = []
    for gate, parity in kept:
        if parity:
            angle = (-sums[parity] if places[parity] else sums[parity]) % TURN
            gates += [Gate(RZ, gate.wires, angle)] * (angle != 0)
        else:
            gates.append(gate)
    return Circuit.from_gates(circuit.num_qubits, gates)


# -- What two circuits do not share: without the gates that both begin and end with, and the qubits left idle --------


def differing_parts(a: Circuit, b: Circuit) -> tuple[Circuit, Circuit]:
    """Return A and B, where a = P A S and b = P B S, on the wires that either touches, at least one, renumbered."""
    for _ in range(2):  # the beginnings; then, both turned round, the ends; then turned back
        a, b = (_turned_round(circuit) for circuit in _without_common_beginning(a, b))
    used = np.zeros(a.num_qubits, bool)
    for circuit in (a, b):
        used[circuit.wires[circuit.wires >= 0]] = True
    used[0] |= not used.any()
    places = np.append(np.cumsum(used) - 1, -1).astype(np.int16)  # the last one: of no wire, -1
    return _on(places, a, int(used.sum())), _on(places, b, int(used.sum()))


def _on(places: NDArray[np.int16], circuit: Circuit, num_qubits: int) -> Circuit:
    return Circuit(num_qubits, circuit.kinds, places[circuit.wires], circuit.angles)


def _turned_round(circuit: Circuit) -> Circuit:
    """Return the gates from last to first: not the inverse, which has angles of the other sign."""
    return _kept(circuit, np.arange(len(circuit))[::-1])


def _kept(circuit: Circuit, gates: NDArray[np.int64]) -> Circuit:
    return Circuit(circuit.num_qubits, circuit.kinds[gates], circuit.wires[gates], circuit.angles[gates])


def _without_common_beginning(a: Circuit, b: Circuit) -> tuple[Circuit, Circuit]:
    """Take gates off both as long as one is at the front of both."""
    gates_b = b.gates()
    at, following = b.links.first.tolist(), b.links.next.tolist()
    is_blocked = [False] * a.num_qubits
    left_a, gone_b = [], np.zeros(len(b), bool)
    for i, gate in enumerate(a):
        j = at[gate.wires[0]]
        is_shared = (
            j >= 0
            and not any(is_blocked[wire] for wire in gate.wires)
            and gates_b[j] == gate
            and all(at[wire] == j for wire in gate.wires)
        )
        if is_shared:
            gone_b[j] = True
            for port, wire in enumerate(gate.wires):
                at[wire] = following[j][port]
        else:
            left_a.append(i)
            for wire in gate.wires:
                is_blocked[wire] = True
    return _kept(a, np.array(left_a, np.int64)), _kept(b, np.flatnonzero(~gone_b))
