"""By which rewrites circuits came from an original: a tree of steps, each kept as long as something needs it."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from ddppo.domains.circuits.task.packing import (
    REWRITE_BYTES,
    Rewrites,
    of_text,
    text,
    unpacked_rewrites,
)

ORIGINAL = -1  # the step of the original circuit, which no rewrite made
_COLUMNS = 5
_PARENT, _NODE, _RULE, _USES, _LENGTH = range(_COLUMNS)
_GRAFT = -1  # as node of a step that stands for several rewrites
_GRAFT_BYTES, _NAME_BYTES = 150, 280  # of Python's own, for each
_MOST_ANCESTORS = 8

Ancestors = tuple[tuple[int, bytes], ...]  # (rewrites that lead to it, digest) of each, the nearest first


class Lineage:
    """Steps (parent, node, rule), counted by who holds them: circuits that are kept, and steps that came after.

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
        cells = self._table.reshape(-1).data  # whose numbers are read several times as fast as an array's
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
