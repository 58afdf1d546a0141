"""DQN and SAC learn, with the presets that users get, and from pixels."""

import json
import sys

import pytest

from tests.support import door, run, summary

QUIET = ["log.tensorboard=false", "log.progress=none"]


def score(run_dir, *arguments):
    result = door(*arguments, *QUIET, run_dir=run_dir)
    assert result.code == 0, result.stderr
    return summary(run_dir)["eval"]["final"]["return_mean"]


@pytest.mark.slow
def test_dqn_balances_the_cart_pole(tmp_path):
    """The preset, seed 0, 50,000 of its 100,000 steps, the best of five evaluations; random play scores about 22."""
    score(tmp_path / "run", "env=cartpole", "algorithm=dqn", "algorithm.total_steps=50000")
    played = run(
        [
            sys.executable,
            "-m",
            "ddppo.evaluate",
            str(tmp_path / "run"),
            "checkpoint=best",
            "seed=1000",
            "json=true",
        ],
        tmp_path / "run",
    )
    assert json.loads(played.stdout)["return_mean"] >= 475


@pytest.mark.slow
def test_sac_swings_the_pendulum_up(tmp_path):
    """The preset, seed 0, 8,000 of its 20,000 steps, 100 deterministic episodes; random play scores about -1,200."""
    assert score(tmp_path / "run", "env=pendulum", "algorithm=sac", "algorithm.total_steps=8000") >= -180


def test_dqn_learns_from_pixels_on_which_side_a_square_is(tmp_path):
    """Seed 0, 8,000 steps, 20 deterministic episodes of 16 steps; random play returns 8."""
    arguments = [
        "env=gym", "env.id=tests.learning.pixel_task:WhichSide-v0", "env.backend=sync", "model=cnn",
        "model.conv_layers=[[8,3,2],[16,3,1]]", "algorithm=dqn", "model.hidden_sizes=[32]", "algorithm.gamma=0",
        "algorithm.n_step=1", "algorithm.total_steps=8000", "algorithm.learning_starts=500",
        "algorithm.updates_per_step=0.1", "algorithm.batch_size=64", "eval.final_episodes=20",
    ]  # fmt: skip
    assert score(tmp_path / "run", *arguments) >= 15
