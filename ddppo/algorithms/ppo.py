"""PPO as an algorithm among others, and its correction of rollouts that an older policy acted.

PPO's acting and learning are not written on the contract alone, because they also run in C++: its collector acts
(ddppo/ppo/collector.py), its `Learner` learns (ddppo/ppo/learner.py). A test holds them to a PPO that is written on the
contract (tests/distributed/test_contract.py).

PPO: Schulman et al. 2017, arXiv:1707.06347. A3C is PPO with one epoch of one minibatch under async_actors (ppo=a3c):
Mnih et al. 2016, arXiv:1602.01783. V-trace, the correction: Espeholt et al. 2018, "IMPALA", arXiv:1802.01561.
"""

import dataclasses

import torch

from ddppo.algorithms.contract import Algorithm
from ddppo.config.algorithm_settings import PPOSettings
from ddppo.models.actor_critic import ActorCritic, Obs
from ddppo.ppo.learner import Learner
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.ppo.rollout import Rollout
from ddppo.spaces import each, zipped


class PPO(Algorithm):
    """Rollouts of T steps; any lag, for the ratio of probabilities is clipped and older rollouts are corrected."""

    settings_class = PPOSettings
    learner_class = Learner
    max_lag = None
    takes_memory = True

    def corrected(self, rollout: Rollout, is_old: torch.Tensor, normalizer: ObsNormalizer | None) -> Rollout:
        return with_ratios(rollout, is_old, self.model, normalizer)


_ROWS = 32_768  # rows of one forward pass; they bound memory, not results


@torch.no_grad()
def with_ratios(
    rollout: Rollout,
    is_old: torch.Tensor,
    model: ActorCritic,
    normalizer: ObsNormalizer | None,
) -> Rollout:
    """Return the rollout with ratios pi / mu, and log-probabilities and values of pi, where `is_old` `[E]`.

    pi is the policy of `model`, mu the policy that acted. Observations are normalised by the present moments. PPO's own
    ratios then begin at 1, and these stand in front of them: Hilton et al. 2022, "Batch size-invariance for policy
    optimization", arXiv:2110.00641, which has a proximal policy beside the behaviour policy. Values of final
    observations, and of the successor of the last row, stay those of the acting parameters, because these observations
    do not travel. A model with memory is unrolled from the states that the actor kept, as learning does: Kapturowski et
    al. 2019, "Recurrent experience replay in distributed reinforcement learning", section 3, "stored state".
    """
    steps, num_old = len(rollout.rewards), int(is_old.sum())
    # Select the old environments, [T, E, ...] -> [T, old, ...], and normalise anew.
    raw = each(lambda x: x[:, is_old], rollout.raw_obs)
    obs = raw if normalizer is None else normalizer(raw)
    mask = None if rollout.action_mask is None else rollout.action_mask[:, is_old]
    actions = rollout.actions[:, is_old]
    # Evaluate pi: whole sequences of a model with memory, else [T * old] rows, some at a time.
    rows = zipped(each(lambda x: x.flatten(0, 1).split(_ROWS), obs))
    with model.unchanged():
        if rollout.state is not None:
            starts = rollout.episode_start[:, is_old]
            params, values = _unrolled(model, obs, rollout.state[:, is_old], starts)
        else:
            evaluated = map(model.evaluate_actions, rows, actions.flatten(0, 1).split(_ROWS))
            params, values = (
                torch.cat(x).unflatten(0, (steps, num_old)) for x in zip(*evaluated, strict=True)
            )
        state_values = values
        if model.values_are_of_actions:
            state_values = torch.cat(list(map(model.value, rows))).unflatten(0, (steps, num_old))
    old_logprobs = rollout.logprobs[:, is_old]
    logprobs = model.distribution(params, mask).log_prob(actions)
    # Within an episode the next value of row t is the value of row t + 1.
    next_values = rollout.next_values[:, is_old].clone()
    continues = ~(rollout.terminated | rollout.truncated)[:-1, is_old]
    next_values[:-1] = torch.where(continues, state_values[1:], next_values[:-1])

    def put(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        out = old.clone()
        out[:, is_old] = new.to(old.dtype)
        return out

    return dataclasses.replace(
        rollout,
        obs=each(put, rollout.obs, obs),
        logprobs=put(rollout.logprobs, logprobs),
        values=put(rollout.values, values),
        next_values=put(rollout.next_values, next_values),
        ratios=put(torch.ones_like(rollout.logprobs), (logprobs - old_logprobs).exp()),
    )


def _unrolled(
    model: ActorCritic, obs: Obs, state: torch.Tensor, starts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return action parameters `[T, E, P]` and values `[T, E]` of a model with memory.

    obs `[T, E, *shape]`; state `[C, E, S]` before rows 0, T / C, ...; starts `[T, E]` bool, where episodes start.
    """
    num_sequences, num_envs, _ = state.shape

    def in_sequences(x: torch.Tensor) -> torch.Tensor:  # [T, E, ...] -> [C, L, E, ...] -> [L, C * E, ...]
        return x.unflatten(0, (num_sequences, -1)).transpose(0, 1).flatten(1, 2)

    def in_rows(x: torch.Tensor) -> torch.Tensor:  # [L, C * E, ...] -> [L, C, E, ...] -> [T, E, ...]
        return x.unflatten(1, (num_sequences, num_envs)).transpose(0, 1).flatten(0, 1)

    params, values = model.unroll(each(in_sequences, obs), state.flatten(0, 1), in_sequences(starts))
    return in_rows(params), in_rows(values)
