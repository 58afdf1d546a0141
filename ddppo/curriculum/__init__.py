"""Which task comes next: mastery of each, tiers, reviews.

Import surface: `make_curriculum`, the contract `Curriculum`, and the settings of the one with tiers.
"""

from ddppo.curriculum.contract import Curriculum
from ddppo.curriculum.make import CURRICULA, make_curriculum
from ddppo.curriculum.settings import TIERS, Tier, TierSettings

__all__ = ["CURRICULA", "TIERS", "Curriculum", "Tier", "TierSettings", "make_curriculum"]
