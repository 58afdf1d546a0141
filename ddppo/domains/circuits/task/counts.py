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
    """Totals by name, and of each rule; offered and applied [num_rules] may be arrays that others count in."""

    def __init__(
        self, num_rules: int, offered: np.ndarray | None = None, applied: np.ndarray | None = None
    ) -> None:
        self.totals = dict.fromkeys(_TOTALS, 0)
        self._offered = np.zeros(num_rules, np.int64) if offered is None else offered
        self._applied = np.zeros(num_rules, np.int64) if applied is None else applied
        self._saved = np.zeros(num_rules)

    def note_rewrite(self, rule: int, saved: float) -> None:
        """Take notice of what a rewrite saved; whoever applied it counts that."""
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
