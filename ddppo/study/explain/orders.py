"""What a search over orders found, in words."""

import math
from collections import Counter

import numpy as np

from ddppo.domains.cage2.search.orders import KINDS, ORDERS, PRESETS, order_id
from ddppo.study.columns import percent
from ddppo.study.measure.orders import (
    NOTHING,
    Inherited,
    by_inheritance,
    by_mean,
    by_place,
    learned_from,
    rank_correlation,
)
from ddppo.study.read.search_files import Search, Trial

_ENDED = {"completed": "The search has ended", "failed": "The run failed", "stopped": "The run was stopped"}
_LEAST_TRIALS, _TOGETHER = (
    8,
    0.5,
)  # from where on a rank correlation is told: one by chance is as high in 10 %
_BY = {
    "gate": "the gate",
    "plateau": "a plateau",
    "limit": "the limit of episodes",
    "budget": "the end of the budget",
}


def named(order: int) -> str:
    """Return an order as it is read, by its id."""
    return " > ".join(KINDS[kind] for kind in ORDERS[order])


def score(trial: Trial) -> str:
    """Return a trial's score with its standard error, where that is known."""
    error = math.sqrt(trial.noise_variance)
    return "–" if math.isnan(trial.score) else f"{trial.score:.4g}" + (f" ± {error:.2g}" if error else "")


def said(search: Search) -> list[str]:
    """Return a few sentences: how far it is, what is best and how sure that is, the gate, inheritance, presets."""
    if not search.ended:
        return [_progress(search), "No trial has a score yet, so there is nothing to compare."]
    paragraphs = [_progress(search), _best(search) if search.mean.size else _highest(search), _gate(search)]
    paragraphs += [_inheritance(search), *_ages(search)] if search.inherit != NOTHING else []
    tells = search.mean.size and np.ptp(search.mean) > 0  # one score alone ranks nothing
    return paragraphs + ([_presets(search), _places(search)] if tells else [])


def _progress(search: Search) -> str:
    ended, orders = len(search.ended), len(search.tried)
    episodes = max((trial.total for trial in search.trials), default=0)
    state = _ENDED.get(search.status, "The search is under way, or was killed")
    trials = "1 trial has" if ended == 1 else f"{ended} trials have"
    return (
        f"{state}: {trials} a score, of {orders} of the {len(ORDERS)} orders, after {episodes:,} of "
        f"{search.budget_episodes:,} episodes."
    )


def _highest(search: Search) -> str:
    best = max(search.ended, key=lambda trial: trial.score)
    said = f"The highest score is {score(best)}, of {named(best.order_id)} (trial {best.number})."
    return f"{said} There is no posterior yet."


def _best(search: Search) -> str:
    """Say what is best of what was tried, by the posterior, and how sure that is."""
    mean, deviation = search.mean, search.deviation
    ranked, tried = by_mean(search), search.tried
    passed = [trial for trial in search.ended if trial.passed]
    counts = {trial.order_id for trial in passed or search.ended}
    first, *others = [order for order in ranked if order in counts]
    trial = [each for each in passed or search.ended if each.order_id == first][-1]
    kept = "" if math.isnan(trial.compliance) else f" at {percent(trial.compliance)} compliance"
    of_which = "what passed the gate" if passed else "what was tried (nothing passed the gate)"
    said = (
        f"Best of {of_which}, by the posterior, is {named(first)} (order {first}): mean {mean[first]:.4g}, "
        f"deviation {deviation[first]:.2g}; trial {trial.number} scored {score(trial)}{kept}."
    )
    if others:
        apart, common = mean[first] - mean[others[0]], math.hypot(deviation[first], deviation[others[0]])
        sure = "clearly lower" if apart > 2 * common else "so which of the two is better is not sure"
        said += f" The next, order {others[0]}, is {apart:.2g} lower with a common deviation of {common:.2g}: {sure}."
    if ranked[0] != first:
        why = "did not pass the gate" if ranked[0] in tried else "was not tried"
        said += f" Expected to be higher, but {why}: {named(ranked[0])} (order {ranked[0]}), {mean[ranked[0]]:.4g}."
    could = np.flatnonzero(mean + search.beta * deviation > mean[first])
    untried = len(set(could.tolist()) - set(tried))
    ahead = "a longer search would look there" if untried else "the search has looked where it could gain"
    return (
        f"{said} Of the {len(ORDERS) - len(tried)} orders not tried {untried} have mean + {search.beta:g} deviations "
        f"above that mean: {ahead}."
    )


def _gate(search: Search) -> str:
    ended = [trial for trial in search.trials if trial.ended_by]
    passed = sum(trial.passed for trial in ended)
    gate = "" if math.isnan(search.gate) else f" of {percent(search.gate)} compliance"
    others = Counter(_BY[trial.ended_by] for trial in ended if not trial.passed)
    rest = "; the others met " + ", ".join(f"{name} ({n})" for name, n in others.items()) if others else ""
    return f"{passed} of {len(ended)} trials passed the gate{gate}{rest}."


def _inheritance(search: Search) -> str:
    """Compare trials that began from nothing with those that inherited."""
    groups = by_inheritance(search)
    alone = [group for group in groups if group.name == NOTHING]
    heirs = Inherited("", [trial for group in groups if group.name != NOTHING for trial in group.trials])
    if not alone or not heirs.trials:
        return (
            "Nothing can be said of inheritance yet: trials that inherited and such that did not are needed."
        )
    said = f"Until the gate, trials from nothing took {_episodes(alone[0])}, those that inherited {_episodes(heirs)}"
    before, after = alone[0].until_gate, heirs.until_gate
    if math.isfinite(before) and math.isfinite(after) and after:
        said += f": {before / after:.2g} times as many from nothing"
    return f"{said}. What that is worth only a search with search.inherit=nothing tells: all its trials begin anew."


def _ages(search: Search) -> list[str]:
    """Say so where scores rise with the age of policies: the posterior takes all that differs for the orders'."""
    scores = [trial.score for trial in search.ended]
    together = rank_correlation(learned_from(search), scores)
    if len(scores) < _LEAST_TRIALS or not together > _TOGETHER:
        return []
    return [
        "Scores rise with the episodes that a policy had learned from, inherited ones included (rank correlation "
        f"{together:.2f}), and the posterior takes that for the orders': what was tried early may be better than it "
        "says."
    ]


def _episodes(group: Inherited) -> str:
    passed = f"{group.num_passed} of {len(group.trials)} passed"
    if math.isinf(group.until_gate):
        return f"more episodes than they had ({passed})"
    return f"a median of {group.until_gate:,.0f} episodes ({passed})"


def _presets(search: Search) -> str:
    place = {order: 1 + i for i, order in enumerate(by_mean(search))}
    ranked = sorted((place[order_id(order)], name) for name, order in PRESETS.items())
    listed = ", ".join(f"{name} {at}" for at, name in ranked)
    return f"Places of the presets among the {len(ORDERS)} by posterior mean: {listed}."


def _places(search: Search) -> str:
    """Say which kind's place matters most, on average over the orders."""
    means = by_place(search.mean)
    kind = int(np.argmax(np.ptp(means, axis=1)))
    best, worst = int(means[kind].argmax()), int(means[kind].argmin())
    return (
        f"On average it matters most where {KINDS[kind]} stands: {means[kind, best]:.4g} at place {best + 1}, "
        f"{means[kind, worst]:.4g} at place {worst + 1}."
    )
