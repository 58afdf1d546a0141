"""Ways to spread PPO over ranks, as data: who steps, acts and learns, and what travels. Imports no torch."""

from ddppo.topologies.declaration import Layout, Message, Role, Sizes, Topology
from ddppo.topologies.known import TOPOLOGIES, find

__all__ = ["TOPOLOGIES", "Layout", "Message", "Role", "Sizes", "Topology", "find"]
