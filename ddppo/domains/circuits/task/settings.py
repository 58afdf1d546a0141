"""What the task is given, and what its observations and messages hold."""

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
    """What observations are padded to. null: as `task.board.sized` finds for circuits and rules."""

    max_nodes: int | None = None
    max_pairs: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                _check_whole(self, "sizes", field.name)


@dataclass(frozen=True, slots=True)
class EpisodeSettings:
    """When an episode ends.

    slack: by how much the cost may exceed the least that the episode has seen, its start's included. min_steps and
    max_steps: between which the length cap grows and shrinks. nop: the choice to change nothing is offered once, at
    every one of the nodes, or never; nop_stop: it ends the episode. mask=false offers at every node a choice that
    stands for all rules that do not match there, and costs 1 and ends the episode.
    """

    slack: float = 6.0
    min_steps: int = 20
    max_steps: int = 600
    nop: str = "once"
    nop_stop: bool = True
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
    """From which circuits episodes start.

    draw: power draws a level of cost in proportion to 1 / cost^4, greedy to 1 / (cost - least + .2), original takes
    the original circuit always. level_size: circuits of one cost, at most. megabytes: of all buffers of one
    environment, which its starting circuits share evenly. share: how many circuits, of each that is started from, an
    environment tells the others of in an iteration; 0 keeps buffers apart.
    """

    draw: str = "power"
    level_size: int = 2000
    megabytes: float = 32.0
    share: int = 4

    def __post_init__(self) -> None:
        _check_choice(self, "buffer", "draw", ("power", "greedy", "original"))
        _check_whole(self, "buffer", "level_size")
        _check_whole(self, "buffer", "share", least=0)
        _check_number(self, "buffer", "megabytes")


def of(kind: type[T], name: str, given: Mapping[str, Any] | None) -> T:
    """Return the group of this name. Raises ConfigError for a key that it has not, or a value that breaks its rule."""
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"{name}={given}: give its settings by name, as {name}.<setting>=<value>")
    fields: Any = kind  # a dataclass
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
        said = ", ".join(str(choice).lower() for choice in choices)
        raise ConfigError(f"{name}.{key}={value}: has to be one of {said}")


# -- A circuit as arrays of fixed size: its DAG, and what can be done to it ------------------------------------------
# All that a model of any kind needs: a choice is the index of a row of `pairs`, so a node, and a rule at that node,
# can be chosen in two stages from the observation alone.


PADDING = -1  # of whole numbers; 0 of others
_LONGEST = 127  # gates that a rule may add or take away


def observation_space(max_nodes: int, max_pairs: int, num_rules: int, *, has_mask: bool = True) -> Dict:
    """Return the space. Nodes are gates in canonical order; edges and pairs ascend.

    kinds [max_nodes]: 0 h, 1 x, 2 cx, 3 rz. angles [max_nodes, 2]: sin and cos of an rz, 0 of others.
    edges [2 max_nodes, 4]: source, its port, destination, its port; port 1 is a cx's target. pairs [max_pairs, 2]:
    node and rule, the last rule changes nothing and has node -1 where it is offered once; without a mask, num_rules
    stands for what does not match. num_nodes, num_edges and num_pairs [1]: how many are real. num_rules [1]: always the
    same, for models that have an output for each. growth [max_pairs]: gates that the rule of each pair adds, rotations
    by 0 among them. fresh [max_nodes]: inserted by the last rewrite or just before its place. action_mask [max_pairs]:
    the first num_pairs.
    """
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


def _rows(number: int, high: np.ndarray) -> Box:
    high = np.broadcast_to(high, (number, len(high)))
    return Box(np.full_like(high, PADDING), high, dtype=np.int32)


# -- What an environment counts between two calls of publish(): steps, ends, and what each rule was good for ---------


ENDS = ("too_costly", "nothing_changed", "no_choice", "not_a_choice", "cut")
_TOTALS = ("steps", "rewrites", "lowered", "kept", "raised", *ENDS)


class RuleCounts(NamedTuple):
    """Of one rule. offered: choices at nodes where it matched; applied: where it was chosen; saved: cost, in sum."""

    offered: int
    applied: int
    saved: float


class Counts:
    """Totals by name, and of each rule; offered and applied [num_rules] may be arrays that others count in."""

    def __init__(
        self, num_rules: int, offered: np.ndarray | None = None, applied: np.ndarray | None = None
    ) -> None:
        self.totals = dict.fromkeys(_TOTALS, 0)
        self._offered = np.zeros(num_rules, np.int64) if offered is None else offered
        self._applied = np.zeros(num_rules, np.int64) if applied is None else applied
        self._saved = np.zeros(num_rules)

    def note_rewrite(self, rule: int, saved: float) -> None:
        """Count a rewrite and what it saved; `applied` is counted by the board."""
        self.totals["rewrites"] += 1
        self.totals["lowered" if saved > 0 else "raised" if saved < 0 else "kept"] += 1
        self._saved[rule] += saved

    def rules(self) -> dict[int, RuleCounts]:
        """Return the rules that were offered, by number."""
        rules = np.flatnonzero(self._offered)
        rows = zip(
            *(array[rules].tolist() for array in (self._offered, self._applied, self._saved)), strict=True
        )
        return {rule: RuleCounts(*row) for rule, row in zip(rules.tolist(), rows, strict=True)}

    def add(self, said: dict[str, Any]) -> None:
        """Add what a state says."""
        for name, number in said["totals"].items():
            self.totals[name] += number
        for rule, offered, applied, saved in said["rules"]:
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


# -- Circuits and rewrites in few bytes, and as text for states and messages -----------------------------------------


Rewrites = tuple[tuple[int, int], ...]  # (node, rule) of each, in order
GATE_BYTES = 13  # its angle, two wires and kind
REWRITE_BYTES = 8


def packed(circuit: Circuit) -> bytes:
    return b"".join(
        array.tobytes()
        for array in (circuit.angles.astype("<i8"), circuit.wires.astype("<i2"), circuit.kinds)
    )


def unpacked(num_qubits: int, given: bytes) -> Circuit:
    """Return a circuit that was packed; its arrays are views of `given`."""
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
