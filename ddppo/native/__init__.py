"""What is computed in C++: networks, the learner's step, classic tasks, rollouts. `src` knows neither Python nor ranks.

Packages of domains, and of your own, have such a folder too (`Plugin.cpp`, docs/guide/domain.md).
"""

import ctypes

from ddppo.native.compiling import CPP, NotCompiled, cpp

__all__ = ["NotCompiled", "cpp", "library", "loaded", "why_not"]

library, why_not = CPP.load, CPP.why_not


def loaded() -> ctypes.CDLL | None:
    """Return the library if this process has loaded it: for what only is faster by it, to the same bits."""
    return CPP.loaded
