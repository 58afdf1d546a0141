"""What ddppo wrote before its settings moved to what they set is read by the ddppo of today (tests/kept/make.py)."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from ddppo import load_policy
from ddppo.config import rules, stored
from ddppo.config.variants import owners_of
from tests.kept.make import EVALUATED_EPISODES, EXPORTED, HERE, RUNS, flat, parameters
from tests.support import door, summary

EXPECTED = json.loads((HERE / "expected.json").read_text())
PRESETS = json.loads((HERE / "presets.json").read_text())
NEW_NAMES: dict[str, str] = {"ppo.divide_by_std": "ppo.scale_by"}  # of settings that have another name by now
NEW_WORDS: dict[tuple[str, object], object] = {
    ("dist.topology", "env_workers_hetero"): "env_workers",
    ("ppo.divide_by_std", "True"): "group",
    ("ppo.divide_by_std", "False"): "none",
}  # of values
GONE = {"dist.max_world_size"}  # settings that nothing reads any more
ROUNDING = 1e-6  # another machine's vector instructions round the last digits of float64 otherwise


@pytest.fixture
def kept(tmp_path):
    """Return a copy of a kept run's folder, by the run's name."""

    def unpacked(name):
        with tarfile.open(HERE / f"{name}.tar.xz") as archive:
            archive.extractall(tmp_path / name, filter="data")
        return tmp_path / name

    return unpacked


@pytest.mark.quick_cases("mlp", "dict", "search", "async_actors")
@pytest.mark.parametrize("name", RUNS)
def test_a_run_goes_on_to_the_parameters_that_it_had_then(kept, name):
    run_dir, expected = kept(name), EXPECTED[name]
    result = door(f"resume={run_dir}", "log.progress=none", *expected["resumed_with"], run_dir=run_dir)
    assert result.code == 0, result.stderr
    assert summary(run_dir)["env_steps"] == expected["env_steps"]
    assert parameters(run_dir) == pytest.approx(expected["parameters"], rel=ROUNDING)


@pytest.mark.quick_cases("gym_vector", "gru", "search", "text")
@pytest.mark.parametrize("name", RUNS)
def test_a_policy_plays_the_episodes_that_it_played_then(kept, name):
    arguments = (f"run={kept(name)}", f"episodes={EVALUATED_EPISODES}", "json=true")
    result = door(*arguments, run_dir=kept(name), module="ddppo.evaluate")
    assert result.code == 0, result.stderr
    assert json.loads(result.stdout)["returns"] == pytest.approx(EXPECTED[name]["returns"], rel=ROUNDING)


def test_a_new_run_begins_with_a_policy_of_then(kept, tmp_path):
    settings = (
        "env=cartpole",
        "model.hidden_sizes=[8]",
        "dtype=float64",
        "ppo.total_steps=256",
        "log.progress=none",
    )
    quiet = ("log.tensorboard=false", "eval.final_episodes=0", f"init_from={kept('mlp')}")
    result = door(*settings, *quiet, run_dir=tmp_path / "new")
    assert result.code == 0, result.stderr


@pytest.mark.parametrize(("name", "format"), [(name, each) for name in EXPORTED for each in EXPORTED[name]])
def test_a_policy_as_a_file_acts_as_the_policy_in_its_run_folder(kept, name, format):
    run_dir, suffix = kept(name), {"onnx": "onnx", "torch": "pt2"}[format]
    policy, rng = load_policy(run_dir), np.random.default_rng(0)
    described = json.loads((run_dir / f"policy.{suffix}.json").read_text())
    given = {x["name"]: np.zeros((50, *x["shape"][1:]), x["dtype"]) for x in described["inputs"]}
    given["obs"][:] = rng.uniform(-2, 2, given["obs"].shape)
    if format == "onnx":
        runtime = pytest.importorskip("onnxruntime", reason="needs the extra export: pip install '.[export]'")
        session = runtime.InferenceSession(run_dir / "policy.onnx")
        (actions,) = session.run(["action"], given)
    else:
        program = torch.export.load(run_dir / "policy.pt2").module()
        actions = program({key: torch.from_numpy(x) for key, x in given.items()})["action"].numpy(force=True)
    np.testing.assert_array_equal(actions, policy(given["obs"]))
    assert set(actions.tolist()) == {0, 1}


def config_of(name: str, folder: Path) -> dict[str, object]:
    """Return the settings of a kept preset by their names, and write them as a run folder's config.yaml."""
    settings = PRESETS["default"] | PRESETS["presets"].get(name, {})
    nested: dict[str, dict[str, object] | object] = {}
    for key, value in settings.items():
        section, _, inner = key.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[inner] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(nested))
    return settings


@pytest.mark.parametrize("name", ["default", *PRESETS["presets"]])
def test_the_configuration_of_every_preset_is_read_with_all_that_it_set(name, tmp_path):
    then = config_of(name, tmp_path)
    config = stored.load_config(tmp_path / "config.yaml")
    rules.validate(config)
    now = flat(yaml.safe_load(stored.to_yaml(config)))
    for key, value in then.items():
        is_of_ppo = now["ppo.algorithm"] == "grpo" and owners_of("ppo", key.removeprefix("ppo.")) == ["ppo"]
        if key in PRESETS["presets"].get(name, {}) and key not in GONE and not is_of_ppo:
            assert now[NEW_NAMES.get(key, key)] == NEW_WORDS.get((key, str(value)), value), key
    (tmp_path / "config.yaml").write_text(stored.to_yaml(config))
    assert stored.load_config(tmp_path / "config.yaml") == config
