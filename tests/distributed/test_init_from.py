"""A new run that begins with the parameters and normalisers of another, and what is said of those that do not fit."""

import pytest
import torch

from tests.support import TINY, door, lines

SIZES = [
    "env=pendulum",
    "env.num_envs=4",
    "ppo.rollout_steps=32",
    "ppo.num_minibatches=2",
    "ppo.total_steps=256",
]
NORMALIZED = ["ppo.normalize_obs=true", "ppo.normalize_rewards=true"]
STILL = ["ppo.learning_rate=1e-30"]  # what a run begins with is what it ends with


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("source") / "run"
    result = door(*TINY, *SIZES, *NORMALIZED, run_dir=run_dir)
    assert result.code == 0, result.stderr
    return run_dir


def begun(run_dir, *arguments):
    result = door(*TINY, *SIZES, *arguments, *STILL, run_dir=run_dir)
    assert result.code == 0, result.stderr
    return result


def last(run_dir):
    return torch.load(max((run_dir / "checkpoints").glob("iteration_*.pt")), weights_only=True)


@pytest.mark.parametrize("world_size", [1, 2])
def test_parameters_and_normalisers_are_those_of_the_other_run_and_nothing_else_is(
    source, tmp_path, world_size
):
    result = begun(
        tmp_path / "run", f"init_from={source}", *NORMALIZED, "seed=5", f"dist.world_size={world_size}"
    )
    assert "init_from" not in result.stderr
    before, after = last(source), last(tmp_path / "run")
    for name, x in before["model"].items():
        assert torch.equal(x, after["model"][name]), name
    assert after["obs_moments"][0, 0] == before["obs_moments"][0, 0] + 256
    assert after["return_moments"][0] == before["return_moments"][0] + 256
    assert lines(tmp_path / "run")[0]["iteration"] == 1


def test_a_checkpoint_may_be_named_and_what_does_not_fit_is_said(source, tmp_path):
    path = max((source / "checkpoints").glob("iteration_*.pt"))
    result = begun(
        tmp_path / "run", f"init_from={path}", "model.hidden_sizes=[64,32]", "ppo.normalize_rewards=false"
    )
    assert f"warning: init_from={path}: 7 of 13 parameters are taken; what does not fit: " in result.stderr
    assert "[64, 64], here [32, 64]" in result.stderr
    assert "return_moments, which ppo.normalize_rewards=false has no use for" in result.stderr
    before, after = last(source)["model"], last(tmp_path / "run")["model"]
    fits = [name for name in before if before[name].shape == after[name].shape]
    assert 0 < len(fits) < len(before)
    for name in fits:
        assert torch.equal(before[name], after[name]), name


def test_a_run_that_goes_on_keeps_its_own_parameters(source, tmp_path):
    run_dir = tmp_path / "run"
    how = [*TINY, *SIZES, f"init_from={source}", "resume=auto"]
    first = door(*how, "ppo.total_steps=128", run_dir=run_dir)
    assert first.code == 0, first.stderr
    halfway = last(run_dir)["optimizer"]["state"][0]["step"].item()
    again = door(*how, run_dir=run_dir)
    assert again.code == 0, again.stderr
    assert last(run_dir)["optimizer"]["state"][0]["step"].item() == 2 * halfway
    assert [line["iteration"] for line in lines(run_dir)] == [1, 2]
