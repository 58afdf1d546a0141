"""What a run of the circuit task keeps of what its environments publish: the best circuits, metrics, pictures."""

from ddppo.domains.circuits.task.journal.journal import CircuitJournal

__all__ = ["CircuitJournal"]
