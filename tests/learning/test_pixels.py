"""Learning from pixels: convolutions, in both precisions, on one rank and two."""

import pytest

from tests.support import door, summary

WHICH_SIDE = [
    "env=gym", "env.id=tests.learning.pixel_task:WhichSide-v0", "env.backend=sync", "model=cnn",
    "model.conv_layers=[[8,3,2],[16,3,1]]", "model.hidden_sizes=[32]", "ppo.rollout_steps=64",
    "ppo.learning_rate=0.002", "ppo.gamma=0", "ppo.total_steps=12000", "eval.final_episodes=20", "seed=0",
    "log.tensorboard=false", "log.progress=none",
]  # fmt: skip


@pytest.mark.parametrize("more", [["model.precision=bfloat16"], ["dist.world_size=2"]])
def test_a_cnn_learns_on_which_side_a_square_is_within_12_000_steps(tmp_path, more):
    """Seed 0, 20 deterministic episodes of 16 steps; random play returns 8."""
    result = door(*WHICH_SIDE, *more, run_dir=tmp_path / "run", timeout_s=240)
    assert result.code == 0, result.stderr
    assert summary(tmp_path / "run")["eval"]["final"]["return_mean"] >= 15
