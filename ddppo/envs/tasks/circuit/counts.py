"""What an environment counts between two calls of publish(): steps, ends, and what each rule was good for."""

from typing import Any, NamedTuple

import numpy as np

ENDS = ("too_costly", "nothing_changed", "no_choice", "not_a_choice", "cut")
_TOTALS = ("steps", "rewrites", "lowered", "kept", "raised", *ENDS)


class RuleCounts(NamedTuple):
    """Of one rule. offered: choices at nodes where it matched; applied: where it was chosen; saved: cost, in sum."""

    offered: int
    applied: int
    saved: float


class Counts:
    """Totals by name, and of each rule."""

    def __init__(self, num_rules: int) -> None:
        self.totals = dict.fromkeys(_TOTALS, 0)
        self._offered = np.zeros(num_rules, np.int64)
        self._applied = np.zeros(num_rules, np.int64)
        self._saved = np.zeros(num_rules)

    def note_choice(self, pairs: np.ndarray, node: int) -> None:
        """Take notice of a choice among pairs `[M, 2]`, ascending, at this node."""
        self.totals["steps"] += 1
        first, last = np.searchsorted(pairs[:, 0], (node, node + 1))
        rules = pairs[first:last, 1]
        self._offered[rules[rules < len(self._offered)]] += 1

    def note_rewrite(self, rule: int, saved: float) -> None:
        self.totals["rewrites"] += 1
        self.totals["lowered" if saved > 0 else "raised" if saved < 0 else "kept"] += 1
        self._applied[rule] += 1
        self._saved[rule] += saved

    def rules(self) -> dict[int, RuleCounts]:
        """Return the rules that were offered, by number."""
        rules = np.flatnonzero(self._offered)
        rows = zip(
            *(array[rules].tolist() for array in (self._offered, self._applied, self._saved)), strict=True
        )
        return {rule: RuleCounts(*row) for rule, row in zip(rules.tolist(), rows, strict=True)}

    def add(self, other: "Counts") -> None:
        for name, number in other.totals.items():
            self.totals[name] += number
        self._offered += other._offered
        self._applied += other._applied
        self._saved += other._saved

    def state(self) -> dict[str, Any]:
        return {
            "totals": dict(self.totals),
            "rules": [[rule, *counts] for rule, counts in self.rules().items()],
        }

    @classmethod
    def of_state(cls, state: dict[str, Any], num_rules: int) -> "Counts":
        counts = cls(num_rules)
        counts.totals = dict(state["totals"])
        for rule, *numbers in state["rules"]:
            counts._offered[rule], counts._applied[rule], counts._saved[rule] = numbers
        return counts
