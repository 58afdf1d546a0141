"""`ddppo/Circuit-v0`: a quantum circuit made smaller by rules, one rewrite a step (docs/circuits.md)."""

from ddppo.envs.tasks.circuit.env import CircuitEnv
from ddppo.envs.tasks.circuit.found import Found, confirmed, replayed

__all__ = ["CircuitEnv", "Found", "confirmed", "replayed"]
