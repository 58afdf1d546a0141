"""A circuit as its observation shows it, and a choice made there, in C++ (src/circuit_board.cpp)."""

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.rewriting import Rewriter
from ddppo.domains.circuits.task.observation import observation_space
from ddppo.domains.circuits.task.packing import GATE_BYTES, packed, unpacked
from ddppo.domains.circuits.task.settings import Episode

REWRITTEN, UNCHANGED, WRONG = range(3)  # what became of a choice
_IN_CPP = (
    "kinds",
    "angles",
    "edges",
    "pairs",
    "num_nodes",
    "num_edges",
    "num_pairs",
    "fresh",
    "action_mask",
    "growth",
)


class Choice(NamedTuple):
    """A row that was chosen: node, rule, both -1 where there is none, and what became of it."""

    node: int
    rule: int
    became: int


class Board:
    """Shows one circuit at a time, and rewrites it.

    circuit: what is shown, in canonical order. num_too_large counts the pairs that match there but might make a circuit
    of more than max_nodes; num_without_room those left out because there were more than max_pairs: of too many those
    stay whose rules add the fewest gates, of these the first rules, then the first nodes. offered, applied: of each
    rule, how often it was listed at the node of a choice, and chosen; whoever owns the counts clears them.
    """

    def __init__(self, rewriter: Rewriter, max_nodes: int, max_pairs: int, episode: Episode) -> None:
        space = observation_space(max_nodes, max_pairs, rewriter.num_rules, has_mask=episode.mask)
        self.offered = np.zeros(rewriter.num_rules, np.int64)
        self.applied = np.zeros(rewriter.num_rules, np.int64)
        self._row = np.zeros((), np.dtype([(k, v.dtype, v.shape) for k, v in space.items()], align=True))
        self._row["num_rules"] = rewriter.num_rules
        self._names = tuple(space)
        self._num_pairs, self._fresh = self._row["num_pairs"], self._row["fresh"]
        self._facts = np.zeros(8, np.int64)  # six, and the digest
        self._result = np.zeros(max_nodes * GATE_BYTES, np.uint8)
        self._at_facts, self._at_result = self._facts.ctypes.data, self._result.ctypes.data
        self._max_nodes = max_nodes
        self._rewriter = rewriter  # it is used as long as the board
        self._call = functions()
        once, at_nodes = episode.nop == "once", episode.nop == "nodes"
        settings = np.array([max_nodes, max_pairs, once, at_nodes, not episode.mask], np.int32)
        arrays = np.array([self._row[name].ctypes.data for name in _IN_CPP])
        given = (settings, arrays, self.offered, self.applied)
        self._board = self._call["new"](rewriter.handle, *(array.ctypes.data for array in given))
        weakref.finalize(self, self._call["free"], self._board)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a circuit environment cannot be copied or pickled: make another one, and restore() the state() of this"
        )

    @property
    def num_pairs(self) -> int:
        return int(self._num_pairs[0])

    @property
    def fresh(self) -> list[int]:
        """The nodes that the last rewrite inserted, and those just before its place."""
        return np.flatnonzero(self._fresh).tolist()

    def show(self, circuit: Circuit, fresh: Sequence[int] = ()) -> None:
        """Show a circuit in canonical order."""
        assert len(circuit) <= self._max_nodes, (len(circuit), self._max_nodes)
        self.circuit, self._packed = circuit, packed(circuit)
        self._call["show"](self._board, len(circuit), circuit.num_qubits, self._packed, self._at_facts)
        self._learn()
        self._fresh[list(fresh)] = 1

    def choose(self, action: int) -> Choice:
        """Do what row `action` of the pairs says."""
        circuit = self.circuit
        became = self._call["choose"](
            self._board,
            action,
            len(circuit),
            circuit.num_qubits,
            self._packed,
            self._at_result,
            self._at_facts,
        )
        node, rule, num_gates = self._facts[:3].tolist()
        if became == REWRITTEN:
            self._packed = self._result[: num_gates * GATE_BYTES].tobytes()
            self.circuit = unpacked(circuit.num_qubits, self._packed)
            self._learn()
        return Choice(node, rule, became)

    def observation(self) -> dict[str, np.ndarray]:
        """Return what is shown, in arrays of its own."""
        row = self._row.copy()
        return {name: row[name] for name in self._names}

    def _learn(self) -> None:
        depth, self.num_too_large, self.num_without_room = self._facts[3:6].tolist()
        self.circuit.remember(depth, self._facts[6:].tobytes())


def functions() -> dict[str, Any]:
    """Return the compiled functions of circuit_board.cpp."""
    if not _compiled:
        integer, pointer, text = ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p
        circuit = [integer, ctypes.c_int32, text]
        types: dict[str, tuple[Any, list[Any]]] = {  # name: (result, arguments)
            "new": (pointer, [pointer] * 5),
            "free": (None, [pointer]),
            "show": (None, [pointer, *circuit, pointer]),
            "choose": (integer, [pointer, integer, *circuit, pointer, pointer]),
        }
        for name, (result, arguments) in types.items():
            function = getattr(PLUGIN.cpp.load(), f"board_{name}")
            function.restype, function.argtypes = result, arguments
            _compiled[name] = function
    return _compiled


_compiled: dict[str, Any] = {}
