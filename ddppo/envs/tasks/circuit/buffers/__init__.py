"""What episodes start from: circuits reached before, by this environment and by others, and how they came about."""

from ddppo.envs.tasks.circuit.buffers.buffer import GraphBuffer
from ddppo.envs.tasks.circuit.buffers.lineage import ORIGINAL

__all__ = ["ORIGINAL", "GraphBuffer"]
