"""OpenQASM 3: the same gates as in OpenQASM 2, modifiers with exact phases, constants, and what is refused."""

import cmath
import math

import numpy as np
import pytest

from ddppo.domains.circuits.quantum import CX, RZ, Circuit, Gate, H, X
from ddppo.domains.circuits.quantum.circuit import TURN, of_radians
from ddppo.domains.circuits.quantum.qasm_definitions import controlled_gates, library
from ddppo.domains.circuits.quantum.qasm_reader import parse
from ddppo.errors import ConfigError
from tests.domains.circuits.circuit_oracle import (
    HADAMARD,
    PAULI_X,
    controlled,
    distance,
    matrix_of,
    phase_gate,
)
from tests.domains.circuits.test_circuit_qasm import (
    MEANINGS,
    PAULI_Y,
    PAULI_Z,
    SQRT_X,
    SWAP,
    A,
    B,
    C,
    rotation,
)

HEAD = 'OPENQASM 3.0;\ninclude "stdgates.inc";\nqubit[4] q;\n'


def circuit_of(statements, num_qubits):
    return parse(f'OPENQASM 3.1;include "stdgates.inc";qubit[{num_qubits}] q;{statements}').circuit


def wires(*numbers):
    return ",".join(f"q[{wire}]" for wire in numbers)


@pytest.mark.parametrize("call", [*MEANINGS, "phase(0.7)", "cphase(0.7)"])
def test_a_gate_of_the_library_is_its_matrix_in_version_3_too(call):
    renamed = {"phase(0.7)": "p(0.7)", "cphase(0.7)": "cp(0.7)"}.get(call, call)
    meaning = MEANINGS[renamed]
    n = int(math.log2(len(meaning)))
    assert distance(matrix_of(circuit_of(f"{call} {wires(*range(n))};", n)), meaning) < 1e-12


def u3(theta, phi, lam):
    """U of OpenQASM 3 (openqasm.com/language/gates.html), which has a phase that U of OpenQASM 2 has not."""
    one, other = 1 + cmath.exp(1j * theta), 1 - cmath.exp(1j * theta)
    return 0.5 * np.array(
        [
            [one, -1j * cmath.exp(1j * lam) * other],
            [1j * cmath.exp(1j * phi) * other, cmath.exp(1j * (phi + lam)) * one],
        ]
    )


def doubled(matrix):
    """The matrix with a control in front."""
    size = len(matrix)
    found = np.eye(2 * size, dtype=complex)
    found[size:, size:] = matrix
    return found


CX_MATRIX = controlled(2, [0], 1, PAULI_X)
# With the phases of stdgates.inc, which matter once a gate is controlled.
EXACT = {
    "id": np.eye(2), "x": PAULI_X, "y": PAULI_Y, "z": PAULI_Z, "h": HADAMARD, "sx": SQRT_X, "sxdg": SQRT_X.conj().T,
    "s": phase_gate(math.pi / 2), "sdg": phase_gate(-math.pi / 2), "t": phase_gate(math.pi / 4),
    "tdg": phase_gate(-math.pi / 4), "swap": SWAP, "cx": CX_MATRIX, "CX": CX_MATRIX, "cz": doubled(PAULI_Z),
    "p(0.7)": phase_gate(A), "phase(0.7)": phase_gate(A), "u1(0.7)": phase_gate(A), "cp(0.7)": doubled(phase_gate(A)),
    "cphase(0.7)": doubled(phase_gate(A)), "cu1(0.7)": doubled(phase_gate(A)), "rx(0.7)": rotation(PAULI_X, A),
    "ry(0.7)": rotation(PAULI_Y, A), "rz(0.7)": rotation(PAULI_Z, A), "crz(0.7)": doubled(rotation(PAULI_Z, A)),
    "crx(0.7)": doubled(rotation(PAULI_X, A)), "cry(0.7)": doubled(rotation(PAULI_Y, A)), "cy": doubled(PAULI_Y),
    "ch": doubled(HADAMARD), "csx": doubled(SQRT_X), "gphase(0.7)": cmath.exp(1j * A) * np.eye(1),
    "U(0.7,-1.9,2.3)": u3(A, B, C), "u3(0.7,-1.9,2.3)": cmath.exp(-0.5j * (A + B + C)) * u3(A, B, C),
    "u2(-1.9,2.3)": cmath.exp(-0.5j * (math.pi / 2 + B + C)) * u3(math.pi / 2, B, C),
}  # fmt: skip


def test_every_gate_with_a_controlled_form_is_compared_with_a_matrix():
    assert {call.partition("(")[0] for call in EXACT} == set(controlled_gates())


@pytest.mark.parametrize("call", EXACT)
def test_a_controlled_gate_is_its_matrix_with_its_phase(call):
    meaning = doubled(EXACT[call])
    n = int(math.log2(len(meaning)))
    assert distance(matrix_of(circuit_of(f"ctrl @ {call} {wires(*range(n))};", n)), meaning) < 1e-12
    # In a definition, with the control last; and controlled by 0.
    names = ",".join("abcd"[:n])
    defined = f"gate g {names} {{ ctrl @ {call} {names}; }} g {wires(*reversed(range(n)))};"
    order = [int(format(i, f"0{n}b")[::-1], 2) for i in range(2**n)]
    assert distance(matrix_of(circuit_of(defined, n)), meaning[order][:, order]) < 1e-12
    at_zero = np.kron(np.diag([1, 0]), EXACT[call]) + np.kron(np.diag([0, 1]), np.eye(len(EXACT[call])))
    assert distance(matrix_of(circuit_of(f"negctrl @ {call} {wires(*range(n))};", n)), at_zero) < 1e-12


@pytest.mark.parametrize(
    ("statement", "meaning"),
    [
        ("ctrl @ ctrl @ x", doubled(CX_MATRIX)),
        ("ctrl(2) @ x", doubled(CX_MATRIX)),
        ("ctrl(2) @ p(0.7)", doubled(doubled(phase_gate(A)))),
        ("ctrl @ cz", doubled(doubled(PAULI_Z))),
        ("ctrl @ ctrl @ gphase(0.7)", doubled(phase_gate(A))),
        ("inv @ ry(-1.9)", rotation(PAULI_Y, -B)),
        ("inv @ inv @ t", phase_gate(math.pi / 4)),
        ("pow(3) @ sx", np.linalg.matrix_power(SQRT_X, 3)),
        ("pow(-2) @ U(0.7,-1.9,2.3)", np.linalg.matrix_power(u3(A, B, C), -2)),
        ("pow(0) @ h", np.eye(2)),
        ("ctrl @ inv @ s", doubled(phase_gate(-math.pi / 2))),
        ("inv @ ctrl @ pow(2) @ U(0.7,-1.9,2.3)", doubled(np.linalg.matrix_power(u3(A, B, C), -2))),
        ("pow(2) @ negctrl @ sx", np.kron(np.diag([1, 0]), PAULI_X) + np.kron(np.diag([0, 1]), np.eye(2))),
        ("inv @ iswap", SWAP @ np.diag([1, -1j, -1j, 1])),
    ],
)
def test_modifiers_are_applied_from_the_inside(statement, meaning):
    n = int(math.log2(len(meaning)))
    assert distance(matrix_of(circuit_of(f"{statement} {wires(*range(n))};", n)), meaning) < 1e-12


def test_a_gate_of_the_file_is_controlled_gate_by_gate_with_its_phase():
    body = "gate own(a) x1,y1 { gphase(a/3); h x1; rz(a) x1; cx x1,y1; inv @ t y1; }"
    n, text = 3, f"{body} ctrl @ own(0.9) q[0],q[1],q[2];"
    one = matrix_of(circuit_of("h q[0]; cx q[0],q[1]; tdg q[1];", 2)).astype(complex)
    rz = np.kron(rotation(PAULI_Z, 0.9), np.eye(2))
    h = np.kron(HADAMARD, np.eye(2))
    tdg = np.kron(np.eye(2), phase_gate(-math.pi / 4))
    expected = cmath.exp(0.3j) * tdg @ CX_MATRIX @ rz @ h
    assert one.shape == expected.shape
    assert distance(matrix_of(circuit_of(text, n)), doubled(expected)) < 1e-12
    with_zero = circuit_of(f"{body} negctrl @ pow(2) @ own(0.9) q[3],q[1],q[2];", 4)
    flipped = circuit_of(f"{body} x q[3]; ctrl @ pow(2) @ own(0.9) q[3],q[1],q[2]; x q[3];", 4)
    assert distance(matrix_of(with_zero), matrix_of(flipped)) < 1e-12


def test_a_file_as_exporters_write_it_is_read():
    program = parse(
        """/* a comment
        of two lines */ OPENQASM 3.0; // and one
        include "stdgates.inc";
        const int n = 2; const float θ = π/8; const uint one = 1;
        bit[2] c; bit single; bit[n] d;
        qubit[n] q; qubit r;
        gate g(a) x0, x1 { p(2*a) x1; cx x0, x1; }
        g(θ) q[0], q[one];
        rz(tau/8 + arccos(1) + log(euler) - 1_0.0/10) r;
        h r; barrier q, r; barrier; gphase(-π/4);
        cx r, q;
        c = measure q; single = measure r;"""
    )
    assert program.names == ("q[0]", "q[1]", "r[0]")
    eighth = TURN // 8
    expected = [
        Gate(RZ, (1,), eighth), Gate(CX, (0, 1)), Gate(RZ, (2,), eighth), Gate(H, (2,)),
        Gate(CX, (2, 0)), Gate(CX, (2, 1)),
    ]  # fmt: skip
    assert program.circuit == Circuit.from_gates(3, expected)
    assert program.remarks == (
        "the text, line 5 and 2 more: classical bits are left out",
        "the text, line 10 and 1 more: barriers are left out, gates may cross them",
        "the text, line 12 and 1 more: measurements at the end are left out",
    )


def test_measurements_may_be_written_in_every_way():
    for text in ("bit[4] c = measure q;", "bit[4] c; measure q -> c;", "measure q;", "bit c; c = measure q[2];",
                 "bit[2] c; c[1] = measure q[1];", "creg c[4]; c = measure q;"):  # fmt: skip
        program = parse(f"{HEAD}x q[3]; {text}")
        assert program.circuit.gates() == [Gate(X, (3,))]
        assert any("measurements at the end are left out" in remark for remark in program.remarks)


@pytest.mark.parametrize(
    ("text", "radians"),
    [("2**3*pi/16", math.pi / 2), ("-2**2", -4.0), ("τ/4", math.pi / 2), ("1/2*pi", math.pi / 2), ("ℇ", math.e),
     ("arcsin(1)", math.pi / 2), ("arctan(1)", math.pi / 4), ("floor(2.5)+ceiling(0.5)", 3.0),
     ("sqrt(2)", math.sqrt(2))],
)  # fmt: skip
def test_angles_are_computed(text, radians):
    (gate,) = parse(f"{HEAD}rz({text}) q[0];").circuit
    assert abs((gate.angle - of_radians(radians) + TURN // 2) % TURN - TURN // 2) <= 1


def test_version_2_has_none_of_it():
    for text in (
        "ctrl @ x q[0],q[1];",
        "qubit r;",
        "const int n = 2;",
        "gphase(1);",
        "rz(π) q[0];",
        "rz(tau) q[0];",
    ):
        with pytest.raises(ConfigError):
            parse('OPENQASM 2.0;include "qelib1.inc";qreg q[2];' + text)
    assert "gphase" not in library(2)
    assert "phase" not in library(2)


BAD = {
    "for int i in [0:3] { x q[i]; }": "line 4: for: loops and branches are not read: write out",
    "if (c) x q[0];": "line 4: a gate that depends on a measurement",
    "while (true) {}": "line 4: while: loops and branches",
    "float a = 1.0;": "line 4: float: its value may change: declare it const",
    "input angle a;": "line 4: input: an input has no value: replace it by a const",
    "def f(qubit a) { x a; }": "line 4: def: functions are not read",
    "delay[100ns] q[0];": "line 4: delay: calibrations and timing are not read",
    "let a = q[0:1];": "line 4: let: names for parts of registers are not read",
    "x q[0:1];": r"line 4: q\[0:\.\.\.\] is not read: name its elements one by one",
    "x q[{0, 1}];": "line 4: expected a place in q, a whole number",
    "x $0;": "line 4: [$] is a physical qubit, and these are not read",
    "#pragma fast": "line 4: # is the beginning of a pragma",
    "/* never ends": "line 4: / is the beginning of a comment that does not end",
    "reset q[0];": "line 4: reset is no unitary gate",
    "bit[2] c = \"01\";": "line 4: c may only be given a measurement, as in c = measure q;",
    "bit[2] c; c = d;": "line 4: c may only be given a measurement",
    "bit[2] c; c = measure q;": "line 4: 4 qubits are measured into 2 bits",
    "measure q[0]; h q[0];": r"line 4: h acts on q\[0\] after its measurement in line 4",
    "const int n = 1.5;": "line 4: n=1.5 is no int: write const float",
    "const uint n = -1;": "line 4: n=-1 is no uint",
    "const angle a = 7;": "line 4: a: an angle is from 0 to below 2[*]pi",
    "const float[32] a = 1;": r"line 4: const float\[\.\.\.\]: a size, which rounds the value, is not read",
    "const bool b = true;": "line 4: a const bool is not read: only int, uint, float, angle are",
    "const float q = 1;": "line 4: q is declared twice",
    "const float a = 1/0;": "line 4: a: its angle has no value",
    "rz(2^3) q[0];": r"line 4: \^ joins bits in OpenQASM 3: write \*\* for a power",
    "rz(ln(2)) q[0];": "line 4: ln is no number.*: an angle is made of pi, π",
    "ctrl x q[0],q[1];": "line 4: expected @ after ctrl, found x",
    "ctrl @ q[0],q[1];": "line 4: there is no gate q",
    "ctrl(0) @ x q[0];": r"line 4: ctrl\(0\): there is at least 1 control",
    "pow(1/2) @ x q[0];": r"line 4: pow\(0.5\): only whole numbers up to 1,000,000 are read; write the gate that it "
    "stands for",
    "pow(1000000000) @ x q[0];": r"line 4: pow\(1.00000e\+9\): only whole numbers up to 1,000,000 are read",
    "pow @ x q[0];": r"line 4: pow needs its exponent in brackets, as in pow\(2\) @ s",
    "ctrl(3) @ x q;": "line 4: no controlled form of ccx is known: write it by ccx and ancillas",
    "ctrl @ iswap q[0],q[1],q[2];": "line 4: no controlled form of iswap is known",
    "gate g a,b { iswap a,b; } ctrl @ g q[0],q[1],q[2];": "line 4: no controlled form of iswap is known",
    "ctrl(99999) @ x q;": "line 4: x with so many modifiers has more than 1,000,000 gates",
    "pow(1000000) @ pow(1000000) @ x q[0];": "line 4: x with so many modifiers",
    "gate g a { pow(1000000) @ u3(1,2,3) a; } g q[0];": "line 4: g: the circuit has more than 1,000,000 gates",
    "gate gphase(a) b { }": "line 4: gate gphase is defined already",
    "ctrl @ x q[0],q[0];": "line 4: x is applied to one qubit twice",
    "ctrl @ x q[0];": "line 4: x acts on 2 qubits, not 1",
    'include "own.inc";': 'line 4: include "own.inc": there is only "stdgates.inc" and "qelib1.inc"',
    "frob r;": r"line 4: there is no gate frob",
    "x r;": r"line 4: r is no register of qubits: declare it above by qubit\[\.\.\.\] r;",
    "qubit r; x r[1];": r"line 4: r\[1\] is out of range",
    "h q[0]; `": "line 4: ` is no part of OpenQASM 3",
}  # fmt: skip


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_a_bad_statement_is_refused_with_file_line_and_remedy(text):
    with pytest.raises(ConfigError, match=f"^my.qasm, {BAD[text]}") as raised:
        parse(HEAD + text, "my.qasm")
    assert "\n" not in str(raised.value)


def test_without_the_library_only_u_and_gphase_are_there():
    circuit = parse("OPENQASM 3; qubit[2] q; U(π/2,0,π) q[0]; ctrl @ gphase(π) q[1];").circuit
    assert circuit.gates() == [Gate(H, (0,)), Gate(RZ, (1,), TURN // 2)]
    with pytest.raises(ConfigError, match=r'h is no gate yet: add include "stdgates[.]inc"'):
        parse("OPENQASM 3; qubit q; h q;")
