"""Tasks as a user names them are trained on, evaluated, and saved exactly, with nothing else said."""

import importlib.util
import json

import pytest

from tests.support import TINY, door
from tests.unit.box2d import BOX2D

SMALL = ("env.num_envs=4", "ppo.rollout_steps=16", "ppo.num_minibatches=4", "ppo.total_steps=128")
TASKS = {
    "a Tuple": ("env=gym", "env.id=Blackjack-v1"),
    "a number of a place": ("env=gym", "env.id=FrozenLake-v1"),
    "tmaze": ("env=tmaze", "env.length=3"),
    "cartpole_masked": ("env=cartpole_masked",),
    "bipedal": ("env=bipedal",),
    "minigrid": ("env=minigrid",),
    "popgym": ("env=popgym",),
}


@pytest.mark.parametrize("name", TASKS)
def test_it_trains_is_evaluated_and_says_nothing(tmp_path, name):
    is_there = BOX2D if name == "bipedal" else importlib.util.find_spec(name) is not None
    if name in ("bipedal", "minigrid", "popgym") and not is_there:
        pytest.skip(f"needs the extra of {name}")
    done = door(*TINY, *TASKS[name], *SMALL, "eval.final_episodes=2", run_dir=tmp_path)
    assert (done.code, done.stderr) == (0, "")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["env_steps"] == 128
    assert summary["eval"]["final"]["episodes"] == 2
