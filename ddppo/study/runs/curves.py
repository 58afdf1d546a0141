"""A run's metrics.jsonl as curves over environment steps, read up to wherever it is whole."""

import json
import math
from array import array
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

_RANK_0 = b'"rank": 0,'  # as JsonlWriter writes it: the other lines need no parser


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric `[points]` where it was told: env_steps (sum over ranks), wall_s (seconds of training), values."""

    env_steps: np.ndarray
    wall_s: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    def at(self, env_steps: float) -> float:
        """Return the last value told at or before so many steps; NaN before the first."""
        last = int(np.searchsorted(self.env_steps, env_steps, side="right")) - 1
        return float(self.values[last]) if last >= 0 else math.nan

    def reached(self, level: float) -> tuple[float, float]:
        """Return env_steps and wall_s of the first value at or above `level`; NaN where there is none."""
        there = np.flatnonzero(self.values >= level)
        if not len(there):
            return math.nan, math.nan
        return float(self.env_steps[there[0]]), float(self.wall_s[there[0]])


NOTHING = Curve(*(np.zeros(0) for _ in range(3)))


@dataclass(slots=True)
class _Columns:
    env_steps: "array[float]" = field(default_factory=lambda: array("d"))
    wall_s: "array[float]" = field(default_factory=lambda: array("d"))
    values: "array[float]" = field(default_factory=lambda: array("d"))


def read_curves(path: Path) -> tuple[dict[str, Curve], int]:
    """Return the curves of a metrics.jsonl by metric, and how many of its lines could not be read.

    Of per-rank metrics those of rank 0. Steps never go back: what a damaged file has twice counts once.
    """
    found: dict[str, _Columns] = {}
    unread, last = 0, -math.inf
    try:
        file = path.open("rb")
    except OSError:
        return {}, 0
    with file:
        for text in file:
            if _RANK_0 not in text[:200]:
                continue
            try:
                line = json.loads(text)
                steps, wall_s = float(line["env_steps"]), float(line["wall_s"])
            except (ValueError, KeyError, TypeError, RecursionError):
                unread += text.endswith(b"\n")  # else it is being written
                continue
            if not steps > last:
                unread += 1
                continue
            last = steps
            for name, value in line.items():
                if "/" in name and isinstance(value, float) and math.isfinite(value):
                    columns = found.setdefault(name, _Columns())
                    columns.env_steps.append(steps)
                    columns.wall_s.append(wall_s)
                    columns.values.append(value)
    curves = {
        name: Curve(np.array(c.env_steps), np.array(c.wall_s), np.array(c.values))
        for name, c in found.items()
    }
    return curves, unread
