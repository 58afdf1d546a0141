"""The task keeps Gymnasium's rules, and both networks learn it on two workers."""

import json
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import my_project.envs
import pytest
from gymnasium.utils.env_checker import check_env

PROJECT = Path(__file__).parents[1]


def test_the_task_is_an_environment():
    check_env(my_project.envs.Reach(), skip_render_check=True)
    assert gym.make("Reach-v0").spec.max_episode_steps == 50


@pytest.mark.parametrize("model", ["mlp", "my_project"])
def test_two_workers_learn_it(model, tmp_path):
    settings = ["env=my_project", f"model={model}", "dist.world_size=2", f"hydra.run.dir={tmp_path}/run"]
    command = [sys.executable, "-m", "ddppo.train", "--config-dir", "conf", *settings, "log.progress=none"]
    subprocess.run(command, cwd=PROJECT, check=True)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["eval"]["final"]["return_mean"] > -10  # who never pushes gets -33
