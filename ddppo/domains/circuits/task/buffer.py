"""Circuits that episodes start from: all that were reached from one original, by their cost."""

from typing import Any, NamedTuple

import numpy as np

from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.circuit import cx_count
from ddppo.domains.circuits.task.board import Start
from ddppo.domains.circuits.task.lineage import ORIGINAL, Found, Lineage, Told
from ddppo.domains.circuits.task.settings import (
    BufferSettings,
    of_text,
    packed,
    packed_rewrites,
    text,
    unpacked,
)

_ENTRY_BYTES = (
    260  # of Python's own for a circuit that is kept: a tuple, two strings of bytes, a slot in a dict
)


class Kept(NamedTuple):
    """A circuit in few bytes, and the step of the lineage that made it."""

    digest: bytes
    packed: bytes
    step: int

    @property
    def nbytes(self) -> int:
        return len(self.packed) + _ENTRY_BYTES


class GraphBuffer:
    """Circuits of one original by cost, each once, those of a level from the oldest to the newest; and the best.

    At most level_size of a cost: the oldest makes room. Beyond max_bytes, lineage included, the oldest of the
    costliest level goes, and again. The original never does.
    """

    def __init__(self, start: Start, rules: BufferSettings, max_bytes: float) -> None:
        self.start = start
        self.lineage = Lineage()
        self._rules = rules
        self._max_bytes = max_bytes
        self._nbytes = 0
        self._levels: dict[float, list[Kept]] = {}
        self._kept: dict[bytes, Kept] = {}
        self._best = Kept(start.circuit.digest(), packed(start.circuit), ORIGINAL)
        self._best_cost = self._told_cost = start.cost
        self._best_circuit: Circuit | None = start.circuit  # made when it is asked for
        self._insert(self._best, start.cost)
        self._new: list[tuple[float, bytes]] = []  # the least of those kept since the last call of told()

    @property
    def nbytes(self) -> int:
        return self._nbytes + self.lineage.nbytes

    @property
    def num_circuits(self) -> int:
        return len(self._kept)

    @property
    def num_levels(self) -> int:
        return len(self._levels)

    @property
    def best_cost(self) -> float:
        return self._best_cost

    @property
    def best_circuit(self) -> Circuit:
        if self._best_circuit is None:
            self._best_circuit = unpacked(self.start.circuit.num_qubits, self._best.packed)
        return self._best_circuit

    def best(self) -> Found:
        rewrites = self.lineage.rewrites(self._best.step)
        return Found(self.start.name, self.start.circuit, self.best_circuit, self._best_cost, rewrites)

    def summary(self) -> dict[str, Any]:
        """Return what is said of it at an episode's end."""
        best = self.best_circuit
        return {
            "original_cost": self.start.cost,
            "best_cost": self._best_cost,
            "best_gates": len(best),
            "best_cx": int(cx_count(best)),
            "best_depth": best.depth,
            "best_rewrites": self.lineage.length(self._best.step),
            "buffer_circuits": self.num_circuits,
            "buffer_levels": self.num_levels,
            "buffer_bytes": self.nbytes,
        }

    def note(self, circuit: Circuit, cost: float, step: int) -> None:
        """Keep as the best what costs less than all before."""
        if cost < self._best_cost:
            self._note(Kept(circuit.digest(), packed(circuit), step), cost)

    def add(self, circuit: Circuit, cost: float, step: int) -> int:
        """Keep a circuit that is new and costs at most what the original does, as far as there is room.

        Return the step to go on from, which the caller holds instead of `step`: where the circuit was kept before, that
        of the fewest rewrites.
        """
        if not self._takes(cost):
            return step
        name = circuit.digest()
        kept = self._kept.get(name)
        if kept is not None:
            if self.lineage.length(kept.step) >= self.lineage.length(step):
                return step
            self.lineage.hold(kept.step)
            self.lineage.release(step)
            return kept.step
        if self._has_room(cost):
            self._insert(Kept(name, packed(circuit), step), cost)
            self._new = sorted([*self._new, (cost, name)], key=lambda new: new[0])[: self._rules.share]
            self._trim()
        return step

    def told(self) -> tuple[Told, ...]:
        """Return what the others should know: the best if it is new, and the least of what was kept since last time."""
        found = [(cost, self._kept[name]) for cost, name in self._new if name in self._kept]
        if self._best_cost < self._told_cost and self._best.digest not in [kept.digest for _, kept in found]:
            found.insert(0, (self._best_cost, self._best))
        self._new, self._told_cost = [], self._best_cost
        return tuple(
            Told(
                cost,
                kept.digest,
                kept.packed,
                packed_rewrites(self.lineage.rewrites(kept.step)),
                self.lineage.ancestors(kept.step),
                kept.digest in self._kept,
            )
            for cost, kept in found
        )

    def take(self, told: Told) -> None:
        """Keep what an environment, maybe this one, told of, as if it had been found here."""
        self._told_cost = min(self._told_cost, told.cost)
        if told.digest in self._kept:
            self.lineage.name(self._kept[told.digest].step, told.digest)
            self._trim()
            return
        is_start = told.is_start and self._takes(told.cost)
        if not is_start and told.cost >= self._best_cost:
            return
        step = self.lineage.graft(told.rewrites, ((told.num_rewrites, told.digest), *told.ancestors))
        self.lineage.name(step, told.digest)
        kept = Kept(told.digest, told.packed, step)
        if told.cost < self._best_cost:
            self._note(kept, told.cost)
        if is_start and self._has_room(told.cost):
            self._insert(kept, told.cost)
        self.lineage.release(step)
        self._trim()

    def draw(self, rng: np.random.Generator) -> tuple[Circuit, float, int]:
        """Return a circuit, its cost and its step: a level by its chance, then any circuit of it alike."""
        if self._rules.draw == "original":
            return self.start.circuit, self.start.cost, ORIGINAL
        costs = sorted(self._levels)
        cost = costs[rng.choice(len(costs), p=chances(np.array(costs), self._rules.draw))]
        level = self._levels[cost]
        kept = level[rng.integers(len(level))]
        return unpacked(self.start.circuit.num_qubits, kept.packed), cost, kept.step

    def state(self) -> dict[str, Any]:
        return {
            "levels": [[cost, [_said(kept) for kept in level]] for cost, level in self._levels.items()],
            "best": [self._best_cost, _said(self._best)],
            "told_cost": self._told_cost,
            "new": [[cost, name.hex()] for cost, name in self._new],
            "lineage": self.lineage.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._levels = {float(cost): [_read(kept) for kept in level] for cost, level in state["levels"]}
        self._kept = {kept.digest: kept for level in self._levels.values() for kept in level}
        self._nbytes = sum(kept.nbytes for kept in self._kept.values())
        self._best_cost, self._best = float(state["best"][0]), _read(state["best"][1])
        self._best_circuit = None
        self._told_cost = state["told_cost"]
        self._new = [(cost, bytes.fromhex(name)) for cost, name in state["new"]]
        self.lineage.restore(state["lineage"])

    def _takes(self, cost: float) -> bool:
        return self._rules.draw != "original" and cost <= self.start.cost

    def _has_room(self, cost: float) -> bool:
        """Return whether a circuit of this cost may be kept; the oldest of a full level goes."""
        return len(self._levels.get(cost, ())) < self._rules.level_size or self._drop_oldest(cost)

    def _insert(self, kept: Kept, cost: float) -> None:
        self._levels.setdefault(cost, []).append(kept)
        self._kept[kept.digest] = kept
        self._nbytes += kept.nbytes
        self.lineage.hold(kept.step)

    def _note(self, kept: Kept, cost: float) -> None:
        self.lineage.hold(kept.step)
        self.lineage.release(self._best.step)
        self._best, self._best_cost, self._best_circuit = kept, cost, None

    def _trim(self) -> None:
        while self.nbytes > self._max_bytes and any(
            self._drop_oldest(costly) for costly in sorted(self._levels, reverse=True)
        ):
            pass

    def _drop_oldest(self, cost: float) -> bool:
        """Drop the oldest circuit of a level, and the level with its last; False where there is the original alone."""
        level = self._levels[cost]
        place = 1 if level[0].step == ORIGINAL else 0
        if place == len(level):
            return False
        kept = level.pop(place)
        if not level:
            del self._levels[cost]
        del self._kept[kept.digest]
        self._nbytes -= kept.nbytes
        self.lineage.release(kept.step)
        return True


def chances(costs: np.ndarray, draw: str) -> np.ndarray:
    """Return the chance of each level of cost: p ~ 1 / max(c, 1)^4, greedy p ~ 1 / (c - min c + .2)."""
    if draw == "greedy":
        weights = 1 / (costs - costs.min() + 0.2)
    else:
        floored = np.maximum(costs, 1.0)  # costs of a user's own may be 0 or below
        weights = (floored.min() / floored) ** 4
    return weights / weights.sum()


def _said(kept: Kept) -> list[Any]:
    return [kept.digest.hex(), text(kept.packed), kept.step]


def _read(said: list[Any]) -> Kept:
    return Kept(bytes.fromhex(said[0]), of_text(said[1]), said[2])
