"""Advantages and returns from a rollout: generalised advantage estimation (GAE).

`gae` is the formula; `Gae` applies it to a rollout and adds the moments by which advantages are normalised over all
ranks (rollout_stats.py). The C++ version is CppGae (cpp/learner.py); GRPO's advantages are in algorithms/grpo.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ddppo.config.algorithm_settings import SurrogateSettings
from ddppo.ppo.normalization import moments
from ddppo.ppo.rollout import Rollout


def gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    next_values: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    valid: torch.Tensor,
    *,
    gamma: float,
    gae_lambda: float,
    weights: torch.Tensor | None = None,
    skips_gaps: bool = False,
) -> torch.Tensor:
    """Return generalised advantage estimates `[T, E]` (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

    delta_t = r_t + gamma * V(s'_t) * (not terminated_t) - V(s_t)
    A_t = w_t * (delta_t + gamma * lambda * (not (terminated_t or truncated_t)) * A_{t+1}),    w_t = 1 without weights

    With w_t = min(1, pi(a_t) / mu(a_t)), where mu acted, V + A are the V-trace targets of pi with rho_bar = c_bar = 1
    (Espeholt et al. 2018, arXiv:1802.01561, eq. 1, its c_i times lambda), and A is V-trace's policy advantage
    rho_t * (r_t + gamma * v_{t+1} - V(s_t)), v_{t+1} replaced by lambda * v_{t+1} + (1 - lambda) * V(s_{t+1}).

    All inputs are `[T, E]`. next_values are V of the true successor s'_t: a truncated step bootstraps from the value of
    its final observation, and a terminated step from 0. Both cut the trace. Rows that are not valid get 0 and cut the
    trace too; with skips_gaps the trace passes over them, so that t + 1 is the next valid row.
    """
    deltas = (rewards + gamma * next_values * ~terminated - values) * valid
    decay = (gamma * gae_lambda) * (~(terminated | truncated) & valid).to(deltas.dtype)
    if weights is not None:
        deltas, decay = deltas * weights, decay * weights
    if skips_gaps:
        decay = torch.where(valid, decay, 1.0)
    # Backwards in time, one row at a time: A_t = delta_t + decay_t * A_{t+1}.
    advantages = torch.empty_like(deltas)
    running = torch.zeros_like(deltas[0])
    rows = zip(advantages.unbind(), deltas.unbind(), decay.unbind(), strict=True)
    for out, delta, factor in reversed(list(rows)):
        running = torch.addcmul(delta, factor, running, out=out)
    return advantages * valid if skips_gaps else advantages


# -- What the learner gets.


@dataclass(frozen=True, slots=True)
class Estimates:
    """What the learner learns from a rollout; tensors are `[T, E]`."""

    advantages: torch.Tensor
    weights: torch.Tensor  # of samples in the loss; 0 for rows that are not valid
    returns: torch.Tensor | None = (
        None  # targets of the value function; None if the algorithm learns no values
    )
    # This rank's (count, mean, M2) [3, 3] of advantages, returns and returns - values, or [S, 3, 3] of its S shards, by
    # which advantages are normalised and explained variance is computed. None for GRPO, which needs neither.
    moments: torch.Tensor | None = None
    # What each sample adds to the number that divides the loss over all ranks; None: 1 for each valid sample.
    counts: torch.Tensor | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)  # equal on all ranks


_READ = ("values", "next_values", "terminated", "truncated", "valid")  # fields of a rollout


class Gae:
    """PPO's estimates: advantages by GAE, and returns = advantages + values.

    correction: for rollouts that an older policy acted (`Rollout.ratios`): "vtrace" weighs the trace, "clip" weighs
    the advantages. num_shards: the rank's environments are estimated in that many parts, one by one, so that the bits
    do not depend on how many a rank has.
    """

    learns_values = True
    reads_float64 = False  # rewards come in the type of values

    def __init__(self, config: SurrogateSettings, correction: str = "vtrace", *, num_shards: int = 1) -> None:
        self.config = config
        self.correction = correction
        self.num_shards = num_shards

    def __call__(self, rollout: Rollout, rewards: torch.Tensor) -> Estimates:
        """Return the estimates of a rollout; rewards `[T, E]` are scaled already."""
        if self.num_shards == 1:
            return self._estimates(rollout, rewards)
        read = [rewards, *(getattr(rollout, name) for name in _READ)]
        columns = (x.chunk(self.num_shards, dim=1) for x in read)
        shards = []
        for parts in zip(*columns, strict=True):
            own, *others = map(torch.Tensor.contiguous, parts)
            fields: dict[str, Any] = dict(zip(_READ, others, strict=True))
            shards.append(self._estimates(replace(rollout, **fields), own))
        return Estimates(
            torch.cat([x.advantages for x in shards], dim=1),
            torch.cat([x.weights for x in shards], dim=1),
            torch.cat([x.returns for x in shards if x.returns is not None], dim=1),
            torch.stack([x.moments for x in shards if x.moments is not None]),
        )

    def _estimates(self, rollout: Rollout, rewards: torch.Tensor) -> Estimates:
        config, valid = self.config, rollout.valid
        weights = None if rollout.ratios is None else rollout.ratios.clamp(max=1.0)
        advantages = gae(
            rewards,
            rollout.values,
            rollout.next_values,
            rollout.terminated,
            rollout.truncated,
            valid,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            weights=weights if self.correction == "vtrace" else None,
            skips_gaps=rollout.has_gaps,
        )
        returns = advantages + rollout.values
        if weights is not None and self.correction == "clip":
            advantages = advantages * weights
        columns = [advantages, returns, returns - rollout.values]
        samples = torch.stack([x.flatten() if rollout.is_full else x[valid] for x in columns], dim=-1)
        return Estimates(advantages, valid.to(advantages.dtype), returns, moments(samples).cpu())
