"""What episodes start from: circuits reached before, by this environment and by others, and how they came about."""

from ddppo.domains.circuits.task.buffers.buffer import GraphBuffer
from ddppo.domains.circuits.task.buffers.lineage import ORIGINAL

__all__ = ["ORIGINAL", "GraphBuffer"]
