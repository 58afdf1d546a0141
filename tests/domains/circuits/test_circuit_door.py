import subprocess
import sys

import pytest

from ddppo.domains.circuits import commands
from ddppo.domains.circuits.commands import run
from ddppo.domains.circuits.quantum.benchmarks import benchmark
from ddppo.domains.circuits.quantum.qasm_reader import as_qasm, read
from ddppo.domains.circuits.quantum.rewriting import merged
from ddppo.errors import ConfigError, StorageError
from tests.support import CHECKOUT, PATIENCE_S


@pytest.fixture
def original(tmp_path):
    path = tmp_path / "tof_3.qasm"
    path.write_text(as_qasm(benchmark("tof_3")) + "creg c[5];\nmeasure q -> c;\n")
    return path


def test_a_circuit_is_merged_verified_and_shown(original, tmp_path, capsys):
    smaller = tmp_path / "smaller.qasm"
    assert run(["merge", str(original), f"out={smaller}"]) == 0
    said = capsys.readouterr()
    assert f"{original}: 45 gates (6 h, 0 x, 18 cx, 21 rz) on 5 qubits, depth 31" in said.out
    assert f"{smaller}: 39 gates (6 h, 0 x, 18 cx, 15 rz) on 5 qubits, depth 30" in said.out
    assert "equal up to a phase: all elements of the unitary" in said.out
    assert f"note: {original}, line 50: measurements at the end are left out" in said.err
    assert read(smaller).circuit == merged(benchmark("tof_3"))

    assert run(["verify", str(original), str(smaller)]) == 0
    assert run(["verify", "tof_3", str(smaller)]) == 0
    capsys.readouterr()
    assert run(["show", str(smaller), "width=60"]) == 0
    assert "q[4]  ─H──⊕" in capsys.readouterr().out
    picture = tmp_path / "picture.svg"
    assert run(["show", str(smaller), "format=svg", f"out={picture}"]) == 0
    assert picture.read_text().startswith("<svg")
    assert run(["show", "tof_3", "format=qasm"]) == 0
    assert capsys.readouterr().out == as_qasm(benchmark("tof_3"))


def test_circuits_that_differ_give_exit_code_1(capsys):
    assert run(["verify", "tof_3", "barenco_tof_3"]) == 1
    assert run(["verify", "tof_3", "tof_5"]) == 1
    said = capsys.readouterr().out
    assert "not equal: an element of the unitary differs by" in said
    assert "not equal: they have 5 and 9 qubits" in said


def test_a_merged_circuit_too_large_to_verify_is_written_and_said_so(tmp_path, capsys, monkeypatch):
    def full(*_, **__):
        raise ConfigError("the circuits differ on 60 qubits")

    monkeypatch.setattr("ddppo.domains.circuits.quantum.equivalence.verify", full)
    assert run(["merge", "tof_5", f"out={tmp_path / 's.qasm'}"]) == 0
    said = capsys.readouterr()
    assert "equal by construction, not verified" in said.out
    assert "warning: the circuits differ on 60 qubits" in said.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "nothing to do: ddppo-circuit is followed by one of verify, show, merge"),
        ("vrify a b", r"vrify \(did you mean verify.* is no verb"),
        ("verify tof_3", "verify compares two circuits, and 1 are given"),
        ("verify tof_3 tof_3 tof_3", "verify compares two circuits, and 3 are given"),
        ("show", "circuit= is missing"),
        ("show tof_33", "neither a file nor one of the benchmark circuits tof_3"),
        ("show no/such.qasm", "no/such.qasm cannot be read: No such file"),
        ("show tof_3 format=png", "format=png: must be one of text, svg, qasm"),
        ("show tof_3 width=2", "width=2: must be at least 20"),
        ("show tof_3 format=qasm width=50", "width=50 has no effect on format=qasm"),
        ("show tof_3 --format=svg", "options are key=value here"),
        ("merge tof_3", "out= is missing"),
    ],
)
def test_a_mistake_in_the_command_is_one_sentence(line, said):
    with pytest.raises(ConfigError, match=said) as raised:
        run(line.split())
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_written_is_a_fault(tmp_path):
    with pytest.raises(StorageError, match="cannot be written"):
        run(["merge", "tof_3", f"out={tmp_path / 'none' / 'x.qasm'}"])


def test_bad_input_ends_the_door_with_exit_code_2_and_no_torch_is_imported(tmp_path):
    (tmp_path / "bad.qasm").write_text("OPENQASM 2.0;\nqreg q[2];\nfrob q[0];\n")
    code = "import sys; from ddppo.domains.circuits.commands import main; main()"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code, "show", str(tmp_path / "bad.qasm")],
        cwd=CHECKOUT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    errors = [line for line in done.stderr.split("\n") if not line.startswith("import time")]
    assert errors[0].startswith(f"error: {tmp_path}/bad.qasm, line 3: there is no gate frob")
    assert " torch" not in done.stderr


def test_every_verb_has_help(capsys):
    assert run(["--help"]) == 0
    usage = capsys.readouterr().out
    assert all(f"ddppo-circuit {verb}" in usage for verb in commands.VERBS)
    for verb in commands.VERBS:
        with pytest.raises(SystemExit) as ended:
            run([verb, "--help"])
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(f"ddppo-circuit {verb}")
