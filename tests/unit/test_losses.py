import math

import pytest
import torch

from ddppo.ppo import losses


def log(ratio):
    return torch.tensor(ratio, dtype=torch.float64).log()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.5, 2.0, -2.4, 0.0),  # clipped at 1.2: no reason to go further up
        (1.5, -2.0, 3.0, 3.0),  # not clipped: this must be undone
        (0.5, 2.0, -1.0, -1.0),  # not clipped: this must be undone
        (0.5, -2.0, 1.6, 0.0),  # clipped at 0.8: no reason to go further down
        (1.1, 2.0, -2.2, -2.2),
        (0.9, -2.0, 1.8, 1.8),
    ],
)
def test_the_surrogate_is_clipped_where_the_ratio_moved_too_far_in_the_advantages_direction(
    ratio, advantage, loss, gradient
):
    log_ratio = log([ratio]).requires_grad_()
    result = losses.clipped_surrogate_loss(
        log_ratio, torch.tensor([advantage], dtype=torch.float64), clip_coef=0.2
    )
    result.sum().backward()
    assert result.item() == pytest.approx(loss)
    assert log_ratio.grad.item() == pytest.approx(gradient)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.25, 2.0, -2.5, -2.5),  # beyond 1 + clip_coef, below 1 + clip_coef_high
        (1.5, 2.0, -2.56, 0.0),  # clipped at 1.28
        (1.5, -2.0, 3.0, 3.0),
        (0.75, -2.0, 1.6, 0.0),  # clipped at 0.8: the lower range is clip_coef
    ],
)
def test_the_surrogate_may_be_clipped_higher_above_than_below(ratio, advantage, loss, gradient):
    log_ratio = log([ratio]).requires_grad_()
    advantages = torch.tensor([advantage], dtype=torch.float64)
    result = losses.clipped_surrogate_loss(log_ratio, advantages, clip_coef=0.2, clip_coef_high=0.28)
    result.sum().backward()
    assert result.item() == pytest.approx(loss)
    assert log_ratio.grad.item() == pytest.approx(gradient)


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight"),
    [(1.5, 2.0, 1.28), (1.5, -2.0, 1.28), (0.01, 2.0, 0.01), (1.1, -2.0, 1.1)],
)
def test_cispo_cuts_the_weight_of_a_sample_and_never_its_gradient(ratio, advantage, weight):
    logprobs = log([0.25]).requires_grad_()
    old = log([0.25 / ratio])
    advantages = torch.tensor([advantage], dtype=torch.float64)
    result = losses.cispo_loss(logprobs - old, logprobs, advantages, clip_coef_high=0.28)
    result.sum().backward()
    assert result.item() == pytest.approx(-weight * advantage * math.log(0.25))
    assert logprobs.grad.item() == pytest.approx(-weight * advantage)


def test_the_ratio_of_a_rollout_is_the_geometric_mean_of_its_tokens():
    log_ratio = log([2.0, 1.5, 0.5, 8.0]).requires_grad_()
    found = losses.sequence_log_ratio(log_ratio, torch.tensor([3, 0, 3, 3]), 5)
    assert found.exp().tolist() == pytest.approx([2.0, 1.5, 2.0, 2.0])  # (2 x 0.5 x 8)^(1/3), and 1.5 alone
    found[0].backward()
    assert log_ratio.grad.tolist() == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])
    nothing = torch.zeros(0, dtype=torch.long)
    assert len(losses.sequence_log_ratio(log([]), nothing, 5)) == 0  # of a rank without a rollout


@pytest.mark.parametrize(
    ("value", "old", "target", "clip", "loss", "gradient"),
    [
        (3.0, 0.0, 1.0, None, 2.0, 2.0),
        (3.0, 0.0, 1.0, 1.0, 2.0, 2.0),  # kept near the old value it would be right: the larger error counts
        (3.0, 0.0, 5.0, 1.0, 8.0, 0.0),  # (0 + 1 - 5)^2 / 2: already moved as far as is allowed
        (-3.0, 0.0, -5.0, 1.0, 8.0, 0.0),
        (0.5, 0.0, 5.0, 1.0, 10.125, -4.5),
    ],
)
def test_the_value_loss_is_half_the_larger_of_the_squared_errors(value, old, target, clip, loss, gradient):
    values = torch.tensor([value], requires_grad=True)
    result = losses.value_loss(values, torch.tensor([old]), torch.tensor([target]), clip_value_coef=clip)
    result.sum().backward()
    assert (result.item(), values.grad.item()) == (loss, gradient)


@pytest.mark.parametrize(
    ("ratio", "nats"), [(1.0, 0.0), (2.0, 0.3068528194400547), (0.5, 0.1931471805599453)]
)
def test_k3_is_the_ratio_minus_one_minus_its_logarithm(ratio, nats):
    assert losses.approx_kl(log(ratio)).item() == pytest.approx(nats, abs=1e-15)


def test_the_mean_of_k3_under_the_old_policy_is_the_divergence_of_old_from_new():
    old, new = (torch.distributions.Categorical(torch.tensor(p)) for p in ([0.5, 0.3, 0.2], [0.1, 0.2, 0.7]))
    mean = (old.probs * losses.approx_kl(new.logits - old.logits)).sum()
    assert mean.item() == pytest.approx(torch.distributions.kl_divergence(old, new).item(), rel=1e-6)


def test_clipped_and_outlying_samples_are_counted_on_both_sides():
    clipped = losses.is_clipped(log([0.79, 0.81, 1.0, 1.19, 1.21]), clip_coef=0.2)
    assert clipped.tolist() == [True, False, False, False, True]
    clipped = losses.is_clipped(log([0.79, 0.81, 1.21, 1.27, 1.29]), clip_coef=0.2, clip_coef_high=0.28)
    assert clipped.tolist() == [True, False, False, False, True]
    outliers = losses.is_outlier(log([0.49, 0.51, 1.0, 1.99, 2.01]))
    assert outliers.tolist() == [True, False, False, False, True]


def test_a_policy_that_did_not_move_has_no_divergence_and_the_plain_policy_gradient():
    log_ratio = torch.zeros(2, requires_grad=True)
    advantages = torch.tensor([1.5, -0.5])
    losses.clipped_surrogate_loss(log_ratio, advantages, clip_coef=0.2).sum().backward()
    assert log_ratio.grad.tolist() == [-1.5, 0.5]
    assert losses.approx_kl(log_ratio).tolist() == [0.0, 0.0]
    assert not losses.is_clipped(log_ratio, clip_coef=0.2).any()
