"""Other optimisers on the same files: pyzx and qiskit, counted and verified by us, as CSV.

python experiments/circuits/others.py [circuits=tof_3,my.qasm] [keep=folder] > others.csv

A circuit is a benchmark's name or a file. Each optimiser gets the OpenQASM 2 that `show format=qasm` writes. What it
returns is read by `quantum.qasm`, which writes it in h, x, cx and rz (its s and t are an rz each, a cz is h cx
h), then pairs of h that meet are cancelled, which costs nobody anything, and it is verified against the original.
cpu_s: of the optimiser alone, reading and writing not counted.
"""

import csv
import random
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from ddppo.domains.circuits.quantum import Circuit, Gate, H
from ddppo.domains.circuits.quantum.benchmarks import BENCHMARKS, program
from ddppo.domains.circuits.quantum.circuit import cx_count
from ddppo.domains.circuits.quantum.equivalence import verify
from ddppo.domains.circuits.quantum.qasm_reader import as_qasm, read
from ddppo.domains.circuits.quantum.rewriting import merged

Optimiser = Callable[[str], tuple[str, float]]  # OpenQASM 2 to OpenQASM 2, and the CPU seconds that it took


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
    f"qiskit {version('qiskit')} level 3": by_qiskit,
    **{
        f"pyzx {version('pyzx')} {method}": by_pyzx(method)
        for method in ("basic", "teleport", "full", "todd")
    },
}


def without_pairs_of_h(circuit: Circuit) -> Circuit:
    """Return the circuit without h h on one wire: what writing a cz as h cx h leaves behind."""
    kept: list[Gate] = []
    last: dict[int, list[int]] = {wire: [] for wire in range(circuit.num_qubits)}  # of `kept`, by wire
    gone = set()
    for gate in circuit:
        before = last[gate.wires[0]]
        if gate.kind == H and before and kept[before[-1]].kind == H:
            gone.add(before.pop())
            continue
        for wire in gate.wires:
            last[wire].append(len(kept))
        kept.append(gate)
    return Circuit.from_gates(circuit.num_qubits, [gate for i, gate in enumerate(kept) if i not in gone])


def row(name: str, optimiser: str, original: Circuit, smaller: Circuit, cpu_s: float) -> list[object]:
    """Return a line of the CSV. Raises AssertionError where the circuits differ."""
    verdict = verify(original, smaller)
    assert verdict.is_equal, f"{name} by {optimiser}: {verdict}"
    how = f"random states, wrong below {verdict.chance:.0e}" if verdict.chance else "the unitary"
    return [name, optimiser, len(smaller), int(cx_count(smaller)), smaller.depth, f"{cpu_s:.3f}", how]


def main(arguments: list[str]) -> None:
    given = dict(argument.split("=", 1) for argument in arguments)
    names = given.get("circuits", ",".join(BENCHMARKS)).split(",")
    folder = Path(given.get("keep") or tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    write = csv.writer(sys.stdout, lineterminator="\n").writerow
    write(["circuit", "optimiser", "gates", "cx", "depth", "cpu_s", "verified_by"])
    for name in names:
        original = program(name).circuit
        write(row(name, "original", original, original, 0))
        began = time.process_time()
        smaller = merged(original)
        write(row(name, "ddppo merge", original, smaller, time.process_time() - began))
        for optimiser, optimise in OPTIMISERS.items():
            text, cpu_s = optimise(as_qasm(original))
            path = folder / f"{Path(name).stem}_{optimiser.replace(' ', '_')}.qasm"
            path.write_text(text)
            write(row(name, optimiser, original, without_pairs_of_h(read(path).circuit), cpu_s))


if __name__ == "__main__":
    main(sys.argv[1:])
