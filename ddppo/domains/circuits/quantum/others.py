"""Other optimisers, to compare with: qiskit and pyzx, if they are installed (the extra circuits).

Each is given OpenQASM 2 and returns it. What it returns is read in h, x, cx and rz (an s or t is one rz, a cz is
h cx h), and pairs of h that meet are cancelled, which costs nobody anything.
"""

import random
import time
from collections.abc import Callable
from importlib.util import find_spec

from ddppo.domains.circuits.quantum.benchmarks import without_pairs_of_h
from ddppo.domains.circuits.quantum.circuit import Circuit
from ddppo.domains.circuits.quantum.qasm_reader import as_qasm, parse

# From OpenQASM 2 to OpenQASM 2 and the CPU seconds of the optimiser alone, without reading and writing.
Optimiser = Callable[[str], tuple[str, float]]


def by_qiskit(text: str) -> tuple[str, float]:
    """Transpile at level 3, the highest, to our gates."""
    import qiskit
    import qiskit.qasm2

    circuit = qiskit.QuantumCircuit.from_qasm_str(text)
    began = time.process_time()
    smaller = qiskit.transpile(
        circuit, basis_gates=["h", "x", "cx", "rz"], optimization_level=3, seed_transpiler=0
    )
    return qiskit.qasm2.dumps(smaller), time.process_time() - began


def by_pyzx(method: str) -> Optimiser:
    """Return one of pyzx's ways, each of which ends with its gate cancellations (`basic_optimization`).

    basic: these alone. teleport: phases moved together through the ZX diagram, gates left where they are. full: the
    diagram reduced and a new circuit extracted. todd: `full_optimize`, phase polynomials by a random search (seed 0).
    """

    def optimise(text: str) -> tuple[str, float]:
        import pyzx as zx

        circuit = zx.Circuit.from_qasm(text).to_basic_gates()
        random.seed(0)
        began = time.process_time()
        if method == "teleport":
            circuit = zx.Circuit.from_graph(zx.teleport_reduce(circuit.to_graph()))
        elif method == "full":
            graph = circuit.to_graph()
            zx.full_reduce(graph)
            circuit = zx.extract_circuit(graph)
        if method == "todd":
            circuit = zx.full_optimize(circuit.to_basic_gates())
        else:
            circuit = zx.basic_optimization(circuit.to_basic_gates(), do_swaps=False)
        return circuit.to_basic_gates().to_qasm(), time.process_time() - began

    return optimise


OPTIMISERS: dict[str, Optimiser] = {
    "qiskit level 3": by_qiskit,
    **{f"pyzx {method}": by_pyzx(method) for method in ("basic", "teleport", "full", "todd")},
}


def installed(name: str) -> bool:
    """Return whether the package of this optimiser is there."""
    return find_spec(name.split()[0]) is not None


def optimised(name: str, circuit: Circuit) -> tuple[Circuit, float]:
    """Return what an optimiser makes of the circuit, and its CPU seconds. It may raise anything."""
    text, cpu_s = OPTIMISERS[name](as_qasm(circuit))
    return without_pairs_of_h(parse(text, name).circuit), cpu_s
