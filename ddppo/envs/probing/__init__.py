"""What a task is, learned before any process starts: whether it is there, its shapes, and why it cannot be made."""

from ddppo.envs.probing.probe import make_env, probe

__all__ = ["make_env", "probe"]
