"""Faults that strike while a task is being done, and states that have drifted when it begins."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Commands = tuple[str, ...]

CHANCE = {  # by tier, unless the options of reset() say otherwise
    "warm-up": 0.0,
    "beginner": 0.0,
    "intermediate": 0.1,
    "advanced": 0.2,
    "expert": 0.3,
}
TIERS = tuple(CHANCE)
# After how many steps chaos may strike: once something is there to break, before most is done.
FIRST, LAST = 1, 3


@dataclass(frozen=True)
class Strike:
    """Commands that the operator runs, unseen, after `after` steps."""

    after: int
    commands: Commands


def drawn(chance: float, faults: Sequence[Commands], random: np.random.Generator) -> Strike | None:
    """Draw an episode's chaos: with that chance one of the task's faults, at one of its first steps."""
    if not faults or random.random() >= chance:
        return None
    which = int(random.integers(len(faults)))
    return Strike(int(random.integers(FIRST, LAST + 1)), faults[which])


def drifted(num: int, drifts: Sequence[Commands], random: np.random.Generator) -> Commands:
    """Draw `num` different drifts and return their commands, in the order of the task."""
    which = sorted(int(at) for at in random.permutation(len(drifts))[:num])
    return tuple(line for at in which for line in drifts[at])
