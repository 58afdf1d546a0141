import itertools

import numpy as np
import pytest

from ddppo import native
from ddppo.seeding import action_noise, derived_seed, minibatch_permutation, stream

PURPOSES = ["env", "action", "minibatch", "eval", "model"]


def test_every_seed_purpose_and_index_has_a_stream_of_its_own():
    keys = list(itertools.product((0, 1), PURPOSES, range(3), range(3)))
    draws = {tuple(stream(seed, purpose, a, b).integers(2**62, size=2)) for seed, purpose, a, b in keys}
    assert len(draws) == len(keys)


def test_a_stream_is_the_same_wherever_it_is_asked_for():
    assert stream(3, "env", 1, 2).random(5).tolist() == stream(3, "env", 1, 2).random(5).tolist()


def test_streams_stay_what_they_were_so_that_old_results_can_be_repeated():
    assert [derived_seed(0, purpose, 1, 2) for purpose in PURPOSES] == [
        182056655,
        820371690,
        455536686,
        1368950632,
        1855824416,
    ]
    assert minibatch_permutation(0, 1, 0, 8).tolist() == [3, 5, 0, 1, 2, 7, 4, 6]


def test_a_derived_seed_fits_the_libraries_that_take_one():
    seeds = [derived_seed(0, "eval", j) for j in range(1000)]
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert len(set(seeds)) == 1000


def test_an_unknown_purpose_is_an_error():
    with pytest.raises(KeyError):
        stream(0, "weather")


@pytest.mark.parametrize("normal", [True, False])
def test_an_environments_action_noise_does_not_depend_on_who_steps_it(normal):
    whole = action_noise(5, 2, range(6), 7, 3, normal=normal)
    assert whole.shape == (7, 6, 3)
    part = action_noise(5, 2, range(2, 5), 7, 3, normal=normal)
    np.testing.assert_array_equal(whole[:, 2:5], part)
    assert not np.array_equal(whole, action_noise(5, 3, range(6), 7, 3, normal=normal))


def test_a_shorter_rollout_reads_the_beginning_of_the_same_noise():
    long, short = (action_noise(0, 1, range(2), steps, 1, normal=False) for steps in (8, 4))
    np.testing.assert_array_equal(long[:4], short)


def test_noise_is_uniform_on_the_unit_interval_or_standard_normal():
    uniform = action_noise(0, 1, range(100), 200, 1, normal=False)
    assert 0 <= uniform.min() < 0.001
    assert 0.999 < uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.01
    normal = action_noise(0, 1, range(100), 200, 1, normal=True)
    assert abs(normal.mean()) < 0.03
    assert abs(normal.std() - 1) < 0.03


def test_a_permutation_holds_every_sample_once():
    assert sorted(minibatch_permutation(1, 2, 3, 101)) == list(range(101))


@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
def test_streams_in_cpp_have_numpys_bits():
    native.library()
    for seed, iteration in ((0, 1), (7, 2**33)):
        noise = action_noise(seed, iteration, range(3, 8), 101, 1, normal=False)
        for column, index in enumerate(range(3, 8)):
            expected = stream(seed, "action", index, iteration).random((101, 1))
            assert np.array_equal(noise[:, column], expected)
        for n in (1, 2, 3, 512, 100_003):
            expected = stream(seed, "minibatch", 2, iteration).permutation(n)
            assert np.array_equal(minibatch_permutation(seed, iteration, 2, n), expected)
