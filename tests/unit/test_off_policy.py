import dataclasses

import torch

from ddppo.algorithms.ppo import with_ratios
from ddppo.config.variants import settings_of
from ddppo.models.build import build_model
from ddppo.models.distributions import action_distribution
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.ppo.rollout import Rollout
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec

STEPS, ENVS = 5, 4
SPEC = EnvSpec(ArraySpec((3,)), ActionSpec("discrete", (2,)), None)
IS_OLD = torch.tensor([False, True, False, True])


def model(seed):
    return build_model(SPEC, settings_of("model", hidden_sizes=[8]), seed, torch.float64)


@torch.no_grad()
def acted(by, normalizer=None):
    """A rollout of random observations with an end in environment 1, row 2, and one in environment 3, the last row."""
    obs = torch.randn(STEPS + 1, ENVS, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    seen = obs if normalizer is None else normalizer(obs)
    params, values = by(seen)
    actions = (torch.arange(STEPS * ENVS) % 2).reshape(STEPS, ENVS)
    never = torch.zeros(STEPS, ENVS, dtype=torch.bool)
    truncated = never.clone()
    truncated[2, 1] = truncated[4, 3] = True
    next_values = values[1:].clone()
    next_values[truncated] = 7.0  # of final observations
    return Rollout(
        obs=seen[:-1], actions=actions, logprobs=action_distribution(SPEC.action, params[:-1], None).log_prob(actions),
        values=values[:-1], next_values=next_values, rewards=torch.ones(STEPS, ENVS, dtype=torch.float64),
        terminated=never, truncated=truncated, valid=~never, episode_start=never, action_mask=None, raw_obs=obs[:-1],
    )  # fmt: skip


def test_what_the_present_parameters_acted_has_ratios_of_1_and_changes_nothing():
    now = model(1)
    rollout = acted(now)
    found = with_ratios(rollout, IS_OLD, now, None)
    torch.testing.assert_close(found.ratios, torch.ones(STEPS, ENVS, dtype=torch.float64), rtol=0, atol=1e-14)
    for field in dataclasses.fields(Rollout):
        if field.name not in ("ratios", "action_mask"):
            torch.testing.assert_close(
                getattr(found, field.name), getattr(rollout, field.name), rtol=0, atol=1e-14
            )


def test_old_environments_alone_are_seen_by_the_present_parameters():
    before, now = model(1), model(2)
    rollout, fresh = acted(before), acted(now)
    found = with_ratios(rollout, IS_OLD, now, None)
    old = IS_OLD.expand(STEPS, ENVS)
    for name in ("logprobs", "values"):
        expected = torch.where(old, getattr(fresh, name), getattr(rollout, name))
        torch.testing.assert_close(getattr(found, name), expected)
    ratios = torch.where(old, (fresh.logprobs - rollout.logprobs).exp(), 1.0)
    torch.testing.assert_close(found.ratios, ratios)
    expected = torch.where(old, fresh.next_values, rollout.next_values)
    expected[-1] = rollout.next_values[-1]  # what follows the last row did not travel
    torch.testing.assert_close(found.next_values, expected)
    assert found.next_values[2, 1] == found.next_values[4, 3] == 7.0


def test_observations_are_normalised_by_the_moments_of_now():
    now = model(1)
    normalizer = ObsNormalizer(SPEC.obs, torch.device("cpu"), torch.float64)
    rollout = acted(now, normalizer)
    normalizer.load(torch.tensor([[10.0] * 3, [1.0] * 3, [40.0] * 3], dtype=torch.float64))
    found = with_ratios(rollout, IS_OLD, now, normalizer)
    torch.testing.assert_close(found.obs[:, IS_OLD], normalizer(rollout.raw_obs[:, IS_OLD]))
    torch.testing.assert_close(found.obs[:, ~IS_OLD], rollout.obs[:, ~IS_OLD])
    assert not found.ratios[:, IS_OLD].eq(1).any()
    assert found.ratios[:, ~IS_OLD].eq(1).all()


def remembered(by, states):
    """The same rollout by a model with memory, in two sequences of 3 rows that begin with `states` `[2, E, S]`.

    Computed step by step; an episode ends in environment 1, row 1.
    """
    obs = torch.randn(6, ENVS, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    starts = torch.zeros(6, ENVS, dtype=torch.bool)
    starts[2, 1] = True
    rows, memory = [], states[0]
    for t in range(6):
        memory = states[t // 3] if t % 3 == 0 else memory
        memory = torch.where(starts[t, :, None], 0.0, memory)
        params, values, memory = by.step(obs[t], memory)
        rows.append((params, values))
    params, values = map(torch.stack, zip(*rows, strict=True))
    actions, never = (torch.arange(6 * ENVS) % 2).reshape(6, ENVS), torch.zeros(6, ENVS, dtype=torch.bool)
    return Rollout(
        obs=obs, actions=actions, logprobs=action_distribution(SPEC.action, params, None).log_prob(actions),
        values=values, next_values=values, rewards=torch.ones(6, ENVS, dtype=torch.float64), terminated=never,
        truncated=never, valid=~never, episode_start=starts, action_mask=None, raw_obs=obs, state=states,
    )  # fmt: skip


@torch.no_grad()
def test_a_model_with_memory_is_unrolled_from_the_states_that_the_actor_kept():
    before, now = (
        build_model(
            SPEC, settings_of("model", hidden_sizes=[8], memory="gru", memory_size=4), seed, torch.float64
        )
        for seed in (1, 2)
    )
    states = torch.randn(
        2, ENVS, now.state_size, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    rollout, fresh = remembered(before, states), remembered(now, states)
    found = with_ratios(rollout, IS_OLD, now, None)
    for name in ("logprobs", "values"):
        expected = torch.where(IS_OLD, getattr(fresh, name), getattr(rollout, name))
        torch.testing.assert_close(getattr(found, name), expected)
    torch.testing.assert_close(
        found.ratios, torch.where(IS_OLD, (fresh.logprobs - rollout.logprobs).exp(), 1.0)
    )
