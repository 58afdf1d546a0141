"""The C++ in `src`: networks, the learner's step, classic tasks, rollouts. It knows neither Python nor ranks.

A domain or a package of your own may have such a folder too (`Plugin.cpp`, docs/guide/domain.md).
"""

import ctypes

from ddppo.native.compiling import CPP, NotCompiled, cpp

__all__ = ["NotCompiled", "cpp", "library", "loaded", "why_not"]

library, why_not = CPP.load, CPP.why_not


def loaded() -> ctypes.CDLL | None:
    """Return the library if this process has loaded it, for code that it only makes faster, to the same bits."""
    return CPP.loaded
