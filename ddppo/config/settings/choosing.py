"""Who chooses what is played: a curriculum, or a search over orders."""

from dataclasses import dataclass
from typing import Any

from ddppo.config.fields import setting


@dataclass(slots=True)
class CurriculumConfig:
    name: str | None = setting(
        "auto",
        "tasks of text with tiers: which task comes next: tiers (first those that are not mastered, "
        "docs/curriculum.md), uniform (all equally often), an import path of your own "
        "(my_pkg.curricula:Mine), null (the environment chooses), auto (tiers if the environment names "
        "tiers, else null)",
    )
    settings: dict[str, Any] = setting(
        meaning="keyword arguments of the curriculum; for tiers its rules, as {window: 20} (docs/curriculum.md "
        "lists them)",
        factory=dict,
    )


@dataclass(slots=True)
class SearchConfig:
    name: str | None = setting(
        None,
        "tasks that receive an order at every reset: which order comes next: orders (upper confidence "
        "bounds of a Gaussian process over all 120, docs/search.md), an import path of your own "
        "(my_pkg.searches:make), null (no search)",
    )
    budget_episodes: int = setting(100_000, "episodes of all environments until the search ends", low=1)
    max_episodes_per_order: int = setting(
        100, "most episodes of each environment in a trial of one order", low=1
    )
    gate_compliance: float = setting(
        0.95,
        "a trial may end when an iteration's compliance, mean over its episodes, reaches this",
        low=0,
        high=1,
    )
    gate_repairs: int = setting(10, "least number of repairs in an iteration for the gate to open", low=0)
    plateau: int | None = setting(
        None,
        "iterations without a rise of compliance by 0.01 after which a trial ends; null is no limit",
        low=1,
    )
    settle_iterations: int = setting(
        10,
        "a trial ends at its gate when the mean return of the last search.score_iterations has not risen "
        "by 1 % for this many iterations; 0 ends it at once",
        low=0,
    )
    inherit: str = setting(
        "nearest",
        "policy that a trial begins with: nothing (parameters of the start), shared (of the trial "
        "before), same (of the last trial of this order, else nothing), nearest (of the order at the "
        "least Kendall distance)",
        choices=("nothing", "shared", "same", "nearest"),
    )
    beta: float = setting(2.0, "weight of the deviation in the upper confidence bound", low=0)
    score_iterations: int = setting(
        5, "a trial's score is its mean environment return over this many last iterations", low=1
    )
    shortfall_weight: float = setting(
        30.0,
        "score that a trial loses per unit of missing compliance if it failed its gate",
        low=0,
    )
