"""Trunks: from observations to features, all of a model but its heads."""

from ddppo.models.encoders.build import TRUNKS, make_trunk
from ddppo.models.encoders.trunk import Trunk

__all__ = ["TRUNKS", "Trunk", "make_trunk"]
