import pytest
import torch

from ddppo.ppo.normalization import ObsNormalizer, RewardNormalizer, merge_moments, moments, variance
from ddppo.spaces import ArraySpec

CPU = torch.device("cpu")


def column(values):
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def alone(values):
    """What a single rank gathers."""
    return values.unsqueeze(0)


def test_moments_are_count_mean_and_sum_of_squared_deviations():
    assert moments(torch.tensor([[1.0, 0.0], [3.0, 0.0]])).tolist() == [[2, 2], [2, 0], [2, 0]]
    assert moments(torch.empty(0, 1)).tolist() == [[0], [0], [0]]


def test_moments_of_parts_of_different_sizes_merge_by_count():
    parts = [column([1.0, 3.0]), column([]), column([8.0])]
    merged = merge_moments(torch.stack([moments(part) for part in parts]))
    assert merged.flatten().tolist() == [3, 4, 26]  # mean of 1, 3, 8; 9 + 1 + 16
    assert variance(merged).item() == pytest.approx(26 / 3)


def test_a_large_offset_does_not_drown_the_variance():
    x = 1e6 + torch.tensor([0.0, 0.001], dtype=torch.float64).repeat(500)
    merged = merge_moments(torch.stack([moments(x[:300]), moments(x[300:])]))
    assert variance(merged).item() == pytest.approx(0.25e-6, rel=1e-4)


def test_observations_pass_unchanged_but_clipped_before_the_first_update():
    normalizer = ObsNormalizer(ArraySpec((2,)), CPU, torch.float64)
    assert normalizer(torch.tensor([[0.5, -30.0]])).tolist() == [[0.5, -10.0]]


def test_observations_are_normalised_by_the_moments_of_all_that_were_seen():
    normalizer = ObsNormalizer(ArraySpec((2,)), CPU, torch.float64)
    seen = torch.tensor([[1.0, 5.0], [3.0, 5.0], [5.0, 5.0], [7.0, 5.0]], dtype=torch.float64)
    normalizer.update_(moments(seen[:1]))
    normalizer.update_(moments(seen[1:]))
    out = torch.empty(2, 2, dtype=torch.float64)
    obs = torch.tensor(
        [[4.0, 5.0], [4.0 + 5**0.5, 6.0]], dtype=torch.float64
    )  # mean 4, variance 5; and constant
    result = normalizer(obs, out=out)
    assert result is out
    torch.testing.assert_close(result, torch.tensor([[0.0, 0.0], [1.0, 10.0]], dtype=torch.float64))
    assert obs[0, 0].item() == 4.0


def test_a_normaliser_is_its_moments():
    first, second = (ObsNormalizer(ArraySpec((3,)), CPU, torch.float32) for _ in range(2))
    first.update_(moments(torch.randn(50, 3, generator=torch.Generator().manual_seed(0))))
    second.load(first.state)
    obs = torch.randn(4, 3)
    assert torch.equal(first(obs), second(obs))
    assert not torch.equal(first(obs), obs)


def test_rewards_are_divided_by_the_deviation_of_the_discounted_return():
    normalizer = RewardNormalizer(1, gamma=0.5, device=CPU)
    rewards, no = column([4.0, 2.0, 1.0]), torch.zeros(3, 1, dtype=torch.bool)
    scaled = normalizer(rewards, no, ~no, alone)
    # discounted returns 4, 2 + 2, 1 + 2: variance 2/9
    torch.testing.assert_close(scaled, rewards / (2 / 9 + 1e-8) ** 0.5)


def test_the_discounted_return_starts_anew_with_every_episode_and_goes_on_between_rollouts():
    normalizer = RewardNormalizer(1, gamma=0.5, device=CPU)
    valid = torch.ones(2, 1, dtype=torch.bool)
    ended = torch.tensor([[True], [False]])
    normalizer(column([4.0, 2.0]), ended, valid, alone)  # 4 | 2
    normalizer(column([1.0, 1.0]), ~valid, valid, alone)  # 1 + 1, 1 + 1
    expected = moments(column([4.0, 2.0, 2.0, 2.0])).flatten()
    torch.testing.assert_close(normalizer.state, expected)


def test_pseudo_steps_are_not_among_the_moments_of_returns():
    normalizer = RewardNormalizer(1, gamma=0.5, device=CPU)
    ended = torch.tensor([[False], [True], [False], [False]])
    valid = torch.tensor([[True], [True], [False], [True]])
    normalizer(column([4.0, 2.0, 0.0, 6.0]), ended, valid, alone)
    torch.testing.assert_close(normalizer.state, moments(column([4.0, 4.0, 6.0])).flatten())


def test_what_a_policy_of_text_is_given_to_read_does_not_discount():
    normalizer = RewardNormalizer(1, gamma=0.5, device=CPU)
    valid = torch.tensor([[False], [True], [False], [False], [True]])
    normalizer(column([0.0, 4.0, 0.0, 0.0, 1.0]), torch.zeros(5, 1, dtype=torch.bool), valid, alone)
    torch.testing.assert_close(normalizer.state, moments(column([4.0, 3.0])).flatten())


def test_scaled_rewards_are_clipped_and_the_given_ones_left_alone():
    normalizer = RewardNormalizer(1, gamma=0.0, device=CPU)
    rewards, no = column([1.0] * 400 + [-1000.0]), torch.zeros(401, 1, dtype=torch.bool)
    scaled = normalizer(rewards, no, ~no, alone)
    assert scaled.min().item() == -10.0
    assert rewards.min().item() == -1000.0
