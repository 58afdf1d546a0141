import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddppo.ppo.normalization import ObsNormalizer, RewardNormalizer, merge_moments, moments, variance
from ddppo.spaces import ArraySpec
from tests.support import PATIENCE_S

CPU = torch.device("cpu")


@st.composite
def splits(draw):
    """Samples `[n, 2]`, n >= 1, and cuts of them into parts, some perhaps empty."""
    n = draw(st.integers(1, 40))
    seed, offset, scale = (
        draw(st.integers(0, 99)),
        draw(st.sampled_from([0.0, 1e3, -1e5])),
        draw(st.sampled_from([1e-3, 1.0, 1e3])),
    )
    x = offset + scale * np.random.default_rng(seed).standard_normal((n, 2))
    cuts = sorted(draw(st.lists(st.integers(0, n), max_size=5)))
    return torch.from_numpy(x), np.diff([0, *cuts, n]).tolist()


@given(splits())
def test_merged_moments_of_any_split_are_those_of_the_union(split):
    x, sizes = split
    merged = merge_moments(torch.stack([moments(part) for part in x.split(sizes)]))
    assert merged[0].tolist() == [len(x)] * 2
    np.testing.assert_allclose(merged[1], x.numpy().mean(axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(variance(merged), x.numpy().var(axis=0), rtol=1e-8, atol=1e-12)


@given(splits(), st.randoms(use_true_random=False))
def test_moments_do_not_depend_on_the_order_of_the_parts(split, random):
    x, sizes = split
    parts = [moments(part) for part in x.split(sizes)]
    shuffled = random.sample(parts, len(parts))
    one, other = merge_moments(torch.stack(parts)), merge_moments(torch.stack(shuffled))
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@given(splits())
def test_observations_are_normalised_alike_however_they_were_split(split):
    x, sizes = split
    whole, merged, one_by_one = (ObsNormalizer(ArraySpec((2,)), CPU, torch.float64) for _ in range(3))
    whole.update_(moments(x))
    merged.update_(merge_moments(torch.stack([moments(part) for part in x.split(sizes)])))
    for part in x.split(sizes):
        one_by_one.update_(moments(part))
    torch.testing.assert_close(merged(x), whole(x), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(one_by_one(x), whole(x), rtol=1e-6, atol=1e-6)


@st.composite
def reward_rollouts(draw):
    """Some rollouts of rewards, ends and validity `[T, 4]`, and ranks that share the environments."""
    world_size = draw(st.sampled_from([1, 2, 4]))
    rollouts = []
    generator = np.random.default_rng(draw(st.integers(0, 999)))
    for _ in range(draw(st.integers(1, 3))):
        shape = (draw(st.integers(1, 8)), 4)
        valid = generator.random(shape) < 0.8
        rewards = generator.standard_normal(shape) * valid  # a pseudo-step is worth nothing
        rollouts.append((rewards, (generator.random(shape) < 0.3) & valid, valid))
    return world_size, rollouts


class Meeting:
    """Ranks as threads: each leaves its values and takes those of all."""

    def __init__(self, world_size):
        self.slots = [None] * world_size
        self.barrier = threading.Barrier(world_size)

    def gather(self, rank, values):
        self.slots[rank] = values
        self.barrier.wait(timeout=PATIENCE_S)
        everything = torch.stack(self.slots)
        self.barrier.wait(timeout=PATIENCE_S)
        return everything


def scaled_by_ranks(world_size, rollouts, gamma):
    """The scaled rewards of every rollout and the final moments of every rank, which share the environments."""
    meeting = Meeting(world_size)

    def rank_life(rank):
        normalizer = RewardNormalizer(4 // world_size, gamma, CPU)
        scaled = []
        for arrays in rollouts:
            part = [torch.from_numpy(x).chunk(world_size, dim=1)[rank] for x in arrays]
            scaled.append(normalizer(*part, partial(meeting.gather, rank)))
        return scaled, normalizer.state

    with ThreadPoolExecutor(world_size) as threads:
        scaled, states = zip(*threads.map(rank_life, range(world_size)), strict=True)
    return [torch.cat(parts, dim=1) for parts in zip(*scaled, strict=True)], torch.stack(states)


def slow_returns(rollouts, gamma):
    """Discounted returns at every valid step, by the definition, in pure Python."""
    returns = []
    for i in range(4):
        running = 0.0
        for rewards, ended, valid in rollouts:
            for t in range(len(rewards)):
                if valid[t, i]:  # a pseudo-step neither counts nor discounts
                    running = rewards[t, i] + gamma * running
                    returns.append(running)
                if ended[t, i]:
                    running = 0.0
    return returns


@given(reward_rollouts())
def test_rewards_are_scaled_alike_whatever_the_number_of_ranks(case):
    world_size, rollouts = case
    alone, state = scaled_by_ranks(1, rollouts, 0.9)
    shared, states = scaled_by_ranks(world_size, rollouts, 0.9)
    for one, other in zip(alone, shared, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(states, state.expand_as(states), rtol=1e-9, atol=1e-12)


@given(reward_rollouts())
def test_moments_of_returns_are_those_of_sums_that_restart_with_every_episode(case):
    _, rollouts = case
    _, states = scaled_by_ranks(1, rollouts, 0.9)
    returns = slow_returns(rollouts, 0.9)
    expected = moments(torch.tensor(returns, dtype=torch.float64))
    torch.testing.assert_close(states[0], expected, rtol=1e-9, atol=1e-9)
