"""Rollouts that older parameters acted, seen from those that learn."""

import dataclasses

import torch

from ddppo.models.actor_critic import ActorCritic
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.ppo.rollout import Rollout
from ddppo.spaces import each, zipped

_ROWS = 32_768  # of one forward, which bound memory, not results


@torch.no_grad()
def with_ratios(
    rollout: Rollout,
    is_old: torch.Tensor,
    model: ActorCritic,
    normalizer: ObsNormalizer | None,
) -> Rollout:
    """Return the rollout with log-probabilities and values by `model` where `is_old` `[E]`, and ratios pi / mu.

    pi is `model`'s, mu what acted; observations are normalised by the moments of now. The ratios stand in front of
    PPO's own, which begin at 1 (Hilton et al. 2022, "Batch size-invariance for policy optimization",
    arXiv:2110.00641: a proximal policy beside the behaviour's). Values of final observations, and of the successor of
    the last row, which did not travel, stay those of the acting parameters.
    """
    steps, num_old = len(rollout.rewards), int(is_old.sum())
    raw = each(lambda x: x[:, is_old], rollout.raw_obs)
    obs = raw if normalizer is None else normalizer(raw)
    mask = None if rollout.action_mask is None else rollout.action_mask[:, is_old]
    actions = rollout.actions[:, is_old]
    rows = zipped(each(lambda x: x.flatten(0, 1).split(_ROWS), obs))
    with model.unchanged():
        at = map(model.evaluate_actions, rows, actions.flatten(0, 1).split(_ROWS))
        params, values = (torch.cat(parts).unflatten(0, (steps, num_old)) for parts in zip(*at, strict=True))
        of_states = values
        if model.values_are_of_actions:
            of_states = torch.cat(list(map(model.value, rows))).unflatten(0, (steps, num_old))
    acted = rollout.logprobs[:, is_old]
    now = model.distribution(params, mask).log_prob(actions)
    next_values = rollout.next_values[:, is_old].clone()
    goes_on = ~(rollout.terminated | rollout.truncated)[:-1, is_old]
    next_values[:-1] = torch.where(goes_on, of_states[1:], next_values[:-1])

    def put(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        out = old.clone()
        out[:, is_old] = new.to(old.dtype)
        return out

    return dataclasses.replace(
        rollout,
        obs=each(put, rollout.obs, obs),
        logprobs=put(rollout.logprobs, now),
        values=put(rollout.values, values),
        next_values=put(rollout.next_values, next_values),
        ratios=put(torch.ones_like(rollout.logprobs), (now - acted).exp()),
    )
