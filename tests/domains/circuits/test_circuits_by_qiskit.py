"""What is computed of circuits here, by qiskit: rules, gates, files. Needs the extra circuits."""

import random
import re

import pytest

from ddppo.domains.circuits.quantum import CX, RZ, H
from ddppo.domains.circuits.quantum.benchmarks import BENCHMARKS, benchmark
from ddppo.domains.circuits.quantum.circuit import TURN, radians
from ddppo.domains.circuits.quantum.gate_sets import GATE_SETS
from ddppo.domains.circuits.quantum.qasm_gates import TEXT
from ddppo.domains.circuits.quantum.qasm_reader import as_qasm, parse
from ddppo.domains.circuits.quantum.rules import packaged
from ddppo.domains.circuits.quantum.rules import parse as rule_of
from tests.domains.circuits.circuit_oracle import EIGHTHS, random_circuit

qiskit = pytest.importorskip("qiskit", reason="needs the extra circuits: pip install '.[circuits]'")
library = pytest.importorskip(
    "qiskit.circuit.library", reason="needs the extra circuits: pip install '.[circuits]'"
)
information = pytest.importorskip(
    "qiskit.quantum_info", reason="needs the extra circuits: pip install '.[circuits]'"
)


def of_gates(num_qubits, gates):
    """Return qiskit's operator of (kind, wires, angle) in our units."""
    circuit = qiskit.QuantumCircuit(num_qubits)
    for kind, wires, angle in gates:
        if kind == RZ:
            circuit.rz(radians(angle), *wires)
        else:
            (circuit.h if kind == H else circuit.cx if kind == CX else circuit.x)(*wires)
    return information.Operator(circuit)


def is_equal(rule, rng):
    """Return whether both sides are equal up to phase at random angles, by qiskit."""
    values = [rng.randrange(TURN) for _ in range(4)]
    source, target = (
        of_gates(rule.num_wires, [(gate.kind, gate.wires, gate.angle.at(values)) for gate in gates])
        for gates in rule
    )
    return source.equiv(target)


def test_every_rule_of_the_package_is_equal_by_qiskit_at_random_angles():
    rng = random.Random(0)
    rules = packaged().rules
    assert len(rules) > 1_900
    assert [str(rule) for rule in rules if not is_equal(rule, rng)] == []


def test_qiskit_finds_a_rule_that_is_false_at_all_angles_but_some():
    rng = random.Random(0)
    assert is_equal(rule_of("x 0; rz(a) 0 -> rz(-a) 0; x 0"), rng)
    assert not is_equal(rule_of("x 0; rz(a) 0 -> rz(a) 0; x 0"), rng)
    assert not is_equal(rule_of("rz(a) 0; cx 0 1 -> cx 0 1; rz(a) 1"), rng)


GATES = [
    (name, len(parameters.split(",")) if parameters else 0, len(wires.split(",")))
    for name, parameters, wires in re.findall(r"^gate (\w+)(?:\(([\w,]*)\))? ([\w,]+) \{", TEXT, re.M)
]


def test_every_gate_of_the_library_is_one_of_qiskits_but_for_u0():
    assert len(GATES) > 30
    assert {name for name, _, _ in GATES} - set(library.get_standard_gate_name_mapping()) == {"u0"}


@pytest.mark.parametrize(("name", "num_parameters", "num_wires"), [gate for gate in GATES if gate[0] != "u0"])
def test_a_gate_is_read_as_what_qiskit_makes_of_it(name, num_parameters, num_wires):
    rng = random.Random(name)
    parameters = [rng.uniform(-3, 3) for _ in range(num_parameters)]
    wires = rng.sample(range(4), num_wires)
    theirs = qiskit.QuantumCircuit(4)
    theirs.append(library.get_standard_gate_name_mapping()[name].base_class(*parameters), wires)
    call = f"{name}({','.join(map(str, parameters))})" if parameters else name
    on = ",".join(f"q[{wire}]" for wire in wires)
    ours = parse(f'OPENQASM 2.0;\ninclude "qelib1.inc";\nqreg q[4];\n{call} {on};\n').circuit
    assert of_gates(4, ours.gates()).equiv(information.Operator(theirs))


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if benchmark(name).num_qubits <= 10])
def test_a_file_that_is_written_is_read_by_qiskit_as_the_circuit_that_it_is(name):
    circuit = benchmark(name)
    theirs = qiskit.QuantumCircuit.from_qasm_str(as_qasm(circuit))
    assert theirs.size() == len(circuit)
    assert information.Operator(theirs).equiv(of_gates(circuit.num_qubits, circuit.gates()))


def test_random_circuits_that_qiskit_exports_in_openqasm_3_are_read_as_what_they_are():
    at_random = pytest.importorskip("qiskit.circuit.random").random_circuit
    export = pytest.importorskip("qiskit.qasm3").dumps
    for seed in range(30):
        theirs = at_random(4, 6, max_operands=3, seed=seed)
        ours = parse(export(theirs)).circuit
        assert of_gates(4, ours.gates()).equiv(information.Operator(theirs)), seed


@pytest.mark.parametrize("name", GATE_SETS)
def test_what_is_written_in_a_gate_set_is_read_by_qiskit_as_the_circuit_that_it_is(name):
    rng = random.Random(0)
    for _ in range(15):
        circuit = random_circuit(rng, 3, 25, EIGHTHS)
        theirs = qiskit.QuantumCircuit.from_qasm_str(as_qasm(circuit, GATE_SETS[name]))
        assert set(theirs.count_ops()) <= set(GATE_SETS[name].gates)
        assert theirs.size() == len(GATE_SETS[name].of(circuit))
        assert information.Operator(theirs).equiv(of_gates(3, circuit.gates()))
