"""A task that needs memory is learned with one, and cannot be without."""

import pytest

from tests.support import door, lines, summary

RECALL = [
    "env=gym", "env.id=tests.unit.remembering:tests/Recall-v0", "env.num_envs=16", "ppo.rollout_steps=32",
    "ppo.num_minibatches=4", "ppo.num_epochs=4", "ppo.learning_rate=3e-3", "ppo.entropy_coef=0.01",
    "eval.final_episodes=100", "log.tensorboard=false", "log.progress=none",
]  # fmt: skip


@pytest.mark.quick_cases("gru")
@pytest.mark.parametrize("model", ["lstm", "gru"])
def test_what_was_seen_4_steps_ago_is_recalled(tmp_path, model):
    """Seed 0, 20,000 steps, 100 deterministic episodes; whoever cannot remember is worth 0 in the mean."""
    memory = [f"model={model}", "model.memory_size=32", "ppo.total_steps=20000"]
    result = door(*RECALL, *memory, run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    assert summary(tmp_path / "run")["eval"]["final"]["return_mean"] == 1


def test_without_memory_nothing_is_recalled(tmp_path):
    result = door(*RECALL, "ppo.total_steps=5120", run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    assert abs(summary(tmp_path / "run")["eval"]["final"]["return_mean"]) < 0.5


@pytest.mark.parametrize("model", ["lstm", "gru"])
def test_rows_learned_from_in_cpp_lead_where_torchs_do(tmp_path, model):
    """Ten steps of the optimizer in float64: what of it goes through C++ differs by rounding alone."""
    said = []
    for compile_, recurrence in (("off", "torch"), ("auto", "C++")):
        run_dir = tmp_path / compile_
        settings = (f"model={model}", f"compile={compile_}", "dtype=float64", "ppo.total_steps=1024")
        result = door(*RECALL, *settings, "eval.final_episodes=0", run_dir=run_dir)
        assert result.code == 0, result.stderr
        assert summary(run_dir)["derived"]["recurrence"] == recurrence
        said.append(lines(run_dir)[-1])
    for name in ("train/value_loss", "train/approx_kl", "train/entropy", "train/grad_norm"):
        assert said[0][name] == pytest.approx(said[1][name], rel=1e-9)
