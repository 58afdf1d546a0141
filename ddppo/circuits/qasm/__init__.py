"""OpenQASM 2, in and out: Cross, Bishop, Smolin, Gambetta, arXiv:1707.03429."""

from ddppo.circuits.qasm.reader import Program, parse, read
from ddppo.circuits.qasm.writer import as_qasm, write

__all__ = ["Program", "as_qasm", "parse", "read", "write"]
