"""The data of the circuit task: its keyword arguments, its observation space, its counters and its byte formats.

Each part of this file stands alone; board.py, buffer.py, lineage.py and env.py use them.
"""

import base64
import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from gymnasium.spaces import Box, Dict, MultiBinary

from ddppo.domains.circuits.quantum import KINDS, Circuit
from ddppo.domains.circuits.quantum.rewriting import unchecked
from ddppo.errors import ConfigError, near

# -- Keyword arguments of the circuit environment, in groups, each checked by itself ---------------------------------


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SizeSettings:
    """The sizes to which observations are padded. null: computed from circuits and rules by `task.board.sized`."""

    max_nodes: int | None = None  # gates of a circuit at most
    max_pairs: int | None = None  # choices (node, rule) that are offered at most

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                _check_whole(self, "sizes", field.name)


@dataclass(frozen=True, slots=True)
class EpisodeSettings:
    """The choices of an episode, and when it ends."""

    slack: float = 6.0  # terminated if the cost exceeds the least cost of the episode by more
    min_steps: int = 20  # the length cap grows and shrinks between min_steps and max_steps (board.LengthCap)
    max_steps: int = 600
    nop: str = "once"  # the choice to change nothing is offered once, at each of the "nodes", or "never"
    nop_stop: bool = True  # that choice ends the episode
    # false: each node also offers one choice for all rules that do not match there; it costs 1 and ends the episode.
    mask: bool = True

    def __post_init__(self) -> None:
        _check_number(self, "episode", "slack")
        _check_whole(self, "episode", "min_steps")
        _check_whole(self, "episode", "max_steps")
        _check_choice(self, "episode", "nop", ("once", "nodes", "never"))
        _check_choice(self, "episode", "nop_stop", (True, False))
        _check_choice(self, "episode", "mask", (True, False))
        if self.min_steps > self.max_steps:
            raise ConfigError(
                f"episode.min_steps={self.min_steps} exceeds episode.max_steps={self.max_steps}: lower it, or "
                "set both to one number for a fixed cap"
            )


@dataclass(frozen=True, slots=True)
class BufferSettings:
    """The buffer of circuits from which episodes start."""

    # power draws a level of cost with p ~ 1 / cost^4, greedy with p ~ 1 / (cost - least + .2); original always starts
    # from the original circuit.
    draw: str = "power"
    level_size: int = 2000  # circuits of one cost, at most
    megabytes: float = 32.0  # of all buffers of an environment, shared evenly by its original circuits
    share: int = 4  # circuits that an environment sends to the others in an iteration, per original; 0: none

    def __post_init__(self) -> None:
        _check_choice(self, "buffer", "draw", ("power", "greedy", "original"))
        _check_whole(self, "buffer", "level_size")
        _check_whole(self, "buffer", "share", least=0)
        _check_number(self, "buffer", "megabytes")


def of(kind: type[T], name: str, given: Mapping[str, Any] | None) -> T:
    """Return the settings of a group. Raises ConfigError for an unknown key or a value out of range."""
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"{name}={given}: give its settings by name, as {name}.<setting>=<value>")
    # Keys are checked here, with a hint at the nearest one; values are checked by the dataclass.
    fields: Any = kind
    known = [field.name for field in dataclasses.fields(fields)]
    for key in given or {}:
        if key not in known:
            raise ConfigError(
                f"{name}.{key}{near(str(key), known)}: {name} has the settings {', '.join(known)}"
            )
    return kind(**(given or {}))


def _check_whole(group: Any, name: str, key: str, least: int = 1) -> None:
    value = getattr(group, key)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}.{key}={value}: has to be a whole number, {least} or more")


def _check_number(group: Any, name: str, key: str) -> None:
    value = getattr(group, key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ConfigError(f"{name}.{key}={value}: has to be a number, 0 or more")


def _check_choice(group: Any, name: str, key: str, choices: tuple[Any, ...]) -> None:
    value = getattr(group, key)
    if not any(value is choice or (isinstance(choice, str) and value == choice) for choice in choices):
        allowed = ", ".join(str(choice).lower() for choice in choices)
        raise ConfigError(f"{name}.{key}={value}: has to be one of {allowed}")


# -- The observation: a circuit as a DAG and the choices in it, as arrays of fixed size ------------------------------
# An action is the index of a row of `pairs`, (node, rule). A model can therefore choose in two stages, a node and
# then a rule at that node, from the observation alone.


OBSERVE = ("graph", "features")  # the two forms of an observation
PADDING = -1  # of integer arrays; other arrays are padded with 0
NUM_FEATURES = 6  # of each pair; kNumFeatures of src/features.hpp
_LONGEST = 127  # gates that a rule may add or remove


def graph_space(max_nodes: int, max_pairs: int, num_rules: int, *, has_mask: bool = True) -> Dict:
    """Return the observation space of observe=graph. Nodes are gates in canonical order; edges and pairs are sorted.

    kinds [max_nodes]: 0 h, 1 x, 2 cx, 3 rz.
    angles [max_nodes, 2]: sin and cos of the angle of an rz; 0 for other gates.
    edges [2 max_nodes, 4]: source, its port, destination, its port; port 1 is the target of a cx.
    pairs [max_pairs, 2]: node and rule. The last rule changes nothing; if it is offered once, its node is -1. Without a
        mask, rule num_rules stands for all rules that do not match at the node.
    num_nodes, num_edges, num_pairs [1]: rows that are no padding.
    num_rules [1]: a constant, for models with one output per rule.
    growth [max_pairs]: gates that the rule of each pair adds, rotations by 0 included.
    fresh [max_nodes]: gates inserted by the last rewrite, and the gates just before its place.
    action_mask [max_pairs]: true for the first num_pairs.
    """
    # Bounds of each column: nodes and ports of an edge, node and rule of a pair.
    most = {"nodes": max_nodes, "edges": 2 * max_nodes, "pairs": max_pairs, "rules": num_rules}
    ends = np.array([max_nodes - 1, 1, max_nodes - 1, 1], np.int32)
    choice = np.array([max_nodes - 1, num_rules - has_mask], np.int32)
    return Dict(
        {
            "kinds": Box(PADDING, len(KINDS) - 1, (max_nodes,), np.int8),
            "angles": Box(-1, 1, (max_nodes, 2), np.float32),
            "edges": _rows(2 * max_nodes, ends),
            "pairs": _rows(max_pairs, choice),
            **{f"num_{what}": Box(0, number, (1,), np.int32) for what, number in most.items()},
            "growth": Box(-_LONGEST, _LONGEST, (max_pairs,), np.int8),
            "fresh": MultiBinary(max_nodes),
            "action_mask": MultiBinary(max_pairs),
        }
    )


def feature_space(max_pairs: int, num_weights: int) -> Dict:
    """Return the observation space of observe=features: of each pair only what `model=pairs` reads.

    features [max_pairs, NUM_FEATURES]: places in a table of num_weights weights (src/features.hpp); padded with 0.
    num_weights [1]: a constant.
    growth [max_pairs], num_pairs [1], action_mask [max_pairs]: as in `graph_space`.
    status [3]: the cost above the least of the episode, in units of the slack; steps since the episode began, divided
        by episode.max_steps; and the number of pairs with a rule that removes gates, divided by 8.
    """
    return Dict(
        {
            "features": Box(0, num_weights - 1, (max_pairs, NUM_FEATURES), np.int32),
            "growth": Box(-_LONGEST, _LONGEST, (max_pairs,), np.int8),
            "num_pairs": Box(0, max_pairs, (1,), np.int32),
            "num_weights": Box(0, num_weights, (1,), np.int32),
            "status": Box(-np.inf, np.inf, (3,), np.float32),
            "action_mask": MultiBinary(max_pairs),
        }
    )


def _rows(number: int, high: np.ndarray) -> Box:
    high = np.broadcast_to(high, (number, len(high)))
    return Box(np.full_like(high, PADDING), high, dtype=np.int32)


# -- Counters of an environment between two calls of publish(): steps, ends of episodes, and the use of each rule ----


# Why an episode ended; "cut" is the length cap, all others are terminations.
ENDS = ("too_costly", "nothing_changed", "no_choice", "not_a_choice", "cut")
_TOTALS = ("steps", "rewrites", "lowered", "kept", "raised", *ENDS)


class RuleCounts(NamedTuple):
    """The use of one rule."""

    offered: int  # times that a node was chosen at which it matched
    applied: int  # times that it was chosen
    saved: float  # sum of cost before - cost after


class Counts:
    """Totals by name, and counts of each rule.

    offered and applied [num_rules] may be arrays of a CircuitBoard, which counts them in C++.
    """

    def __init__(
        self, num_rules: int, offered: np.ndarray | None = None, applied: np.ndarray | None = None
    ) -> None:
        self.totals = dict.fromkeys(_TOTALS, 0)
        self._offered = np.zeros(num_rules, np.int64) if offered is None else offered
        self._applied = np.zeros(num_rules, np.int64) if applied is None else applied
        self._saved = np.zeros(num_rules)

    def note_rewrite(self, rule: int, saved: float) -> None:
        """Count a rewrite and the cost that it saved. (The board counts `applied`.)"""
        self.totals["rewrites"] += 1
        self.totals["lowered" if saved > 0 else "raised" if saved < 0 else "kept"] += 1
        self._saved[rule] += saved

    def rules(self) -> dict[int, RuleCounts]:
        """Return the counts of all rules that were offered, by the rule's number."""
        rules = np.flatnonzero(self._offered)
        rows = zip(
            *(array[rules].tolist() for array in (self._offered, self._applied, self._saved)), strict=True
        )
        return {rule: RuleCounts(*row) for rule, row in zip(rules.tolist(), rows, strict=True)}

    def add(self, state: dict[str, Any]) -> None:
        """Add the counts of a result of `state`."""
        for name, number in state["totals"].items():
            self.totals[name] += number
        for rule, offered, applied, saved in state["rules"]:
            self._offered[rule] += offered
            self._applied[rule] += applied
            self._saved[rule] += saved

    def clear(self) -> None:
        self.totals = dict.fromkeys(_TOTALS, 0)
        for array in (self._offered, self._applied, self._saved):
            array[:] = 0

    def state(self) -> dict[str, Any]:
        return {
            "totals": dict(self.totals),
            "rules": [[rule, *counts] for rule, counts in self.rules().items()],
        }


# -- Circuits and rewrites as bytes, and bytes as text for JSON ------------------------------------------------------


Rewrites = tuple[tuple[int, int], ...]  # (node, rule) of each rewrite, in order
GATE_BYTES = 13  # angle int64, two wires int16, kind uint8
REWRITE_BYTES = 8  # node and rule int32


def packed(circuit: Circuit) -> bytes:
    """Return all angles, then all wires, then all kinds, little-endian; src/circuit_board.cpp reads the same."""
    return b"".join(
        array.tobytes()
        for array in (circuit.angles.astype("<i8"), circuit.wires.astype("<i2"), circuit.kinds)
    )


def unpacked(num_qubits: int, given: bytes) -> Circuit:
    """Return the circuit of a result of `packed`. Its arrays are views of `given`."""
    n = len(given) // GATE_BYTES
    angles = np.frombuffer(given, "<i8", n)
    wires = np.frombuffer(given, "<i2", 2 * n, 8 * n).reshape(n, 2)
    return unchecked(num_qubits, np.frombuffer(given, np.uint8, n, 12 * n), wires, angles)


def packed_rewrites(rewrites: Iterable[tuple[int, int]]) -> bytes:
    return np.array(list(rewrites), "<i4").tobytes()


def unpacked_rewrites(given: bytes) -> list[tuple[int, int]]:
    return [(node, rule) for node, rule in np.frombuffer(given, "<i4").reshape(-1, 2).tolist()]


def text(given: bytes) -> str:
    return base64.b64encode(given).decode()


def of_text(given: str) -> bytes:
    return base64.b64decode(given)
