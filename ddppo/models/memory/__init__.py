"""Policies that remember: what one is, recurrent cores, and a core on any trunk."""

from ddppo.models.memory.base import Recurrent
from ddppo.models.memory.model import RecurrentActorCritic

__all__ = ["Recurrent", "RecurrentActorCritic"]
