"""The parts that a circuit environment is made of.

In this order: `CircuitBoard` shows a circuit and rewrites it, in C++ (src/circuit_board.cpp); `LengthCap` limits
episodes; `starts` and `rewriter` read circuits and rules; `sized` computes the sizes of observations.
"""

import ctypes
import functools
import hashlib
import math
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.benchmarks import program
from ddppo.domains.circuits.quantum.costs import Cost
from ddppo.domains.circuits.quantum.coupling import coupling as coupling_named
from ddppo.domains.circuits.quantum.coupling import keeps_pairs as rule_keeps_pairs
from ddppo.domains.circuits.quantum.ecc import read
from ddppo.domains.circuits.quantum.rewriting import Rewriter, merged
from ddppo.domains.circuits.quantum.rules import packaged
from ddppo.domains.circuits.task.settings import (
    GATE_BYTES,
    EpisodeSettings,
    SizeSettings,
    feature_space,
    graph_space,
    packed,
    unpacked,
)
from ddppo.errors import ConfigError

# -- A circuit as an observation, and the rewrite that an action chooses ---------------------------------------------


# Outcomes of a choice; WRONG: no such pair, or a rule that does not match.
REWRITTEN, UNCHANGED, WRONG = range(3)
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
    "features",
    "ages",
)
_OLD = 1 << 20  # age of the gates that an episode began with; kOld of C++


class Choice(NamedTuple):
    """The result of an action."""

    node: int  # -1 if the action is no row of `pairs`
    rule: int  # likewise
    outcome: int  # REWRITTEN, UNCHANGED or WRONG


class CircuitBoard:
    """Holds one circuit and its observation, and applies rewrites to it.

    `circuit` is the current circuit in canonical order. Not all matching pairs are offered:
    - num_too_large counts pairs with a rewrite that might exceed max_nodes gates.
    - num_without_room counts pairs left out because more than max_pairs match. The pairs kept are those that add the
      fewest gates; ties go to the first rules, then to the first nodes.
    """

    def __init__(
        self,
        rewriter: Rewriter,
        max_nodes: int,
        max_pairs: int,
        episode: EpisodeSettings,
        observe: str = "graph",  # one of task.settings.OBSERVE
    ) -> None:
        sizes = (max_nodes, max_pairs, rewriter.num_rules)
        graph = graph_space(*sizes, has_mask=episode.mask)
        features = feature_space(max_pairs, num_weights(rewriter))
        has_graph, has_features = observe == "graph", observe == "features"
        space = graph if has_graph else features
        # Counts of each rule: at nodes that were chosen, and chosen. C++ adds to them; `Counts` reads and clears them.
        self.offered = np.zeros(rewriter.num_rules, np.int64)
        self.applied = np.zeros(rewriter.num_rules, np.int64)
        # The observation is one structured row, so that one copy of it is a copy of all arrays. C++ also writes arrays
        # that are not observed.
        self._row = _zeros(space)
        hidden = _zeros(dict(graph.items()) | dict(features.items()))
        ages = np.full(max_nodes, _OLD, np.int32)
        arrays = {name: (self._row if name in space.spaces else hidden)[name] for name in (*graph, *features)}
        arrays["ages"] = ages
        arrays["num_rules"][:] = rewriter.num_rules
        arrays["num_weights"][:] = num_weights(rewriter)
        self._names = tuple(space)
        self.pairs, self._num_pairs, self._fresh = arrays["pairs"], arrays["num_pairs"], arrays["fresh"]
        self._ages, self._arrays = ages, arrays
        self._facts = np.zeros(8, np.int64)  # struct Facts of C++: six numbers, then a digest of 16 bytes
        self._result = np.zeros(max_nodes * GATE_BYTES, np.uint8)
        self._at_facts, self._at_result = self._facts.ctypes.data, self._result.ctypes.data
        self._max_nodes = max_nodes
        self._rewriter = rewriter  # kept alive: C++ reads its rules
        self._call = functions()
        # C++ keeps the addresses of these arrays, and writes to them in `show` and `choose`.
        once, at_nodes = episode.nop == "once", episode.nop == "nodes"
        settings = np.array(
            [max_nodes, max_pairs, once, at_nodes, not episode.mask, has_graph, has_features], np.int32
        )
        addresses = np.array([arrays[name].ctypes.data for name in _IN_CPP])
        given = (settings, addresses, self.offered, self.applied)
        self._board = self._call["new"](rewriter.handle, *(array.ctypes.data for array in given))
        weakref.finalize(self, self._call["free"], self._board)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a circuit environment cannot be copied or pickled: make another one, and restore() the state() of this one"
        )

    @property
    def num_pairs(self) -> int:
        return int(self._num_pairs[0])

    @property
    def fresh(self) -> list[int]:
        """The nodes that the last rewrite inserted, and the nodes just before its place."""
        return np.flatnonzero(self._fresh).tolist()

    @property
    def ages(self) -> list[int]:
        """The rewrites since each gate was inserted; _OLD for gates that the episode began with."""
        return self._ages[: len(self.circuit)].tolist()

    @property
    def status(self) -> np.ndarray:
        """The array of the episode's state, which the environment writes (task.settings.feature_space)."""
        status: np.ndarray = self._arrays["status"]
        return status

    def show(self, circuit: Circuit, fresh: Sequence[int] = (), ages: Sequence[int] | None = None) -> None:
        """Show a circuit in canonical order."""
        assert len(circuit) <= self._max_nodes, (len(circuit), self._max_nodes)
        self.circuit, self._packed = circuit, packed(circuit)
        self._fresh[:] = 0
        self._fresh[list(fresh)] = 1
        self._ages[:] = _OLD
        if ages is not None:
            self._ages[: len(ages)] = ages
        self._call["show"](self._board, len(circuit), circuit.num_qubits, self._packed, self._at_facts)
        self._read_facts()

    def choose(self, action: int) -> Choice:
        """Apply the pair in row `action`. If the outcome is REWRITTEN, `circuit` and the observation are new."""
        # C++ reads the packed circuit, and writes the new one to `_result` and the observation to `_row`.
        circuit = self.circuit
        outcome = self._call["choose"](
            self._board,
            action,
            len(circuit),
            circuit.num_qubits,
            self._packed,
            self._at_result,
            self._at_facts,
        )
        node, rule, num_gates = self._facts[:3].tolist()
        if outcome == REWRITTEN:
            self._packed = self._result[: num_gates * GATE_BYTES].tobytes()
            self.circuit = unpacked(circuit.num_qubits, self._packed)
            self._read_facts()
        return Choice(node, rule, outcome)

    def observation(self) -> dict[str, np.ndarray]:
        """Return a copy of the observation."""
        row = self._row.copy()
        return {name: row[name] for name in self._names}

    def num_lowering(self) -> int:
        """Return how many pairs have a rule that removes gates."""
        return int(np.count_nonzero(self._arrays["growth"] < 0))

    def _read_facts(self) -> None:
        # C++ has computed depth and digest on the way; the circuit need not compute them again.
        depth, self.num_too_large, self.num_without_room = self._facts[3:6].tolist()
        self.circuit.set_computed(depth, self._facts[6:].tobytes())


def _zeros(space: Any) -> np.ndarray:
    return np.zeros((), np.dtype([(k, v.dtype, v.shape) for k, v in space.items()], align=True))


def num_weights(rewriter: Rewriter) -> int:
    """Return the size of the table of weights that the places in `features` name (src/features.hpp)."""
    return int(functions()["num_weights"](rewriter.handle))


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
            "num_weights": (integer, [pointer]),
        }
        for name, (result, arguments) in types.items():
            function = getattr(PLUGIN.cpp.load(), f"board_{name}")
            function.restype, function.argtypes = result, arguments
            _compiled[name] = function
    return _compiled


_compiled: dict[str, Any] = {}


# -- The length cap of episodes, which grows and shrinks with use ----------------------------------------------------


ROUND = 8  # episodes after which the cap is adjusted


class LengthCap:
    """The cap on steps of episodes from one original circuit, between min_steps and max_steps.

    After every ROUND episodes the cap changes by a factor f, 1.5 below 40 and 1.2 above: it is multiplied by f if an
    episode was cut, and divided by f if the longest episode would have fitted into the smaller cap. Environments
    exchange their `own` caps and use the largest. So the cap of all grows at once, and shrinks when the last of them
    shrinks.
    """

    def __init__(self, episode: EpisodeSettings) -> None:
        self._least, self._most = episode.min_steps, episode.max_steps
        self.own = self._least
        self._others = 0
        self._num_episodes = 0
        self._longest = 0

    @property
    def cap(self) -> int:
        return max(self.own, self._others)

    def receive(self, caps: Iterable[int]) -> None:
        """Receive the own caps of all environments, this one included."""
        self._others = max(caps, default=0)

    def note(self, num_steps: int) -> None:
        """Count a finished episode."""
        self._num_episodes += 1
        self._longest = max(self._longest, num_steps)
        # After ROUND episodes: grow if one was cut, shrink if all would have fitted, else keep the common cap.
        if self._num_episodes < ROUND:
            return
        factor = 1.5 if self.cap < 40 else 1.2
        shorter = math.ceil(self.cap / factor)
        if self._longest >= self.cap:
            self.own = min(self._most, math.ceil(self.cap * factor))
        elif self._longest <= shorter:
            self.own = max(self._least, shorter)
        else:
            self.own = self.cap
        self._num_episodes = self._longest = 0

    def state(self) -> list[int]:
        return [self.own, self._others, self._num_episodes, self._longest]

    def restore(self, state: list[int]) -> None:
        self.own, self._others, self._num_episodes, self._longest = state


# -- The inputs of a circuit environment: original circuits and rules ------------------------------------------------


STARTS = ("merge", "given")  # rewriting starts from the circuit with merged rotations, or as given


class Start(NamedTuple):
    """An original circuit, or the circuit with merged rotations that takes its place."""

    name: str  # as the user gave it
    circuit: Circuit  # where rewriting starts, in canonical order
    cost: float
    before: "Start | None" = None  # the original, if `circuit` has its rotations merged

    @property
    def original(self) -> "Start":
        return self.before or self

    @property
    def how(self) -> str:
        """One of STARTS."""
        return "given" if self.before is None else "merge"


def starts(
    given: str | Sequence[str],
    cost: Cost,
    coupling: str | Sequence[str] | None = None,
    how: str = "given",
) -> tuple[Start, ...]:
    """Return the circuits for a benchmark's name, a QASM path, or a list of these.

    how: one of STARTS. With "merge", rotations are merged at the start, unless that raises the cost.

    Raises ConfigError, also for a circuit with a cx outside the coupling map.
    """
    if how not in STARTS:
        raise ConfigError(f"start={how}: has to be one of {', '.join(STARTS)}")
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"circuit={given}: give a benchmark's name, the path of a QASM file, or a list of these"
        )
    # A name is a key of metrics and files: each at most once.
    twice = [name for k, name in enumerate(names) if name in names[:k]]
    if twice:
        raise ConfigError(f"circuit={','.join(names)}: {twice[0]} is there twice: name each once")
    found = []
    for name in names:
        # The board takes circuits in canonical order.
        given_circuit = program(name).circuit
        if coupling is not None:
            coupling_named(coupling, given_circuit.num_qubits).check(given_circuit, name)
        circuit = given_circuit.canonical()
        if not len(circuit):
            raise ConfigError(
                f"circuit={name}: it has no gates, so there is nothing to rewrite: leave it out"
            )
        start = Start(name, circuit, float(cost(circuit)))
        if how == "merge":
            start = _merged(start, cost)
        found.append(start)
    return tuple(found)


def _merged(start: Start, cost: Cost) -> Start:
    circuit = merged(start.circuit).canonical()
    least = float(cost(circuit)) if len(circuit) else start.cost
    # Merging moves rotations, which may add depth. It may also empty a circuit, which then cannot be rewritten.
    is_worth_it = len(circuit) and circuit != start.circuit and least <= start.cost
    return Start(start.name, circuit, least, before=start) if is_worth_it else start


def rewriter(path: str | None, *, keeps_pairs: bool = False) -> Rewriter:
    """Return the rules of a file (null: the package's), compiled once in a process. Raises ConfigError.

    Args:
        keeps_pairs: only rules that put a cx on no other pair of qubits, for circuits with a coupling map.
    """
    # The cache is keyed by content, so that a changed file is read again.
    if path is None:
        return _ready(None, b"", keeps_pairs)
    try:
        content = hashlib.sha256(Path(path).read_bytes()).digest()
    except OSError:
        content = b""  # the reader raises the error
    return _ready(str(path), content, keeps_pairs)


@functools.lru_cache(maxsize=4)
def _ready(path: str | None, content: bytes, keeps_pairs: bool) -> Rewriter:
    rules = (packaged() if path is None else read(Path(path))).rules
    kept = [rule for rule in rules if not keeps_pairs or rule_keeps_pairs(rule)]
    if not kept:
        raise ConfigError(
            f"rules={path}: each of its rules puts a cx on other qubits, so none is left with coupling="
        )
    return Rewriter(kept)


@functools.lru_cache(maxsize=4)
def rules_digest(rewriter: Rewriter) -> str:
    """Return a hash, in hexadecimal, of the rules and their order."""
    return hashlib.blake2b("\n".join(map(str, rewriter.rules)).encode(), digest_size=16).hexdigest()


# -- The sizes of observations, and the choices that are offered even if no rule matches -----------------------------


NO_NODE = -1  # node of the choice to change nothing, if it is offered once
# Measured: the benchmarks, randomly rewritten by our rules, have up to 1.3 pairs per node. The time of a policy over
# all pairs grows with their number; a graph network takes three times as many for the same time.
PAIRS_PER_NODE = {"graph": 4, "features": 2}


def at_every_node(rewriter: Rewriter, episode: EpisodeSettings) -> list[int]:
    """Return the rules that are offered at every node, whether or not they match.

    Without a mask, the number behind the last rule stands for all rules that do not match at a node.
    """
    nop = [rewriter.nop] if episode.nop == "nodes" else []
    return nop if episode.mask else [*nop, rewriter.num_rules]


def growth_of(rewriter: Rewriter) -> np.ndarray:
    """Return the gates that each rule adds at most. (A rewrite leaves out rotations by 0, and so may add fewer.)"""
    return np.array([*(len(rule.target) - len(rule.source) for rule in rewriter.rules), 0])


def sized(
    sizes: SizeSettings,
    starts: tuple[Start, ...],
    rewriter: Rewriter,
    episode: EpisodeSettings,
    pairs_per_node: int,
) -> tuple[int, int]:
    """Return max_nodes and max_pairs. Raises ConfigError if an original circuit does not fit.

    Defaults: max_nodes is the gates of the largest original + slack + the largest growth of a rule, rounded up to a
    multiple of 8, so that with cost=gate_count no circuit is ever too large. max_pairs is pairs_per_node per node.
    """
    # 1. Nodes: room for the largest original, the slack and the growth of one rule.
    largest = max(starts, key=lambda start: len(start.circuit))
    gates = len(largest.circuit)
    room = int(np.ceil(episode.slack)) + max(0, int(growth_of(rewriter).max()))
    max_nodes = sizes.max_nodes or -(-(gates + room) // 8) * 8
    if max_nodes < gates:
        raise ConfigError(
            f"sizes.max_nodes={max_nodes}: {largest.name} has {gates} gates: raise it to {gates + room}, or "
            "leave it null"
        )
    # 2. Pairs: at least the ones that are offered at every node, and one rule.
    num_extra = len(at_every_node(rewriter, episode))
    max_pairs = sizes.max_pairs or (pairs_per_node + (not episode.mask)) * max_nodes
    least = num_extra * max_nodes + 1 if num_extra else 2
    if max_pairs < least:
        why = (
            f" beside the {num_extra} at each of {max_nodes} nodes that are always there" if num_extra else ""
        )
        raise ConfigError(
            f"sizes.max_pairs={max_pairs}: has to be {least} or more, so that there is a choice{why}: raise it, or "
            "leave it null"
        )
    return max_nodes, max_pairs
