"""Who chooses what is played: a curriculum, or a search over orders."""

from dataclasses import dataclass
from typing import Any

from ddppo.config.fields import setting


@dataclass(slots=True)
class CurriculumConfig:
    name: str | None = setting(
        "auto",
        "of tasks of text that the environment tells the tiers of, which comes next: tiers (those not mastered first, "
        "docs/curriculum.md), uniform (all alike), the import path of your own (my_pkg.curricula:Mine), null (the "
        "environment chooses), auto (tiers, null where it tells none)",
    )
    settings: dict[str, Any] = setting(
        meaning="its keyword arguments; of tiers its rules, as {window: 20} (docs/curriculum.md lists them)",
        factory=dict,
    )


@dataclass(slots=True)
class SearchConfig:
    name: str | None = setting(
        None,
        "of a task that is given an order at every reset, which order comes next: orders (upper confidence bounds of a "
        "Gaussian process over all 120, docs/search.md), the import path of your own (my_pkg.searches:make), null (no "
        "search)",
    )
    budget_episodes: int = setting(100_000, "episodes of all environments until the search ends", low=1)
    max_episodes_per_order: int = setting(
        100, "episodes of each environment after which a trial of an order ends, whatever came of it", low=1
    )
    gate_compliance: float = setting(
        0.95, "compliance of an iteration, mean over its episodes, at which a trial ends", low=0, high=1
    )
    gate_repairs: int = setting(10, "repairs of an iteration, below which the gate stays shut", low=0)
    plateau: int | None = setting(
        None,
        "iterations without compliance rising by 0.01 after which a trial ends; null is none",
        low=1,
    )
    settle_iterations: int = setting(
        10,
        "iterations for which the mean return of the last search.score_iterations must not have risen by 1 % before a "
        "trial ends at its gate; 0: it ends there at once",
        low=0,
    )
    inherit: str = setting(
        "nearest",
        "whose policy a trial begins with: nothing (parameters as at the start), shared (the trial's before), same "
        "(the last of the same order, else nothing), nearest (of the order at the least Kendall distance)",
        choices=("nothing", "shared", "same", "nearest"),
    )
    beta: float = setting(2.0, "weight of the deviation in the upper confidence bound", low=0)
    score_iterations: int = setting(
        5, "last iterations of a trial whose mean environment return is its score", low=1
    )
    shortfall_weight: float = setting(
        30.0,
        "what a trial that failed its gate loses of its score, per unit of compliance that it lacks",
        low=0,
    )
