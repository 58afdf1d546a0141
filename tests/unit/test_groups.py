import itertools
import math

import numpy as np
import pytest
import torch

from ddppo.algorithms import grpo as groups

RETURNS = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.1, 0.1, 0.1, 5.0], dtype=torch.float64)
GROUPS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2])
VALID = torch.ones(8, dtype=torch.bool)


def rounding(returns):
    """Of returns that are one reward each."""
    return groups.rounding_of_returns(returns[None], returns[None])


def by_one(returns, of, valid, num_groups=3, **options):
    own = groups.group_statistics(returns, rounding(returns), of, valid, num_groups)
    merged = groups.merge_group_statistics(own[None])
    return *groups.group_advantages(returns, of, valid, merged, **options), merged


def test_advantages_are_deviations_from_the_groups_mean_in_units_of_its_deviation():
    advantages, used, _ = by_one(RETURNS, GROUPS, VALID)
    assert advantages[:4].tolist() == [1.0, -1.0, 1.0, -1.0]
    assert used.tolist() == [True] * 4 + [False] * 4


def test_without_the_deviation_advantages_keep_the_size_of_the_returns():
    advantages, _, _ = by_one(RETURNS, GROUPS, VALID, scale_by="none")
    assert advantages.tolist() == [0.5, -0.5, 0.5, -0.5, 0, 0, 0, 0]


def test_the_deviation_of_the_batch_is_that_of_all_returns_that_did_not_fail():
    returns = torch.tensor([1.0, 3.0, 10.0, 20.0, 7.0, 7.0, 99.0, 5.0], dtype=torch.float64)
    of, valid = torch.tensor([0, 0, 1, 1, 2, 2, 2, 3]), torch.tensor([True] * 6 + [False, False])
    advantages, used, _ = by_one(returns, of, valid, 4, scale_by="batch")
    # 1, 3, 10, 20, 7, 7: mean 8, squared deviations 49 + 25 + 4 + 144 + 1 + 1 = 224.
    std = math.sqrt(224 / 6)
    assert advantages.tolist() == pytest.approx([-1 / std, 1 / std, -5 / std, 5 / std, 0, 0, 0, 0])
    assert used.tolist() == [True] * 4 + [False] * 4
    nothing, used, _ = by_one(returns, of, torch.zeros(8, dtype=torch.bool), 4, scale_by="batch")
    assert not nothing.any()
    assert not used.any()


def test_groups_of_equal_returns_and_of_one_rollout_are_left_out_and_counted():
    # 0.1 + 0.1 + 0.1 is not 3 * 0.1: their deviation is 1e-17, and dividing by it would tell them apart.
    assert (RETURNS[4:7].mean() != RETURNS[4]).item()
    advantages, used, merged = by_one(RETURNS, GROUPS, VALID)
    assert advantages[4:].tolist() == [0.0] * 4
    assert not used[4:].any()
    assert groups.num_without_spread(merged) == 2


@pytest.mark.parametrize("last", [0.7, -0.5])  # returns of 1.2, and of 0
def test_the_same_rewards_in_another_order_are_no_spread(last):
    orders = itertools.islice(itertools.permutations([0.1, 0.2, 0.3, -0.05, -0.05, last]), 200)
    rewards = torch.tensor(list(orders), dtype=torch.float64).T
    returns = torch.tensor([sum(order) for order in rewards.T.tolist()], dtype=torch.float64)
    assert returns.min() < returns.max()  # in their last digits
    valid, of = torch.ones(200, dtype=torch.bool), torch.zeros(200, dtype=torch.long)
    own = groups.group_statistics(returns, groups.rounding_of_returns(rewards, rewards), of, valid, 1)
    merged = groups.merge_group_statistics(own[None])
    advantages, used = groups.group_advantages(returns, of, valid, merged)
    assert not used.any()
    assert not advantages.any()
    assert groups.num_without_spread(merged) == 1


def test_a_small_difference_that_is_no_rounding_is_spread():
    returns = torch.tensor([100.0, 100.001], dtype=torch.float64)
    advantages, used, _ = by_one(returns, torch.zeros(2, dtype=torch.long), VALID[:2], 1)
    assert used.all()
    assert advantages.tolist() == pytest.approx([-1.0, 1.0])


@pytest.mark.parametrize("level", [3e6, 3e7, -1e9, 1e11])
def test_large_returns_that_differ_by_one_are_spread(level):
    returns = torch.tensor([level + 1, level - 1, level + 1, level - 1], dtype=torch.float64)
    advantages, used, merged = by_one(returns, torch.zeros(4, dtype=torch.long), VALID[:4], 1)
    assert used.all()
    assert groups.num_without_spread(merged) == 0
    assert advantages.tolist() == [1.0, -1.0, 1.0, -1.0]


def test_what_float32_rounds_is_no_spread_where_rewards_were_computed_in_it():
    """A score of a network, say, which another batch rounds otherwise: 0.7 and its neighbour."""
    in_float32 = [np.float32(0.7), np.nextafter(np.float32(0.7), np.float32(1.0))]
    in_float64 = [0.7, 0.7 + 1e-7]
    for found, is_spread in ((in_float32, False), (in_float64, True)):
        returns = torch.tensor([float(x) for x in found], dtype=torch.float64)
        _, used, _ = by_one(returns, torch.zeros(2, dtype=torch.long), VALID[:2], 1)
        assert used.tolist() == [is_spread] * 2


def test_a_failed_rollout_is_in_no_group():
    valid = VALID.clone()
    valid[3] = False
    returns = RETURNS.clone()
    returns[3] = math.nan  # it has none
    advantages, used, merged = by_one(returns, GROUPS, valid)
    root = math.sqrt(2.0)  # of 1, 0, 1: mean 2/3, deviation sqrt(2)/3
    assert advantages[:4].tolist() == pytest.approx([1 / root, -2 / root, 1 / root, 0.0], rel=1e-12)
    assert used.tolist() == [True] * 3 + [False] * 5
    assert merged[0].tolist() == [3.0, 3.0, 1.0]


def test_a_group_whose_rollouts_all_failed_is_no_group_without_spread():
    _, used, merged = by_one(RETURNS, GROUPS, GROUPS == 0)
    assert groups.num_without_spread(merged) == 0
    assert used.sum() == 4


def test_a_group_is_the_same_whether_one_rank_has_it_or_each_has_a_part():
    order = torch.tensor([0, 4, 7, 1, 5, 2, 6, 3])
    parts = order.split([3, 2, 0, 3])
    of_ranks = [
        groups.group_statistics(RETURNS[p], rounding(RETURNS[p]), GROUPS[p], VALID[p], 3) for p in parts
    ]
    merged = groups.merge_group_statistics(torch.stack(of_ranks))
    for part in parts:
        advantages, used = groups.group_advantages(RETURNS[part], GROUPS[part], VALID[part], merged)
        assert advantages.tolist() == [[1.0, -1.0, 1.0, -1.0, 0, 0, 0, 0][i] for i in part]
        assert used.tolist() == [i < 4 for i in part]


OWN = torch.tensor([[1, 1, 1, 1], [0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)
USED = torch.tensor([True, True, False, True])


@pytest.mark.parametrize(
    ("mean_over", "rows", "count"),
    [
        ("tokens", [1.0, 1.0], 6.0),
        ("episodes", [0.25, 0.5], 2.0),  # the last has no token of its own, so no mean
        ("constant", [1.0, 1.0], 12.0),  # 3 rollouts of 4 tokens at most
    ],
)
def test_tokens_weigh_as_the_mean_says_that_is_taken(mean_over, rows, count):
    weights, counts = groups.token_weights(OWN.T, USED, torch.float64, mean_over=mean_over)
    expected = OWN.double() * torch.tensor([*rows, 0.0, 0.0], dtype=torch.float64)[:, None]
    assert weights.T.tolist() == expected.tolist()
    assert counts.sum().item() == count
