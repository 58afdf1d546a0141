"""By which rewrites circuits came from an original: a tree of steps, each kept as long as something needs it."""

from typing import Any

import numpy as np

ORIGINAL = -1  # the step of the original circuit, which no rewrite made
_PARENT, _NODE, _RULE, _USES, _LENGTH = range(5)


class Lineage:
    """Steps (parent, node, rule), counted by who holds them: circuits that are kept, and steps that came after."""

    def __init__(self) -> None:
        self._table = np.zeros((0, 5), np.int32)
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._table) - len(self._free)

    @property
    def nbytes(self) -> int:
        return len(self) * self._table.itemsize * 5

    def add(self, parent: int, node: int, rule: int) -> int:
        """Return the step that applies a rule at a node of what `parent` made; its caller holds it."""
        if not self._free:
            size = len(self._table)
            self._table = np.concatenate([self._table, np.zeros((max(size, 64), 5), np.int32)])
            self._free = list(range(len(self._table) - 1, size - 1, -1))
        step = self._free.pop()
        self._table[step] = parent, node, rule, 1, self.length(parent) + 1
        self.hold(parent)
        return step

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
            step = int(self._table[step, _PARENT])

    def length(self, step: int) -> int:
        """Return how many rewrites lead to what `step` made."""
        return 0 if step == ORIGINAL else int(self._table[step, _LENGTH])

    def rewrites(self, step: int) -> tuple[tuple[int, int], ...]:
        """Return (node, rule) of every rewrite from the original to what `step` made, in order."""
        found = []
        while step != ORIGINAL:
            step, node, rule = self._table[step, :_USES].tolist()
            found.append((node, rule))
        return tuple(reversed(found))

    def state(self) -> dict[str, Any]:
        return {"table": self._table.tolist(), "free": list(self._free)}

    def restore(self, state: dict[str, Any]) -> None:
        self._table = np.array(state["table"], np.int32).reshape(-1, 5)
        self._free = list(state["free"])
