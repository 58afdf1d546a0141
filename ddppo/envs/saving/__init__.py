"""How environments are saved, and go on where they were."""

from ddppo.envs.saving.packing import packed, unpacked

__all__ = ["packed", "unpacked"]
