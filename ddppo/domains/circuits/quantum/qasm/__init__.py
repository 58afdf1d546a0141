"""OpenQASM 2, in and out: Cross, Bishop, Smolin, Gambetta, arXiv:1707.03429."""

from ddppo.domains.circuits.quantum.qasm.reader import Program, parse, read
from ddppo.domains.circuits.quantum.qasm.writer import as_qasm, write

__all__ = ["Program", "as_qasm", "parse", "read", "write"]
