"""A circuit by what a user calls it: the path of an OpenQASM 2 file, or the name of a benchmark."""

import sys
from pathlib import Path

from ddppo.domains.circuits.quantum.benchmarks import BENCHMARKS, benchmark
from ddppo.domains.circuits.quantum.qasm import Program, read
from ddppo.errors import ConfigError, near


def program(source: str) -> Program:
    """Return the circuit, with its qubits' names. A file that exists comes before a benchmark of its name.

    Raises ConfigError for what is neither, and for a file that is no such circuit.
    """
    if source in BENCHMARKS and not Path(source).exists():
        circuit = benchmark(source)
        return Program(circuit, tuple(f"q[{wire}]" for wire in range(circuit.num_qubits)), ())
    if not Path(source).exists() and "/" not in source and "." not in source:
        known = ", ".join(BENCHMARKS)
        raise ConfigError(
            f"{source}{near(source, list(BENCHMARKS))}: neither a file nor one of the benchmark circuits {known}"
        )
    return read(source)


def noted(source: str) -> Program:
    """Do the same, and say on stderr what of the file the circuit does not hold."""
    found = program(source)
    for remark in found.remarks:
        print(f"note: {remark}", file=sys.stderr)
    return found
