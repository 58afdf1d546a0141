"""The findings of a search over orders, as numbers and as the sentences of its report.

Functions above "in words" compute numbers from a `Search`; `sentences` puts them into sentences.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddppo.domains.cage2.search.campaign import FEW
from ddppo.domains.cage2.search.orders import KENDALL, KINDS, ORDERS, PRESETS, order_id
from ddppo.domains.cage2.search_files import Search, TrialRecord
from ddppo.search.ucb import COVERS
from ddppo.statistics import median
from ddppo.study.columns import percent

NOTHING = "nothing"
_BINS = 200  # points of a curve at most; more cannot be distinguished in a chart
_GAPS = 50  # gaps in a curve at most, likewise
_ENDED = {"completed": "The search has ended", "failed": "The run failed", "stopped": "The run was stopped"}
# A rank correlation is reported from so many trials and above this value, which chance reaches in 10 % of cases.
_LEAST_TRIALS, _TOGETHER = 8, 0.5
_BY = {
    "gate": "the gate",
    "plateau": "a plateau",
    "limit": "the limit of episodes",
    "budget": "the end of the budget, which cut them off",
}


@dataclass(frozen=True, slots=True)
class Inherited:
    """Trials with the same start: from nothing, or from an order at the same distance."""

    name: str  # "nothing" or "distance 2"
    trials: list[TrialRecord]

    @property
    def num_passed(self) -> int:
        return sum(trial.passed for trial in self.trials)

    @property
    def until_gate(self) -> float:
        """Median number of episodes until the gate; +inf if half of the trials or more did not pass it."""
        return median([trial.episodes if trial.passed else math.inf for trial in self.trials])


def best_so_far(search: Search) -> list[float]:
    """Return the value of the best order tried so far, after each trial that has ended.

    The value of an order is its final posterior mean, which does not follow the noise of single scores. Without a
    posterior it is the score.
    """
    known = search.mean.size
    worth = [float(search.mean[trial.order_id]) if known else trial.score for trial in search.ended]
    return np.maximum.accumulate(worth).tolist() if worth else []


def by_mean(search: Search) -> list[int]:
    """Return all orders by falling posterior mean; ties by id."""
    return np.argsort(-search.mean, kind="stable").tolist()


def distance(search: Search, trial: TrialRecord) -> int | None:
    """Return Kendall's distance between the orders of a trial and of its parent; None without a parent."""
    parents = {each.number: each for each in search.trials}
    if trial.inherited_from is None:
        return None
    return int(KENDALL[trial.order_id, parents[trial.inherited_from].order_id])


def by_inheritance(search: Search) -> list[Inherited]:
    """Return the trials that have ended in groups by their start: nothing, or an order at distance 0, 1, 2, ..."""
    groups: dict[int, list[TrialRecord]] = {}
    for trial in search.trials:
        far = distance(search, trial)
        if trial.ended_by:
            groups.setdefault(-1 if far is None else far, []).append(trial)
    return [Inherited(NOTHING if far < 0 else f"distance {far}", groups[far]) for far in sorted(groups)]


def learned_from(search: Search) -> list[int]:
    """Return, for each trial that has ended, the episodes its policy has learned from, its ancestors' included."""
    # Parents come before children, so one pass adds up all ancestors.
    behind: dict[int, int] = {}
    for trial in search.trials:
        inherited = 0 if trial.inherited_from is None else behind[trial.inherited_from]
        behind[trial.number] = inherited + trial.episodes
    return [behind[trial.number] for trial in search.ended]


def rank_correlation(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return Spearman's rank correlation, with mean ranks for ties; NaN if either variable is constant."""

    def ranks(values: Sequence[float]) -> np.ndarray:
        _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[place]

    if len(set(xs)) < 2 or len(set(ys)) < 2:
        return math.nan
    return float(np.corrcoef(ranks(xs), ranks(ys))[0, 1])


def lineage(trials: Sequence[TrialRecord]) -> list[tuple[str, TrialRecord]]:
    """Return the trials as a tree, each below its parent, with the characters that are drawn before it.

    Returns [] if no trial inherited, or if each inherited from the one before it: then there is no tree to see.
    """
    children: dict[int | None, list[TrialRecord]] = {}
    for trial in trials:
        children.setdefault(trial.inherited_from, []).append(trial)
    if len(children) in (1, len(trials)):
        return []
    # Depth first, with a stack of (characters of the trial, characters of its descendants, trial).
    found: list[tuple[str, TrialRecord]] = []
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
    """Return episodes and the means of `values` over stretches of episodes, as the corners of a line.

    If there are few trials, NaN makes a gap between two of them.
    """
    # Gaps where trials end, unless there are too many of them.
    every = max(1, math.ceil(len(values) / _BINS))
    ends = (np.flatnonzero(np.diff(search.episodes.trial)) + 1).tolist()
    ends = ends if len(ends) < _GAPS else []
    xs: list[float] = []
    ys: list[float] = []
    for start, end in zip([0, *ends], [*ends, len(values)], strict=True):
        # The mean of each stretch is drawn at its end; the first point of a trial also at its start.
        for at in range(start, end, every):
            mean = float(values[at : min(at + every, end)].mean())
            xs += [start, min(at + every, end)] if at == start else [min(at + every, end)]
            ys += [mean, mean] if at == start else [mean]
        xs.append(end)
        ys.append(math.nan)
    return xs, ys


def by_place(mean: np.ndarray) -> np.ndarray:
    """Return `[kinds, places]`, the posterior mean over all orders that have this kind at this place."""
    orders = np.array(ORDERS)
    return np.array(
        [[mean[orders[:, place] == kind].mean() for place in range(len(KINDS))] for kind in range(len(KINDS))]
    )


# -- in words --------------------------------------------------------------------------------------------------------


def named(order: int) -> str:
    """Return the order of this id in words."""
    return " > ".join(KINDS[kind] for kind in ORDERS[order])


def score(trial: TrialRecord) -> str:
    """Return the score of a trial; of one that was cut off, its return."""
    if not math.isnan(trial.score):
        return f"{trial.score:.4g}"
    return "–" if math.isnan(trial.mean_return) else f"cut off at {trial.mean_return:.4g}"


def interval(search: Search, order: int) -> str:
    """Return the 95 % interval of the expected score of an order."""
    half = COVERS * search.deviation[order]
    return f"{search.mean[order] - half:.4g} to {search.mean[order] + half:.4g}"


def pooled_repeats(search: Search) -> tuple[float, int]:
    """Return the pooled standard deviation of scores within an order, and its degrees of freedom; (NaN, 0) if none."""
    of_order: dict[int, list[float]] = {}
    for trial in search.ended:
        of_order.setdefault(trial.order_id, []).append(trial.score)
    groups = [np.array(scores) for scores in of_order.values()]
    degrees = sum(len(scores) - 1 for scores in groups)
    squares = sum(float(((scores - scores.mean()) ** 2).sum()) for scores in groups)
    return (math.sqrt(squares / degrees), degrees) if degrees else (math.nan, 0)


def sentences(search: Search) -> list[str]:
    """Return sentences on progress, the best order and its certainty, the gate, inheritance, and presets."""
    if not search.ended:
        return [_progress(search), "No trial has a score yet, so there is nothing to compare."]
    paragraphs = [_progress(search), _best(search) if search.mean.size else _highest(search), _gate(search)]
    paragraphs += _noise(search)
    paragraphs += [_inheritance(search), *_ages(search)] if search.inherit != NOTHING else []
    ranks_orders = search.mean.size and np.ptp(search.mean) > 0  # a single score ranks nothing
    return paragraphs + ([_presets(search), _places(search)] if ranks_orders else [])


def _progress(search: Search) -> str:
    ended, orders = len(search.ended), len(search.tried)
    episodes = max((trial.total for trial in search.trials), default=0)
    state = _ENDED.get(search.status, "The search is under way, or was killed")
    trials = "1 trial has" if ended == 1 else f"{ended} trials have"
    cut = [trial.number for trial in search.trials if trial.ended_by == "budget"]
    rest = (
        f" Trial {cut[-1]} was cut off by the budget: its policy had not settled, and it is not scored."
        if cut
        else ""
    )
    return (
        f"{state}: {trials} a score, of {orders} of the {len(ORDERS)} orders, after {episodes:,} of "
        f"{search.budget_episodes:,} episodes.{rest}"
    )


def _highest(search: Search) -> str:
    best = max(search.ended, key=lambda trial: trial.score)
    highest = f"The highest score is {score(best)}, of {named(best.order_id)} (trial {best.number})."
    return f"{highest} There is no posterior yet."


def _best(search: Search) -> str:
    """Return sentences on the best order tried by posterior mean, and on how certain that is."""
    # 1. The best order tried, among the trials that passed the gate if there are any.
    mean, deviation = search.mean, search.deviation
    ranked, tried = by_mean(search), search.tried
    # If some passed, a trial that failed its gate is no candidate.
    passed = [trial for trial in search.ended if trial.passed]
    counts = {trial.order_id for trial in passed or search.ended}
    first, *others = [order for order in ranked if order in counts]
    trial = [each for each in passed or search.ended if each.order_id == first][-1]
    # The first few scores tell no scale.
    spread = f", 95 % interval {interval(search, first)}" if len(search.ended) >= FEW else ""
    kept = "" if math.isnan(trial.compliance) else f" at {percent(trial.compliance)} compliance"
    among = "the orders that passed the gate" if passed else "the orders tried (none passed the gate)"
    sentences = (
        f"Best of {among}, by the posterior, is {named(first)} (order {first}): mean {mean[first]:.4g}"
        f"{spread}; trial {trial.number} scored {score(trial)}{kept}."
    )
    # 2. Its lead over the second, in units of their common deviation.
    if others:
        apart, common = mean[first] - mean[others[0]], math.hypot(deviation[first], deviation[others[0]])
        certain = (
            "clearly lower" if apart > COVERS * common else "it is not certain which of the two is better"
        )
        sentences += (
            f" The next, order {others[0]}, is {apart:.2g} lower with a common deviation of {common:.2g}: "
            f"{certain}."
        )
    # 3. Orders that may be better still.
    if ranked[0] != first:
        why = "did not pass the gate" if ranked[0] in tried else "was not tried"
        sentences += (
            f" Expected to be higher, but {why}: {named(ranked[0])} (order {ranked[0]}), "
            f"{mean[ranked[0]]:.4g}."
        )
    # 4. Untried orders with an upper confidence bound above the best mean.
    could = np.flatnonzero(mean + search.beta * deviation > mean[first])
    untried = len(set(could.tolist()) - set(tried))
    ahead = "a longer search would look there" if untried else "the search has looked where it could gain"
    return (
        f"{sentences} Of the {len(ORDERS) - len(tried)} orders not tried {untried} have mean + {search.beta:g} "
        f"deviations above that mean: {ahead}."
    )


def _gate(search: Search) -> str:
    ended = [trial for trial in search.trials if trial.ended_by]
    passed = sum(trial.passed for trial in ended)
    gate = "" if math.isnan(search.gate) else f" of {percent(search.gate)} compliance"
    others = Counter(_BY[trial.ended_by] for trial in ended if not trial.passed)
    rest = "; the others met " + ", ".join(f"{name} ({n})" for name, n in others.items()) if others else ""
    return f"{passed} of {len(ended)} trials passed the gate{gate}{rest}."


def _inheritance(search: Search) -> str:
    """Return a sentence that compares trials from nothing with trials that inherited."""
    groups = by_inheritance(search)
    alone = [group for group in groups if group.name == NOTHING]
    heirs = Inherited("", [trial for group in groups if group.name != NOTHING for trial in group.trials])
    if not alone or not heirs.trials:
        return "Inheritance cannot be judged yet: that needs trials that inherited and trials that did not."
    sentence = (
        f"Until the gate, trials from nothing took {_episodes(alone[0])}, trials that inherited "
        f"{_episodes(heirs)}"
    )
    before, after = alone[0].until_gate, heirs.until_gate
    if math.isfinite(before) and math.isfinite(after) and after:
        sentence += f": {before / after:.2g} times as many from nothing"
    return f"{sentence}. To measure the gain, compare with a search of search.inherit=nothing."


def _ages(search: Search) -> list[str]:
    """Return a sentence on the age of policies, if scores rise with it."""
    scores = [trial.score for trial in search.ended]
    together = rank_correlation(learned_from(search), scores)
    if len(scores) < _LEAST_TRIALS or not together > _TOGETHER:
        return []
    return [
        "Scores rise with the episodes from which a policy has learned, inherited ones included (rank correlation "
        f"{together:.2f}). The posterior knows these ages: it gives the score that each order is expected to have with "
        "a policy of the mean age, and takes the doubt about that into its intervals."
    ]


def _noise(search: Search) -> list[str]:
    """Return a sentence on how much a repeated trial differs, beside the spread of episodes within a trial."""
    if math.isnan(search.noise):
        return []
    pooled, degrees = pooled_repeats(search)
    repeats = (
        f"{degrees} repeat{'s' if degrees > 1 else ''} of orders, with a pooled deviation of {pooled:.2g}"
        if degrees
        else "no order was tried twice, so this rests on the likeness of orders and on the prior"
    )
    within = median(
        [math.sqrt(trial.noise_variance) for trial in search.ended if trial.noise_variance] or [0.0]
    )
    spread = f" The spread of episodes within a trial alone would say {within:.2g}." if within else ""
    return [
        f"Trained again, an order scores differently by a standard deviation of {search.noise:.2g} ({repeats})."
        f"{spread} Intervals cover other trials of this run: another seed may begin better or worse."
    ]


def _episodes(group: Inherited) -> str:
    passed = f"{group.num_passed} of {len(group.trials)} passed"
    if math.isinf(group.until_gate):
        return f"more episodes than they were given ({passed})"
    return f"a median of {group.until_gate:,.0f} episodes ({passed})"


def _presets(search: Search) -> str:
    place = {order: 1 + i for i, order in enumerate(by_mean(search))}
    ranked = sorted((place[order_id(order)], name) for name, order in PRESETS.items())
    listed = ", ".join(f"{name} {at}" for at, name in ranked)
    return f"Places of the presets among the {len(ORDERS)} by posterior mean: {listed}."


def _places(search: Search) -> str:
    """Return a sentence on the kind of host with the place that changes the posterior mean most, on average."""
    means = by_place(search.mean)
    kind = int(np.argmax(np.ptp(means, axis=1)))
    best, worst = int(means[kind].argmax()), int(means[kind].argmin())
    return (
        f"On average the place of {KINDS[kind]} matters most: {means[kind, best]:.4g} at place {best + 1}, "
        f"{means[kind, worst]:.4g} at place {worst + 1}."
    )
