"""The task keeps Gymnasium's rules, C++ and Python agree, and networks and algorithms learn the task on two workers."""

import json
import subprocess
import sys

import pytest
from gymnasium.utils.env_checker import check_env
from my_project import physics
from my_project.envs import Reach


def test_the_task_is_an_environment():
    check_env(Reach(), skip_render_check=True)


def test_cpp_and_python_agree_to_the_bit():
    if physics.in_cpp() is None:
        pytest.skip("there is no C++ compiler")
    for push in (-0.05, 0.0, 0.05):
        assert physics.moved(0.3, -0.2, push) == physics.moved_in_python(0.3, -0.2, push)


@pytest.mark.parametrize(
    ("model", "algorithm"), [("mlp", "ppo"), ("my_project", "ppo"), ("my_project", "my_project")]
)
def test_two_workers_learn_it(model, algorithm, tmp_path):
    run = tmp_path / "run"
    settings = [
        "env=my_project",
        f"model={model}",
        f"algorithm={algorithm}",
        "dist.world_size=2",
        f"hydra.run.dir={run}",
    ]
    subprocess.run([sys.executable, "-m", "ddppo.train", *settings, "log.progress=none"], check=True)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["eval"]["final"]["return_mean"] > -10  # without a push it is -33
    shown = subprocess.run([sys.executable, "-m", "my_project", str(run)], check=True, capture_output=True)
    assert len(shown.stdout.splitlines()) == 50
