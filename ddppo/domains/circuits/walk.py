"""Walks in C++ (src/walk.hpp), at random or by a policy that learns, for costs that are sums over gates.

A step costs a tenth of one of `CircuitEnv`: after a rewrite, only the gates near it are matched again, and nothing is
encoded. `optimise` walks so; the environment, which has the same episodes and buffers, is for trainers.
"""

import ctypes
import struct
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.costs import by_gate
from ddppo.domains.circuits.quantum.costs import cost as cost_named
from ddppo.domains.circuits.quantum.rewriting import Rewriter, unchecked
from ddppo.domains.circuits.task import settings
from ddppo.domains.circuits.task.board import rewriter, sized, starts
from ddppo.errors import ConfigError

# Node and rule of each rewrite, as files of rewrites have them.
Rewrites = tuple[tuple[int, int], ...]


class WalkProgress(NamedTuple):
    """The state of a walk after a round."""

    num_steps: int  # since the walk began
    num_rewrites: int  # likewise; steps that changed nothing are not counted
    cost: float  # the least so far
    # The rewrites that lead to it, from a walk of environments; None if it is no better than after the last round.
    rewrites: Rewrites | None
    messages: list[bytes]  # to the other walks, one from each environment
    # From a walk in C++: the best circuit, if it is better, and rows (wire, place, rule) that lead to it.
    circuit: Circuit | None = None
    places: NDArray[np.int32] | None = None
    cpu_s: float = 0.0  # CPU seconds of its process


@dataclass(frozen=True, slots=True)
class LearningRule:
    """How a walk learns (src/learning.hpp)."""

    rate: float = 0.1  # step size of Adam, in units of a logit; 0: nothing is learned
    gamma: float = 0.9  # what later rewrites save that use the gates of a rewrite counts so much for it
    limit: float = 1.0  # learning changes a logit by no more than this
    num_samples: int = 2  # draws a step that stand for the mean over all matches
    num_steps: int = 256  # an update takes place at the first end of an episode after so many steps
    decay: float = 0.999  # of the weights in each update
    # Added to the logit of a match of exactly the gates that one rewrite inserted. Without it, `shipped` makes it
    # nearly certain that a rewrite that adds gates is taken back at once.
    undo: float = -4.0
    # Episodes choose by the weights and at random in turns, more often in the way that led to more improvements a step.
    turns: bool = True
    # Logits of classes before learning, chosen on the circuits of experiments/circuits/tuning.py: for rules that remove
    # gates, keep their number and add some, five each by the age of the newest gate of a match: inserted by the last
    # rewrite, less than 3 rewrites ago, 12, 24, or earlier.
    shipped: tuple[float, ...] = (4, 4, 4, 4, 4, 4, 4, 3, 2, 0, 1, 1, 1, 1, 0)


class FastWalk:
    """Episodes of rewrites from one circuit, with a buffer of the circuits to start from."""

    def __init__(
        self,
        env: Mapping[str, Any],
        seed: int,
        *,
        prior: float,
        patience: float = 0.0,
        learning: LearningRule | None = None,
    ) -> None:
        """Begin a walk.

        Args:
            env: keyword arguments of CircuitEnv, with one circuit and a cost that `why_not` accepts.
            seed: of all that is drawn, below 2^63.
            prior: a rule that adds n gates has probability ~ e^(-prior n).
            patience: begin anew, with the original alone and nothing learned, where nothing better was found for so
                many times the steps that led to the attempt's last improvement, and for 5,000 steps in the first
                attempt, twice as many in the second, and so on; 0: never.
            learning: how it learns; None for a walk at random.
        """
        episode = settings.of(settings.EpisodeSettings, "episode", env.get("episode"))
        buffer = settings.of(settings.BufferSettings, "buffer", env.get("buffer"))
        cost = str(env.get("cost", "gate_count"))
        weights = by_gate(cost)
        assert weights is not None, cost
        (start,) = starts(env["circuit"], cost_named(cost), env.get("coupling"), env.get("start", "given"))
        self.rewriter = rewriter(env.get("rules"), keeps_pairs=env.get("coupling") is not None)
        sizes = settings.of(settings.SizeSettings, "sizes", env.get("sizes"))
        # To change nothing is never drawn, so that no pairs are kept for it.
        drawn = replace(episode, nop="never", mask=True)
        self.room, _ = sized(sizes, (start,), self.rewriter, drawn, 1)
        self.start = start.circuit
        self._share = buffer.share > 0
        given = _Settings(
            (ctypes.c_double * 5)(*weights), episode.slack, buffer.megabytes * 1e6, prior, patience, episode.min_steps,
            episode.max_steps, buffer.level_size, DRAWS.index(buffer.draw), self.room, seed,
        )  # fmt: skip
        rule = (
            None if learning is None else (ctypes.c_double * 23)(*astuple(learning)[:-1], *learning.shipped)
        )
        self._call = functions()
        self._walk = self._call["new"](
            self.rewriter.handle, len(self.start), self.start.num_qubits, *_addresses(self.start),
            ctypes.addressof(given), None if rule is None else ctypes.addressof(rule),
        )  # fmt: skip
        weakref.finalize(self, self._call["free"], self._walk)
        self._reported = np.inf  # the least cost of earlier rounds

    def go(self, messages: Sequence[bytes], num_steps: int, until: float) -> WalkProgress:
        """Receive the messages of all walks, then take `num_steps` steps.

        Args:
            until: time.monotonic() after which the walk ends within some steps.
        """
        for message in filter(None, messages):
            self._receive(message)
        self._call["go"](self._walk, num_steps, until)
        facts = self.facts()
        circuit = places = None
        sent: list[bytes] = []
        if facts.best_cost < self._reported:
            self._reported = facts.best_cost
            circuit, places = self.best()
            sent = [_encoded(facts.best_cost, circuit, places)] if self._share else []
        return WalkProgress(
            facts.num_steps,
            facts.num_rewrites,
            facts.best_cost,
            None,
            sent,
            circuit,
            places,
            time.process_time(),
        )

    def facts(self) -> "WalkFacts":
        found = WalkFacts()
        self._call["facts"](self._walk, ctypes.addressof(found))
        return found

    def best(self) -> tuple[Circuit, NDArray[np.int32]]:
        """Return the best circuit, and the rewrites that lead to it, in rows of (wire, place, rule)."""
        facts = self.facts()
        circuit = _room_for(facts.best_gates, self.start.num_qubits)
        places = np.empty((facts.best_length, 3), np.int32)
        self._call["best"](self._walk, *_addresses(circuit), places.ctypes.data)
        return circuit, places

    def table(self, new: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Return the weights of a walk that learns, after setting them if they are given."""
        size = self._call["table"](self._walk, 0, None, 0)
        values = np.empty(size) if new is None else np.ascontiguousarray(new, np.float64)
        assert len(values) == size, (len(values), size)
        self._call["table"](self._walk, size, values.ctypes.data, new is not None)
        return values

    def now(self) -> Circuit:
        """Return the circuit of the episode, its gates in a topological order."""
        circuit = _room_for(self._call["now"](self._walk, 0, None, None, None), self.start.num_qubits)
        self._call["now"](self._walk, len(circuit), *_addresses(circuit))
        return circuit

    def matches(self) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return all matches (wire, place, rule) in the order of shares of a draw, and their weights.

        A weight is negative if the match cannot be chosen now: a path leads round it, or there is no room for gates.
        """
        size = self._call["matches"](self._walk, 0, None, None)
        rows, weights = np.empty((size, 3), np.int32), np.empty(size)
        self._call["matches"](self._walk, size, rows.ctypes.data, weights.ctypes.data)
        return rows, weights

    def _receive(self, message: bytes) -> None:
        cost, circuit, places = _decoded(message)
        self._call["receive"](
            self._walk, len(circuit), *_addresses(circuit), cost, len(places), places.ctypes.data
        )


DRAWS = ("power", "greedy", "original")


def why_not(env: Mapping[str, Any]) -> str | None:
    """Return why there is no walk in C++ for these keyword arguments of CircuitEnv, or None if there is one."""
    cost = str(env.get("cost", "gate_count"))
    if by_gate(cost) is None:
        return f"cost={cost} is no sum over gates"
    if not isinstance(env["circuit"], str):
        return "there are several circuits"
    return None


def rewrites_of(rewriter: Rewriter, start: Circuit, places: NDArray[np.int32]) -> tuple[Circuit, Rewrites]:
    """Repeat rewrites in rows of (wire, place, rule): return the circuit that they lead to, and node and rule of each.

    The first gate of a match is gate number `place` on `wire`, counted from the start of the circuit.
    """
    circuit, rewrites = start.canonical(), []
    for wire, place, rule in places.tolist():
        node = int(np.flatnonzero((circuit.wires == wire).any(axis=1))[place])
        circuit, _ = rewriter.apply(circuit, node, rule)
        rewrites.append((node, rule))
    return circuit, tuple(rewrites)


# -- Messages between walks: a circuit, and the rewrites that lead to it ---------------------------------------------


_HEAD = struct.Struct("<diii")  # cost, gates, qubits, rewrites


def _encoded(cost: float, circuit: Circuit, places: NDArray[np.int32]) -> bytes:
    head = _HEAD.pack(cost, len(circuit), circuit.num_qubits, len(places))
    return b"".join([head, settings.packed(circuit), places.tobytes()])


def _decoded(message: bytes) -> tuple[float, Circuit, NDArray[np.int32]]:
    cost, gates, num_qubits, length = _HEAD.unpack_from(message)
    end = _HEAD.size + gates * settings.GATE_BYTES
    found = settings.unpacked(num_qubits, message[_HEAD.size : end])
    circuit = unchecked(num_qubits, *(np.array(each) for each in (found.kinds, found.wires, found.angles)))
    return cost, circuit, np.frombuffer(message[end:], np.int32).reshape(length, 3)


# -- The interface of C++ (src/walk.cpp) -----------------------------------------------------------------------------


class _Settings(ctypes.Structure):
    """WalkSettings of C++."""

    _fields_ = (
        ("costs", ctypes.c_double * 5), ("slack", ctypes.c_double), ("most_bytes", ctypes.c_double),
        ("prior", ctypes.c_double), ("patience", ctypes.c_double), ("least_steps", ctypes.c_int64),
        ("most_steps", ctypes.c_int64), ("level_size", ctypes.c_int64), ("draw", ctypes.c_int64),
        ("room", ctypes.c_int64), ("seed", ctypes.c_int64),
    )  # fmt: skip


class WalkFacts(ctypes.Structure):
    """What a walk counted."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in (
            "num_steps", "num_rewrites", "num_episodes", "num_circuits", "num_levels", "num_rejected",
            "num_restarts", "best_gates", "best_length",
        )),
        ("best_cost", ctypes.c_double), ("nbytes", ctypes.c_double),
    )  # fmt: skip


def _room_for(num_gates: int, num_qubits: int) -> Circuit:
    circuit: Circuit = object.__new__(Circuit)
    arrays = np.empty(num_gates, np.uint8), np.empty((num_gates, 2), np.int16), np.empty(num_gates, np.int64)
    for name, value in zip(("kinds", "wires", "angles"), arrays, strict=True):
        object.__setattr__(circuit, name, value)
    object.__setattr__(circuit, "num_qubits", num_qubits)
    return circuit


def _addresses(circuit: Circuit) -> tuple[int, int, int]:
    return circuit.kinds.ctypes.data, circuit.wires.ctypes.data, circuit.angles.ctypes.data


def functions() -> dict[str, Any]:
    """Return the compiled functions. Raises ConfigError if they cannot be compiled."""
    if not _compiled:
        if (why := PLUGIN.cpp.why_not()) is not None:
            raise ConfigError(f"circuits are rewritten in C++, which cannot be compiled here: {why}")
        integer, pointer, real = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double
        circuit = [pointer] * 3
        types: dict[str, tuple[Any, list[Any]]] = {  # name: (result, arguments)
            "new": (pointer, [pointer, integer, ctypes.c_int32, *circuit, pointer, pointer]),
            "free": (None, [pointer]),
            "go": (integer, [pointer, integer, real]),
            "facts": (None, [pointer, pointer]),
            "best": (None, [pointer, *circuit, pointer]),
            "receive": (integer, [pointer, integer, *circuit, real, integer, pointer]),
            "table": (integer, [pointer, integer, pointer, integer]),
            "now": (integer, [pointer, integer, *circuit]),
            "matches": (integer, [pointer, integer, pointer, pointer]),
        }
        for name, (result, arguments) in types.items():
            function = getattr(PLUGIN.cpp.load(), f"walk_{name}")
            function.restype, function.argtypes = result, arguments
            _compiled[name] = function
    return _compiled


_compiled: dict[str, Any] = {}
