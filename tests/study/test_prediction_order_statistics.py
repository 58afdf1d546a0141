import numpy as np
import pytest

from ddppo.study.predict.order_statistics import empirical, lognormal, normal_expected_max
from tests.study.simulation import drawn


@pytest.mark.parametrize(
    ("world_size", "table"),
    [(1, 0.0), (2, 0.56419), (3, 0.84628), (4, 1.02938), (10, 1.53875), (100, 2.50759)],
)
def test_expected_maxima_of_normals_are_those_of_the_tables(world_size, table):
    # Harter 1961, Expected values of normal order statistics, Biometrika 48
    assert normal_expected_max(world_size) == pytest.approx(table, abs=1e-4)


def test_equal_ranks_wait_for_nobody():
    assert lognormal(0.0).expected_max(1024) == pytest.approx(1.0)


def test_the_mean_is_one_and_the_spread_what_was_asked_for():
    noise = lognormal(0.3)
    assert noise.expected_max(1) == pytest.approx(1.0, abs=1e-9)
    assert noise.cv == pytest.approx(0.3, rel=0.01)


def test_a_sample_has_the_maximum_that_the_formula_expects():
    noise = lognormal(0.3)
    largest = drawn(noise, np.random.default_rng(0), (4000, 128)).max(axis=1).mean()
    assert noise.expected_max(128) == pytest.approx(largest, rel=0.02)


def test_a_constant_slow_rank_is_waited_for_in_full():
    assert lognormal(0.0).expected_max_with_late(4, [0.5]) == pytest.approx(1.5)


def test_a_slow_rank_among_noisy_ones():
    noise = lognormal(0.2)
    x = drawn(noise, np.random.default_rng(1), (100_000, 4))
    x[:, 3] += 0.3
    assert noise.expected_max_with_late(4, [0.3]) == pytest.approx(x.max(axis=1).mean(), rel=0.005)


def test_an_exponential_tail_is_found_in_a_sample_and_extrapolated():
    # Exponential noise on a base: E[max of W] = base + scale * H_W, H_W = 1 + 1/2 + ... + 1/W.
    residuals = np.random.default_rng(3).exponential(size=4000)
    noise = empirical(residuals, 0.1)
    harmonic = sum(1 / k for k in range(1, 257))
    assert noise.expected_max(256) - 1 == pytest.approx(0.1 * (harmonic - 1), rel=0.1)


def test_stretching_noise_that_has_no_width_takes_a_lognormal():
    assert lognormal(0.0).with_cv(0.2).cv == pytest.approx(0.2, rel=0.01)


def test_too_few_residuals_have_no_tail():
    with pytest.raises(AssertionError, match="19 residuals"):
        empirical(np.arange(19.0), 0.1)
