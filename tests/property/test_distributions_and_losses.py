import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from ddppo.models.distributions import action_distribution, num_action_params, num_noise
from ddppo.ppo import losses
from ddppo.spaces import ActionSpec

DTYPES = st.sampled_from([torch.float32, torch.float64])
UNIFORM = st.one_of(
    st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, math.nextafter(1.0, 0.0), 5e-324])
)


@st.composite
def masked_choices(draw):
    n = draw(st.integers(1, 6))
    logits = draw(st.lists(st.floats(-50, 50, width=32), min_size=n, max_size=n))
    mask = draw(st.lists(st.booleans(), min_size=n, max_size=n).filter(any))
    return logits, mask


@given(masked_choices(), UNIFORM, DTYPES)
def test_what_is_drawn_is_allowed_and_has_a_finite_log_probability(choices, noise, dtype):
    logits, mask = (torch.tensor(x) for x in choices)
    policy = action_distribution(ActionSpec("discrete", (len(mask),)), logits.to(dtype), mask)
    choice = policy.sample(torch.tensor([noise], dtype=dtype))
    assert mask[choice]
    assert policy.log_prob(choice).isfinite()
    assert mask[policy.mode()]
    assert 0 <= policy.entropy() <= math.log(int(mask.sum())) + 1e-5


@given(masked_choices(), UNIFORM, UNIFORM)
def test_more_noise_never_draws_an_earlier_choice(choices, one, other):
    logits, mask = (torch.tensor(x) for x in choices)
    policy = action_distribution(ActionSpec("discrete", (len(mask),)), logits.double(), mask)
    low, high = (policy.sample(torch.tensor([u], dtype=torch.float64)) for u in sorted((one, other)))
    assert low <= high


SPECS = st.one_of(
    st.integers(1, 5).map(lambda n: ActionSpec("discrete", (n,))),
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(lambda n: ActionSpec("multi_discrete", tuple(n))),
    st.integers(1, 4).map(lambda n: ActionSpec("multi_binary", (n,))),
    st.integers(1, 4).map(lambda n: ActionSpec("box", (n,))),
)


@given(SPECS, st.lists(st.integers(1, 3), max_size=2), st.integers(0, 99))
def test_an_action_does_not_depend_on_the_batch_it_is_drawn_in(spec, batch, seed):
    generator = torch.Generator().manual_seed(seed)
    params = torch.randn(*batch, num_action_params(spec), dtype=torch.float64, generator=generator)
    noise = torch.rand(*batch, num_noise(spec), dtype=torch.float64, generator=generator)
    policy = action_distribution(spec, params)
    actions = policy.sample(noise)
    assert actions.shape == (*batch, *spec.shape)
    assert policy.log_prob(actions).shape == policy.entropy().shape == tuple(batch)
    rows = zip(
        params.reshape(-1, params.shape[-1]),
        noise.reshape(-1, noise.shape[-1]),
        actions.reshape(-1, *spec.shape),
        policy.log_prob(actions).reshape(-1),
        strict=True,
    )
    for row_params, row_noise, action, log_prob in rows:
        alone = action_distribution(spec, row_params)
        torch.testing.assert_close(alone.sample(row_noise), action)
        torch.testing.assert_close(alone.log_prob(action), log_prob)


@given(st.floats(-20, 20), DTYPES)
def test_k3_is_not_negative_and_zero_only_where_the_policy_stayed(log_ratio, dtype):
    x = torch.tensor(log_ratio, dtype=dtype)
    kl = losses.approx_kl(x).item()
    assert kl >= 0
    if abs(log_ratio) > 1e-3:
        assert kl > 0


@given(st.floats(-3, 3), st.floats(-10, 10, allow_subnormal=False), st.floats(0.01, 0.9))
def test_the_clipped_surrogate_is_never_more_hopeful_than_the_plain_one(log_ratio, advantage, clip_coef):
    x = torch.tensor(log_ratio, dtype=torch.float64, requires_grad=True)
    loss = losses.clipped_surrogate_loss(x, torch.tensor(advantage, dtype=torch.float64), clip_coef=clip_coef)
    loss.backward()
    ratio = math.exp(log_ratio)
    assert loss.item() >= -ratio * advantage - 1e-9
    went_too_far = ratio > 1 + clip_coef if advantage > 0 else ratio < 1 - clip_coef
    if advantage and not math.isclose(ratio, 1 + clip_coef) and not math.isclose(ratio, 1 - clip_coef):
        assert (x.grad.item() == 0) == went_too_far
