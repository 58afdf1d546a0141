"""Reading and writing OpenQASM 2 (Cross, Bishop, Smolin, Gambetta, arXiv:1707.03429)."""

import functools
from pathlib import Path
from typing import NamedTuple

from ddppo.domains.circuits.quantum.circuit import MOST_QUBITS, Circuit, Gate, NoAngle, written
from ddppo.domains.circuits.quantum.gate_sets import NAM, GateSet
from ddppo.domains.circuits.quantum.qasm_gates import (
    TEXT,
    AnyGate,
    Expander,
    Gates,
    TooManyCalls,
    check_wires,
    known_after_reading,
)
from ddppo.domains.circuits.quantum.qasm_tokens import Tokens, value
from ddppo.errors import ConfigError
from ddppo.files import write_text

# -- Reading. Measurements at the end, barriers and classical bits are dropped. --------------------------------------


# Statements that cannot be rewritten as unitary gates, and the remedy.
_REFUSED = {
    "if": "a gate that depends on a measurement cannot be rewritten: remove it",
    "reset": "reset is no unitary gate: remove it, and split the circuit where a qubit is used again",
    "opaque": "an opaque gate has no content: define it by gate ... { ... }",
    "OPENQASM": "the version stands once, in the first line: remove it",
}


class QasmProgram(NamedTuple):
    """The circuit of a file."""

    circuit: Circuit
    names: tuple[str, ...]  # of the qubits, such as q[0]
    remarks: tuple[str, ...]  # sentences on statements of the file that are not in the circuit


def read(path: str | Path) -> QasmProgram:
    """Read a file. Raises ConfigError with file, line and remedy."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror or e}") from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path} is no text (byte {e.start}): an OpenQASM 2 file is expected") from e
    except ValueError as e:  # a name with a zero byte
        raise ConfigError(f"{path!r} is no path: {e}") from e
    return parse(text, str(path))


def parse(text: str, name: str = "the text") -> QasmProgram:
    """Read a text; error messages call it `name`. Raises ConfigError."""
    reader = _Reader(Tokens(text, name))
    reader.read()
    if not reader.names:
        raise ConfigError(f"{name} has no qubits: declare them, e.g. qreg q[3];")
    circuit = Circuit.from_gates(len(reader.names), reader.gates)
    return QasmProgram(circuit, tuple(reader.names), tuple(reader.remarks()))


@functools.cache
def _qelib1() -> dict[str, AnyGate]:
    return known_after_reading(TEXT)


class _Reader:
    """Reads a text in one pass into `gates` on wires 0, 1, ..., and `names` of the wires."""

    def __init__(self, tokens: Tokens) -> None:
        self.gates: list[Gate] = []
        self.names: list[str] = []
        self._tokens = tokens
        self._known = Gates(tokens, _qelib1())
        self._expander = Expander()
        self._registers: dict[str, range] = {}
        self._bits: dict[str, range] = {}
        self._measured: dict[int, int] = {}  # wire -> line of its measurement
        self._dropped: dict[str, list[int]] = {}  # remark -> lines of the statements

    def remarks(self) -> list[str]:
        """Return a sentence for each kind of statement that was dropped."""
        sentences = []
        for what, lines in self._dropped.items():
            more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
            sentences.append(f"{self._tokens.name}, line {lines[0]}{more}: {what}")
        return sentences

    def read(self) -> None:
        """Read all statements."""
        tokens = self._tokens
        if not tokens.take("OPENQASM"):
            tokens.fail(f"the first statement has to be OPENQASM 2.0; but it begins with {tokens.found()}")
        if tokens.now.text not in ("2.0", "2"):
            tokens.fail(f"OPENQASM {tokens.found()} is not read: export the circuit as OpenQASM 2.0")
        tokens.next()
        tokens.expect(";", "after the version")
        while tokens.now.kind != "end":
            self._statement()

    def _statement(self) -> None:
        # The first word decides; a word that is no keyword is the name of a gate.
        line, word = self._tokens.line, self._tokens.word("a statement")
        match word:
            # A definition ends with a brace, without a semicolon.
            case "gate":
                self._known.define(line)
                return
            case "include":
                self._include()
            case "qreg" | "creg":
                self._register(line, is_quantum=word == "qreg")
            case "barrier":
                self._qubits()
                self._drop("barriers are left out, gates may cross them", line)
            case "measure":
                self._measure(line)
            case _ if word in _REFUSED:
                self._tokens.fail(_REFUSED[word], line)
            case _:
                self._apply(word, line)
        self._tokens.expect(";", "at the end of the statement")

    def _include(self) -> None:
        token = self._tokens.next()
        if token.kind != "string":
            self._tokens.fail(f'include needs a file in quotes, "qelib1.inc", not {token.text}', token.line)
        if token.text != '"qelib1.inc"':
            self._tokens.fail(
                f'include {token.text}: only "qelib1.inc" is known; paste the gate definitions that you need',
                token.line,
            )
        self._known.include()

    def _register(self, line: int, *, is_quantum: bool) -> None:
        tokens = self._tokens
        name = tokens.word("a register's name")
        tokens.expect("[", f"after {name}")
        size = tokens.whole("a register's size")
        tokens.expect("]", f"after the size of {name}")
        if name in self._registers or name in self._bits:
            tokens.fail(f"{name} is declared twice: give the second register another name", line)
        if size < 1 or (is_quantum and len(self.names) + size > MOST_QUBITS):
            tokens.fail(f"{name}[{size}]: a circuit has 1 to {MOST_QUBITS} qubits", line)
        if is_quantum:
            self._registers[name] = range(len(self.names), len(self.names) + size)
            self.names += [f"{name}[{i}]" for i in range(size)]
        else:
            self._bits[name] = range(size)
            self._drop("classical bits are left out", line)

    def _apply(self, word: str, line: int) -> None:
        """Apply a gate to qubits, or element by element to registers of one size."""
        # 1. The gate and its operands. Registers are applied element by element; single qubits repeat.
        gate, arguments = self._known.called(word, line, ())
        operands = self._qubits()
        sizes = sorted({len(operand) for operand in operands if isinstance(operand, range)})
        if len(sizes) > 1:
            self._tokens.fail(
                f"{word} is applied to registers of {' and '.join(map(str, sizes))} qubits: use one size",
                line,
            )
        for i in range(sizes[0] if sizes else 1):
            wires = tuple(operand[i] if isinstance(operand, range) else operand for operand in operands)
            check_wires(self._tokens, gate, [self.names[wire] for wire in wires], line)
            # A gate behind a measurement would act on a state that has collapsed.
            for wire in wires:
                if wire in self._measured:
                    self._tokens.fail(
                        f"{word} acts on {self.names[wire]} after its measurement in line {self._measured[wire]}: "
                        "a qubit may be measured only at its end; remove the measurement, or split the circuit",
                        line,
                    )
            # 2. Expand the gate into h, x, cx and rz.
            try:
                values = tuple(value(argument, {}) for argument in arguments)
                self.gates += self._expander.gates(gate, values, wires)
            except (NoAngle, TooManyCalls) as e:
                self._tokens.fail(f"{word}: {e}", line)

    def _measure(self, line: int) -> None:
        """Read `measure q -> c`, of registers or single elements."""
        tokens = self._tokens
        qubits = self._operand(self._registers, "qubits")
        tokens.expect("->", "after what is measured")
        bits = self._operand(self._bits, "classical bits")
        sizes = [len(operand) if isinstance(operand, range) else 1 for operand in (qubits, bits)]
        if sizes[0] != sizes[1]:
            tokens.fail(f"{sizes[0]} qubits are measured into {sizes[1]} bits: as many are needed", line)
        for wire in qubits if isinstance(qubits, range) else [qubits]:
            self._measured.setdefault(wire, line)
        self._drop("measurements at the end are left out", line)

    def _qubits(self) -> list[int | range]:
        """Return the operands of a statement: wires, or registers as ranges of wires."""
        operands = [self._operand(self._registers, "qubits")]
        while self._tokens.take(","):
            operands.append(self._operand(self._registers, "qubits"))
        return operands

    def _operand(self, registers: dict[str, range], what: str) -> int | range:
        tokens = self._tokens
        line, name = tokens.line, tokens.word(f"a register of {what}")
        if name not in registers:
            keyword = "qreg" if registers is self._registers else "creg"
            tokens.fail(f"{name} is no register of {what}: declare it above by {keyword} {name}[...];", line)
        # Without an index, the operand is the whole register.
        register = registers[name]
        if not tokens.take("["):
            return register
        index = tokens.whole(f"a place in {name}")
        tokens.expect("]", f"after the place in {name}")
        if index >= len(register):
            tokens.fail(f"{name}[{index}] is out of range: {name} has {len(register)} {what}", line)
        return register[index]

    def _drop(self, what: str, line: int) -> None:
        self._dropped.setdefault(what, []).append(line)


# -- Writing. In nam, the same circuit is read back, angles exact to the unit. -----------------------------------------


def as_qasm(circuit: Circuit, gate_set: GateSet = NAM) -> str:
    """Return the circuit as OpenQASM 2: one register q, one gate a line."""
    lines = ["OPENQASM 2.0;", 'include "qelib1.inc";', f"qreg q[{circuit.num_qubits}];"]
    for gate in gate_set.of(circuit):
        angle = f"({written(gate.angle)})" if gate.name == "rz" else ""
        lines.append(f"{gate.name}{angle} {','.join(f'q[{wire}]' for wire in gate.wires)};")
    return "\n".join(lines) + "\n"


def write(circuit: Circuit, path: str | Path, gate_set: GateSet = NAM) -> None:
    """Write the circuit to a file. Raises StorageError."""
    write_text(Path(path), as_qasm(circuit, gate_set))
