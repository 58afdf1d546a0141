import numpy as np
import pytest

from ddppo import native
from ddppo.ppo.minibatches import local_minibatches, minibatch_bounds
from ddppo.scaling import BatchShape
from ddppo.seeding import minibatch_permutation


@pytest.mark.parametrize(
    ("batch", "parts", "bounds"),
    [(8, 4, [0, 2, 4, 6, 8]), (10, 4, [0, 2, 5, 7, 10]), (3, 3, [0, 1, 2, 3]), (7, 1, [0, 7])],
)
def test_a_batch_of_any_size_is_cut_into_parts_that_differ_by_at_most_one(batch, parts, bounds):
    assert minibatch_bounds(batch, parts) == bounds


def test_ranks_number_their_samples_by_step_and_local_environment(monkeypatch):
    # N = 4 environments, T = 2: samples 0 to 3 are step 0, samples 4 to 7 step 1; rank 1 steps environments 2 and 3.
    order = np.array([7, 0, 2, 5, 3, 6, 1, 4])
    monkeypatch.setattr("ddppo.ppo.minibatches.minibatch_permutation", lambda *args: order)
    shape = BatchShape(num_envs=4, rollout_steps=2, world_size=2, num_minibatches=3, num_epochs=1)
    assert minibatch_bounds(8, 3) == [0, 2, 5, 8]
    expected = [([0, 3, 1, 2], [0, 1, 2, 4]), ([3, 0, 1, 2], [0, 1, 3, 4])]
    for rank, (samples, bounds) in enumerate(expected):
        local, offsets = local_minibatches(0, 1, 0, shape, rank)
        assert (local.tolist(), offsets) == (samples, bounds)


def test_a_single_rank_keeps_the_whole_permutation():
    shape = BatchShape(num_envs=3, rollout_steps=5, world_size=1, num_minibatches=4, num_epochs=1)
    local, offsets = local_minibatches(7, 2, 1, shape, rank=0)
    np.testing.assert_array_equal(local, minibatch_permutation(7, 2, 1, 15))
    assert offsets == [0, 3, 7, 11, 15]


def test_every_epoch_iteration_and_seed_shuffles_anew():
    shape = BatchShape(num_envs=8, rollout_steps=8, world_size=2, num_minibatches=4, num_epochs=2)
    orders = {
        tuple(local_minibatches(seed, iteration, epoch, shape, rank=0)[0])
        for seed in (0, 1)
        for iteration in (1, 2)
        for epoch in (0, 1)
    }
    assert len(orders) == 8


@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
@pytest.mark.parametrize(
    ("num_envs", "steps", "world_size", "parts"),
    [
        (2, 1, 2, 1),
        (6, 5, 3, 4),
        (64, 128, 2, 4),
        (24, 77, 8, 13),
        (5, 40, 5, 200),
        (8, 9, 3, 4),
        (11, 5, 7, 50),
    ],
)
def test_ranks_shares_in_cpp_are_those_of_numpy(num_envs, steps, world_size, parts, monkeypatch):
    shape = BatchShape(num_envs, steps, world_size, parts, num_epochs=1)

    def shares():
        return [local_minibatches(3, 1, 0, shape, rank) for rank in range(world_size)]

    native.library()
    found = shares()
    monkeypatch.setattr("ddppo.ppo.minibatches.loaded", lambda: None)
    for (samples, bounds), (expected, expected_bounds) in zip(found, shares(), strict=True):
        np.testing.assert_array_equal(samples, expected)
        assert bounds == expected_bounds
