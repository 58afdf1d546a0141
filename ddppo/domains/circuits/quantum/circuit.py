"""A circuit: gates on the wires of qubits, which are the nodes of a DAG with an edge wherever a wire joins two."""

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddppo.domains.circuits.quantum.angles import TURN
from ddppo.errors import ConfigError

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
        """Take these from who computed them in C++."""
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
        """Return 16 bytes that tell this circuit from others, whatever the order of gates on disjoint wires.

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
