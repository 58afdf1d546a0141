import cmath
import math
import random

import numpy as np
import pytest

from ddppo.domains.circuits.quantum import CX, RZ, Circuit, Gate, H, X
from ddppo.domains.circuits.quantum.circuit import TURN, of_fraction, of_radians
from ddppo.domains.circuits.quantum.qasm_reader import as_qasm, parse, read, write
from ddppo.errors import ConfigError
from tests.domains.circuits.circuit_oracle import (
    HADAMARD,
    ONE,
    PAULI_X,
    controlled,
    distance,
    matrix_of,
    on,
    phase_gate,
    random_circuit,
)

HEAD = 'OPENQASM 2.0;\ninclude "qelib1.inc";\nqreg q[4];\n'
A, B, C = 0.7, -1.9, 2.3  # angles


def u(theta, phi, lam):
    """The matrix of arXiv:1707.03429, equation 2."""
    cos, sin = math.cos(theta / 2), math.sin(theta / 2)
    turned = [cmath.exp(-0.5j * (phi + lam)) * cos, -cmath.exp(-0.5j * (phi - lam)) * sin]
    return np.array([turned, [-turned[1].conjugate(), turned[0].conjugate()]])


PAULI_Y, PAULI_Z = np.array([[0, -1j], [1j, 0]]), np.diag([1, -1])


def rotation(pauli, angle):
    return math.cos(angle / 2) * np.eye(len(pauli)) - 1j * math.sin(angle / 2) * pauli


def two(first, second):
    return on(2, {0: first, 1: second})


SWAP = np.eye(4)[[0, 2, 1, 3]]
SQRT_X = rotation(PAULI_X, math.pi / 2) * cmath.exp(0.25j * math.pi)
U = u(A, B, C) * cmath.exp(0.5j * (B + C))  # as controlled gates have its phase
MEANINGS = {
    "id": ONE, "u0(0.7)": ONE, "x": PAULI_X, "y": PAULI_Y, "z": PAULI_Z, "h": HADAMARD,
    "s": phase_gate(math.pi / 2), "sdg": phase_gate(-math.pi / 2), "t": phase_gate(math.pi / 4),
    "tdg": phase_gate(-math.pi / 4), "rx(0.7)": rotation(PAULI_X, A), "ry(-1.9)": rotation(PAULI_Y, B),
    "rz(2.3)": rotation(PAULI_Z, C), "u1(0.7)": phase_gate(A), "p(0.7)": phase_gate(A),
    "u2(-1.9,2.3)": u(math.pi / 2, B, C),
    "u3(0.7,-1.9,2.3)": U, "u(0.7,-1.9,2.3)": U, "U(0.7,-1.9,2.3)": U, "U(0,-1.9,2.3)": u(0, B, C),
    "U(pi,-1.9,2.3)": u(math.pi, B, C), "U(-pi/2,-1.9,2.3)": u(-math.pi / 2, B, C), "sx": SQRT_X,
    "sxdg": SQRT_X.conj().T, "cx": controlled(2, [0], 1, PAULI_X), "CX": controlled(2, [0], 1, PAULI_X),
    "cy": controlled(2, [0], 1, PAULI_Y), "cz": controlled(2, [0], 1, PAULI_Z), "ch": controlled(2, [0], 1, HADAMARD),
    "swap": SWAP, "iswap": SWAP @ np.diag([1, 1j, 1j, 1]), "crx(0.7)": controlled(2, [0], 1, rotation(PAULI_X, A)),
    "cry(0.7)": controlled(2, [0], 1, rotation(PAULI_Y, A)), "crz(0.7)": controlled(2, [0], 1, rotation(PAULI_Z, A)),
    "cu1(0.7)": controlled(2, [0], 1, phase_gate(A)), "cp(0.7)": controlled(2, [0], 1, phase_gate(A)),
    "csx": controlled(2, [0], 1, SQRT_X), "cu3(0.7,-1.9,2.3)": controlled(2, [0], 1, U),
    "cu(0.7,-1.9,2.3,0.4)": controlled(2, [0], 1, U * cmath.exp(0.4j)),
    "rzz(0.7)": rotation(two(PAULI_Z, PAULI_Z), A), "rxx(0.7)": rotation(two(PAULI_X, PAULI_X), A),
    "ryy(0.7)": rotation(two(PAULI_Y, PAULI_Y), A), "rzx(0.7)": rotation(two(PAULI_Z, PAULI_X), A),
    "ccx": controlled(3, [0, 1], 2, PAULI_X), "ccz": controlled(3, [0, 1], 2, PAULI_Z),
    "cswap": np.kron(np.diag([1, 0]), np.eye(4)) + np.kron(np.diag([0, 1]), SWAP),
}  # fmt: skip


@pytest.mark.parametrize("call", MEANINGS)
def test_a_gate_of_the_library_is_its_matrix_up_to_a_phase(call):
    meaning = MEANINGS[call]
    n = int(math.log2(len(meaning)))
    wires = ",".join(f"q[{wire}]" for wire in range(n))
    circuit = parse(f'OPENQASM 2.0;include "qelib1.inc";qreg q[{n}];{call} {wires};').circuit
    assert distance(matrix_of(circuit), meaning) < 1e-12


def test_every_gate_of_the_library_is_compared_with_a_matrix():
    from ddppo.domains.circuits.quantum.qasm_definitions import library

    assert set(library(2)) - {call.partition("(")[0] for call in MEANINGS} == {"rccx"}
    diagonal = np.abs(matrix_of(parse(HEAD + "rccx q[0],q[1],q[2];").circuit))
    toffoli = matrix_of(parse(HEAD + "ccx q[0],q[1],q[2];").circuit)
    assert distance(diagonal, np.abs(toffoli)) < 1e-12  # a Toffoli but for phases


def test_a_toffoli_gate_is_read_as_15_gates():
    circuit = parse(HEAD + "ccx q[0],q[1],q[2];").circuit
    assert [int((circuit.kinds == kind).sum()) for kind in (H, X, CX, RZ)] == [2, 0, 6, 7]


def test_a_circuit_that_is_written_reads_as_the_same_circuit(tmp_path):
    rng = random.Random(0)
    angles = [rng.randrange(TURN) for _ in range(50)] + [
        of_fraction(n, d) for n in range(9) for d in (1, 3, 8, 256)
    ]
    for _ in range(30):
        circuit = random_circuit(rng, 5, 40, angles)
        assert parse(as_qasm(circuit)).circuit == circuit
    write(circuit, tmp_path / "c.qasm")
    again = read(tmp_path / "c.qasm")
    assert again.circuit == circuit
    assert again.names == tuple(f"q[{i}]" for i in range(5))
    assert again.remarks == ()


@pytest.mark.parametrize("angle", [56488721882973, 137100402325568, 189525503739670, TURN - 1, TURN // 2 + 1])
def test_an_angle_halfway_between_two_of_its_decimals_is_read_as_it_was(angle):
    circuit = Circuit.from_gates(1, [Gate(RZ, (0,), angle)])
    assert parse(as_qasm(circuit)).circuit == circuit


@pytest.mark.parametrize(
    ("text", "radians"),
    [
        ("3*pi/4", 3 * math.pi / 4), ("-pi/2+0.1", 0.1 - math.pi / 2), ("pi*(1-2/3)", math.pi / 3),
        ("2^3^0.5*pi", 2 ** (3**0.5) * math.pi), ("-2^2", -4.0), ("2^-1", 0.5), ("sin(pi/6)*pi", math.pi / 2),
        ("cos(0)+tan(pi/4)", 2.0), ("exp(1)", math.e), ("ln(2)", math.log(2)), ("sqrt(2)", math.sqrt(2)),
        (".5e-1", 0.05), ("+1.", 1.0), ("--1", 1.0), ("1-1-1", -1.0), ("8/2/2", 2.0),
    ],
)  # fmt: skip
def test_angles_are_computed(text, radians):
    (gate,) = parse(f"{HEAD}rz({text}) q[0];").circuit
    difference = (gate.angle - of_radians(radians) + TURN // 2) % TURN - TURN // 2
    assert abs(difference) <= 1


def test_a_multiple_of_pi_keeps_its_phase_however_large():
    (gate,) = parse(HEAD + "rz(10000000000000000001*pi/4) q[0];").circuit
    assert gate.angle == TURN // 8


def test_registers_follow_one_another_and_gates_apply_to_all_their_elements():
    program = parse(
        """OPENQASM 2.0; // a comment; with ; in it
        include "qelib1.inc";
        qreg a[2]; qreg b[2]; creg c[2];
        h a; barrier a, b;
        cx a, b;  cx a[0], b;
        measure b -> c;"""
    )
    assert program.names == ("a[0]", "a[1]", "b[0]", "b[1]")
    pairs = [(0, 2), (1, 3), (0, 2), (0, 3)]
    expected = [Gate(H, (0,)), Gate(H, (1,)), *(Gate(CX, pair) for pair in pairs)]
    assert program.circuit == Circuit.from_gates(4, expected)
    assert program.remarks == (
        "the text, line 3: classical bits are left out",
        "the text, line 4: barriers are left out, gates may cross them",
        "the text, line 6: measurements at the end are left out",
    )


def test_definitions_are_expanded_with_their_angles_and_wires():
    program = parse(
        HEAD
        + """gate inner(a, pi2) x1, y1 { rz(a/2) y1; barrier x1; cx x1,y1; rz(pi2-a) x1; }
        gate outer(t) p, q, r { inner(2*t, t) r,p; inner(t, t) p,q; }
        outer(pi/2) q[3],q[1],q[0];"""
    )
    expected = [
        Gate(RZ, (3,), TURN // 4), Gate(CX, (0, 3)), Gate(RZ, (0,), 3 * TURN // 4),
        Gate(RZ, (1,), TURN // 8), Gate(CX, (3, 1)),
    ]  # fmt: skip
    assert program.circuit == Circuit.from_gates(4, expected)


def test_a_file_may_define_a_gate_of_the_library_itself():
    text = HEAD + "gate ccz a,b,c { h a; }\nccz q[0],q[1],q[2];"
    assert parse(text).circuit.gates() == [Gate(H, (0,))]
    own = "OPENQASM 2.0; qreg q[1]; gate h a { U(pi/2,0,pi) a; } h q[0];"
    assert parse(own).circuit.gates() == [Gate(H, (0,))]


def test_a_rotation_by_zero_stays_where_it_was_asked_for():
    assert len(parse(HEAD + "rz(0) q[0]; cp(0) q[0],q[1]; U(0,0,0) q[0];").circuit) == 3


BAD = {
    "h q[0]": "line 4: expected ; at the end of the statement, found the end of the file",
    "h q[0]\nx q[1];": "line 4: expected ; at the end of the statement, found x",
    "hh q[0];": "line 4: there is no gate hh .did you mean h[?].: define",
    "frob q[0];": "line 4: there is no gate frob: define it above by gate frob",
    "h q[4];": r"line 4: q\[4\] is out of range: q has 4 qubits",
    "h r[0];": r"line 4: r is no register of qubits: declare it above by qreg r",
    "cx q[0],q[0];": r"line 4: cx is applied to one qubit twice \(q\[0\], q\[0\]\)",
    "cx q,q[0];": r"line 4: cx is applied to one qubit twice",
    "cx q[0];": "line 4: cx acts on 2 qubits, not 1",
    "qreg r[3]; cx q,r;": "line 4: cx is applied to registers of 3 and 4 qubits",
    "rz q[0];": "line 4: rz takes 1 angle, not 0",
    "h(1) q[0];": "line 4: h takes no angles, not 1",
    "rz(1/0) q[0];": "line 4: rz: its angle has no value",
    "rz(ln(0)) q[0];": "line 4: rz: its angle is infinite",
    "rz(ln(-1)) q[0];": "line 4: rz: its angle has no value",
    "rz(1e99) q[0];": "line 4: rz: 1E.99 is no angle: it has to be finite and below 1e50",
    "rz(1e9999999999999999999999) q[0];": "line 4: rz: its angle has no value",
    "rz(exp(exp(1000))) q[0];": "line 4: rz: its angle has no value",
    "rz(sin(1e999)) q[0];": "line 4: rz: its angle has no value",
    "rz(phi) q[0];": "line 4: phi is no number",
    "rz(sim(1)) q[0];": r"line 4: sim is no number \(did you mean sin",
    "rz(1+) q[0];": "line 4: expected a number, pi, a function or [(], found [)]",
    "rz((1) q[0];": "line 4: expected [)] after the angles of rz, found q",
    "rz(" + "(" * 200 + "1": "line 4: an expression of more than 100 levels",
    "rz(" + "-" * 2000 + "1": "line 4: an expression of more than 100 levels",
    "creg c[4];\nmeasure q[0] -> c[0];\nh q[0];": r"line 6: h acts on q\[0\] after its measurement in line 5",
    "creg c[2]; measure q -> c;": "line 4: 4 qubits are measured into 2 bits",
    "measure q[0] -> c[0];": "line 4: c is no register of classical bits",
    "creg c[1]; if (c==1) x q[0];": "line 4: a gate that depends on a measurement",
    "reset q[0];": "line 4: reset is no unitary gate",
    "opaque g a;": "line 4: an opaque gate has no content",
    "OPENQASM 2.0;": "line 4: the version stands once",
    'include "other.inc";': 'line 4: include "other.inc": there is only "qelib1.inc"; paste the gate definitions',
    "include qelib1;": "line 4: include needs a file in quotes",
    'include "qelib1.inc;': 'line 4: " is a text in quotes that does not end on its line',
    "qreg q[2];": "line 4: q is declared twice",
    "qreg r[0];": r"line 4: r\[0\]: a circuit has 1 to 32767 qubits",
    "qreg r[40000];": r"line 4: r\[40000\]: a circuit has",
    "qreg r[99999999999];": "line 4: expected a register's size, a whole number below",
    "qreg r[1.5];": "line 4: expected a register's size, a whole number below .*, found 1.5",
    "gate g a { frob a; }": "line 4: there is no gate frob",
    "gate g a { g a; }": "line 4: there is no gate g",
    "gate g a { h b; }": "line 4: b is no wire of gate g, which has a",
    "gate g a { cx a,a; }": "line 4: cx is applied to one qubit twice",
    "gate g a,a { }": "line 4: gate g: a name stands twice in a, a",
    "gate g a { h a; } gate g a { }": "line 4: gate g is defined already in line 4",
    "gate U a { }": "line 4: gate U is defined already",
    "gate g a { h a;": "line 4: expected a gate, or } at the end of gate g, found the end of the file",
    "gate g a { h a[0]; }": r"line 4: expected ; at the end of the statement, found \[",
    "42;": "line 4: expected a statement, found 42",
    "h q[0]; @": "line 4: @ is no part of OpenQASM 2; comments begin with //",
    "h q[0]; \x00": "line 4: '.x00' is no part of OpenQASM 2",
    "h " + "q" * 5000 + ";": "line 4: q+ is no register",
}


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_a_bad_statement_is_refused_with_file_line_and_remedy(text):
    with pytest.raises(ConfigError, match=f"^my.qasm, {BAD[text]}") as raised:
        parse(HEAD + text, "my.qasm")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "",
            "line 1: the first statement has to be OPENQASM 2.0; or .*; but it begins with the end of the file",
        ),
        (
            "qreg q[1];",
            "line 1: the first statement has to be OPENQASM 2.0; or .*; but it begins with qreg",
        ),
        ("OPENQASM 1.0;", "line 1: OPENQASM 1.0 is not read: export the circuit as OpenQASM 2.0 or 3.0"),
        ("OPENQASM 2.0;", "my.qasm has no qubits: declare them"),
        ("OPENQASM 2.0; qreg q[1]; h q[0];", 'line 1: h is no gate yet: add include "qelib1.inc"; above'),
    ],
)
def test_a_file_without_its_frame_is_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        parse(text, "my.qasm")


def test_definitions_that_double_without_end_are_refused_before_memory_is(monkeypatch):
    monkeypatch.setattr("ddppo.domains.circuits.quantum.qasm_gates.MOST_CALLS", 10_000)
    lines = ["gate g0 a { }"] + [f"gate g{k} a {{ g{k - 1} a; g{k - 1} a; }}" for k in range(1, 60)]
    with pytest.raises(ConfigError, match="line 64: g59: the circuit has more than 10,000 gates"):
        parse(HEAD + "\n".join([*lines, "g59 q[0];"]))
    deep = ["gate g0 a { }"] + [f"gate g{k} a {{ g{k - 1} a; }}" for k in range(1, 2000)]
    with pytest.raises(ConfigError, match="definitions nest more than 100 deep"):
        parse(HEAD + "\n".join(deep))


def test_a_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "picture.qasm").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"picture\.qasm is no text"):
        read(tmp_path / "picture.qasm")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read(tmp_path / "missing.qasm")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read(tmp_path)
