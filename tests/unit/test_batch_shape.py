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


def test_strong_refuses_more_ranks_than_environments_whose_rollouts_cannot_be_shortened_to_the_same_batch():
    with pytest.raises(ConfigError, match=r"world_size=6 does not divide the batch .* = 256.*use at most 4"):
        strong(num_envs=4, rollout_steps=64, world_size=6, **COUNTS)


@pytest.mark.parametrize(("rule", "scale"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_weak_keeps_one_ranks_batch_and_scales_the_learning_rate_by_its_rule(rule, scale):
    shape = weak(num_envs=8, rollout_steps=64, world_size=4, learning_rate_rule=rule, **COUNTS)
    assert (shape.num_envs, shape.local_num_envs, shape.rollout_steps) == (32, 8, 64)
    assert (shape.batch_size, shape.local_batch_size, shape.learning_rate_scale) == (2048, 512, scale)


@pytest.mark.parametrize("world_size", range(1, 9))
def test_every_environment_belongs_to_one_rank_and_no_share_is_larger_than_another_by_more_than_one(
    world_size,
):
    shape = strong(num_envs=8, rollout_steps=2, world_size=world_size, **COUNTS)
    shares = [shape.env_indices(rank) for rank in range(world_size)]
    assert [i for share in shares for i in share] == list(range(8))
    assert (shape.fewest_envs, shape.local_num_envs) == (min(map(len, shares)), max(map(len, shares)))
    assert shape.local_num_envs - shape.fewest_envs <= 1


def test_the_first_ranks_have_one_environment_more_if_the_number_does_not_divide():
    shape = strong(num_envs=8, rollout_steps=2, world_size=3, **COUNTS)
    assert [shape.env_indices(rank) for rank in range(3)] == [range(3), range(3, 6), range(6, 8)]
    assert (shape.local_num_envs, shape.fewest_envs, shape.batch_size) == (3, 2, 16)


def test_given_shares_are_dealt_in_order_and_the_largest_is_e():
    shape = BatchShape(8, 2, 4, **COUNTS, num_stepping=3, env_shares=(5, 1, 2))
    assert [list(shape.env_indices(place)) for place in range(3)] == [[0, 1, 2, 3, 4], [5], [6, 7]]
    assert (shape.local_num_envs, shape.fewest_envs) == (5, 1)


@pytest.mark.parametrize(
    ("num_actors", "num_learners", "shares"),
    [
        (6, 2, [5, 3]),
        (3, 2, [6, 2]),
        (4, 2, [4, 4]),
        (8, 3, [3, 3, 2]),
        (5, 1, [8]),
        (3, 3, [3, 3, 2]),
        (2, 3, [3, 3, 2]),
    ],
)
def test_a_learner_has_the_environments_of_all_its_actors(num_actors, num_learners, shares):
    shape = BatchShape(8, 2, num_actors + num_learners, **COUNTS, num_stepping=num_actors).over(num_learners)
    found = [shape.env_indices(place) for place in range(num_learners)]
    assert list(map(len, found)) == shares
    assert [i for share in found for i in share] == list(range(8))


@pytest.mark.parametrize(("batch", "parts", "largest"), [(8, 4, 2), (9, 4, 3), (11, 4, 3), (5, 5, 1)])
def test_the_minibatch_size_is_that_of_the_largest(batch, parts, largest):
    assert BatchShape(batch, 1, 1, parts, 1).minibatch_size == largest
