"""V-trace against the sums of its paper, and against GAE, which it is where the policy that learns also acted."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddppo.ppo.advantages import gae

GAMMA, LAMBDA = 0.97, 0.9
NUMBERS = st.floats(-100, 100)
FLAGS = st.sampled_from([False, False, True])
ROWS = st.tuples(NUMBERS, NUMBERS, NUMBERS, FLAGS, FLAGS, st.floats(0.05, 4))
EPISODES = st.lists(ROWS, min_size=1, max_size=12)


def columns(rows):
    """Rewards, values, next values, terminated, truncated and ratios, each `[T, 1]`."""
    kinds = [torch.float64] * 3 + [torch.bool] * 2 + [torch.float64]
    return [
        torch.tensor(x, dtype=kind).unsqueeze(1)
        for x, kind in zip(zip(*rows, strict=True), kinds, strict=True)
    ]


def weighted(rows, weights=None):
    *inputs, ratios = columns(rows)
    weights = ratios.clamp(max=1.0) if weights is None else weights
    valid = torch.ones_like(inputs[3])
    return gae(*inputs, valid, gamma=GAMMA, gae_lambda=LAMBDA, weights=weights).flatten().tolist()


def targets_of_the_paper(rows):
    """v_s = V(x_s) + sum_t gamma^(t-s) c_s ... c_{t-1} rho_t (r_t + gamma V(x_{t+1}) - V(x_t)): eq. 1, remark 2."""
    targets = []
    for s, (_, value, *_) in enumerate(rows):
        total = value
        for t in range(s, len(rows)):
            reward, value_t, next_value, terminated, truncated, ratio = rows[t]
            trace = math.prod(LAMBDA * min(1.0, row[-1]) for row in rows[s:t])
            future = 0.0 if terminated else GAMMA * next_value
            total += GAMMA ** (t - s) * trace * min(1.0, ratio) * (reward + future - value_t)
            if terminated or truncated:
                break
        targets.append(total)
    return targets


@given(EPISODES)
def test_values_plus_weighted_advantages_are_the_targets_of_the_paper(rows):
    found = [a + row[1] for a, row in zip(weighted(rows), rows, strict=True)]
    assert found == pytest.approx(targets_of_the_paper(rows), rel=1e-9, abs=1e-9)


@given(EPISODES)
def test_weighted_advantages_are_those_of_its_policy_gradient(rows):
    """rho_t (r_t + gamma v - V(x_t)), v the mix of the next target and the next value by lambda."""
    targets, expected = targets_of_the_paper(rows), []
    for t, (reward, value, next_value, terminated, truncated, ratio) in enumerate(rows):
        after = next_value
        if t + 1 < len(rows) and not (terminated or truncated):
            # targets[t + 1] stands on values[t + 1], which is V(x_{t+1}) = next_value in a true episode.
            after = next_value + LAMBDA * (targets[t + 1] - rows[t + 1][1])
        expected.append(min(1.0, ratio) * (reward + (0.0 if terminated else GAMMA * after) - value))
    assert weighted(rows) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(EPISODES)
def test_where_the_policies_are_one_it_is_gae(rows):
    inputs = columns(rows)[:-1]
    plain = gae(*inputs, torch.ones_like(inputs[3]), gamma=GAMMA, gae_lambda=LAMBDA).flatten().tolist()
    ones = torch.ones(len(rows), 1, dtype=torch.float64)
    assert weighted(rows, ones) == pytest.approx(plain, rel=0, abs=1e-12)
