"""Circuits, rules and runs that cannot be used, through every door that takes them: a sentence, exit code 2."""

import dataclasses
import hashlib
import json

import pytest

from ddppo.config import stored
from ddppo.config.settings import Config, EnvConfig
from ddppo.config.variants import settings_of
from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits.commands import run
from ddppo.domains.circuits.quantum.rules import PACKAGED
from ddppo.errors import ConfigError
from tests.conf.wrong_command_lines import Case, Playground

HEAD = 'OPENQASM 2.0;\ninclude "qelib1.inc";\nqreg q[3];\ncreg c[3];\n'
WRONG = {
    "unknown.qasm": (HEAD + "h q[0];\nfrob q[0];\n", "unknown.qasm, line 6: there is no gate frob"),
    "syntax.qasm": (HEAD + "cx q[0] q[1];\n", "syntax.qasm, line 5: "),
    "middle.qasm": (HEAD + "measure q[0] -> c[0];\nh q[0];\n", "middle.qasm, line 6: "),
    "wires.qasm": (HEAD + "cx q[0],q[3];\n", "wires.qasm, line 5: "),
    "version.qasm": ("OPENQASM 4.0;\nqubit q;\n", "version.qasm, line 1: "),
    "loop.qasm": ("OPENQASM 3.0;\nqubit q;\nfor int i in [0:3] { }\n", "loop.qasm, line 3: for: loops "),
    "empty.qasm": (HEAD, "it has no gates, so there is nothing to "),
    "none.qasm": (None, "none.qasm cannot be read: No such file"),
    "tof_33": (None, "tof_33 (did you mean tof_3"),
}
RULES = {
    "false.rules": ("x 0; rz(a) 0 -> rz(a) 0; x 0", "is not true, its sides differ by"),
    "broken.rules": ("x 0; rz(a", "line 2: "),
    "older.rules": ("", "its version is 0, and this program reads version 1"),
}


@pytest.fixture(scope="module")
def playground(tmp_path_factory):
    playground = Playground(tmp_path_factory.mktemp("playground"))
    for name, (text, _) in WRONG.items():
        if text is not None:
            (playground.root / name).write_text(text)
    write_rules(playground.root)
    return playground


def write_rules(folder):
    """Write files of rules that are whole by their first line, but of one rule that cannot be, or another version."""
    first = PACKAGED.read_text().split("\n", 1)[0]
    for name, (line, _) in RULES.items():
        body = f"{line}\n"
        header = {**json.loads(first), "rules": 1, "sha256": hashlib.sha256(body.encode()).hexdigest()}
        header["version"] = 0 if name == "older.rules" else 1
        (folder / name).write_text(f"{json.dumps(header)}\n{body}")


@pytest.mark.parametrize("name", WRONG)
def test_a_circuit_that_cannot_be_trained_on_is_one_paragraph(playground, name):
    faults, answer = playground.faults(Case("train", ("env=circuit", f"env.circuit={name}"), ""))
    assert not faults, answer
    assert WRONG[name][1] in answer


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("verb", ["show", "merge", "optimise", "verify", "replay"])
def test_and_so_it_is_by_every_verb(playground, monkeypatch, verb, name):
    if name == "empty.qasm" and verb != "optimise":  # which is a circuit to all but those who rewrite
        return
    monkeypatch.chdir(playground.root)
    more = {"verify": ["tof_3"], "replay": ["x.json"], "show": []}.get(verb, ["out=x.qasm"])
    with pytest.raises(ConfigError) as raised:
        run([verb, name, *more])
    assert WRONG[name][1] in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (playground.root / "x.qasm").exists()


@pytest.mark.parametrize("name", RULES)
def test_rules_that_are_not_true_are_refused_by_training_and_by_optimising(playground, monkeypatch, name):
    case = Case("train", ("env=circuit", f"env.rules={name}"), "")
    faults, answer = playground.faults(case)
    assert not faults, answer
    monkeypatch.chdir(playground.root)
    with pytest.raises(ConfigError, match=f"rules={name}") as raised:
        run(["optimise", "tof_3", "out=x.qasm", f"rules={name}"])
    assert RULES[name][1] in str(raised.value)
    assert str(raised.value) in " ".join(answer.split())


def a_run(folder, env_id="ddppo/Circuit-v0", model="gnn", **kwargs):
    config = Config(env=EnvConfig(id=env_id, kwargs=kwargs))
    config = dataclasses.replace(config, model=settings_of("model", name=model))
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(stored.to_yaml(config))
    return folder


@pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))
@pytest.mark.parametrize(
    ("run_of", "more", "said"),
    [
        ({"env_id": "CartPole-v1"}, [], "it was trained on CartPole-v1, and only a run of env=circuit knows"),
        ({"model": "mlp"}, [], "its model mlp takes circuits of one size alone: use a run with model=pairs"),
        ({}, [], "has no checkpoint yet"),
        ({}, ["checkpoint=best"], "checkpoint=best: .*best.pt does not exist"),
        ({}, ["bias=1"], "bias=1 has no effect with run="),
        ({}, ["rules={own}"], "its rules are not those that run="),
    ],
)
def test_a_run_whose_policy_cannot_act_is_refused(tmp_path, run_of, more, said):
    own = tmp_path / "own.rules"
    run(["rules", f"out={own}", "spaces=1:2:h+x", "steps=1"])
    folder = a_run(tmp_path / "run", **run_of)
    with pytest.raises(ConfigError, match=said):
        run(
            [
                "optimise",
                "tof_3",
                f"out={tmp_path / 'x'}",
                f"run={folder}",
                *(m.format(own=own) for m in more),
            ]
        )


def wide(folder, num_qubits):
    """Return the path of a circuit of rotations that cancel, on wires that nothing takes apart."""
    pairs = [(q, (q + 1) % num_qubits) for q in range(num_qubits)]
    body = "".join(f"t q[{a}];\ncx q[{a}],q[{b}];\ntdg q[{a}];\n" for a, b in pairs)
    path = folder / "wide.qasm"
    path.write_text(f'OPENQASM 2.0;\ninclude "qelib1.inc";\nqreg q[{num_qubits}];\n{body}')
    return path


@pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))
@pytest.mark.parametrize(
    ("num_qubits", "said"),
    [
        (13, "agree to 1e-10 on the 13 qubits where gates differ"),
        (45, "not compared as a whole: the circuits differ on 45 qubits: their states need"),
    ],
)
def test_of_many_qubits_it_is_said_how_far_the_result_is_verified(tmp_path, capsys, num_qubits, said):
    out = tmp_path / "x.qasm"
    command = ["optimise", str(wide(tmp_path, num_qubits)), f"out={out}", "steps=20", "workers=1"]
    assert run(command) == 0
    assert said in capsys.readouterr().out
    assert out.exists()
