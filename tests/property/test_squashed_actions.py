"""Squashed Gaussians and Betas are the density of what they draw: by autograd, fine grids, and draws."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddppo.models.distributions import action_distribution
from ddppo.spaces import ActionSpec

BOUNDS = st.lists(st.tuples(st.floats(-50, 50), st.floats(0.01, 50)), min_size=1, max_size=4)


def squashed(action, params):
    return action_distribution(action, params, is_squashed=True)


@given(BOUNDS, st.integers(0, 999))
def test_its_log_probability_is_the_change_of_variables_that_autograd_finds(bounds, seed):
    low, high = zip(*[(a, a + width) for a, width in bounds], strict=True)
    n, generator = len(bounds), torch.Generator().manual_seed(seed)
    mean, log_std, noise = torch.randn(3, n, generator=generator, dtype=torch.float64).clamp(-1, 1)
    policy = squashed(ActionSpec("box", (n,), low, high), torch.cat([mean, log_std]))
    slopes = torch.autograd.functional.jacobian(policy.sample, noise).diagonal()
    of_noise = -0.5 * noise.square() - 0.5 * math.log(2 * math.pi)
    actions = policy.sample(noise)
    assert (actions > torch.tensor(low, dtype=torch.float64)).all()
    assert (actions < torch.tensor(high, dtype=torch.float64)).all()
    # Bounds far from 0 cost digits of what is left to them: 50 / 0.01 of 2^-52, and e^8 of them, as |u| < 4.
    torch.testing.assert_close(
        policy.log_prob(actions), (of_noise - slopes.log()).sum(), rtol=1e-7, atol=1e-7
    )


@pytest.mark.parametrize("log_std", [-3.0, -1.0, 0.0, 0.5])
@pytest.mark.parametrize("mean", [-2.0, 0.0, 0.7])
def test_it_integrates_to_1_and_its_entropy_is_that_of_the_integral(mean, log_std):
    action = ActionSpec("box", (1,), (-1.0,), (3.0,))
    policy = squashed(action, torch.tensor([mean, log_std], dtype=torch.float64))
    u = torch.linspace(-12, 12, 400_001, dtype=torch.float64)
    actions = (1 + 2 * u.tanh()).unsqueeze(-1)
    log_prob = squashed(
        action, torch.tensor([mean, log_std], dtype=torch.float64).expand(len(u), 2)
    ).log_prob(actions)
    p = log_prob.exp()
    assert torch.trapezoid(p, actions[:, 0]).item() == pytest.approx(1, abs=1e-6)
    expected = -torch.trapezoid(p * log_prob, actions[:, 0]).item()
    assert policy.entropy().item() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mean", [-1e4, -9.0, 0.0, 9.0, 1e4])
def test_at_the_bounds_numbers_and_gradients_stay_finite(mean, dtype):
    params = torch.tensor([mean, 1.0, -5.0, 2.0], dtype=dtype, requires_grad=True)
    policy = squashed(ActionSpec("box", (2,), (-2.0, 0.0), (2.0, 1.0)), params)
    for actions in (policy.sample(torch.tensor([3.0, -3.0], dtype=dtype)).detach(), policy.mode().detach()):
        assert (actions.abs() <= 2).all()
        (gradient,) = torch.autograd.grad(policy.log_prob(actions) + policy.entropy(), params)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("b", [-30.0, -1.0, 3.0, 50.0])
@pytest.mark.parametrize("a", [-30.0, 0.0, 8.0])
def test_draws_density_and_entropy_of_a_beta_are_those_of_one_distribution(a, b):
    action = ActionSpec("box", (1,), (-1.0,), (3.0,))
    policy = action_distribution(action, torch.tensor([a, b], dtype=torch.float64), is_beta=True)
    # The grid is fine at both bounds: x = (1 - cos(t)) / 2.
    x = (1 - torch.linspace(0, math.pi, 20_001, dtype=torch.float64).cos()) / 2
    log_prob = policy.log_prob((4 * x - 1).unsqueeze(-1))
    p = 4 * log_prob.exp()
    assert torch.trapezoid(p, x).item() == pytest.approx(1, abs=1e-5)
    assert policy.entropy().item() == pytest.approx(-torch.trapezoid(p * log_prob, x).item(), abs=1e-4)
    assert 4 * x[log_prob.argmax()].item() - 1 == pytest.approx(policy.mode().item(), abs=2e-3) or a == b
    # 4,000 draws beside the cumulative distribution: Kolmogorov's statistic is above 1.95 once in 1,000.
    noise = torch.randn(4000, 1, generator=torch.Generator().manual_seed(3))
    drawn = (policy.sample(noise)[:, 0].sort().values + 1) / 4
    cumulative = torch.cat([torch.zeros(1), torch.cumulative_trapezoid(p, x)]).numpy()
    expected = np.interp(drawn.numpy(), x.numpy(), cumulative)
    assert np.abs(expected - (np.arange(4000) + 0.5) / 4000).max() * 4000**0.5 < 1.95


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("number", [-1e4, -100.0, 0.0, 100.0, 1e4])
def test_extreme_betas_have_finite_numbers_and_gradients_within_the_bounds(number, dtype):
    params = torch.tensor([number, 0.0, number, -number], dtype=dtype, requires_grad=True)
    policy = action_distribution(ActionSpec("box", (2,), (-2.0, 0.0), (2.0, 1.0)), params, is_beta=True)
    for actions in (policy.sample(torch.tensor([3.0, -3.0], dtype=dtype)).detach(), policy.mode().detach()):
        assert (actions.abs() <= 2).all()
        (gradient,) = torch.autograd.grad(
            policy.log_prob(actions) + policy.entropy(), params, retain_graph=True
        )
        assert gradient.isfinite().all()
