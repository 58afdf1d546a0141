"""A circuit written as OpenQASM 2, from which the same circuit is read, angles to the unit."""

from pathlib import Path

from ddppo.domains.circuits.quantum.angles import written
from ddppo.domains.circuits.quantum.circuit import KINDS, RZ, Circuit, Gate
from ddppo.files import write_text


def as_qasm(circuit: Circuit) -> str:
    """Return the text: one register q, one gate a line."""
    lines = ["OPENQASM 2.0;", 'include "qelib1.inc";', f"qreg q[{circuit.num_qubits}];", *map(_line, circuit)]
    return "\n".join(lines) + "\n"


def write(circuit: Circuit, path: str | Path) -> None:
    """Write the text as the whole of a file. Raises StorageError."""
    write_text(Path(path), as_qasm(circuit))


def _line(gate: Gate) -> str:
    angle = f"({written(gate.angle)})" if gate.kind == RZ else ""
    return f"{KINDS[gate.kind]}{angle} {','.join(f'q[{wire}]' for wire in gate.wires)};"
