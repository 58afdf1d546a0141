"""A trained policy after its run: loaded for any program, played, scored, and written for programs without ddppo."""

from ddppo.policies.acting import LoadedPolicy, load_policy

__all__ = ["LoadedPolicy", "load_policy"]
