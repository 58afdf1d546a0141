"""Compare circuits of OpenQASM 2 files by state vectors, with NumPy alone: nothing of ddppo is imported.

python experiments/circuits/independent.py experiments/circuits/anytime > experiments/circuits/anytime/independent.csv

Every <circuit>_<way>.qasm of the folder is compared with <circuit>.qasm: up to 10 qubits, all columns of the unitary;
beyond, the images of random product states, on which different unitaries differ with probability 1. A state
of 24 qubits takes 256 MB and some minutes. Exit code 1 if two differ.
"""

import csv
import math
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

States = NDArray[np.complex128]  # [2] * n for n qubits, then the number of states
Gate = tuple[str, list[int], float]

_GATE = re.compile(r"(h|x|cx|rz)\s*(?:\(([^()]*(?:\([^()]*\)[^()]*)*)\))?\s+([^;]+);")
_NUMBERS = re.compile(r"[0-9.eE+\-*/() pi]*")
MOST_WHOLE = 10


def read(path: Path) -> tuple[int, list[Gate]]:
    """Return the number of qubits and the gates of a file that has one register q, and gates h, x, cx and rz."""
    text = re.sub(r"//[^\n]*", "", path.read_text())
    head = re.match(r"\s*OPENQASM 2\.0;\s*include \"qelib1\.inc\";\s*qreg q\[(\d+)\];", text)
    assert head is not None, f"{path}: no header of OpenQASM 2 with one register q"
    gates, at = [], head.end()
    body = text[at:].strip()
    while body:
        gate = _GATE.match(body)
        assert gate is not None, f"{path}: {body[:40]!r}"
        name, angle, wires = gate.groups()
        assert angle is None or _NUMBERS.fullmatch(angle), f"{path}: {angle!r}"
        radians = eval(angle, {"__builtins__": {}}, {"pi": math.pi}) if angle else 0.0
        gates.append((name, [int(wire) for wire in re.findall(r"q\[(\d+)\]", wires)], radians))
        body = body[gate.end() :].lstrip()
    return int(head[1]), gates


def applied(gates: list[Gate], states: States) -> States:
    """Return the states after the gates."""
    states = states.copy()
    for name, wires, angle in gates:
        zero, one = (part(states, wires[-1], bit) for bit in (0, 1))
        if name == "rz":
            zero *= np.exp(-0.5j * angle)
            one *= np.exp(0.5j * angle)
        elif name == "h":
            total = (zero + one) * math.sqrt(0.5)
            one[...] = (zero - one) * math.sqrt(0.5)
            zero[...] = total
        else:
            if name == "cx":
                both = part(states, wires[0], 1)  # a view: the target's axis is one less behind the control's
                target = wires[1] - (wires[1] > wires[0])
                zero, one = (part(both, target, bit) for bit in (0, 1))
            kept = zero.copy()
            zero[...] = one
            one[...] = kept
    return states


def part(states: States, wire: int, bit: int) -> States:
    """Return the view of the amplitudes in which a qubit is 0 or 1."""
    return states[(slice(None),) * wire + (bit,)]


def starts(num_qubits: int) -> Iterator[States]:
    """Yield states to start from: all basis states at once, or random product states one by one."""
    if num_qubits <= MOST_WHOLE:
        size = 2**num_qubits
        yield np.eye(size, dtype=complex).reshape([2] * num_qubits + [size])
        return
    rng = np.random.default_rng(0)
    for _ in range(3 if num_qubits <= 14 else 1):
        state = np.ones(1, complex)
        for _ in range(num_qubits):
            qubit = rng.normal(size=2) + 1j * rng.normal(size=2)
            state = np.kron(state, qubit / np.linalg.norm(qubit))
        yield state.reshape([2] * num_qubits + [1])


def difference(a: list[Gate], b: list[Gate], num_qubits: int) -> float:
    """Return the largest distance of two results, up to a phase; of whole unitaries, the root of the mean square."""
    worst = 0.0
    for start in starts(num_qubits):
        left, right = (applied(gates, start).reshape(-1) for gates in (a, b))
        phase = np.vdot(right, left)
        distance = np.linalg.norm(left - right * phase / abs(phase)) / math.sqrt(start.shape[-1])
        worst = max(worst, float(distance))
    return worst


def main() -> int:
    folder = Path(sys.argv[1])
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["circuit", "way", "qubits", "gates_before", "gates", "cx", "by", "distance", "wall_s"])
    is_wrong = False
    for original in sorted(folder.glob("*.qasm")):
        for path in sorted(folder.glob(f"{original.stem}_*.qasm")):
            way = path.stem.removeprefix(f"{original.stem}_")
            if way not in ("random", "learned", "learned_2"):
                continue  # of another circuit, whose name begins so
            began = time.monotonic()
            (num_qubits, before), (same, after) = read(original), read(path)
            assert num_qubits == same, path
            worst = difference(before, after, num_qubits)
            is_wrong |= worst > 1e-9
            by = "unitary" if num_qubits <= MOST_WHOLE else "random states"
            counts = (num_qubits, len(before), len(after), sum(gate[0] == "cx" for gate in after))
            out.writerow([original.stem, way, *counts, by, f"{worst:.1e}", f"{time.monotonic() - began:.1f}"])
            sys.stdout.flush()
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
