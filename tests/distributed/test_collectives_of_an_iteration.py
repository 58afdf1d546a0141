"""One iteration makes the collectives that ddppo/distributed/gradient_sync.py lists, in that order."""

import pytest

from tests.support import TINY, door

RUN = (
    *TINY, "env=cartpole", "env.num_envs=8", "distributed=tests.distributed.logged:Logged", "dist.world_size=2",
    "ppo.rollout_steps=64", "ppo.total_steps=1536", "ppo.num_epochs=2", "ppo.num_minibatches=2", "compile=off",
)  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "collectives"),
    [
        ((), ["barrier", "gather", *["sum_"] * 4, "gather", "gather"]),
        (("ppo.normalize_rewards=true",), ["barrier", "gather", "gather", *["sum_"] * 4, "gather", "gather"]),
        (
            ("ppo.normalize_advantages=minibatch",),
            ["barrier", "gather", "gather", *["sum_"] * 4, "gather", "gather"],
        ),
        (
            ("ppo.target_kl=100",),
            ["barrier", "gather", "sum_", "sum_", "gather", "sum_", "sum_", "gather", "gather", "gather"],
        ),
    ],
    ids=["default", "reward moments", "advantages by minibatch", "KL once an epoch"],
)
def test_an_iteration_makes_the_collectives_that_the_code_lists(tmp_path, settings, collectives):
    result = door(*RUN, *settings, run_dir=tmp_path / "run", LOGGED=str(tmp_path))
    assert result.code == 0, result.stderr
    by_rank = [(tmp_path / str(rank)).read_text().split("begin\n") for rank in range(2)]
    assert by_rank[0] == by_rank[1]
    # The second of three iterations. Section 0 is the time before the loop; the last iteration saves a checkpoint.
    assert by_rank[0][2].split() == collectives
