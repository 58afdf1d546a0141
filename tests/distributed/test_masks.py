"""Masks of several choices are obeyed whoever steps, acts, learns and evaluates; a forbidden choice ends the task."""

import pytest

from tests.distributed.test_independence import ITERATIONS, SIZES, largest_difference, state
from tests.support import TINY, door, lines

LOCK = [
    "env=gym",
    "env.id=tests.distributed.masked_task:masked/Lock-v0",
    "dtype=float64",
    "eval.final_episodes=8",
]
SPREAD = {
    "pool": ("distributed=ddp", "dist.world_size=2", "env.backend=pool"),
    "remote": ("distributed=ddp", "dist.world_size=2", "env.backend=remote"),
    "multi_learner": ("distributed=multi_learner", "dist.world_size=4"),
    "env_workers": ("distributed=env_workers", "dist.world_size=3"),
    "central_inference": ("distributed=central_inference", "dist.world_size=2"),
    "async_actors": ("distributed=async_actors", "dist.world_size=3", "dist.max_lag=0"),
    "eager": ("distributed=single", "compile=off"),
}


def learned(folder, *arguments):
    result = door(*TINY, *SIZES, *LOCK, *arguments, run_dir=folder)
    assert result.code == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return learned(tmp_path_factory.mktemp("alone") / "run", "distributed=single", "env.backend=sync")


@pytest.mark.quick_cases("eager", "env_workers")
@pytest.mark.parametrize("how", SPREAD)
def test_with_masks_of_several_choices_all_learn_the_same(alone, tmp_path, how):
    if how == "remote":
        pytest.importorskip("ddppo.serve", reason="ddppo.serve is not there")
    spread = learned(tmp_path / "run", *SPREAD[how])
    a, b = state(alone), state(spread)
    assert a["env_steps"] == b["env_steps"] == ITERATIONS * 256
    assert largest_difference(a["model"], b["model"]) <= 1e-9
    assert a["window"] == [pytest.approx(episode, rel=1e-12) for episode in b["window"]]
    of_rank_0 = [[line for line in lines(folder) if line["rank"] == 0] for folder in (alone, spread)]
    assert len({last["eval/return_mean"] for *_, last in of_rank_0}) == 1
    assert all(line["train/approx_kl"] > 0 for line in of_rank_0[1])
