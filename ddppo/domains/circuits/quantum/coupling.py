"""Coupling maps: pairs of qubits that may have a cx.

Rewriting keeps a circuit within the map by rules that keep pairs: each cx of the target is on two wires that a cx of
the source is on. So no rewrite adds a pair of qubits, under any map. A rule that joins two other qubits is left
out even where the map has that pair. On a map without triangles, such as a line or a grid, that costs nothing for rules
of three wires: two pairs of the source share a qubit, and the third pair would close a triangle.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddppo.domains.circuits.quantum.circuit import CX, MOST_QUBITS, Circuit
from ddppo.domains.circuits.quantum.rules import Rule, SymbolicGate
from ddppo.errors import ConfigError

_FORMS = "line, ring, grid:ROWSxCOLUMNS, pairs such as 0-1,1-2, or a file with a pair a line"


@dataclass(frozen=True, slots=True)
class Coupling:
    """The pairs of qubits that may have a cx, in either direction."""

    text: str  # as the user gave it
    pairs: frozenset[frozenset[int]]

    def check(self, circuit: Circuit, name: str) -> None:
        """Raise ConfigError, which names the first cx outside the map."""
        for number, gate in enumerate(circuit):
            if gate.kind == CX and frozenset(gate.wires) not in self.pairs:
                control, target = gate.wires
                near = sorted(other for pair in self.pairs if control in pair for other in pair - {control})
                coupled = f"qubit {control} is coupled to {', '.join(map(str, near)) or 'none'}"
                raise ConfigError(
                    f"coupling={self.text}: gate {number} of {name}, cx {control},{target}, is on no pair of it "
                    f"({coupled}; gates are counted in h, x, cx and rz, from 0): route the circuit before, or give "
                    "another map"
                )


def coupling(given: str | Sequence[str], num_qubits: int) -> Coupling:
    """Return the map of a text: line, ring, grid:2x3, 0-1,1-2 or the path of a file. Raises ConfigError."""
    text = given if isinstance(given, str) else ",".join(map(str, given))
    if text in ("line", "ring"):
        pairs = [(k, k + 1) for k in range(num_qubits - 1)]
        return _of(text, [*pairs, (num_qubits - 1, 0)] if text == "ring" and num_qubits > 2 else pairs)
    if text.startswith("grid:"):
        return _of(text, _grid(text, num_qubits))
    words = [word.strip() for word in text.split(",")]
    if all("-" in word and word.replace("-", "").isdigit() for word in words):
        return _of(text, [_pair(word, f"coupling={text}") for word in words])
    # A file, one pair a line.
    try:
        lines = Path(text).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError, ValueError) as e:
        raise ConfigError(f"coupling={text}: neither {_FORMS}; as a file, it cannot be read ({e})") from e
    contents = [(number, line.partition("#")[0].strip()) for number, line in enumerate(lines, 1)]
    found = [_pair(line, f"coupling={text}, line {number}") for number, line in contents if line]
    if not found:
        raise ConfigError(f"coupling={text}: the file has no pair: write one a line, as in 0 1")
    return _of(text, found)


def _of(text: str, pairs: Iterable[tuple[int, int]]) -> Coupling:
    return Coupling(text, frozenset(map(frozenset, pairs)))


def _grid(text: str, num_qubits: int) -> list[tuple[int, int]]:
    sides = text.removeprefix("grid:").split("x")
    if len(sides) != 2 or not all(side.isdigit() and int(side) for side in sides):
        raise ConfigError(f"coupling={text}: a grid is grid:ROWSxCOLUMNS, such as grid:2x3")
    rows, columns = map(int, sides)
    if not num_qubits <= rows * columns <= MOST_QUBITS:
        raise ConfigError(
            f"coupling={text}: it has {rows * columns} places for {num_qubits} qubits: as many or more are needed"
        )
    # Row by row: qubit k is at row k // columns and column k % columns.
    along = [(k, k + 1) for k in range(rows * columns) if (k + 1) % columns]
    return [*along, *((k, k + columns) for k in range((rows - 1) * columns))]


def _pair(text: str, where: str) -> tuple[int, int]:
    """Return the qubits of `0-1`, `0 1` or `0,1`."""
    parts = text.replace("-", " ").replace(",", " ").split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts) or int(parts[0]) == int(parts[1]):
        raise ConfigError(f"{where}: `{text}` is no pair of two qubits, such as 0-1: {_FORMS}")
    return int(parts[0]), int(parts[1])


def keeps_pairs(rule: Rule) -> bool:
    """Return whether each cx of the target is on two wires that a cx of the source is on."""
    source, target = map(_pairs_of, rule)
    return target <= source


def _pairs_of(gates: Iterable[SymbolicGate]) -> set[frozenset[int]]:
    return {frozenset(gate.wires) for gate in gates if gate.kind == CX}
