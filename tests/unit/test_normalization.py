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


FAR = ArraySpec((2,), "float64")


def far(seed=0, offset=1e8, shape=(64, 8)):
    """Return float64 observations `[T, E, 2]`: noise about a number that float32 holds in steps of 8, and about 0."""
    noise = torch.randn(*shape, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return noise + torch.tensor([offset, 0.0], dtype=torch.float64)


def test_an_offset_that_float32_cannot_hold_is_subtracted_before_the_cast():
    normalizer, valid = ObsNormalizer(FAR, CPU, torch.float32), torch.ones(64, 8, dtype=torch.bool)
    for seed in range(3):
        normalizer.update_(normalizer.moments(far(seed), valid))
    seen = torch.cat([far(seed).flatten(0, 1) for seed in range(3)])
    torch.testing.assert_close(normalizer.state[1], seen.mean(0), rtol=1e-14, atol=1e-6)
    torch.testing.assert_close(variance(normalizer.state), seen.var(0, correction=0), rtol=1e-6, atol=0)
    wanted = (seen - seen.mean(0)) / (seen.var(0, correction=0) + 1e-8).sqrt()
    out = torch.empty(len(seen), 2)
    assert normalizer(seen, out=out) is out
    torch.testing.assert_close(out, wanted.float(), rtol=1e-5, atol=1e-6)
    assert torch.equal(normalizer(seen), out)
    again = ObsNormalizer(FAR, CPU, torch.float32)  # as a checkpoint, an actor or an export has it
    again.load(normalizer.state)
    assert torch.equal(again(seen), out)


@pytest.mark.parametrize("num_shards", [1, 2, 8])
def test_moments_of_far_observations_do_not_depend_on_how_many_ranks_saw_them(num_shards):
    normalizer, valid = ObsNormalizer(FAR, CPU, torch.float32), torch.ones(64, 8, dtype=torch.bool)
    valid[3, 2] = False
    merged = merge_moments(normalizer.moments_of_shards(far(), valid, num_shards))
    torch.testing.assert_close(merged, moments(far()[valid]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("offset", [0.0, 3.0, -500.0])
def test_observations_near_zero_are_cast_first_as_they_always_were(offset):
    valid, x = torch.ones(64, 8, dtype=torch.bool), far(offset=offset)
    of_32, of_64 = (
        ObsNormalizer(ArraySpec((2,), dtype), CPU, torch.float32) for dtype in ("float32", "float64")
    )
    of_32.update_(of_32.moments(x.float(), valid))
    of_64.update_(of_64.moments(x, valid))
    assert torch.equal(of_64.state, of_32.state)
    assert torch.equal(of_64(x), of_32(x.float()))


def test_a_constant_becomes_nothing_and_then_what_it_changes_by():
    normalizer, valid = ObsNormalizer(FAR, CPU, torch.float32), torch.ones(64, 8, dtype=torch.bool)
    constant = torch.full((64, 8, 2), 1e8 + 1 / 3, dtype=torch.float64)
    normalizer.update_(normalizer.moments(constant, valid))
    assert not normalizer(constant).any()
    for seed in range(400):
        normalizer.update_(normalizer.moments(far(seed), valid))
    assert normalizer(far(1000))[..., 0].std().item() == pytest.approx(1, rel=0.05)


def test_rewards_about_a_large_number_are_scaled_by_moments_in_float64():
    rewards = 1e8 + torch.arange(6, dtype=torch.float64).repeat(50).unsqueeze(1)
    normalizer, no = RewardNormalizer(1, gamma=0.0, device=CPU), torch.zeros(300, 1, dtype=torch.bool)
    normalizer(rewards, no, ~no, alone)
    assert variance(normalizer.state).item() == pytest.approx(35 / 12, rel=1e-9)


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
