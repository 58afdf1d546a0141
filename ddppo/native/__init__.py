"""What is computed in C++: networks, the learner's step, tasks and rollouts. `src` knows neither Python nor ranks."""

import ctypes

from ddppo.native.compiling import CPP, NotCompiled

__all__ = ["NotCompiled", "library", "loaded", "why_not"]

library, why_not = CPP.load, CPP.why_not


def loaded() -> ctypes.CDLL | None:
    """Return the library if this process has loaded it: for what only is faster by it, to the same bits."""
    return CPP.loaded
