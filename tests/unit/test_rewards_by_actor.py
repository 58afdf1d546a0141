"""Running returns of environments whose rollouts come from actors at their own pace."""

import torch

from ddppo.distributed.topologies.async_actors.learner import RewardsByActor
from ddppo.ppo.normalization import RewardNormalizer

CPU, GAMMA = torch.device("cpu"), 0.9


def rollout(seed, envs=2, steps=5):
    random = torch.Generator().manual_seed(seed)
    rewards = torch.randn(steps, envs, generator=random, dtype=torch.float64)
    return rewards, torch.rand(steps, envs, generator=random) < 0.3, torch.ones(steps, envs, dtype=torch.bool)


def side_by_side(*rollouts):
    return [torch.cat(parts, dim=1) for parts in zip(*rollouts, strict=True)]


def alone(x):
    return x.unsqueeze(0)


def test_one_rollout_of_each_actor_is_normalised_as_all_environments_are():
    ours, plain = RewardsByActor(GAMMA, CPU), RewardNormalizer(4, GAMMA, CPU)
    for seed in range(3):
        both = side_by_side(rollout(seed), rollout(10 + seed))
        ours.expect([1, 2], [2, 2])
        assert torch.equal(ours(*both, alone), plain(*both, alone))
    assert torch.equal(ours.state, plain.state)


def test_so_it_is_if_actors_step_unequal_numbers_and_arrive_in_any_order():
    ours, plain = RewardsByActor(GAMMA, CPU), RewardNormalizer(3, GAMMA, CPU)
    first, second = [side_by_side(rollout(seed, envs=2), rollout(10 + seed, envs=1)) for seed in range(2)]
    ours.expect([1, 2], [2, 1])
    assert torch.equal(ours(*first, alone), plain(*first, alone))
    swapped = [x[:, [2, 0, 1]] for x in second]
    ours.expect([2, 1], [1, 2])
    torch.testing.assert_close(ours(*swapped, alone)[:, [1, 2, 0]], plain(*second, alone), rtol=1e-12, atol=0)


def test_a_second_rollout_of_an_actor_goes_on_where_its_first_ended():
    ours, plain = RewardsByActor(GAMMA, CPU), RewardNormalizer(2, GAMMA, CPU)
    ours.expect([3, 3], [2, 2])
    scaled = ours(*side_by_side(rollout(1), rollout(2)), alone)
    assert torch.equal(scaled, torch.cat([plain(*rollout(1), alone), plain(*rollout(2), alone)], dim=1))


def test_an_actor_that_was_started_again_begins_anew_though_a_rollout_from_before_is_in_the_same_update():
    ours, plain = RewardsByActor(GAMMA, CPU), RewardNormalizer(4, GAMMA, CPU)
    for update in range(2):  # the first start carries on, in the second update too
        ours.expect([(3, 0), (3, 1)], [2, 2])
        both = side_by_side(rollout(update), rollout(10 + update))
        assert torch.equal(ours(*both, alone), plain(*both, alone))
