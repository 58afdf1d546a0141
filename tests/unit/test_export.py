"""Policies as files that act the same without ddppo: `ddppo.export`."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from ddppo import load_policy
from ddppo.errors import ConfigError, TrainingError
from ddppo.policies.export import command
from ddppo.policies.export.check import check, inputs_of, observed
from ddppo.policies.export.command import ExportConfig, export
from ddppo.policies.export.files import FORMATS, written
from ddppo.policies.export.portable import Portable
from tests.support import CHECKOUT, PATIENCE_S
from tests.unit.policy_tasks import run_folder

EVERY = {
    "ChosenEnv": {"layer_norm": True},
    "MaskedEnv": {},
    "BitsEnv": {},
    "FarEnv": {"mean": 1e8},
    "BoundedEnv": {"log_std_init": -3.0},
    "WholeEnv": {"dtype": "float64"},
    "PixelsEnv": {"name": "cnn", "conv_layers": [[4, 8, 4]], "activation": "relu", "normalized": False},
    "tests.unit.seen_tasks:seen/Mixed-v0": {"name": "tests.unit.seen_tasks:Looking"},
    "lstm": {"task": "MaskedEnv", "memory": "lstm", "memory_size": 8},
    "gru": {
        "task": "PixelsEnv", "name": "cnn", "conv_layers": [[4, 8, 4]], "activation": "relu", "normalized": False,
        "memory": "gru", "memory_size": 8, "memory_layers": 2,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder_of(name):
        if name not in made:
            made[name] = run_folder(tmp_path_factory.mktemp("run"), **{"task": name, **EVERY[name]})
        return made[name]

    return folder_of


def onnx_needed():
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="needs the extra export: pip install '.[export]'")


def tried(folder, format):
    """Write the file, check it, and return the policy, what runs it, and its inputs."""
    policy = load_policy(folder)
    portable = Portable(policy.trained.policy, policy.observation_space, policy.action_space)
    inputs, rows = inputs_of(policy, portable, observed(policy, 0))
    run = FORMATS[format].load(written(portable, format, inputs))
    return policy, run, inputs, rows


@pytest.mark.parametrize("name", EVERY)
def test_a_torch_file_does_what_the_policy_does(folders, name):
    policy, run, inputs, rows = tried(folders(name), "torch")
    agreement = check(policy, run, inputs, rows)
    assert agreement.largest_difference < 1e-4
    assert all(policy.action_space.contains(action) for action in agreement.outputs["action"])


@pytest.mark.parametrize(
    "name", ["ChosenEnv", *(pytest.param(name, marks=pytest.mark.slow) for name in ("PixelsEnv", "gru"))]
)
def test_an_onnx_file_does_what_the_policy_does(folders, name):
    onnx_needed()
    policy, run, inputs, rows = tried(folders(name), "onnx")
    agreement = check(policy, run, inputs, rows)
    assert agreement.largest_difference < 1e-4
    assert all(policy.action_space.contains(action) for action in agreement.outputs["action"])


def test_a_file_that_remembers_what_was_before_an_episode_is_refused(folders):
    """So is one whose memory fades: it is tried over several steps, in some of which episodes start."""
    policy, run, inputs, rows = tried(folders("lstm"), "torch")
    assert inputs["state"].shape == (len(rows), 16)
    last = [inputs["state"]]

    def remembering(given):
        state = given["state"]
        is_start = ~state.any(axis=1, keepdims=True)
        found = run({**given, "state": np.where(is_start, last[0][: len(state)], state)})
        last[0] = found["next_state"] if len(state) > 1 else last[0]
        return found

    with pytest.raises(TrainingError, match="is not the policy: its logits of observation"):
        check(policy, remembering, inputs, rows)
    with pytest.raises(TrainingError, match="is not the policy: its next_state of observation"):
        check(
            policy,
            lambda given: (found := run(given)) | {"next_state": 0.9 * found["next_state"]},
            inputs,
            rows,
        )


@pytest.mark.parametrize("output", ["logits", "action"])
def test_a_file_that_is_not_the_policy_is_refused(folders, output):
    policy, run, inputs, rows = tried(folders("ChosenEnv"), "torch")

    def wrong(given):
        found = run(given)
        found[output][-1:] += 1
        return found

    with pytest.raises(TrainingError, match=f"its {output} of observation .* more than rounding"):
        check(policy, wrong, inputs, rows)


def test_files_name_no_folder_of_the_machine_that_wrote_them(folders):
    policy = load_policy(folders("BitsEnv"))
    portable = Portable(policy.trained.policy, policy.observation_space, policy.action_space)
    inputs, _ = inputs_of(policy, portable, observed(policy, 0))
    assert str(CHECKOUT).encode() not in written(portable, "torch", inputs)


@pytest.mark.parametrize(
    ("format", "memory", "sign"),
    [
        ("onnx", "none", 'run(["action"]'),
        ("onnx", "lstm", 'run(["action", "next_state"]'),
        pytest.param("torch", "none", "torch.export.load", marks=pytest.mark.slow),
    ],
)
def test_the_lines_of_the_page_use_the_file_without_ddppo(tmp_path, format, memory, sign):
    if format == "onnx":
        onnx_needed()
    out = tmp_path / {"onnx": "policy.onnx", "torch": "policy.pt2"}[format]
    run = run_folder(tmp_path / "run", "CartPole-v1", log_std_init=-1.0, memory=memory)
    said = export(ExportConfig(run=str(run), format=format, out=str(out)))
    assert "checked  on 192 observations, real and drawn: the same actions" in said
    described = json.loads((tmp_path / f"{out.name}.json").read_text())
    state = [{"name": "state", "dtype": "float32", "shape": ["n", 256]}] if memory == "lstm" else []
    assert described["inputs"] == [{"name": "obs", "dtype": "float32", "shape": ["n", 4]}, *state]
    outputs = ["action", "logits", "next_state"][: 2 + len(state)]
    assert [output["name"] for output in described["outputs"]] == outputs
    page = (CHECKOUT / "docs" / "policies.md").read_text()
    (code,) = [snippet for snippet in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if sign in snippet]
    code += "\nimport sys; assert 'ddppo' not in sys.modules; print('done')"
    command = [sys.executable, "-I", "-c", code]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.stdout == "done\n", result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"out": "policy.pt"}, r"a file of format=torch ends in \.pt2"),
        ({"run": "/no/such/run"}, "not a run folder"),
        ({"checkpoint": "best"}, r"best\.pt does not exist"),
    ],
)
def test_a_mistake_is_a_sentence(folders, options, said):
    with pytest.raises(ConfigError, match=said):
        export(ExportConfig(**{"run": str(folders("BitsEnv")), "format": "torch", **options}))


def test_beside_a_file_stands_which_number_is_which_mission(tmp_path):
    pytest.importorskip("minigrid", reason="needs the extra minigrid: pip install '.[minigrid]'")
    model = {"name": "dict", "image_layout": "hwc"}
    run = run_folder(tmp_path, "MiniGrid-GoToDoor-5x5-v0", normalized=False, **model)
    export(ExportConfig(str(run), format="torch"))
    missions = json.loads((run / "policy.pt2.json").read_text())["missions"]
    assert missions == load_policy(run).observation_space["mission"].sentences
    assert missions[0].startswith("go to the ")


def test_without_the_packages_of_onnx_they_are_named(folders, monkeypatch):
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"format=onnx needs packages that are not installed: pip install .*onnxscript"
    ):
        export(ExportConfig(str(folders("BitsEnv"))))


def test_a_model_that_cannot_be_traced_is_named(tmp_path, monkeypatch):
    run = run_folder(tmp_path, "BitsEnv")
    monkeypatch.setattr(
        "ddppo.models.actor_critic.MLP.portable_params",
        lambda self, obs: torch.zeros(len(obs), int(obs.sum())),
    )
    with pytest.raises(ConfigError, match=r"model\.name=mlp does what no such file holds"):
        export(ExportConfig(str(run), format="torch"))
    assert [path.name for path in tmp_path.glob("policy*")] == []
