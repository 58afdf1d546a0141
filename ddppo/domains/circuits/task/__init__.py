"""`ddppo/Circuit-v0`: a quantum circuit made smaller by rules, one rewrite a step (docs/circuits.md)."""

from ddppo.domains.circuits.task.env import CircuitEnv
from ddppo.domains.circuits.task.lineage import Found, confirmed, replayed

__all__ = ["CircuitEnv", "Found", "confirmed", "replayed"]
