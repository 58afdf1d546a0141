"""How circuits came about, rewrite by rewrite, and what environments tell each other of them."""

import functools
import json
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.equivalence import Verdict, verify
from ddppo.domains.circuits.quantum.rewriting import Rewriter, digest
from ddppo.domains.circuits.task.settings import (
    REWRITE_BYTES,
    Rewrites,
    of_text,
    text,
    unpacked_rewrites,
)
from ddppo.errors import ConfigError

# -- By which rewrites circuits came from an original: a tree of steps, each kept as long as something needs it ------


ORIGINAL = -1  # the step of the original circuit, which no rewrite made
_COLUMNS = 5
_PARENT, _NODE, _RULE, _USES, _LENGTH = range(_COLUMNS)
_GRAFT = -1  # as node of a step that stands for several rewrites
_GRAFT_BYTES, _NAME_BYTES = 150, 280  # of Python's own, for each
_MOST_ANCESTORS = 8

Ancestors = tuple[tuple[int, bytes], ...]  # (rewrites that lead to it, digest) of each, the nearest first


class Lineage:
    """Steps (parent, node, rule), with a count of references: circuits that are kept, and steps that came after.

    What came from another environment is a graft, one step for several rewrites. Circuits that all environments know
    have their digests as names, so that a graft begins at the nearest of them that is still here.
    """

    def __init__(self) -> None:
        self._table = np.zeros((0, _COLUMNS), np.int32)
        self._free: list[int] = []
        self._grafts: dict[int, bytes] = {}
        self._graft_bytes = 0
        self._names: dict[int, bytes] = {}
        self._named: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._table) - len(self._free)

    @property
    def nbytes(self) -> int:
        return (
            len(self) * self._table.itemsize * _COLUMNS + self._graft_bytes + len(self._names) * _NAME_BYTES
        )

    def add(self, parent: int, node: int, rule: int) -> int:
        """Return the step that applies a rule at a node of what `parent` made; its caller holds it."""
        return self._added(parent, node, rule, 1)

    def graft(self, rewrites: bytes, ancestors: Ancestors) -> int:
        """Return the step that these packed rewrites lead to from the original; its caller holds it.

        `ancestors` are circuits on their way, where it may begin; the last may be what they lead to.
        """
        parent, length = next(
            ((self._named[name], length) for length, name in ancestors if name in self._named), (ORIGINAL, 0)
        )
        tail = rewrites[length * REWRITE_BYTES :]
        if not tail:
            self.hold(parent)
            return parent
        step = self._added(parent, _GRAFT, 0, len(tail) // REWRITE_BYTES)
        self._grafts[step] = tail
        self._graft_bytes += len(tail) + _GRAFT_BYTES
        return step

    def name(self, step: int, digest: bytes) -> None:
        """Say that all environments know what `step` made."""
        if step != ORIGINAL and step not in self._names and digest not in self._named:
            self._names[step], self._named[digest] = digest, step

    def hold(self, step: int) -> None:
        if step != ORIGINAL:
            self._table[step, _USES] += 1

    def release(self, step: int) -> None:
        """Give up a hold on a step; it goes where that was the last, and so do those before it that it alone held."""
        while step != ORIGINAL:
            self._table[step, _USES] -= 1
            if self._table[step, _USES]:
                return
            self._free.append(step)
            if step in self._grafts:
                self._graft_bytes -= len(self._grafts.pop(step)) + _GRAFT_BYTES
            if step in self._names:
                del self._named[self._names.pop(step)]
            step = int(self._table[step, _PARENT])

    def length(self, step: int) -> int:
        """Return how many rewrites lead to what `step` made."""
        return 0 if step == ORIGINAL else int(self._table[step, _LENGTH])

    def rewrites(self, step: int) -> Rewrites:
        """Return (node, rule) of every rewrite from the original to what `step` made, in order."""
        found: list[tuple[int, int]] = []
        cells = self._table.reshape(-1).data  # a memoryview: its numbers are read several times as fast
        while step != ORIGINAL:
            row = _COLUMNS * step
            if cells[row + _NODE] == _GRAFT:
                found.extend(reversed(unpacked_rewrites(self._grafts[step])))
            else:
                found.append((cells[row + _NODE], cells[row + _RULE]))
            step = cells[row + _PARENT]
        return tuple(reversed(found))

    def ancestors(self, step: int) -> Ancestors:
        """Return the nearest circuits with names on the way from the original to what `step` made."""
        found = []
        for at in self._back(step):
            if at in self._names:
                found.append((self.length(at), self._names[at]))
                if len(found) == _MOST_ANCESTORS:
                    break
        return tuple(found)

    def state(self) -> dict[str, Any]:
        return {
            "table": self._table.tolist(),
            "free": list(self._free),
            "grafts": [[step, text(rewrites)] for step, rewrites in self._grafts.items()],
            "names": [[step, digest.hex()] for step, digest in self._names.items()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._table = np.array(state["table"], np.int32).reshape(-1, _COLUMNS)
        self._free = list(state["free"])
        self._grafts = {step: of_text(rewrites) for step, rewrites in state["grafts"]}
        self._graft_bytes = sum(len(rewrites) + _GRAFT_BYTES for rewrites in self._grafts.values())
        self._names = {step: bytes.fromhex(digest) for step, digest in state["names"]}
        self._named = {digest: step for step, digest in self._names.items()}

    def _back(self, step: int) -> Iterable[int]:
        while step != ORIGINAL:
            yield step
            step = int(self._table[step, _PARENT])

    def _added(self, parent: int, node: int, rule: int, num_rewrites: int) -> int:
        if not self._free:
            size = len(self._table)
            self._table = np.concatenate([self._table, np.zeros((max(size, 64), _COLUMNS), np.int32)])
            self._free = list(range(len(self._table) - 1, size - 1, -1))
        step = self._free.pop()
        self._table[step] = parent, node, rule, 1, self.length(parent) + num_rewrites
        self.hold(parent)
        return step


# -- The best circuit that was found, with the rewrites that lead to it from the original, which anyone can repeat


class Found(NamedTuple):
    """A circuit, its cost, and (node, rule) of every rewrite from `original` to it; nodes count in canonical order."""

    name: str
    original: Circuit
    circuit: Circuit
    cost: float
    rewrites: tuple[tuple[int, int], ...]


def replayed(rewriter: Rewriter, original: Circuit, rewrites: Iterable[tuple[int, int]]) -> Circuit:
    """Return what the rewrites make of a circuit. Raises ConfigError that counts up to the first that cannot be."""
    circuit = original.canonical()
    for number, (node, rule) in enumerate(rewrites, 1):
        try:
            circuit, _ = rewriter.apply(circuit, node, rule)
        except ConfigError as e:
            raise ConfigError(
                f"rewrite {number}: {e}: replay with the original and the rules that it was found by"
            ) from e
    return circuit


def check_replay(found: Found, rewriter: Rewriter) -> None:
    """Repeat the rewrites. Raises ConfigError where they make another circuit than the one that was found."""
    circuit = replayed(rewriter, found.original, found.rewrites)
    if digest(circuit) != digest(found.circuit):
        raise ConfigError(
            f"{found.name}: its {len(found.rewrites)} rewrites lead to another circuit of {len(circuit)} gates: "
            "replay with the original and the rules that it was found by"
        )


def confirmed(found: Found, rewriter: Rewriter) -> Verdict:
    """Repeat the rewrites, and compare what they make with the original as unitaries. Raises as check_replay."""
    check_replay(found, rewriter)
    return verify(found.original, found.circuit)


# -- What an environment tells the others between iterations, as bytes: circuits, length caps, and counts ------------


class Told(NamedTuple):
    """A circuit that was found, with the packed rewrites that lead to it from the original.

    ancestors: (rewrites up to it, digest) of circuits on the way that all environments were told of, the nearest
    first. is_start: an episode went on from it, so that others may begin there.
    """

    cost: float
    digest: bytes
    packed: bytes
    rewrites: bytes
    ancestors: tuple[tuple[int, bytes], ...]
    is_start: bool

    @property
    def num_rewrites(self) -> int:
        return len(self.rewrites) // REWRITE_BYTES


class OfStart(NamedTuple):
    """What one environment publishes of one starting circuit. buffer: circuits, levels and bytes that it keeps."""

    circuits: tuple[Told, ...]
    cap: int
    buffer: tuple[int, int, int]


class PublishedCircuits(NamedTuple):
    """What an environment publishes. of_starts: in the order of the starts. counts: of Counts; None of a journal."""

    of_starts: tuple[OfStart, ...]
    counts: dict[str, Any] | None


def written(news: PublishedCircuits) -> bytes:
    said = {
        "starts": [[[_said(told) for told in of.circuits], of.cap, of.buffer] for of in news.of_starts],
        "counts": news.counts,
    }
    return zlib.compress(json.dumps(said).encode(), 1)


@functools.lru_cache(maxsize=1)
def read_all(news: tuple[bytes, ...]) -> tuple[PublishedCircuits, ...]:
    """Return what was told; silence is left out. The environments of a process share one reading of an exchange."""
    return tuple(_read(each) for each in news if each)


def _read(news: bytes) -> PublishedCircuits:
    said = json.loads(zlib.decompress(news))
    return PublishedCircuits(
        tuple(
            OfStart(tuple(_told(*told) for told in circuits), cap, tuple(buffer))
            for circuits, cap, buffer in said["starts"]
        ),
        said["counts"],
    )


def _said(told: Told) -> list[Any]:
    ancestors = [[length, digest.hex()] for length, digest in told.ancestors]
    return [told.cost, told.digest.hex(), text(told.packed), text(told.rewrites), ancestors, told.is_start]


def _told(cost: float, digest: str, packed: str, rewrites: str, ancestors: list[Any], is_start: bool) -> Told:
    known = tuple((length, bytes.fromhex(name)) for length, name in ancestors)
    return Told(float(cost), bytes.fromhex(digest), of_text(packed), of_text(rewrites), known, is_start)
