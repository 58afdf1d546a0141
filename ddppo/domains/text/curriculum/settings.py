"""Settings of curricula, `curriculum.*`, and their rows in the table of metrics. Imports no torch."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ddppo.config.fields import check_fields, setting
from ddppo.config.settings import Config, SamplerSettings
from ddppo.errors import ConfigError
from ddppo.records.metrics import Metric
from ddppo.spaces import EnvSpec

_PREFIX = "curriculum.settings."


@dataclass(slots=True)
class CurriculumSettings(SamplerSettings):
    name: str | None = setting(
        "auto",
        "for tasks of text with tiers, how the next task is chosen: tiers (tasks not yet mastered first, "
        "docs/curriculum.md), uniform (all equally often), an import path of your own "
        "(my_pkg.curricula:Mine), null (the environment chooses), auto (tiers if the environment names "
        "tiers, else null)",
    )
    settings: dict[str, Any] = setting(
        meaning="keyword arguments of the curriculum; for tiers its rules, as {window: 20} (docs/curriculum.md "
        "lists them)",
        factory=dict,
    )

    def chosen(self, spec: EnvSpec) -> str | None:
        """Return the name of the curriculum for a task, None for none."""
        if self.name == "auto":
            return "tiers" if spec.tasks and spec.is_text else None
        return self.name

    def asks(self, config: Config, spec: EnvSpec) -> bool:
        chosen = self.chosen(spec)
        if chosen is None and self.settings:
            raise ConfigError(
                f"curriculum.settings={self.settings} has no effect with curriculum.name={self.name or 'null'} and "
                f"env.id={config.env.id}, which is trained without one: leave it out"
            )
        return chosen is not None


@dataclass(slots=True)
class Tier:
    """A level of difficulty. The next tier opens after `minimum` tries of its tasks at a mean rate of `advance`."""

    name: str
    minimum: int = setting(5, "tries in this tier before it is left", low=0)
    advance: float = setting(0.6, "mean rate of its last tries at which it is left", low=0.0, high=1.0)


TIERS = (
    Tier("warm-up", minimum=5, advance=0.6),
    Tier("beginner", minimum=5, advance=0.6),
    Tier("intermediate", minimum=8, advance=0.65),
    Tier("advanced", minimum=10, advance=0.7),
    Tier("expert", minimum=0, advance=1.0),
)


@dataclass(slots=True)
class TierSettings:
    """The rules of TieredCurriculum. A round is an iteration; a try is a task in a round. Raises ConfigError."""

    tiers: tuple[Tier, ...] = setting(TIERS, "from easy to hard")
    window: int = setting(10, "last tries of a task, and of a tier, that its rate is the mean of", low=1)
    threshold: float = setting(0.7, "rate from which a task is mastered", above=0.0, high=1.0)
    min_tries: int = setting(3, "tries of a task before it can be mastered", low=1)
    decay: float = setting(0.85, "factor of a task's rate per round unseen", above=0.0, high=1.0)
    intervals: tuple[int, ...] = setting(
        (3, 6, 12, 24, 48),
        "rounds until the reviews of what was mastered; after the last each twice the one before",
    )
    untried: float = setting(100.0, "priority of a task never tried", low=0.0)
    unsolved: float = setting(50.0, "priority of a task at rate 0, less at higher rates", low=0.0)
    due: float = setting(30.0, "priority of a task whose review is due", low=0.0)
    recent: float = setting(20.0, "priority taken off a task of the last recent_rounds", low=0.0)
    recent_rounds: int = setting(2, "see recent", low=0)
    fast_tries: int = setting(3, "tries in a row at fast_rate that leave a tier before its minimum", low=1)
    fast_rate: float = setting(0.9, "see fast_tries", low=0.0, high=1.0)

    def __post_init__(self) -> None:
        check_fields(self, _PREFIX)
        # Each tier by itself, then rules over several settings.
        names = [tier.name for tier in self.tiers]
        if not names:
            raise ConfigError(f"{_PREFIX}tiers=[]: at least one is needed")
        for tier in self.tiers:
            check_fields(tier, f"{_PREFIX}tiers.{tier.name}.")
            if names.count(tier.name) > 1:
                raise ConfigError(f"{_PREFIX}tiers has two named {tier.name}: rename one")
        if not self.intervals or not all(a < b for a, b in pairwise((0, *self.intervals))):
            raise ConfigError(
                f"{_PREFIX}intervals={list(self.intervals)}: must be whole numbers above 0 that grow"
            )
        # A fast track needs that many tries, and only `window` are kept.
        if self.fast_tries > self.window:
            raise ConfigError(
                f"{_PREFIX}fast_tries={self.fast_tries} is more than the {_PREFIX}window={self.window} tries that "
                "are remembered: use fewer, or a longer window"
            )

    def interval(self, reviews: int) -> int:
        """Return the rounds until the next review of a task that has passed `reviews` reviews since it was mastered."""
        # The listed intervals first; each one behind the last is twice its predecessor.
        beyond = max(0, reviews - len(self.intervals) + 1)
        return self.intervals[min(reviews, len(self.intervals) - 1)] * 2**beyond


OF_TIERS = {  # name: (unit, meaning)
    "round": ("rounds", "rounds recorded; the only metric of curriculum.name=uniform"),
    "tier": ("1", "the hardest tier that is open, 0 is the easiest"),
    "tier_rate": ("fraction", "mean rate of the last tries in that tier; NaN before the first"),
    "mastered": ("tasks", "mastered now"),
    "untried": ("tasks", "never tried"),
    "due": ("tasks", "whose review is due"),
    "lost": ("1", "times that a task was mastered no longer, so far"),
    "fast_tracks": ("tiers", "left before their minimum of tries, so far"),
}
RATE_OF = "rate_"  # prefix of a tier's name: the mean rate of its tasks; a task never tried counts as 0
METRICS = tuple(
    Metric(f"curriculum/{name}", unit, "same on all ranks", meaning, "docs/curriculum.md")
    for name, (unit, meaning) in {
        **OF_TIERS,
        f"{RATE_OF}<tier>": ("fraction", "mean rate of the tasks of a tier, 0 of those never tried"),
        "<name>": ("yours", "metrics of a curriculum of your own"),
    }.items()
)
