"""Circuits that episodes start from: all that were reached from one original, by their cost."""

import base64
from typing import Any, NamedTuple

import numpy as np

from ddppo.circuits import Circuit
from ddppo.circuits.rewriting import digest
from ddppo.envs.tasks.circuit.found import Found
from ddppo.envs.tasks.circuit.lineage import ORIGINAL, Lineage
from ddppo.envs.tasks.circuit.settings import Buffer
from ddppo.envs.tasks.circuit.starts import Start

_ENTRY_BYTES = (
    260  # of Python's own for a circuit that is kept: a tuple, two strings of bytes, a slot in a set
)
_GATE_BYTES = 13  # its angle, two wires and kind


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

    def __init__(self, start: Start, rules: Buffer, max_bytes: float) -> None:
        self.start = start
        self.lineage = Lineage()
        self.num_circuits = 0
        self._rules = rules
        self._max_bytes = max_bytes
        self._nbytes = 0
        self._levels: dict[float, list[Kept]] = {}
        self._digests: set[bytes] = set()
        self._best = self._insert(start.circuit, start.cost, ORIGINAL)
        self._best_cost = start.cost

    @property
    def nbytes(self) -> int:
        return self._nbytes + self.lineage.nbytes

    @property
    def num_levels(self) -> int:
        return len(self._levels)

    @property
    def best_cost(self) -> float:
        return self._best_cost

    @property
    def best_circuit(self) -> Circuit:
        return _unpacked(self.start.circuit.num_qubits, self._best.packed)

    @property
    def num_best_rewrites(self) -> int:
        return self.lineage.length(self._best.step)

    def best(self) -> Found:
        rewrites = self.lineage.rewrites(self._best.step)
        return Found(self.start.name, self.start.circuit, self.best_circuit, self._best_cost, rewrites)

    def note(self, circuit: Circuit, cost: float, step: int) -> None:
        """Keep as the best what costs less than all before."""
        if cost < self._best_cost:
            self.lineage.hold(step)
            self.lineage.release(self._best.step)
            self._best, self._best_cost = Kept(digest(circuit), _packed(circuit), step), cost

    def add(self, circuit: Circuit, cost: float, step: int) -> None:
        """Keep a circuit that is new and costs at most what the original does, as far as there is room."""
        if self._rules.draw == "original" or cost > self.start.cost or digest(circuit) in self._digests:
            return
        if len(self._levels.get(cost, ())) >= self._rules.level_size and not self._drop_oldest(cost):
            return
        self._insert(circuit, cost, step)
        while self.nbytes > self._max_bytes and any(
            self._drop_oldest(costly) for costly in sorted(self._levels, reverse=True)
        ):
            pass

    def draw(self, rng: np.random.Generator) -> tuple[Circuit, float, int]:
        """Return a circuit, its cost and its step: a level by its chance, then any circuit of it alike."""
        if self._rules.draw == "original":
            return self.start.circuit, self.start.cost, ORIGINAL
        costs = sorted(self._levels)
        cost = costs[rng.choice(len(costs), p=chances(np.array(costs), self._rules.draw))]
        level = self._levels[cost]
        kept = level[rng.integers(len(level))]
        return _unpacked(self.start.circuit.num_qubits, kept.packed), cost, kept.step

    def state(self) -> dict[str, Any]:
        return {
            "levels": [[cost, [_said(kept) for kept in level]] for cost, level in self._levels.items()],
            "best": [self._best_cost, _said(self._best)],
            "lineage": self.lineage.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._levels = {float(cost): [_read(kept) for kept in level] for cost, level in state["levels"]}
        every = [kept for level in self._levels.values() for kept in level]
        self._digests = {kept.digest for kept in every}
        self.num_circuits, self._nbytes = len(every), sum(kept.nbytes for kept in every)
        self._best_cost, self._best = float(state["best"][0]), _read(state["best"][1])
        self.lineage.restore(state["lineage"])

    def _insert(self, circuit: Circuit, cost: float, step: int) -> Kept:
        kept = Kept(digest(circuit), _packed(circuit), step)
        self._levels.setdefault(cost, []).append(kept)
        self._digests.add(kept.digest)
        self.num_circuits += 1
        self._nbytes += kept.nbytes
        self.lineage.hold(step)
        return kept

    def _drop_oldest(self, cost: float) -> bool:
        """Drop the oldest circuit of a level, and the level with its last; False where there is the original alone."""
        level = self._levels[cost]
        place = 1 if level[0].step == ORIGINAL else 0
        if place == len(level):
            return False
        kept = level.pop(place)
        if not level:
            del self._levels[cost]
        self._digests.remove(kept.digest)
        self.num_circuits -= 1
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


def packed_text(circuit: Circuit) -> str:
    """Return a circuit's gates as text, for states."""
    return base64.b64encode(_packed(circuit)).decode()


def circuit_of_text(num_qubits: int, text: str) -> Circuit:
    return _unpacked(num_qubits, base64.b64decode(text))


def _packed(circuit: Circuit) -> bytes:
    return b"".join(
        array.tobytes()
        for array in (circuit.angles.astype("<i8"), circuit.wires.astype("<i2"), circuit.kinds)
    )


def _unpacked(num_qubits: int, packed: bytes) -> Circuit:
    n = len(packed) // _GATE_BYTES
    angles = np.frombuffer(packed, "<i8", n)
    wires = np.frombuffer(packed, "<i2", 2 * n, 8 * n).reshape(n, 2)
    return Circuit(num_qubits, np.frombuffer(packed, np.uint8, n, 12 * n), wires, angles)


def _said(kept: Kept) -> list[Any]:
    return [kept.digest.hex(), base64.b64encode(kept.packed).decode(), kept.step]


def _read(said: list[Any]) -> Kept:
    return Kept(bytes.fromhex(said[0]), base64.b64decode(said[1]), said[2])
