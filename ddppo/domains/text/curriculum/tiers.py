"""A curriculum with tiers of difficulty and spaced repetition.

Tasks that are not mastered come first. Mastered tasks come back for reviews at growing intervals, as in spaced
repetition (docs/curriculum.md). `choose` and `priority` select a task, `record` updates tasks and tiers.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ddppo.domains.text.curriculum.contract import least_often
from ddppo.domains.text.curriculum.settings import RATE_OF, TierSettings
from ddppo.errors import ConfigError, RunFolderError, near


@dataclass(slots=True)
class _Task:
    """The history of a task."""

    rates: list[float] = field(default_factory=list)  # of its last `window` tries
    tries: int = 0
    seen: int = 0  # round of its last try
    due: int = 0  # round from which its rate decays: that of its next review if it is mastered, else `seen`
    reviews: int = 0  # reviews passed since it was mastered
    mastered: bool = False


class TieredCurriculum:
    """Chooses the task of highest priority in the open tiers; ties are broken at random.

    Each task of a round is one try. Time is counted in rounds.

    Rate of a task: the mean of its last `window` tries, times `decay` for every round unseen. Rounds are counted from
    its last try, or, if it is mastered, from the round in which its review is due. (Counted from the last try, .85^3
    < .7 would lose every task before its second review.)

    Mastered: a task at a rate of `threshold` or more after `min_tries`. It ceases to be mastered when its rate falls
    below, by failure or by time.

    Priority: untried (if never tried) + unsolved * (1 - rate) + due (if a review is due)
    - recent (if seen in the last `recent_rounds`).

    Reviews: the first is due `intervals[0]` rounds after the task was mastered, the next `intervals[1]` rounds after
    a review passed at `threshold`, and so on; behind the last, each interval is twice the one before. A failed review
    starts again at `intervals[0]`. A review may come so late that the rate has decayed below the threshold; it still
    counts as a review. (If the longest interval stayed 48, more than 48 tasks at one task a round would be reviewed
    in every round, and still too rarely.)

    Tiers: the next tier opens after `minimum` tries in the hardest open tier at a mean rate of `advance` over the last
    `window` tries, or after `fast_tries` tries in a row at `fast_rate`. An open tier never closes.
    """

    def __init__(self, tasks: Mapping[str, str], settings: TierSettings | None = None) -> None:
        self.settings = settings = settings or TierSettings()
        # Every task needs a known tier.
        names = [tier.name for tier in settings.tiers]
        if not tasks:
            raise ConfigError("a curriculum needs at least one task")
        for task, tier in tasks.items():
            if tier not in names:
                raise ConfigError(
                    f"task {task} is of tier {tier}: must be one of {', '.join(names)}{near(tier, names)}; "
                    "curriculum.settings.tiers may name others, curriculum.name=uniform needs none"
                )
        self._tier_of = {task: names.index(tier) for task, tier in tasks.items()}
        # Tiers that have tasks; they open in this order.
        self._used_tiers = sorted(set(self._tier_of.values()))
        # The state: of each task, of the hardest open tier, and two counters.
        self._tasks = {task: _Task() for task in tasks}
        self._round = 0
        self._tier = self._used_tiers[0]  # the hardest open tier
        self._tier_tries = 0  # tries of tasks of that tier
        self._tier_rates: list[float] = []  # of its last `window` tries
        self._lost = 0  # times that a task ceased to be mastered
        self._fast_tracks = 0  # tiers left by `fast_tries`, before their minimum

    @property
    def tier(self) -> str:
        """The name of the hardest tier that is open."""
        return self.settings.tiers[self._tier].name

    def choose(self, rng: np.random.Generator, *, besides: Sequence[str] = ()) -> str:
        # 1. Tasks of open tiers, and of these the ones chosen least often in this round.
        is_open = [task for task, tier in self._tier_of.items() if tier <= self._tier]
        left = least_often(is_open, besides)
        # 2. The highest priority, and a random draw among equals.
        priorities = [self.priority(task) for task in left]
        highest = max(priorities)
        first = [task for task, priority in zip(left, priorities, strict=True) if priority == highest]
        return first[int(rng.integers(len(first)))]

    def priority(self, task: str) -> float:
        known, settings = self._tasks[task], self.settings
        priority = settings.unsolved * (1.0 - self.rate(task))
        if not known.tries:
            return priority + settings.untried
        if self.is_due(task):
            priority += settings.due
        if self._round - known.seen < settings.recent_rounds:
            priority -= settings.recent
        return priority

    def rate(self, task: str) -> float:
        """Return the mean rate of the last tries, decayed by the rounds unseen; 0 if the task was never tried."""
        known = self._tasks[task]
        unseen = max(0, self._round - known.due)
        return _mean(known.rates) * self.settings.decay**unseen if known.tries else 0.0

    def is_mastered(self, task: str) -> bool:
        return self._tasks[task].mastered

    def is_due(self, task: str) -> bool:
        """Return whether a review is due; only tasks that were mastered at their last try have reviews."""
        known = self._tasks[task]
        return known.seen < known.due <= self._round

    def record(self, rates: Mapping[str, float]) -> None:
        for task, rate in rates.items():
            assert 0.0 <= rate <= 1.0, f"{task}: a rate of {rate} is not in [0, 1]"
        # Whether a try is a review is decided before the clock moves.
        reviews = [task for task in rates if self.is_due(task)]
        self._round += 1
        for task, rate in rates.items():
            # float(): a checkpoint holds no numbers of NumPy's types.
            self._record_task(task, float(rate), is_review=task in reviews)
            if self._tier_of[task] == self._tier:
                self._record_tier(float(rate))
        # The rates of all other tasks have decayed by a round: some are no longer mastered.
        for task, known in self._tasks.items():
            if known.mastered and self.rate(task) < self.settings.threshold:
                known.mastered = False
                self._lost += 1

    def _record_task(self, task: str, rate: float, *, is_review: bool) -> None:
        """Count a try of a task. If the task is mastered, schedule its next review."""
        # Reviews passed in a row lengthen the interval until the next one; a failure starts again at the first.
        known, settings = self._tasks[task], self.settings
        known.reviews += is_review and rate >= settings.threshold
        known.rates = [*known.rates, rate][-settings.window :]
        known.tries += 1
        known.seen = known.due = self._round
        if self.rate(task) < settings.threshold:
            known.reviews = 0
        elif known.tries >= settings.min_tries:
            known.mastered = True
            known.due += settings.interval(known.reviews)

    def _record_tier(self, rate: float) -> None:
        """Count a try in the hardest open tier. Open the next tier if the rule is met."""
        settings, tier = self.settings, self.settings.tiers[self._tier]
        self._tier_tries += 1
        self._tier_rates = rates = [*self._tier_rates, rate][-settings.window :]
        # By the mean rate after enough tries, or at once after some tries in a row at a high rate.
        advances = self._tier_tries >= tier.minimum and _mean(rates) >= tier.advance
        last = rates[-settings.fast_tries :]
        is_fast = len(last) == settings.fast_tries and min(last) >= settings.fast_rate
        if (advances or is_fast) and self._tier != self._used_tiers[-1]:
            self._tier = self._used_tiers[self._used_tiers.index(self._tier) + 1]
            self._tier_tries, self._tier_rates = 0, []
            self._fast_tracks += not advances

    def state(self) -> dict[str, Any]:
        return {
            "round": self._round,
            "tier": self.tier,
            "tier_tries": self._tier_tries,
            "tier_rates": list(self._tier_rates),
            "lost": self._lost,
            "fast_tracks": self._fast_tracks,
            "tasks": {task: asdict(known) for task, known in self._tasks.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        # Tasks may not change between runs; tiers may be reordered, because a tier is stored by its name.
        names = [self.settings.tiers[tier].name for tier in self._used_tiers]
        if state["tasks"].keys() != self._tasks.keys() or state["tier"] not in names:
            differ = sorted(state["tasks"].keys() ^ self._tasks.keys()) or [state["tier"]]
            raise RunFolderError(
                f"the checkpoint's curriculum has other tasks ({', '.join(differ[:5])}): resume with the tasks it had, "
                "or begin a new run"
            )
        self._round = state["round"]
        self._tier = self._used_tiers[names.index(state["tier"])]
        self._tier_tries = state["tier_tries"]
        self._tier_rates = list(state["tier_rates"])
        self._lost = state["lost"]
        self._fast_tracks = state["fast_tracks"]
        for task, known in state["tasks"].items():
            self._tasks[task] = _Task(**{**known, "rates": list(known["rates"])})

    def metrics(self) -> dict[str, float]:
        """Return the metrics that OF_TIERS lists, and the mean rate of every tier."""
        rates = {
            tier: [self.rate(task) for task in self._tier_of if self._tier_of[task] == tier]
            for tier in self._used_tiers
        }
        return {
            "round": self._round,
            "tier": self._tier,
            "tier_rate": _mean(self._tier_rates),
            "mastered": sum(known.mastered for known in self._tasks.values()),
            "untried": sum(not known.tries for known in self._tasks.values()),
            "due": sum(map(self.is_due, self._tasks)),
            "lost": self._lost,
            "fast_tracks": self._fast_tracks,
            **{RATE_OF + self.settings.tiers[tier].name: _mean(of_tier) for tier, of_tier in rates.items()},
        }

    def table(self) -> str:
        """Return a summary line, one line for each task of the open tiers, and one line for all closed tiers.

        A star marks a mastered task; the column "due" holds the rounds until its review.
        """
        # 1. The summary.
        numbers = self.metrics()
        head = (
            f"round {self._round}, tier {self.tier}: {numbers['mastered']} of {len(self._tasks)} tasks mastered, "
            f"{numbers['untried']} untried, {numbers['due']} due"
        )
        # 2. Tasks of open tiers, by tier and name.
        wide = max(map(len, self._tasks))
        between = max(len(tier.name) for tier in self.settings.tiers)
        lines = [head, f"  {'task':<{wide}}  {'tier':<{between}}  tries  rate  due  priority"]
        in_order = sorted(self._tasks, key=lambda task: (self._tier_of[task], task))
        for task in (task for task in in_order if self._tier_of[task] <= self._tier):
            known, tier = self._tasks[task], self._tier_of[task]
            due = f"{max(0, known.due - self._round)}" if known.due > known.seen else "-"
            rate = f"{self.rate(task):.2f}" if known.tries else "-"
            lines.append(
                f"{'*' if known.mastered else ' '} {task:<{wide}}  {self.settings.tiers[tier].name:<{between}}  "
                f"{known.tries:>5}  {rate:>4}  {due:>3}  {self.priority(task):>8.1f}"
            )
        # 3. The number of tasks in each closed tier.
        closed = Counter(tier for tier in self._tier_of.values() if tier > self._tier)
        if closed:
            of_tiers = (f"{self.settings.tiers[tier].name} {closed[tier]}" for tier in sorted(closed))
            lines.append(f"  {closed.total()} more when their tiers open: {', '.join(of_tiers)}")
        return "\n".join(lines)


def _mean(rates: list[float]) -> float:
    return math.fsum(rates) / len(rates) if rates else math.nan
