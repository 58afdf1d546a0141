"""Learning from pixels: convolutions, in both precisions, on one rank and two; residual ones; an encoder by shape."""

import pytest

from tests.support import door, summary

WHICH_SIDE = [
    "env=gym", "env.id=tests.learning.pixel_task:WhichSide-v0", "env.backend=sync",
    "model.hidden_sizes=[32]", "ppo.rollout_steps=64",
    "ppo.learning_rate=0.002", "ppo.gamma=0", "ppo.total_steps=12000", "eval.final_episodes=20", "seed=0",
    "log.tensorboard=false", "log.progress=none",
]  # fmt: skip


CNN = ["model=cnn", "model.conv_layers=[[8,3,2],[16,3,1]]"]
MODELS = {
    "bfloat16": [*CNN, "model.precision=bfloat16"],
    "two ranks": [*CNN, "dist.world_size=2"],
    "residual": ["model=resnet", "model.resnet_channels=[8,8]"],
    "by shape": ["model=dict", CNN[1], "model.image_features=32"],
}


@pytest.mark.quick_cases("by shape")
@pytest.mark.parametrize("model", MODELS)
def test_a_model_of_pixels_learns_on_which_side_a_square_is_within_12_000_steps(tmp_path, model):
    """Seed 0, 20 deterministic episodes of 16 steps; random play returns 8."""
    result = door(*WHICH_SIDE, *MODELS[model], run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    assert summary(tmp_path / "run")["eval"]["final"]["return_mean"] >= 15
