import statistics

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddppo.algorithms import grpo as groups

NUM_GROUPS = 4


@st.composite
def rollouts(draw):
    """Returns, groups and validity `[n]` of all rollouts, and a rank for each of them."""
    n, world_size = draw(st.integers(1, 24)), draw(st.sampled_from([1, 2, 3, 4]))
    returns = draw(st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.99, 1.0, 1e6 + 0.1]), min_size=n, max_size=n))
    of = draw(st.lists(st.integers(0, NUM_GROUPS - 1), min_size=n, max_size=n))
    valid = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    ranks = draw(st.lists(st.integers(0, world_size - 1), min_size=n, max_size=n))
    return returns, of, valid, ranks, world_size


def by_ranks(returns, of, valid, ranks, world_size, **options):
    """Advantages, use and merged statistics, computed by ranks that hold what `ranks` gives them."""
    x, index, is_valid = torch.tensor(returns, dtype=torch.float64), torch.tensor(of), torch.tensor(valid)
    rounding = groups.rounding_of_returns(x[None], x[None])
    own = [torch.tensor(ranks) == rank for rank in range(world_size)]
    merged = groups.merge_group_statistics(
        torch.stack(
            [groups.group_statistics(x[i], rounding[i], index[i], is_valid[i], NUM_GROUPS) for i in own]
        )
    )
    advantages, used = torch.empty_like(x), torch.empty_like(is_valid)
    for i in own:
        advantages[i], used[i] = groups.group_advantages(x[i], index[i], is_valid[i], merged, **options)
    return advantages, used, merged


def by_definition(returns, of, valid, scale_by):
    everything = [x for x, is_valid in zip(returns, valid, strict=True) if is_valid]
    advantages, used = [0.0] * len(returns), [False] * len(returns)
    for i in range(len(returns)):
        group = [returns[j] for j in range(len(returns)) if valid[j] and of[j] == of[i]]
        if valid[i] and len(set(group)) > 1:
            used[i] = True
            advantages[i] = returns[i] - statistics.fmean(group)
            scale = {"group": group, "batch": everything}.get(scale_by)
            advantages[i] /= 1.0 if scale is None else statistics.pstdev(scale)
    return advantages, used


@given(rollouts(), st.sampled_from(["group", "batch", "none"]))
def test_advantages_are_those_of_the_definition_however_groups_are_split(case, scale_by):
    advantages, used, merged = by_ranks(*case, scale_by=scale_by)
    returns, of, valid, *_ = case
    expected, of_definition = by_definition(returns, of, valid, scale_by)
    assert used.tolist() == of_definition
    # Values are 1e6 apart at most; by the deviation they are some units.
    np.testing.assert_allclose(advantages, expected, rtol=1e-9, atol=1e-9)
    flat = {
        g
        for g, ok in zip(of, valid, strict=True)
        if ok and len({r for r, h, v in zip(returns, of, valid, strict=True) if v and h == g}) == 1
    }
    assert groups.num_without_spread(merged) == len(flat)


@given(rollouts(), st.floats(-5, 5), st.sampled_from([0.25, 3.0]))
def test_advantages_do_not_change_with_the_unit_of_returns(case, offset, unit):
    returns, *rest = case
    returns = [round(r, 2) if r < 2 else 2.0 for r in returns]
    before, used, _ = by_ranks(returns, *rest)
    after, used_after, _ = by_ranks([unit * r + offset for r in returns], *rest)
    assert used.tolist() == used_after.tolist()
    np.testing.assert_allclose(after, before, rtol=1e-9, atol=1e-9)


@st.composite
def tokens(draw):
    """A seed of losses, masks `[T, n]` of own tokens, use `[n]`, and a cut of rollouts in two parts."""
    n, length = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    own = draw(st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=length, max_size=length))
    used = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return draw(st.integers(0, 99)), torch.tensor(own), torch.tensor(used), draw(st.integers(0, n))


def slow_mean(per_token, own, used, mean_over):
    """The loss by its definition: loops over rollouts and tokens."""
    length, n = own.shape
    sums = [[per_token[t, i].item() for t in range(length) if own[t, i]] for i in range(n) if used[i]]
    if mean_over == "tokens":
        every = [x for row in sums for x in row]
        return sum(every) / max(len(every), 1)
    if mean_over == "constant":
        return sum(sum(row) / length for row in sums) / max(len(sums), 1)
    means = [sum(row) / len(row) for row in sums if row]
    return sum(means) / max(len(means), 1)


@given(tokens(), st.sampled_from(["episodes", "tokens", "constant"]))
def test_local_sums_over_a_global_count_are_the_mean_however_rollouts_are_split(case, mean_over):
    seed, own, used, cut = case
    losses = torch.randn(*own.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    total, count = 0.0, 0.0
    for part in (slice(0, cut), slice(cut, None)):
        weights, counts = groups.token_weights(own[:, part], used[part], torch.float64, mean_over=mean_over)
        total += (weights * losses[:, part]).sum().item()
        count += counts.sum().item()
    expected = slow_mean(losses, own, used, mean_over)
    assert total / max(count, 1.0) == pytest.approx(expected, rel=1e-9, abs=1e-12)
