"""What a search over orders found: the best so far, episodes until the gate by what was inherited, and the lineage."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddppo.domains.cage2.search.orders import KENDALL, KINDS, ORDERS
from ddppo.statistics import median
from ddppo.study.read.search_files import Search, Trial

NOTHING = "nothing"
_BINS = 200  # of a curve: more could not be told apart
_GAPS = 50  # in it, likewise


@dataclass(frozen=True, slots=True)
class Inherited:
    """Trials that began alike: from nothing, or from an order as far from theirs."""

    name: str
    trials: list[Trial]

    @property
    def num_passed(self) -> int:
        return sum(trial.passed for trial in self.trials)

    @property
    def until_gate(self) -> float:
        """The median of the episodes until the gate, +inf where half of the trials or more did not get there."""
        return median([trial.episodes if trial.passed else math.inf for trial in self.trials])


def best_so_far(search: Search) -> list[float]:
    """Return what the best order tried was worth after each trial that has ended.

    That is the highest posterior mean of today, which noise of single scores does not raise; else the highest score.
    """
    known = search.mean.size
    worth = [float(search.mean[trial.order_id]) if known else trial.score for trial in search.ended]
    return np.maximum.accumulate(worth).tolist() if worth else []


def by_mean(search: Search) -> list[int]:
    """Return all orders, the highest posterior mean first; of equals the lower id."""
    return np.argsort(-search.mean, kind="stable").tolist()


def distance(search: Search, trial: Trial) -> int | None:
    """Return Kendall's distance between the orders of a trial and of the one that it inherited from."""
    parents = {each.number: each for each in search.trials}
    if trial.inherited_from is None:
        return None
    return int(KENDALL[trial.order_id, parents[trial.inherited_from].order_id])


def by_inheritance(search: Search) -> list[Inherited]:
    """Return the trials that have ended, by what they began from: nothing, or an order at distance 0, 1, 2, ..."""
    groups: dict[int, list[Trial]] = {}
    for trial in search.trials:
        far = distance(search, trial)
        if trial.ended_by:
            groups.setdefault(-1 if far is None else far, []).append(trial)
    return [Inherited(NOTHING if far < 0 else f"distance {far}", groups[far]) for far in sorted(groups)]


def learned_from(search: Search) -> list[int]:
    """Return of each trial that has ended the episodes that its policy had learned from, those inherited included."""
    behind: dict[int, int] = {}
    for trial in search.trials:
        inherited = 0 if trial.inherited_from is None else behind[trial.inherited_from]
        behind[trial.number] = inherited + trial.episodes
    return [behind[trial.number] for trial in search.ended]


def rank_correlation(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return Spearman's: that of the ranks, of equals their mean; NaN where either does not vary."""

    def ranks(values: Sequence[float]) -> np.ndarray:
        _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[place]

    if len(set(xs)) < 2 or len(set(ys)) < 2:
        return math.nan
    return float(np.corrcoef(ranks(xs), ranks(ys))[0, 1])


def lineage(trials: Sequence[Trial]) -> list[tuple[str, Trial]]:
    """Return the trials as a tree, each below the one that it inherited from, with the lines that are drawn before it.

    Nothing where none inherited, or each merely went on with the one before it.
    """
    children: dict[int | None, list[Trial]] = {}
    for trial in trials:
        children.setdefault(trial.inherited_from, []).append(trial)
    if len(children) in (1, len(trials)):
        return []
    found: list[tuple[str, Trial]] = []
    waiting = [("", "", trial) for trial in reversed(children.get(None, []))]
    while waiting:
        drawn, below, trial = waiting.pop()
        found.append((drawn, trial))
        heirs = children.get(trial.number, [])
        for child in reversed(heirs):
            corner, line = ("└ ", "  ") if child is heirs[-1] else ("├ ", "│ ")
            waiting.append((below + corner, below + line, child))
    return found


def curve(search: Search, values: np.ndarray) -> tuple[list[float], list[float]]:
    """Return episodes and the means of `values` over stretches of them.

    Where trials are few there is a gap (NaN) between them.
    """
    every = max(1, math.ceil(len(values) / _BINS))
    ends = (np.flatnonzero(np.diff(search.episodes.trial)) + 1).tolist()
    ends = ends if len(ends) < _GAPS else []
    xs: list[float] = []
    ys: list[float] = []
    for start, end in zip([0, *ends], [*ends, len(values)], strict=True):
        for at in range(start, end, every):
            mean = float(values[at : min(at + every, end)].mean())
            xs += [start, min(at + every, end)] if at == start else [min(at + every, end)]
            ys += [mean, mean] if at == start else [mean]
        xs.append(end)
        ys.append(math.nan)
    return xs, ys


def by_place(mean: np.ndarray) -> np.ndarray:
    """Return the posterior mean of the orders that have a kind at a place `[kinds, places]`, over all such orders."""
    orders = np.array(ORDERS)
    return np.array(
        [[mean[orders[:, place] == kind].mean() for place in range(len(KINDS))] for kind in range(len(KINDS))]
    )
