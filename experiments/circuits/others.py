"""Other optimisers on the same files: pyzx and qiskit, counted and verified by us, as CSV.

python experiments/circuits/others.py [circuits=tof_3,my.qasm] [keep=folder] [leave_out="pyzx todd"] > others.csv

A circuit is a benchmark's name or a file. Each optimiser gets the OpenQASM 2 that `show format=qasm` writes. What it
returns is read by `quantum.qasm`, which writes it in h, x, cx and rz (its s and t are an rz each, a cz is h cx
h), then pairs of h that meet are cancelled, which costs nobody anything, and it is verified against the original.
cpu_s: of the optimiser alone, reading and writing not counted.
"""

import csv
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.benchmarks import program
from ddppo.domains.circuits.quantum.costs import cx_count
from ddppo.domains.circuits.quantum.equivalence import verify
from ddppo.domains.circuits.quantum.others import OPTIMISERS, optimised
from ddppo.domains.circuits.quantum.qasm_reader import write as write_qasm
from ddppo.domains.circuits.quantum.rewriting import merged

_CIRCUITS = "tof_3,barenco_tof_3,mod5_4,tof_5,vbe_adder_3,gf2^4_mult"


def row(name: str, optimiser: str, original: Circuit, smaller: Circuit, cpu_s: float) -> list[object]:
    """Return a line of the CSV. Raises AssertionError where the circuits differ."""
    verdict = verify(original, smaller)
    assert verdict.is_equal, f"{name} by {optimiser}: {verdict}"
    how = f"random states, wrong below {verdict.chance:.0e}" if verdict.chance else "the unitary"
    return [name, optimiser, len(smaller), int(cx_count(smaller)), smaller.depth, f"{cpu_s:.3f}", how]


def main(arguments: list[str]) -> None:
    given = dict(argument.split("=", 1) for argument in arguments)
    names = given.get("circuits", _CIRCUITS).split(",")
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
        for optimiser in (each for each in OPTIMISERS if each not in given.get("leave_out", "").split(",")):
            smaller, cpu_s = optimised(optimiser, original)
            write_qasm(smaller, folder / f"{Path(name).stem}_{optimiser.replace(' ', '_')}.qasm")
            package, way = optimiser.split(" ", 1)
            write(row(name, f"{package} {version(package)} {way}", original, smaller, cpu_s))


if __name__ == "__main__":
    main(sys.argv[1:])
