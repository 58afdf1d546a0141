"""A model that chooses in stages learns the same whoever steps, acts and learns, with real processes."""

import pytest

from tests.distributed.test_independence import ITERATIONS, SIZES, largest_difference, state
from tests.support import TINY, door, lines, summary

STAGED = [
    "env=gym", "env.id=tests.unit.staged_task:staged/Rooms-v0", "model.name=tests.unit.staged_task:Staged",
    "dtype=float64", "ppo.gae_lambda=0", "ppo.entropy_coef=0.02", "ppo.learning_rate=1e-2",
    "ppo.learning_rates={critic: 3e-2}", "ppo.warmup_steps=700", "env.backend=auto",
]  # fmt: skip
SPREAD = {
    "ddp": ("distributed=ddp", "dist.world_size=2"),
    "buckets": ("distributed=ddp", "dist.world_size=2", "dist.grad_sync=ddp", "dist.collective=gloo"),
    "sync_actors": ("distributed=sync_actors", "dist.world_size=3"),
    "env_workers": ("distributed=env_workers", "dist.world_size=3"),
    "central_inference": ("distributed=central_inference", "dist.world_size=2"),
    "in_step": ("distributed=async_actors", "dist.world_size=3", "dist.max_lag=0"),
}


def learned(folder, *arguments):
    result = door(*TINY, *SIZES, *STAGED, *arguments, run_dir=folder)
    assert result.code == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return learned(tmp_path_factory.mktemp("alone") / "run", "distributed=single")


@pytest.mark.slow
def test_steps_warm_up_and_the_policy_moves(alone):
    rates = [line["train/learning_rate"] for line in lines(alone)]
    progress = [256 * k / (ITERATIONS * 256) for k in range(ITERATIONS)]
    expected = [1e-2 * (1 - p) * min(1, 256 * (k + 1) / 700) for k, p in enumerate(progress)]
    assert rates == pytest.approx(expected)
    assert all(line["train/approx_kl"] > 0 for line in lines(alone))


@pytest.mark.quick_cases("ddp", "env_workers")
@pytest.mark.parametrize("how", SPREAD)
def test_in_stages_a_topology_learns_what_one_process_learns(alone, tmp_path, how):
    spread = learned(tmp_path / "run", *SPREAD[how])
    a, b = state(alone), state(spread)
    assert a["env_steps"] == b["env_steps"] == ITERATIONS * 256
    assert largest_difference(a["model"], b["model"]) <= 1e-10
    assert a["window"] == [pytest.approx(episode, rel=1e-12) for episode in b["window"]]
    if how == "buckets":
        assert summary(spread)["derived"]["grad_sync"] == "ddp"
