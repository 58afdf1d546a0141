"""A curriculum with tiers: what is not mastered comes first, what is comes back after ever longer pauses."""

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
    """What is known of a task.

    seen: the round of its last try. due: the round from which on its rate decays: `seen`, or if it was mastered then,
    that of its review. reviews: how many of these it has passed.
    """

    rates: list[float] = field(default_factory=list)
    tries: int = 0
    seen: int = 0
    due: int = 0
    reviews: int = 0
    mastered: bool = False


class TieredCurriculum:
    """The highest priority of the tiers that were reached is next, at random among equals.

    What is learned of tasks is counted in tries, one for each task of a round; time is counted in rounds.
    Rate of a task: the mean of its last `window` tries, times `decay` for every round unseen: since the last, or where
    it was mastered, since its review fell due. (From the last on, .85^3 < .7 would lose every task before its second
    review.) Mastered: a rate of `threshold` after `min_tries`, until it falls below, by failure or by time.
    Priority: untried (if it is) + unsolved * (1 - rate) + due (if it is) - recent (if seen in `recent_rounds`).
    Reviews: `intervals` of rounds after it was mastered, after the first review passed at `threshold`, and so on, after
    the last of them each twice the one before; from the first again once it failed below. A review that comes so late
    that time has taken the task is a review still. (Were the longest to stay 48, all rounds of more than 48 tasks, one
    a round, would be reviews, and still too few.)
    Tiers: the next one opens after `minimum` tries of tasks in the last one that is open, at a mean rate of `advance`
    over its last `window` tries; or after `fast_tries` tries in a row of `fast_rate`. None ever closes.
    """

    def __init__(self, tasks: Mapping[str, str], settings: TierSettings | None = None) -> None:
        self.settings = settings = settings or TierSettings()
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
        self._open = sorted(set(self._tier_of.values()))  # those that have tasks; one after another opens
        self._tasks = {task: _Task() for task in tasks}
        self._round = 0
        self._tier = self._open[0]
        self._tier_tries = 0
        self._tier_rates: list[float] = []
        self._lost = 0
        self._fast_tracks = 0

    @property
    def tier(self) -> str:
        """The name of the hardest tier that is open."""
        return self.settings.tiers[self._tier].name

    def choose(self, rng: np.random.Generator, *, besides: Sequence[str] = ()) -> str:
        is_open = [task for task, tier in self._tier_of.items() if tier <= self._tier]
        left = least_often(is_open, besides)
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
        """Return the mean of the last rounds, decayed while the task is unseen; 0 if it was never tried."""
        known = self._tasks[task]
        unseen = max(0, self._round - known.due)
        return _mean(known.rates) * self.settings.decay**unseen if known.tries else 0.0

    def is_mastered(self, task: str) -> bool:
        return self._tasks[task].mastered

    def is_due(self, task: str) -> bool:
        """Return whether the review of a task that was mastered when last seen is due."""
        known = self._tasks[task]
        return known.seen < known.due <= self._round

    def record(self, rates: Mapping[str, float]) -> None:
        for task, rate in rates.items():
            assert 0.0 <= rate <= 1.0, f"{task}: a rate of {rate} is no share of rollouts"
        reviews = [task for task in rates if self.is_due(task)]
        self._round += 1
        for task, rate in rates.items():
            self._note_task(
                task, float(rate), is_review=task in reviews
            )  # of NumPy's own it were no plain value
            if self._tier_of[task] == self._tier:
                self._note_tier(float(rate))
        for task, known in self._tasks.items():
            if known.mastered and self.rate(task) < self.settings.threshold:
                known.mastered = False
                self._lost += 1

    def _note_task(self, task: str, rate: float, *, is_review: bool) -> None:
        """Count a try of a task, and say when it is to be reviewed if it is mastered."""
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

    def _note_tier(self, rate: float) -> None:
        """Count a try in the hardest tier that is open, and open the next one if that was enough."""
        settings, tier = self.settings, self.settings.tiers[self._tier]
        self._tier_tries += 1
        self._tier_rates = rates = [*self._tier_rates, rate][-settings.window :]
        advances = self._tier_tries >= tier.minimum and _mean(rates) >= tier.advance
        last = rates[-settings.fast_tries :]
        is_fast = len(last) == settings.fast_tries and min(last) >= settings.fast_rate
        if (advances or is_fast) and self._tier != self._open[-1]:
            self._tier = self._open[self._open.index(self._tier) + 1]
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
        names = [self.settings.tiers[tier].name for tier in self._open]
        if state["tasks"].keys() != self._tasks.keys() or state["tier"] not in names:
            differ = sorted(state["tasks"].keys() ^ self._tasks.keys()) or [state["tier"]]
            raise RunFolderError(
                f"the checkpoint's curriculum is of other tasks ({', '.join(differ[:5])}): go on with those it had, "
                "or begin a new run"
            )
        self._round = state["round"]
        self._tier = self._open[names.index(state["tier"])]
        self._tier_tries = state["tier_tries"]
        self._tier_rates = list(state["tier_rates"])
        self._lost = state["lost"]
        self._fast_tracks = state["fast_tracks"]
        for task, known in state["tasks"].items():
            self._tasks[task] = _Task(**{**known, "rates": list(known["rates"])})

    def metrics(self) -> dict[str, float]:
        """Return the numbers that METRICS lists, and the rate of every tier."""
        rates = {
            tier: [self.rate(task) for task in self._tier_of if self._tier_of[task] == tier]
            for tier in self._open
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
        """Return a line on the whole, one per task of the open tiers, and one on the others.

        * is mastered; "due" is the rounds until its review.
        """
        numbers = self.metrics()
        head = (
            f"round {self._round}, tier {self.tier}: {numbers['mastered']} of {len(self._tasks)} tasks mastered, "
            f"{numbers['untried']} untried, {numbers['due']} due"
        )
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
        closed = Counter(tier for tier in self._tier_of.values() if tier > self._tier)
        if closed:
            of_tiers = (f"{self.settings.tiers[tier].name} {closed[tier]}" for tier in sorted(closed))
            lines.append(f"  {closed.total()} more when their tiers open: {', '.join(of_tiers)}")
        return "\n".join(lines)


def _mean(rates: list[float]) -> float:
    return math.fsum(rates) / len(rates) if rates else math.nan
