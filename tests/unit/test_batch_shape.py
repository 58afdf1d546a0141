import pytest

from ddppo.errors import ConfigError
from ddppo.scaling import BatchShape, strong, weak

COUNTS = {"num_minibatches": 4, "num_epochs": 2}


@pytest.mark.parametrize(
    ("world_size", "local_num_envs", "rollout_steps"),
    [(1, 8, 64), (2, 4, 64), (4, 2, 64), (8, 1, 64), (16, 1, 32), (32, 1, 16)],
)
def test_strong_keeps_the_batch_first_by_fewer_environments_then_by_shorter_rollouts(
    world_size, local_num_envs, rollout_steps
):
    shape = strong(num_envs=8, rollout_steps=64, world_size=world_size, **COUNTS)
    assert (shape.local_num_envs, shape.rollout_steps) == (local_num_envs, rollout_steps)
    assert shape.batch_size == shape.world_size * shape.local_batch_size == 512
    assert shape.learning_rate_scale == 1.0


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"num_envs": 8, "world_size": 3},
            r"world_size=3 does not divide env.num_envs=8: use one of 1, 2, 4, 8",
        ),
        ({"num_envs": 4, "world_size": 6}, r"world_size=6 does not divide the batch .* = 256"),
    ],
)
def test_strong_refuses_what_it_cannot_divide_and_names_what_it_could(sizes, message):
    with pytest.raises(ConfigError, match=message):
        strong(rollout_steps=64, **sizes, **COUNTS)


@pytest.mark.parametrize(("rule", "scale"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_weak_keeps_one_ranks_batch_and_scales_the_learning_rate_by_its_rule(rule, scale):
    shape = weak(num_envs=8, rollout_steps=64, world_size=4, learning_rate_rule=rule, **COUNTS)
    assert (shape.num_envs, shape.local_num_envs, shape.rollout_steps) == (32, 8, 64)
    assert (shape.batch_size, shape.local_batch_size, shape.learning_rate_scale) == (2048, 512, scale)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_environment_belongs_to_one_rank(world_size):
    shape = strong(num_envs=8, rollout_steps=2, world_size=world_size, **COUNTS)
    assert [i for rank in range(world_size) for i in shape.env_indices(rank)] == list(range(8))


def test_so_it_does_in_unequal_shares_whose_largest_is_e_and_which_equal_ones_forget():
    shape = BatchShape(8, 2, 4, **COUNTS, num_stepping=3, env_shares=(5, 1, 2))
    assert [list(shape.env_indices(place)) for place in range(3)] == [[0, 1, 2, 3, 4], [5], [6, 7]]
    assert shape.local_num_envs == 5
    assert shape.over(2).env_indices(1) == range(4, 8)


@pytest.mark.parametrize(("batch", "parts", "largest"), [(8, 4, 2), (9, 4, 3), (11, 4, 3), (5, 5, 1)])
def test_the_minibatch_size_is_that_of_the_largest(batch, parts, largest):
    assert BatchShape(batch, 1, 1, parts, 1).minibatch_size == largest
