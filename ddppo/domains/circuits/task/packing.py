"""Circuits and rewrites in few bytes, and as text for states and messages."""

import base64
from collections.abc import Iterable

import numpy as np

from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.rewriting import unchecked

Rewrites = tuple[tuple[int, int], ...]  # (node, rule) of each, in order
GATE_BYTES = 13  # its angle, two wires and kind
REWRITE_BYTES = 8


def packed(circuit: Circuit) -> bytes:
    return b"".join(
        array.tobytes()
        for array in (circuit.angles.astype("<i8"), circuit.wires.astype("<i2"), circuit.kinds)
    )


def unpacked(num_qubits: int, given: bytes) -> Circuit:
    """Return a circuit that was packed; its arrays are views of `given`."""
    n = len(given) // GATE_BYTES
    angles = np.frombuffer(given, "<i8", n)
    wires = np.frombuffer(given, "<i2", 2 * n, 8 * n).reshape(n, 2)
    return unchecked(num_qubits, np.frombuffer(given, np.uint8, n, 12 * n), wires, angles)


def packed_rewrites(rewrites: Iterable[tuple[int, int]]) -> bytes:
    return np.array(list(rewrites), "<i4").tobytes()


def unpacked_rewrites(given: bytes) -> list[tuple[int, int]]:
    return [(node, rule) for node, rule in np.frombuffer(given, "<i4").reshape(-1, 2).tolist()]


def text(given: bytes) -> str:
    return base64.b64encode(given).decode()


def of_text(given: str) -> bytes:
    return base64.b64decode(given)
