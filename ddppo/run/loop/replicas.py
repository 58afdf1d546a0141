"""What every rank holds a copy of: all copies are to be the same, and ranks compare them by a number."""

import math

from ddppo.run.parts import Parts


def named(parts: Parts) -> str:
    """Return what an error is to call the copies."""
    if parts.program.campaign is not None:
        return "parameters or the search"
    return "parameters" if parts.program.rounds is None else "parameters or the curriculum"


def fingerprint(parts: Parts) -> float:
    """Return 48 bits of the hash of the parameters, and of curriculum and search if any, exact in float64.

    NaN on a rank that does not hold them.
    """
    if parts.group.rank not in parts.players:
        return math.nan
    digest, program = parts.parameters.digest(), parts.program
    if program.rounds is not None:
        digest = program.rounds.digest(digest)
    if program.campaign is not None:
        digest = program.campaign.digest(digest)
    return int(digest[:12], 16)
