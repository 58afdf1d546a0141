"""Reading OpenQASM 2 (Cross, Bishop, Smolin, Gambetta, arXiv:1707.03429) and the common part of OpenQASM 3
(arXiv:2104.14722), and writing OpenQASM 2.
"""

from pathlib import Path
from typing import NamedTuple

from ddppo.domains.circuits.quantum.circuit import DECIMAL_PI, MOST_QUBITS, Circuit, Gate, NoAngle, written
from ddppo.domains.circuits.quantum.gate_sets import NAM, GateSet
from ddppo.domains.circuits.quantum.qasm_definitions import LIBRARIES, Gates, check_wires, library
from ddppo.domains.circuits.quantum.qasm_gates import Expander, TooManyCalls
from ddppo.domains.circuits.quantum.qasm_tokens import Tokens, expression, value
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
_VARIABLE = "its value may change: declare it const, or write its value where it is used"
_CONTROL_FLOW = "loops and branches are not read: write out the statements that they stand for"
_PULSES = "calibrations and timing are not read: remove it"
_FUNCTION = "functions are not read: write out the statements that they stand for"
_REFUSED_3 = {
    "input": "an input has no value: replace it by a const with its value",
    "output": "outputs are not read: remove it",
    "let": "names for parts of registers are not read: write the qubits themselves",
    "array": "arrays are not read: write their values where they are used",
    "end": "end is not read: remove it and all that follows",
    **dict.fromkeys(("int", "uint", "float", "angle", "bool", "complex"), _VARIABLE),
    **dict.fromkeys(("for", "while", "switch", "else", "break", "continue"), _CONTROL_FLOW),
    **dict.fromkeys(("box", "delay", "duration", "stretch", "cal", "defcal", "defcalgrammar"), _PULSES),
    **dict.fromkeys(("def", "extern", "return"), _FUNCTION),
    **dict.fromkeys(("pragma", "nop"), "it is not read: remove it"),
}
_VERSIONS_3 = ("3", "3.0", "3.1")
_CONST_TYPES = ("int", "uint", "float", "angle")


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
        raise ConfigError(f"{path} is no text (byte {e.start}): an OpenQASM file is expected") from e
    except ValueError as e:  # a name with a zero byte
        raise ConfigError(f"{path!r} is no path: {e}") from e
    return parse(text, str(path))


def parse(text: str, name: str = "the text") -> QasmProgram:
    """Read a text; error messages call it `name`. Raises ConfigError."""
    reader = _Reader(Tokens(text, name))
    reader.read()
    if not reader.names:
        declared = "qubit[3] q" if reader.version == 3 else "qreg q[3]"
        raise ConfigError(f"{name} has no qubits: declare them, e.g. {declared};")
    circuit = Circuit.from_gates(len(reader.names), reader.gates)
    return QasmProgram(circuit, tuple(reader.names), tuple(reader.remarks()))


class _Reader:
    """Reads a text in one pass into `gates` on wires 0, 1, ..., and `names` of the wires."""

    def __init__(self, tokens: Tokens) -> None:
        self.gates: list[Gate] = []
        self.names: list[str] = []
        self.version = tokens.version
        self._tokens = tokens
        self._known = Gates(tokens, library(self.version))
        self._expander = Expander()
        self._registers: dict[str, range] = {}
        self._single: set[str] = set()  # qubits and bits that are declared without a size
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
            tokens.fail(
                f"the first statement has to be OPENQASM 2.0; or OPENQASM 3.0; but it begins with {tokens.found()}"
            )
        if tokens.now.text not in ("2", "2.0", *_VERSIONS_3):
            tokens.fail(f"OPENQASM {tokens.found()} is not read: export the circuit as OpenQASM 2.0 or 3.0")
        tokens.next()
        tokens.expect(";", "after the version")
        while tokens.now.kind != "end":
            self._statement()

    def _statement(self) -> None:
        # The first word decides; a word that is no keyword is the name of a gate.
        tokens = self._tokens
        line, word = tokens.line, tokens.word("a statement")
        match word:
            # A definition ends with a brace, without a semicolon.
            case "gate":
                self._known.define(line)
                return
            case "include":
                self._include()
            case "qreg" | "creg":
                self._register(line, is_quantum=word == "qreg")
            case "qubit" | "bit" if self.version == 3:
                self._register_3(line, is_quantum=word == "qubit")
            case "const" if self.version == 3:
                self._constant(line)
            case "barrier":
                if tokens.now.text != ";" or self.version == 2:
                    self._qubits()
                self._drop("barriers are left out, gates may cross them", line)
            case "measure":
                self._measure(line)
            case _ if word in _REFUSED:
                tokens.fail(_REFUSED[word], line)
            case _ if self.version == 3 and word in _REFUSED_3:
                tokens.fail(f"{word}: {_REFUSED_3[word]}", line)
            case _ if self.version == 3 and word in self._bits:
                self._assign(word, line)
            case _:
                self._apply(word, line)
        tokens.expect(";", "at the end of the statement")

    def _include(self) -> None:
        token = self._tokens.next()
        known = [f'"{LIBRARIES[version]}"' for version in (3, 2) if version <= self.version]
        if token.kind != "string":
            self._tokens.fail(f"include needs a file in quotes, {known[0]}, not {token.text}", token.line)
        if token.text not in known:
            self._tokens.fail(
                f"include {token.text}: there is only {' and '.join(known)}; paste the gate definitions that you need",
                token.line,
            )
        self._known.include()

    def _register(self, line: int, *, is_quantum: bool) -> None:
        tokens = self._tokens
        name = tokens.word("a register's name")
        tokens.expect("[", f"after {name}")
        size = tokens.whole("a register's size")
        tokens.expect("]", f"after the size of {name}")
        self._declare(name, size, line, is_quantum=is_quantum)

    def _register_3(self, line: int, *, is_quantum: bool) -> None:
        """Read `[3] q`, or `q` for a single qubit; a bit may be declared by its measurement, `bit[3] c = measure q`."""
        tokens = self._tokens
        size = None
        if tokens.take("["):
            size = tokens.whole("a register's size")
            tokens.expect("]", "after the size")
        name = tokens.word("a register's name")
        self._declare(name, 1 if size is None else size, line, is_quantum=is_quantum)
        if size is None:
            self._single.add(name)
        if not is_quantum and tokens.now.text == "=":
            self._measured_into(0 if size is None else self._bits[name], name, line)

    def _declare(self, name: str, size: int, line: int, *, is_quantum: bool) -> None:
        tokens = self._tokens
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
        operands = self._qubits() if gate.num_wires else []
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

    def _constant(self, line: int) -> None:
        """Read `float name = expression` behind const."""
        tokens = self._tokens
        kind = tokens.word("a type")
        if kind not in _CONST_TYPES:
            tokens.fail(f"a const {kind} is not read: only {', '.join(_CONST_TYPES)} are", line)
        if tokens.now.text == "[":
            # A float of 32 bits, or an angle of 8, is rounded; numbers here have 60 digits.
            tokens.fail(f"const {kind}[...]: a size, which rounds the value, is not read: leave it out", line)
        name = tokens.word("a name")
        tokens.expect("=", f"after {name}")
        try:
            found = value(expression(tokens, ()), {})
        except NoAngle as e:
            tokens.fail(f"{name}: {e}", line)
        if name in tokens.constants or name in self._registers or name in self._bits:
            tokens.fail(f"{name} is declared twice: give it another name", line)
        if kind in ("int", "uint") and (found != int(found) or (kind == "uint" and found < 0)):
            tokens.fail(f"{name}={found:.6g} is no {kind}: write const float", line)
        if kind == "angle" and not 0 <= found < 2 * DECIMAL_PI:
            tokens.fail(
                f"{name}: an angle is from 0 to below 2*pi, and wraps around: write const float", line
            )
        tokens.constants[name] = found

    def _assign(self, name: str, line: int) -> None:
        """Read `[0] = measure q[0]` behind the name of a register of bits."""
        self._measured_into(self._element(name, self._bits[name], "classical bits"), name, line)

    def _measured_into(self, bits: int | range, name: str, line: int) -> None:
        self._tokens.expect("=", f"after {name}")
        if not self._tokens.take("measure"):
            self._tokens.fail(f"{name} may only be given a measurement, as in {name} = measure q;", line)
        self._measure(line, bits)

    def _measure(self, line: int, bits: int | range | None = None) -> None:
        """Read `q -> c`, of registers or single elements; `q` alone if the bits are given, or not kept."""
        tokens = self._tokens
        qubits = self._operand(self._registers, "qubits")
        if bits is None and (self.version == 2 or tokens.now.text == "->"):
            tokens.expect("->", "after what is measured")
            bits = self._operand(self._bits, "classical bits")
        elif bits is None:
            bits = qubits
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
            is_quantum = registers is self._registers
            declared = f"{'qreg' if is_quantum else 'creg'} {name}[...]"
            if self.version == 3:
                declared = f"{'qubit' if is_quantum else 'bit'}[...] {name}"
            tokens.fail(f"{name} is no register of {what}: declare it above by {declared};", line)
        return self._element(name, registers[name], what)

    def _element(self, name: str, register: range, what: str) -> int | range:
        """Read the index behind a register's name, if there is one; without, the operand is the whole register."""
        tokens = self._tokens
        if name in self._single and tokens.now.text != "[":
            return register[0]
        if not tokens.take("["):
            return register
        line = tokens.line
        index = tokens.whole(f"a place in {name}")
        if tokens.now.text in (":", ","):
            tokens.fail(
                f"{name}[{index}{tokens.now.text}...] is not read: name its elements one by one", line
            )
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
