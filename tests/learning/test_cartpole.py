"""Learning itself, with the preset and seed that users get."""

import pytest

from tests.support import door, lines, summary


@pytest.mark.slow
def test_cartpole_reaches_400_within_60_000_steps(tmp_path):
    """One rank, seed 0, the tuned preset, 60,000 steps, 20 deterministic episodes; random play scores about 22."""
    arguments = [
        "env=cartpole",
        "ppo.total_steps=60000",
        "eval.final_episodes=20",
        "seed=0",
        "log.tensorboard=false",
    ]
    result = door(*arguments, "log.progress=none", run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    assert summary(tmp_path / "run")["eval"]["final"]["return_mean"] >= 400
    first, last = lines(tmp_path / "run")[0], lines(tmp_path / "run")[-1]
    assert last["rollout/return_mean"] > 4 * first["rollout/return_mean"]


def test_groups_lift_cartpole_from_20_to_more_than_400(tmp_path):
    """GRPO, one rank, seed 0, its preset with 64 environments, 150,000 steps, 20 deterministic episodes: 3 seconds."""
    arguments = [
        "env=cartpole",
        "ppo=grpo",
        "env.num_envs=64",
        "ppo.total_steps=150000",
        "eval.final_episodes=20",
    ]
    result = door(*arguments, "log.tensorboard=false", "log.progress=none", run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    assert lines(tmp_path / "run")[0]["rollout/group_return_mean"] < 30
    assert summary(tmp_path / "run")["eval"]["final"]["return_mean"] >= 400


@pytest.mark.parametrize(
    "where",
    [
        ["seed=0"],
        pytest.param(["seed=1", "distributed=sync_actors", "dist.world_size=3"], marks=pytest.mark.slow),
        pytest.param(["seed=2", "distributed=async_actors", "dist.world_size=3"], marks=pytest.mark.slow),
    ],
    ids=["one process", "sync_actors", "async_actors"],
)
def test_reinforce_reaches_475_within_200_000_steps(where, tmp_path):
    """Its preset, 100 deterministic episodes: 4 seconds in one process."""
    arguments = ["env=cartpole", "algorithm=reinforce", *where, "log.tensorboard=false", "log.progress=none"]
    result = door(*arguments, run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    assert summary(tmp_path / "run")["eval"]["final"]["return_mean"] >= 475


@pytest.mark.slow
def test_cartpole_reaches_475_where_a_rank_of_four_is_10_times_slower_and_nobody_waits_for_it(tmp_path):
    """distributed=ddp_preempt, seed 0, the tuned preset, 80,000 steps, 20 deterministic episodes."""
    arguments = [
        "env=cartpole",
        "distributed=ddp_preempt",
        "env.slow_ranks={0: 0.0005, 1: 0.0005, 2: 0.0005, 3: 0.005}",
        "ppo.total_steps=80000",
        "eval.final_episodes=20",
    ]
    result = door(*arguments, "log.tensorboard=false", "log.progress=none", run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    assert summary(tmp_path / "run")["eval"]["final"]["return_mean"] >= 475
    slow = [line["dist/preempted_fraction"] for line in lines(tmp_path / "run") if line["rank"] == 3]
    assert sum(slow) / len(slow) > 0.5
