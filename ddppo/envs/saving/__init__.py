"""Environments saved and restored exactly: how one is (savers), its state as bytes (packing), and whether it can be."""

from ddppo.envs.saving.packing import packed, unpacked
from ddppo.envs.saving.trial import reason_why_not

__all__ = ["packed", "reason_why_not", "unpacked"]
