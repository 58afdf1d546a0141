"""The buffer of circuits that episodes start from: circuits reached from one original, in levels of equal cost."""

from typing import Any, NamedTuple

import numpy as np

from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.costs import cx_count
from ddppo.domains.circuits.task.board import Start
from ddppo.domains.circuits.task.lineage import ORIGINAL, Found, Lineage, SharedCircuit
from ddppo.domains.circuits.task.settings import (
    BufferSettings,
    of_text,
    packed,
    packed_rewrites,
    text,
    unpacked,
)

# Measured overhead of Python for a kept circuit: a tuple, two bytes objects, a slot in a dict.
_ENTRY_BYTES = 260


class Kept(NamedTuple):
    """A circuit as bytes, and the step of the lineage that made it."""

    digest: bytes
    packed: bytes
    step: int

    @property
    def nbytes(self) -> int:
        return len(self.packed) + _ENTRY_BYTES


class GraphBuffer:
    """Circuits of one original in levels of equal cost, each circuit once, the oldest first; and the best circuit.

    A level holds at most level_size circuits; the oldest makes room for a new one. Above max_bytes, lineage included,
    the oldest circuit of the costliest level is dropped, again and again. The original is never dropped.
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
        self._best_cost = start.cost
        self._published_cost = start.cost  # the least cost that all environments know
        self._best_circuit: Circuit | None = start.circuit  # unpacked when it is first read
        self._insert(self._best, start.cost)
        # (cost, digest) of the `share` cheapest circuits kept since the last call of `publish`.
        self._new: list[tuple[float, bytes]] = []

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
        """Return the part of an episode's final info that describes this buffer."""
        best = self.best_circuit
        return {
            "original_cost": self.start.original.cost,
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
        """Keep a circuit as the best if it costs less than all before."""
        if cost < self._best_cost:
            self._set_best(Kept(circuit.digest(), packed(circuit), step), cost)

    def add(self, circuit: Circuit, cost: float, step: int) -> int:
        """Keep a circuit if it is new, costs at most as much as the original, and there is room.

        Returns the step that the episode continues from; the caller holds it instead of `step`. If the circuit was
        already kept, this is whichever of both histories has fewer rewrites.
        """
        if not self._accepts(cost):
            return step
        name = circuit.digest()
        kept = self._kept.get(name)
        # Known already: continue with the shorter history.
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

    def publish(self) -> tuple[SharedCircuit, ...]:
        """Return the circuits to send to all environments: the best if it is new, and the cheapest new circuits."""
        # New circuits that have not been dropped since; the best may be no circuit of the buffer, if its episode ended.
        found = [(cost, self._kept[name]) for cost, name in self._new if name in self._kept]
        if self._best_cost < self._published_cost and self._best.digest not in [
            kept.digest for _, kept in found
        ]:
            found.insert(0, (self._best_cost, self._best))
        # They are sent once.
        self._new, self._published_cost = [], self._best_cost
        return tuple(
            SharedCircuit(
                cost,
                kept.digest,
                kept.packed,
                packed_rewrites(self.lineage.rewrites(kept.step)),
                self.lineage.ancestors(kept.step),
                kept.digest in self._kept,
            )
            for cost, kept in found
        )

    def receive(self, shared: SharedCircuit) -> None:
        """Keep a circuit that an environment sent, maybe this one, as if it had been found here."""
        self._published_cost = min(self._published_cost, shared.cost)
        # Known already: all environments know it now, so that later messages may refer to it by its digest.
        if shared.digest in self._kept:
            self.lineage.name(self._kept[shared.digest].step, shared.digest)
            self._trim()
            return
        is_start = shared.is_start and self._accepts(shared.cost)
        if not is_start and shared.cost >= self._best_cost:
            return
        # Add its rewrites to the lineage, behind the nearest ancestor that is known here.
        step = self.lineage.graft(shared.rewrites, ((shared.num_rewrites, shared.digest), *shared.ancestors))
        self.lineage.name(step, shared.digest)
        kept = Kept(shared.digest, shared.packed, step)
        if shared.cost < self._best_cost:
            self._set_best(kept, shared.cost)
        if is_start and self._has_room(shared.cost):
            self._insert(kept, shared.cost)
        self.lineage.release(step)
        self._trim()

    def draw(self, rng: np.random.Generator) -> tuple[Circuit, float, int]:
        """Return a circuit, its cost and its step: draw a level by `chances`, then a circuit of it uniformly."""
        if self._rules.draw == "original":
            return self.start.circuit, self.start.cost, ORIGINAL
        # Sorted, so that the draw does not depend on the order in which levels appeared.
        costs = sorted(self._levels)
        cost = costs[rng.choice(len(costs), p=chances(np.array(costs), self._rules.draw))]
        level = self._levels[cost]
        kept = level[rng.integers(len(level))]
        return unpacked(self.start.circuit.num_qubits, kept.packed), cost, kept.step

    def state(self) -> dict[str, Any]:
        return {
            "levels": [[cost, [_encode(kept) for kept in level]] for cost, level in self._levels.items()],
            "best": [self._best_cost, _encode(self._best)],
            "told_cost": self._published_cost,
            "new": [[cost, name.hex()] for cost, name in self._new],
            "lineage": self.lineage.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._levels = {float(cost): [_decode(kept) for kept in level] for cost, level in state["levels"]}
        # The index and the sizes follow from the levels; the counts of references are part of the lineage's state.
        self._kept = {kept.digest: kept for level in self._levels.values() for kept in level}
        self._nbytes = sum(kept.nbytes for kept in self._kept.values())
        self._best_cost, self._best = float(state["best"][0]), _decode(state["best"][1])
        self._best_circuit = None
        self._published_cost = state["told_cost"]
        self._new = [(cost, bytes.fromhex(name)) for cost, name in state["new"]]
        self.lineage.restore(state["lineage"])

    def _accepts(self, cost: float) -> bool:
        return self._rules.draw != "original" and cost <= self.start.cost

    def _has_room(self, cost: float) -> bool:
        """Return whether a circuit of this cost may be kept. Drops the oldest circuit of a full level."""
        return len(self._levels.get(cost, ())) < self._rules.level_size or self._drop_oldest(cost)

    def _insert(self, kept: Kept, cost: float) -> None:
        self._levels.setdefault(cost, []).append(kept)
        self._kept[kept.digest] = kept
        self._nbytes += kept.nbytes
        self.lineage.hold(kept.step)

    def _set_best(self, kept: Kept, cost: float) -> None:
        self.lineage.hold(kept.step)
        self.lineage.release(self._best.step)
        self._best, self._best_cost, self._best_circuit = kept, cost, None

    def _trim(self) -> None:
        while self.nbytes > self._max_bytes and any(
            self._drop_oldest(costly) for costly in sorted(self._levels, reverse=True)
        ):
            pass

    def _drop_oldest(self, cost: float) -> bool:
        """Drop the oldest circuit of a level, and the level if it is empty. False if only the original is there."""
        level = self._levels[cost]
        # The original is the first circuit of its level, and stays.
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
    """Return the probability of each level of cost c.

    power: p ~ 1 / max(c, 1)^4. greedy: p ~ 1 / (c - min c + .2).
    """
    if draw == "greedy":
        weights = 1 / (costs - costs.min() + 0.2)
    else:
        floored = np.maximum(costs, 1.0)  # a user's cost may be 0 or negative
        weights = (floored.min() / floored) ** 4
    return weights / weights.sum()


def _encode(kept: Kept) -> list[Any]:
    return [kept.digest.hex(), text(kept.packed), kept.step]


def _decode(state: list[Any]) -> Kept:
    return Kept(bytes.fromhex(state[0]), of_text(state[1]), state[2])
