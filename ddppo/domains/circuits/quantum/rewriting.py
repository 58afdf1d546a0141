"""Rewriting circuits.

`Rewriter` finds where rules match and applies them, in C++ (src/rewriting.hpp). `merged` merges rotations, a baseline
without search. `differing_parts` removes the gates that two circuits share at their ends, before they are compared.
"""

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


# -- Rewriting circuits by rules, in C++ -----------------------------------------------------------------------------


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
    """Rules compiled for matching. Rule number `nop`, behind the given ones, changes nothing and matches at every
    gate.
    """

    def __init__(self, rules: Sequence["Rule"]) -> None:
        self.rules = tuple(rules)
        self._call = _functions()
        self.nop = len(rules)
        self.num_rules = len(rules) + 1
        self._growth = max([len(rule.target) - len(rule.source) for rule in rules], default=0)
        # C++ reads the gates of all rules end to end, and the numbers of gates of each source and target.
        gates = [gate for rule in rules for side in rule for gate in side]
        arrays = (_array([[len(s), len(t)] for s, t in rules], np.int32), *_symbolic(gates))
        self._rules = self._call["rules_new"](len(rules), *map(_data, arrays))
        weakref.finalize(self, self._call["rules_free"], self._rules)

    @property
    def handle(self) -> int:
        """The address of the rules in C++, valid as long as this rewriter lives."""
        return self._rules

    def __reduce__(self) -> tuple[type["Rewriter"], tuple[Any, ...]]:
        return Rewriter, (self.rules,)

    def matches(self, circuit: Circuit) -> NDArray[np.bool_]:
        """Return a mask [N, num_rules]: whether the source of the rule is in the circuit with its first gate at the
        node.

        The matched gates are convex: no path between two of them passes through another gate, so that the target can
        take their place.
        """
        return self.matches_all([circuit])

    def matches_all(self, circuits: Sequence[Circuit]) -> NDArray[np.bool_]:
        """Return the masks of several circuits, concatenated: [sum of N, num_rules]."""
        bounds, *arrays = _joined(circuits)
        mask = np.zeros((int(bounds[-1]), self.num_rules), np.bool_)
        self._call["mask"](self._rules, len(circuits), *map(_data, (bounds, *arrays, mask)))
        return mask

    def matches_at(
        self, circuits: Sequence[Circuit], nodes: Sequence[int] | NDArray[Any]
    ) -> NDArray[np.bool_]:
        """Return the mask row of one node of each circuit, [circuits, num_rules], without computing the other rows."""
        arrays = (*_joined(circuits), _array(nodes, np.int32))
        if len(arrays[-1]) != len(circuits) or not all(
            0 <= node < len(circuit) for node, circuit in zip(nodes, circuits, strict=True)
        ):
            raise ConfigError(f"{len(circuits)} circuits have no such nodes: {nodes}")
        mask = np.zeros((len(circuits), self.num_rules), np.bool_)
        self._call["rows"](self._rules, len(circuits), *map(_data, (*arrays, mask)))
        return mask

    def pairs(self, circuit: Circuit) -> NDArray[np.int32]:
        """Return the matches as pairs (node, rule) [M, 2], without `nop`."""
        # Guess the number of pairs; C++ returns the true one, with which a second call succeeds.
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
        """Return the circuit after applying the rule at the node, in canonical order, and its fresh nodes.

        Fresh nodes are the inserted gates and the gates just before their place, as ascending indices of the new
        circuit; for `nop`, the node itself. Rotations by 0 are left out. Raises ConfigError if the rule does not
        match.
        """
        return self.apply_all([circuit], [node], [rule])[0]

    def apply_all(
        self,
        circuits: Sequence[Circuit],
        nodes: Sequence[int] | NDArray[Any],
        rules: Sequence[int] | NDArray[Any],
    ) -> list[tuple[Circuit, NDArray[np.int32]]]:
        """Apply one rule to each of several circuits, each at its own node; return the results of `apply`."""
        # 1. The circuits end to end, and a node and a rule for each.
        bounds, num_qubits, *arrays = _joined(circuits)
        places, chosen = _array(nodes, np.int32), _array(rules, np.int32)
        if places.shape != (len(circuits),) or chosen.shape != places.shape:
            raise ConfigError(
                f"{len(circuits)} circuits need as many nodes and rules, not {nodes} and {rules}"
            )
        # 2. Room for the results: no rule adds more than _growth gates.
        most = int(bounds[-1]) + max(self._growth, 0) * len(circuits)
        after = np.empty(len(circuits) + 1, np.int64)
        made = (np.empty(most, np.uint8), np.empty((most, 2), np.int16), np.empty(most, np.int64))
        marks = np.empty(most, np.uint8)
        failed = self._call["apply"](
            self._rules,
            len(circuits),
            *map(_data, (bounds, num_qubits, *arrays, places, chosen, after, *made, marks)),
        )
        # C++ returns the first circuit that its rule does not match.
        if failed >= 0:
            raise ConfigError(
                f"rule {chosen[failed]} does not match at node {places[failed]} of a circuit of "
                f"{len(circuits[failed])} gates: choose one where matches() is true"
            )
        # 3. Cut the results apart. Marks are 1 for fresh nodes.
        ends = after.tolist()
        return [
            (
                unchecked(before.num_qubits, *(array[begin:end] for array in made)),
                np.flatnonzero(marks[begin:end]).astype(np.int32),
            )
            for before, begin, end in zip(circuits, ends[:-1], ends[1:], strict=True)
        ]

    def leads_to(self, source: Circuit, target: Circuit, *, steps: int, most_gates: int) -> bool:
        """Return whether at most `steps` rewrites turn source into target, with at most `most_gates` gates in
        between.
        """
        arrays = _joined([source, target])
        return bool(self._call["leads_to"](self._rules, 2, *map(_data, arrays), steps, most_gates))


def digest(circuit: Circuit) -> bytes:
    """Return circuit.digest(), computed in C++."""
    result = np.empty(16, np.uint8)
    arrays: tuple[NDArray[Any], ...] = (circuit.kinds, circuit.wires, circuit.angles, result)
    _functions()["digest"](len(circuit), circuit.num_qubits, *map(_data, arrays))
    return result.tobytes()


def unchecked(num_qubits: int, kinds: Any, wires: Any, angles: Any) -> Circuit:
    """Return a circuit of these arrays without checks and copies, which would take longer than a rewrite."""
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
    """Return the compiled functions. Raises ConfigError if they cannot be compiled."""
    if not _compiled:
        if (why := PLUGIN.cpp.why_not()) is not None:
            raise ConfigError(f"circuits are rewritten in C++, which cannot be compiled here: {why}")
        for name, (result, arguments) in _TYPES.items():
            function = getattr(PLUGIN.cpp.load(), f"circuits_{name}")
            function.restype, function.argtypes = result, arguments
            _compiled[name] = function
    return _compiled


_compiled: dict[str, Any] = {}


# -- Rotation merging: rotations about the same parity of variables become one rotation. A baseline without search. --
# Nam, Ross, Su, Childs, Maslov, arXiv:1710.07345, section 4.4. They cut the circuit into regions of cx, x and rz
# between h gates. Here, an h starts a new variable on its wire, and parities are followed through the whole circuit
# (Amy, Maslov, Mosca, arXiv:1303.2042). This finds all that they find, and also pairs that lie in no common region.


def merged(circuit: Circuit) -> Circuit:
    """Return an equal circuit with at most one rz for each parity, at the first place of the parity; none of angle 0.

    In the sum over paths x of the variables, a path has the phase sum of angle * f(x) over all rz, where f is the
    Boolean affine function on the wire at the rz. So the angles of rotations with the same f add up, and an angle
    about 1 - f counts with the opposite sign.
    """
    # f of each wire: the set of its variables, one bit each, and whether it is negated.
    labels = [1 << wire for wire in range(circuit.num_qubits)]
    negated = [False] * circuit.num_qubits
    num_variables = circuit.num_qubits
    sums: dict[int, int] = {}  # parity -> angle
    places: dict[int, bool] = {}  # parity -> whether it is negated at its first place
    kept: list[tuple[Gate, int]] = []  # gates; of rotations the parity, else 0
    # 1. Follow f through the circuit, and sum the angles of each parity.
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
    # 2. Write the sums at the first places.
    gates = []
    for gate, parity in kept:
        if parity:
            angle = (-sums[parity] if places[parity] else sums[parity]) % TURN
            gates += [Gate(RZ, gate.wires, angle)] * (angle != 0)
        else:
            gates.append(gate)
    return Circuit.from_gates(circuit.num_qubits, gates)


# -- The difference of two circuits, without the gates that both begin and end with, and without idle qubits ---------


def differing_parts(a: Circuit, b: Circuit) -> tuple[Circuit, Circuit]:
    """Return A and B with a = P A S and b = P B S, on the wires that A or B touches, renumbered; at least one."""
    a, b = (_kept(circuit, gates) for circuit, gates in zip((a, b), differing_gates(a, b), strict=True))
    used = np.zeros(a.num_qubits, bool)
    for circuit in (a, b):
        used[circuit.wires[circuit.wires >= 0]] = True
    used[0] |= not used.any()
    places = np.append(np.cumsum(used) - 1, -1).astype(np.int16)  # index -1, no wire, stays -1
    return _on(places, a, int(used.sum())), _on(places, b, int(used.sum()))


def differing_gates(a: Circuit, b: Circuit) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions, ascending, of the gates of A in a and of B in b, where a = P A S and b = P B S."""
    of_a, of_b = np.arange(len(a)), np.arange(len(b))
    # Remove common beginnings and reverse, twice: the second round removes common ends and restores the order.
    for _ in range(2):
        left_a, left_b = _behind_common_beginning(_kept(a, of_a), _kept(b, of_b))
        of_a, of_b = of_a[left_a][::-1], of_b[left_b][::-1]
    return of_a, of_b


def _on(places: NDArray[np.int16], circuit: Circuit, num_qubits: int) -> Circuit:
    return Circuit(num_qubits, circuit.kinds, places[circuit.wires], circuit.angles)


def _kept(circuit: Circuit, gates: NDArray[np.int64]) -> Circuit:
    """Return the circuit of these gates. (In reverse order they are not the inverse, which has other angles.)"""
    return Circuit(circuit.num_qubits, circuit.kinds[gates], circuit.wires[gates], circuit.angles[gates])


def _behind_common_beginning(a: Circuit, b: Circuit) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the gates that are left when gates are removed from both as long as the same is at the front of both."""
    gates_b = b.gates()
    # at: the first gate of b that is left on each wire.
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
            # A gate that stays blocks its wires for all later gates.
            for wire in gate.wires:
                is_blocked[wire] = True
    return np.array(left_a, np.int64), np.flatnonzero(~gone_b)
