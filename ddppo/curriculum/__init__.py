"""Which task comes next: mastery of each, tiers, reviews.

Import surface: `Rounds` and `Round`, what the groups of an iteration play; `curriculum_for`, the curriculum of a run;
the contract `Curriculum`, and the settings of the one with tiers.
"""

from ddppo.curriculum.contract import Curriculum
from ddppo.curriculum.make import CURRICULA, curriculum_for, make_curriculum
from ddppo.curriculum.rounds import Round, Rounds
from ddppo.curriculum.settings import TIERS, Tier, TierSettings

__all__ = [
    "CURRICULA",
    "TIERS",
    "Curriculum",
    "Round",
    "Rounds",
    "Tier",
    "TierSettings",
    "curriculum_for",
    "make_curriculum",
]
