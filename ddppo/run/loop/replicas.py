"""What every rank holds a copy of: all copies are to be the same, and ranks compare them by a number."""

import math

from ddppo.distributed.programs.kit import RankContext


def named(parts: RankContext) -> str:
    """Return what an error is to call the copies."""
    return f"parameters or {parts.sampler.name}" if parts.sampler.name else "parameters"


def fingerprint(parts: RankContext) -> float:
    """Return 48 bits of the hash of the parameters, and of the task sampler if it learns, exact in float64.

    NaN on a rank that does not hold them.
    """
    if parts.group.rank not in parts.players:
        return math.nan
    digest = parts.parameters.digest()
    if parts.sampler.name:
        digest = parts.sampler.digest(digest)
    return int(digest[:12], 16)
