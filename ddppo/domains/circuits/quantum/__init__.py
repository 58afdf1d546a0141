"""Quantum circuits of the gates h, x, cx and rz: read, written, drawn, compared. Imports numpy, no torch."""

from ddppo.domains.circuits.quantum.circuit import CX, KINDS, RZ, Circuit, Gate, H, Links, X

__all__ = ["CX", "KINDS", "RZ", "Circuit", "Gate", "H", "Links", "X"]
