"""How advantages are estimated: by a value function (GAE), or within groups of rollouts (GRPO)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from ddppo.config import AlgorithmSettings, GrpoSettings
from ddppo.ppo.acting.rollout import Rollout
from ddppo.ppo.advantages.groups import (
    group_advantages,
    group_statistics,
    merge_group_statistics,
    num_without_spread,
    rounding_of_returns,
    token_weights,
)
from ddppo.ppo.native.network import returns_and_moments
from ddppo.ppo.normalization import Gather, moments

_READ = ("values", "next_values", "terminated", "truncated", "valid")  # of a rollout, by Gae


@dataclass(frozen=True, slots=True)
class Estimates:
    """What is learned from a rollout, `[T, E]`.

    returns: what values are learned from; None where none are. moments: this rank's, `[3, 3]`, of advantages, returns
    and returns - values, by which advantages are normalised, or of each of its shards `[S, 3, 3]`; None where
    advantages stay as they are. weights: of samples in
    the loss. counts: what each adds to the number that divides the loss over all ranks; None: 1 where the rollout is
    valid, as the weights are. metrics: equal on all ranks.
    """

    advantages: torch.Tensor
    weights: torch.Tensor
    returns: torch.Tensor | None = None
    moments: torch.Tensor | None = None
    counts: torch.Tensor | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class Estimator(Protocol):
    def __call__(self, rollout: Rollout, rewards: torch.Tensor, *, in_cpp: bool) -> Estimates:
        """Return what is learned from the rollout and from rewards `[T, E]`, its own or what was made of them.

        in_cpp: the step is ours in C++, so numbers may come from there, too.
        """
        ...


class Gae:
    """PPO's: generalised advantage estimates, and returns for the value function.

    correction: of rollouts that another policy acted, vtrace or clip. num_shards: of the environments, each of which is
    estimated by itself. In a rollout that has gaps the trace passes over them.
    """

    def __init__(self, config: AlgorithmSettings, correction: str = "vtrace", *, num_shards: int = 1) -> None:
        self.config = config
        self.correction = correction
        self.num_shards = num_shards

    def __call__(self, rollout: Rollout, rewards: torch.Tensor, *, in_cpp: bool) -> Estimates:
        if self.num_shards == 1:
            return self._estimates(rollout, rewards, in_cpp=in_cpp)
        read = [rewards, *(getattr(rollout, name) for name in _READ)]
        columns = (x.chunk(self.num_shards, dim=1) for x in read)
        shards = []
        for parts in zip(*columns, strict=True):
            own, *others = map(torch.Tensor.contiguous, parts)
            parts_read: dict[str, Any] = dict(zip(_READ, others, strict=True))
            shard = replace(rollout, **parts_read)
            shards.append(self._estimates(shard, own, in_cpp=in_cpp))
        return Estimates(
            torch.cat([x.advantages for x in shards], dim=1),
            torch.cat([x.weights for x in shards], dim=1),
            torch.cat([x.returns for x in shards if x.returns is not None], dim=1),
            torch.stack([x.moments for x in shards if x.moments is not None]),
        )

    def _estimates(self, rollout: Rollout, rewards: torch.Tensor, *, in_cpp: bool) -> Estimates:
        config, valid = self.config, rollout.valid
        if in_cpp and rollout.ratios is None:
            advantages, returns, own = returns_and_moments(
                rollout, rewards, gamma=config.gamma, gae_lambda=config.gae_lambda
            )
            return Estimates(advantages, valid.to(advantages.dtype), returns, own)
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
        samples = torch.stack([advantages[valid], returns[valid], (returns - rollout.values)[valid]], dim=-1)
        return Estimates(advantages, valid.to(advantages.dtype), returns, moments(samples).cpu())


class GroupRelative:
    """GRPO's: the return of a whole rollout against those of its group, one advantage for all that it chose.

    Environment i of all is in group i // ppo.group_size; first_env is this rank's first. A rollout that failed has no
    valid row. gather: values `[n]` of every rank as `[W, n]`. Rewards are float64, and all is until advantages are
    known: float32 does not tell 30,000,000 from 30,000,001.
    """

    def __init__(self, config: GrpoSettings, num_envs: int, first_env: int, gather: Gather) -> None:
        self.config = config
        self.num_envs = num_envs
        self.first_env = first_env
        self.gather = gather

    def __call__(self, rollout: Rollout, rewards: torch.Tensor, *, in_cpp: bool) -> Estimates:
        config, valid = self.config, rollout.valid
        num_groups = self.num_envs // config.group_size
        envs = torch.arange(self.first_env, self.first_env + rewards.shape[1], device=rewards.device)
        groups, succeeded = envs // config.group_size, valid.any(dim=0)
        counted = torch.where(valid, rewards.double(), 0.0)
        returns = counted.sum(dim=0)
        rounding = rounding_of_returns(counted, rollout.rewards.double())
        own = group_statistics(returns, rounding, groups, succeeded, num_groups)
        of_ranks = self.gather(own.flatten().cpu()).unflatten(1, own.shape)
        merged = merge_group_statistics(of_ranks).to(rewards.device)
        advantages, used = group_advantages(
            returns, groups, succeeded, merged, divide_by_std=config.divide_by_std
        )
        dtype = rollout.logprobs.dtype
        weights, counts = token_weights(valid, used, dtype, mean_over=config.token_mean)
        return Estimates(
            advantages.to(dtype).expand(rewards.shape),
            weights,
            counts=counts,
            metrics=self._metrics(merged),
        )

    def _metrics(self, merged: torch.Tensor) -> dict[str, float]:
        count, mean, squares, *_ = merged[:, merged[0] > 0]
        num_failed = self.num_envs - merged[0].sum().item()
        if len(count) == 0:
            return {"rollout/failed": num_failed}
        return {
            "rollout/failed": num_failed,
            "rollout/group_return_mean": mean.mean().item(),
            "rollout/group_return_std": (squares / count).sqrt().mean().item(),
            "train/groups_without_spread": num_without_spread(merged) / len(count),
        }


# -- Advantage estimation.


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

    All inputs are `[T, E]`; next_values are V of the true successor s'_t, so a truncated step bootstraps from its
    final observation while the trace is cut. Rows that are not valid get 0 and cut the trace; with skips_gaps it passes
    over them, so that t + 1 is the next valid row.
    """
    deltas = (rewards + gamma * next_values * ~terminated - values) * valid
    decay = (gamma * gae_lambda) * (~(terminated | truncated) & valid).to(deltas.dtype)
    if weights is not None:
        deltas, decay = deltas * weights, decay * weights
    if skips_gaps:
        decay = torch.where(valid, decay, 1.0)
    advantages = torch.empty_like(deltas)
    running = torch.zeros_like(deltas[0])
    rows = zip(advantages.unbind(), deltas.unbind(), decay.unbind(), strict=True)
    for out, delta, factor in reversed(list(rows)):
        running = torch.addcmul(delta, factor, running, out=out)
    return advantages * valid if skips_gaps else advantages
