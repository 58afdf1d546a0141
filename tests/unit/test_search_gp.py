"""Gaussian processes: against closed forms, and against an oracle that follows the definitions."""

import math

import numpy as np
import pytest

from ddppo.search.gp import JITTER, Data, Hyperparameters, Posterior, fit, log_likelihood, sample
from ddppo.search.spaces import Finite, Interval, Space
from tests.unit.orders_of_five import KENDALL


def covariance(distances, given):
    total = sum(theta * d for theta, d in zip(given.thetas, distances, strict=True))
    return given.signal * np.exp(-total)


def observed(n=12, *, seed=0, noise=math.nan):
    rng = np.random.default_rng(seed)
    space = Space([Interval(0.0, 2.0), Finite("abc")])
    codes = np.stack([rng.random(n), rng.integers(3, size=n)], axis=1)
    values = np.sin(6 * codes[:, 0]) + codes[:, 1] + 0.1 * rng.standard_normal(n)
    return space, codes, Data(space.distances(codes, codes), values, np.full(n, noise), nothing(n))


def nothing(n):
    """Return the basis of n points without a covariate."""
    return np.zeros((n, 1))


def test_one_observation_has_the_closed_form():
    data = Data(np.zeros((1, 1, 1)), np.array([3.0]), np.array([0.5]), nothing(1))
    posterior = Posterior(data, [Hyperparameters((2.0,), signal=1.5)])
    mean, deviation = posterior.predict(np.array([[[0.0], [0.25]]]), nothing(2))
    covariances = 1.5 * np.exp(-2.0 * np.array([0.0, 0.25]))
    assert mean == pytest.approx(covariances * 3.0 / 2.0, rel=1e-6)
    assert deviation**2 == pytest.approx(1.5 - covariances**2 / 2.0, rel=1e-6)


def test_predictions_are_those_of_the_inverse_by_definition():
    space, codes, data = observed(noise=0.01)
    given = Hyperparameters((3.0, 0.7), signal=2.0)
    elsewhere = np.array([[0.3, 0], [0.31, 2], [0.99, 1]])
    cross = space.distances(elsewhere, codes)
    mean, deviation = Posterior(data, [given]).predict(cross, nothing(3))
    inverse = np.linalg.inv(covariance(data.distances, given) + (0.01 + JITTER) * np.eye(12))
    k = covariance(cross, given)
    assert mean == pytest.approx(k @ inverse @ data.values, abs=1e-9)
    assert deviation**2 == pytest.approx(2.0 - np.diagonal(k @ inverse @ k.T), abs=1e-9)


def test_without_noise_the_posterior_passes_through_what_was_observed():
    _, _, data = observed(noise=0.0)
    posterior = Posterior(data, [Hyperparameters((20.0, 1.0), signal=2.0)])
    mean, deviation = posterior.predict(data.distances, nothing(12))
    assert mean == pytest.approx(data.values, abs=1e-4)
    assert deviation.max() < 1e-3


def test_far_from_all_that_was_observed_the_posterior_is_the_prior():
    _, _, data = observed(noise=0.0)
    posterior = Posterior(data, [Hyperparameters((20.0, 1.0), signal=2.0)])
    mean, deviation = posterior.predict(np.full((2, 1, 12), 50.0), nothing(1))
    assert mean == pytest.approx([0.0], abs=1e-9)
    assert deviation == pytest.approx([math.sqrt(2.0)])


def test_the_likelihood_is_the_normal_density_by_definition():
    _, _, data = observed()
    given = Hyperparameters((3.0, 0.7), signal=2.0, noise=0.2)
    matrix = covariance(data.distances, given) + (0.2 + JITTER) * np.eye(12)
    quadratic = data.values @ np.linalg.inv(matrix) @ data.values
    density = -0.5 * (quadratic + math.log(np.linalg.det(matrix)) + 12 * math.log(2 * math.pi))
    assert log_likelihood(data, given) == pytest.approx(density)


def test_noise_that_is_known_replaces_the_one_that_is_learned():
    _, _, data = observed(noise=0.2)
    one, other = (
        log_likelihood(data, Hyperparameters((3.0, 0.7), signal=2.0, noise=noise)) for noise in (1.0, 0.001)
    )
    assert one == other
    assert one == pytest.approx(
        log_likelihood(observed()[2], Hyperparameters((3.0, 0.7), signal=2.0, noise=0.2))
    )


def drawn(theta, noise, seed, n=80):
    """Return observations drawn from the process itself over the 120 orders, under the Mallows kernel."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(120, size=n)
    distances = (KENDALL / 10)[np.ix_(ids, ids)][None]
    matrix = covariance(distances, Hyperparameters((theta,))) + noise * np.eye(n)
    return Data(
        distances, np.linalg.cholesky(matrix) @ rng.standard_normal(n), np.full(n, math.nan), nothing(n)
    )


@pytest.mark.parametrize(("theta", "noise"), [(1.0, 0.1), (6.0, 0.1), (6.0, 0.5)])
def test_the_marginal_likelihood_prefers_what_the_data_were_drawn_from(theta, noise):
    truth = Hyperparameters((theta,), 1.0, noise)
    wrong = [
        Hyperparameters((theta * by,), 1.0, noise * noise_by)
        for by, noise_by in ((5.0, 1.0), (0.2, 1.0), (1.0, 10.0), (1.0, 0.05))
    ]
    sets = [drawn(theta, noise, seed) for seed in range(8)]
    of_truth = sum(log_likelihood(data, truth) for data in sets)
    assert all(sum(log_likelihood(data, other) for data in sets) < of_truth for other in wrong)


def test_a_fit_finds_what_the_data_were_drawn_from():
    fits = [fit(drawn(6.0, 0.3, seed)) for seed in range(10)]
    assert np.median([found.thetas[0] for found in fits]) == pytest.approx(6.0, rel=0.5)
    assert np.median([found.noise for found in fits]) == pytest.approx(0.3, rel=0.5)


def test_a_fit_is_at_the_top_of_likelihood_times_prior():
    """No hyperparameter moved by a tenth does better, nor does any point of a coarse grid."""
    from ddppo.search.gp import _posteriors, _priors

    _, _, data = observed(n=20)
    found = fit(data)
    top = np.log([*found.thetas, found.signal, found.noise])
    grid = top + np.stack(np.meshgrid(*[[-3.0, -0.1, 0.0, 0.1, 3.0]] * 4), axis=-1).reshape(-1, 4)
    heights, _, _ = _posteriors(data, np.concatenate([top[None], grid]), *_priors(data))
    assert heights[1:].max() <= heights[0] + 1e-3


def test_slopes_and_information_are_those_of_finite_differences_and_of_the_definition():
    from ddppo.search.gp import _likelihoods

    _, _, data = observed(n=9)
    logs = np.log([[3.0, 0.7, 2.0, 0.2]])
    _, slopes, _ = _likelihoods(data, logs)
    for i in range(4):
        step = np.zeros(4)
        step[i] = 1e-5
        up, down = (_likelihoods(data, logs + sign * step)[0][0] for sign in (1, -1))
        assert slopes[0, i] == pytest.approx((up - down) / 2e-5, rel=1e-4)


def repeated(own, noise, seed, n=40):
    """Return values of few orders, each tried several times, with effects of their own and noise."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(120, size=n // 4)[rng.integers(n // 4, size=n)]
    distances = (KENDALL / 10)[np.ix_(ids, ids)][None]
    effects = rng.normal(0.0, math.sqrt(own), 120)[ids]
    smooth = np.linalg.cholesky(covariance(distances, Hyperparameters((2.0,))) + 1e-9 * np.eye(n))
    values = smooth @ rng.standard_normal(n) + effects + rng.normal(0.0, math.sqrt(noise), n)
    return Data(distances, values, np.full(n, math.nan), nothing(n), has_own=True)


def test_repeats_tell_noise_from_differences_between_orders():
    for own, noise in ((0.6, 0.05), (0.02, 0.6)):
        fits = [fit(repeated(own, noise, seed)) for seed in range(8)]
        assert np.median([found.noise for found in fits]) == pytest.approx(noise, rel=0.5)


def test_an_own_effect_makes_a_point_certain_when_it_is_repeated_and_says_nothing_of_others():
    values = np.full(8, 2.0)
    data = Data(np.zeros((1, 8, 8)), values, np.full(8, 0.1), nothing(8), has_own=True)
    posterior = Posterior(data, [Hyperparameters((50.0,), signal=0.5, own=3.0)])
    (here, other), deviation = posterior.predict(np.array([[[0.0] * 8, [1.0] * 8]]), nothing(2))
    assert here == pytest.approx(2.0, abs=0.02)
    assert other == pytest.approx(0.0, abs=1e-6)
    assert deviation == pytest.approx([math.sqrt(0.1 / 8), math.sqrt(3.5)], rel=0.01)


def test_a_covariate_adds_a_line_to_the_values_of_all_points():
    x = np.linspace(-1.0, 0.0, 10)[:, None]
    data = Data(np.ones((1, 10, 10)) - np.eye(10), 2.0 * x[:, 0], np.full(10, 0.001), x)
    posterior = Posterior(data, [Hyperparameters((1.0,), signal=0.01)])
    mean, _ = posterior.predict(np.ones((1, 2, 10)), np.array([[0.0], [-2.0]]))
    assert mean == pytest.approx([0.0, -4.0], abs=0.2)


def test_samples_of_hyperparameters_are_around_the_fit_and_wider_with_fewer_data():
    few, many = (sample(drawn(6.0, 0.3, seed=1, n=n)) for n in (8, 80))
    assert sample(drawn(6.0, 0.3, seed=1, n=8)) == few
    spread = [np.std(np.log([each.noise for each in found])) for found in (few, many)]
    assert spread[0] > 2 * spread[1]
    best = fit(drawn(6.0, 0.3, seed=1, n=80))
    assert min(each.noise for each in many) < best.noise < max(each.noise for each in many)


def test_no_data_is_the_prior():
    data = Data(np.zeros((1, 0, 0)), np.zeros(0), np.zeros(0), nothing(0))
    mean, deviation = Posterior(data, [fit(data)]).predict(np.zeros((1, 3, 0)), nothing(3))
    assert len(sample(data)) > 1
    assert mean.tolist() == [0.0] * 3
    assert deviation == pytest.approx([1.0] * 3)
