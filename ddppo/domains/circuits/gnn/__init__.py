"""A graph network over circuits, and a policy that chooses a gate and then a rule there."""

from ddppo.domains.circuits.gnn.model import GNN

__all__ = ["GNN"]
