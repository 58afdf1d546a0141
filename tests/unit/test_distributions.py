import math

import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Independent, Normal

from ddppo.models.distributions import Categorical as Choices
from ddppo.models.distributions import action_distribution, num_action_params, num_noise
from ddppo.spaces import ActionSpec

SPECS = {
    "discrete": ActionSpec("discrete", (4,)),
    "multi_discrete": ActionSpec("multi_discrete", (3, 1, 2)),
    "multi_binary": ActionSpec("multi_binary", (3,)),
    "box": ActionSpec("box", (2,)),
}
PARAMS = {"discrete": 4, "multi_discrete": 6, "multi_binary": 3, "box": 4}
NOISE = {"discrete": 1, "multi_discrete": 3, "multi_binary": 3, "box": 2}


def reference(kind, params):
    """torch.distributions of the components: log_prob and entropy summed over them."""
    if kind == "discrete":
        policy = Categorical(logits=params)
        return policy.log_prob, policy.entropy()
    if kind == "multi_discrete":
        parts = [Categorical(logits=part) for part in params.split((3, 1, 2), dim=-1)]
        return (
            lambda actions: sum(part.log_prob(actions[..., i]) for i, part in enumerate(parts)),
            sum(part.entropy() for part in parts),
        )
    if kind == "multi_binary":
        policy = Independent(Bernoulli(logits=params), 1)
        return lambda actions: policy.log_prob(actions.double()), policy.entropy()
    policy = Independent(Normal(params[..., :2], params[..., 2:].exp()), 1)
    return policy.log_prob, policy.entropy()


@pytest.mark.parametrize("kind", SPECS)
def test_log_probabilities_and_entropies_are_those_of_torch_distributions(kind):
    generator = torch.Generator().manual_seed(0)
    params = 2 * torch.randn(5, 3, PARAMS[kind], dtype=torch.float64, generator=generator)
    noise = torch.rand(5, 3, NOISE[kind], dtype=torch.float64, generator=generator)
    policy = action_distribution(SPECS[kind], params)
    actions = policy.sample(noise)
    log_prob, entropy = reference(kind, params)
    torch.testing.assert_close(policy.log_prob(actions), log_prob(actions))
    torch.testing.assert_close(policy.entropy(), entropy)
    assert actions.shape == policy.mode().shape == (5, 3, *SPECS[kind].shape)
    assert (num_action_params(SPECS[kind]), num_noise(SPECS[kind])) == (PARAMS[kind], NOISE[kind])


@pytest.mark.parametrize("kind", SPECS)
def test_the_mode_is_more_likely_than_any_sample(kind):
    generator = torch.Generator().manual_seed(1)
    params = torch.randn(200, PARAMS[kind], generator=generator)
    policy = action_distribution(SPECS[kind], params)
    sample = policy.sample(torch.rand(200, NOISE[kind], generator=generator))
    assert (policy.log_prob(policy.mode()) >= policy.log_prob(sample)).all()


def evenly(n):
    """Every n-th part of [0, 1) once, so that frequencies are exact to 1 / n."""
    return ((torch.arange(n, dtype=torch.float64) + 0.5) / n).unsqueeze(-1)


def test_choices_are_drawn_as_often_as_their_probabilities_say():
    probabilities = torch.tensor([0.1, 0.0, 0.2, 0.7], dtype=torch.float64)
    policy = action_distribution(SPECS["discrete"], probabilities.log().expand(1000, 4))
    counts = policy.sample(evenly(1000)).bincount(minlength=4)
    assert (counts / 1000 - probabilities).abs().max() <= 1e-3


def test_the_tail_of_a_large_vocabulary_is_drawn_as_often_as_its_probability_says():
    """In float32 the tail has no weight: 1 + 4e-8 is 1."""
    logits = torch.full((1, 150_000), -17.0)
    logits[0, 0] = 0.0
    tail = 1 - torch.softmax(logits.double(), dim=-1)[0, 0].item()
    noise = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    drawn = torch.cat([Choices(logits).sample(u.reshape(1, 1)) for u in noise[-40:]])
    assert tail == pytest.approx(0.0062, abs=1e-4)
    assert (drawn > 0).sum() == round(2000 * tail)  # of the 40 largest; below them, none
    assert drawn[0] == 0


def test_bits_are_set_as_often_as_their_probabilities_say():
    logits = torch.tensor([-2.0, 0.0, 3.0], dtype=torch.float64)
    policy = action_distribution(SPECS["multi_binary"], logits.expand(1000, 3))
    frequencies = policy.sample(evenly(1000).expand(1000, 3)).double().mean(dim=0)
    assert (frequencies - logits.sigmoid()).abs().max() <= 1e-3


def test_components_are_drawn_from_noise_of_their_own():
    policy = action_distribution(SPECS["multi_discrete"], torch.zeros(6))
    assert policy.sample(torch.tensor([0.1, 0.99, 0.9])).tolist() == [0, 0, 1]
    assert policy.sample(torch.tensor([0.5, 0.0, 0.1])).tolist() == [1, 0, 0]


def test_a_gaussian_action_is_the_mean_plus_noise_in_deviations():
    policy = action_distribution(SPECS["box"], torch.tensor([1.0, -1.0, math.log(2.0), math.log(0.5)]))
    torch.testing.assert_close(policy.sample(torch.tensor([1.0, -2.0])), torch.tensor([3.0, -2.0]))
    # each: 0.5 ln(2 pi) + ln(std) + z^2 / 2; the two ln(std) cancel
    expected = -(math.log(2 * math.pi) + 0.5 + 2.0)
    assert policy.log_prob(torch.tensor([3.0, -2.0])).item() == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("allowed", [(0, 1, 1, 1), (1, 1, 1, 0), (0, 1, 1, 0), (0, 0, 1, 0), (1, 0, 0, 1)])
def test_a_forbidden_choice_is_never_drawn_even_at_the_ends_of_the_noise(allowed, scale, dtype):
    mask = torch.tensor(allowed, dtype=torch.bool).expand(2000, 4)
    logits = scale * torch.randn(2000, 4, dtype=dtype, generator=torch.Generator().manual_seed(0))
    policy = action_distribution(SPECS["discrete"], logits, mask)
    below_one = torch.nextafter(torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    assert below_one.item() < 1.0  # and rounds to 1 in float32
    for noise in (torch.zeros(1, dtype=torch.float64), below_one):
        choices = policy.sample(noise.to(dtype).expand(2000, 1))
        assert mask.gather(-1, choices.unsqueeze(-1)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_noise_draws_one_of_the_choices(dtype):
    logits = torch.tensor([[0.0, -200.0], [-200.0, 0.0], [0.1, 0.1], [1e4, -1e4]], dtype=dtype)
    for noise in (0.0, 1.0 - torch.finfo(dtype).eps, 1.0):
        choices = action_distribution(ActionSpec("discrete", (2,)), logits).sample(
            torch.full((4, 1), noise, dtype=dtype)
        )
        assert ((choices >= 0) & (choices < 2)).all()


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete"])
def test_forbidden_choices_have_no_probability_and_no_gradient(kind):
    mask = {"discrete": [True, False, True, False], "multi_discrete": [True, False, True, True, False, True]}
    allowed = torch.tensor(mask[kind])
    logits = torch.linspace(-1, 1, len(allowed)).requires_grad_()
    policy = action_distribution(SPECS[kind], logits, allowed)
    action = torch.tensor(0) if kind == "discrete" else torch.tensor([2, 0, 1])
    (policy.log_prob(action) + policy.entropy()).backward()
    assert (logits.grad[~allowed] == 0).all()
    assert logits.grad.isfinite().all()
    assert (logits.grad[allowed] != 0).any()


def test_a_masked_distribution_is_the_one_over_the_allowed_choices():
    logits = torch.tensor([0.3, 9.0, -0.5, 1.0])
    masked = action_distribution(SPECS["discrete"], logits, torch.tensor([True, False, True, True]))
    small = Categorical(logits=logits[[0, 2, 3]])
    assert masked.entropy().item() == pytest.approx(small.entropy().item())
    assert masked.mode().item() == 3
    log_probs = torch.stack([masked.log_prob(torch.tensor(i)) for i in (0, 2, 3)])
    torch.testing.assert_close(log_probs, small.logits)


def test_a_single_allowed_choice_has_no_entropy():
    mask = torch.tensor([False, False, True, False])
    policy = action_distribution(SPECS["discrete"], torch.randn(4), mask)
    assert (policy.entropy().item(), policy.log_prob(torch.tensor(2)).item()) == (0.0, 0.0)


def test_a_device_draws_from_a_large_vocabulary_what_the_host_draws():
    generator = torch.Generator().manual_seed(0)
    policy = Choices(6 * torch.randn(400, 20_000, generator=generator))
    noise = torch.rand(400, 1, dtype=torch.float64, generator=generator)
    # The tail of 20,000 tokens is drawn only if sums are kept in float64.
    noise[:2] = torch.tensor([[0.0], [1.0 - 2.0**-53]])
    assert torch.equal(policy.sample_on_device(noise), policy.sample(noise))
