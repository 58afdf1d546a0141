"""What is computed in C++: networks, the learner's step, tasks and rollouts. `src` knows neither Python nor ranks."""

from ddppo.native.library import library, loaded, why_not

__all__ = ["library", "loaded", "why_not"]
