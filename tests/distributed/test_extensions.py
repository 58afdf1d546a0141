"""Squashed policies, loss terms and metrics of a user's own are the same at any W, with real processes."""

import pytest

from tests.distributed.test_independence import assert_same_learning, sweep
from tests.support import lines

EXTENDED = [
    "env=pendulum", "env.max_episode_steps=60", "dtype=float64", "model.squash=tanh", "model.log_std=state",
    "ppo.entropy_coef=0.01", "ppo.losses={still:{term:tests.distributed.own_parts:still,coef:0.3}}",
    "log.metrics=[tests.distributed.own_parts:pushes,tests.distributed.own_parts:Longest]",
]  # fmt: skip


def test_with_extensions_of_all_kinds_two_ranks_learn_and_tell_what_one_does(tmp_path):
    folders = sweep(tmp_path, *EXTENDED, "dist.world_size=1,2")
    assert_same_learning(folders[1], folders[2], 1e-9)
    one, two = ([line for line in lines(folders[w]) if line["rank"] == 0] for w in (1, 2))
    for a, b in zip(one, two, strict=True):
        own = [name for name in a if name.startswith(("loss/", "user/"))]
        assert {"loss/still", "user/push", "user/transitions"} <= set(own)
        assert [b[name] for name in own] == pytest.approx([a[name] for name in own], rel=1e-9)
    assert one[-1]["user/transitions"] == 256
    assert one[-1]["user/longest/of_first"] == 60
    assert 0 < one[-1]["loss/still"] < one[0]["loss/still"] + 1
    assert 0 < one[-1]["user/push"] < 2  # within the bounds
