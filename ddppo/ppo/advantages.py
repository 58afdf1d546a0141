"""Group-relative advantages and what tokens weigh (GRPO). A group is several rollouts of one task from one seed.

K groups over all ranks, numbered the same on each; a rank holds n rollouts, of T tokens at most, of any of the groups.
A token is what the policy chooses at once: in tasks without text, an action. The caller gathers what is summed here and
divides by counts over all ranks, as for PPO's losses.
Sources: GRPO, Shao et al. 2024, arXiv:2402.03300; Dr. GRPO, Liu et al. 2025, arXiv:2503.20783; DAPO, Yu et al. 2025,
arXiv:2503.14476.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from ddppo.config.algorithm_settings import AlgorithmSettings, GrpoSettings
from ddppo.ppo.cpp.network import returns_and_moments
from ddppo.ppo.normalization import Gather, merge_moments, moments
from ddppo.ppo.rollout import Rollout

_SHARE, _SHARE_FLOAT32 = 1e-12, 1e-6  # of a reward, by which rounding may have moved it


def rounding_of_returns(rewards: torch.Tensor, as_told: torch.Tensor) -> torch.Tensor:
    """Return by how much rounding may have moved the return of each rollout, float64 `[n]`.

    rewards `[T, n]` float64: what is summed, 0 where nothing is. as_told `[T, n]` float64: the same before they were
    scaled. A sum of float64, the task's or ours, is off in its last digits. A reward that float32 holds, and that is
    no whole number, was computed in float32, perhaps, and is off in float32's.
    """
    is_float32 = (as_told == as_told.float()) & (as_told != as_told.round())
    return (rewards.abs() * torch.where(is_float32, _SHARE_FLOAT32, _SHARE)).sum(dim=0)


def group_statistics(
    returns: torch.Tensor, rounding: torch.Tensor, groups: torch.Tensor, valid: torch.Tensor, num_groups: int
) -> torch.Tensor:
    """Return (count, mean, M2, min, max, rounding) of this rank's returns in each group, float64 `[6, K]`.

    returns, rounding, groups (whole numbers below K), valid `[n]`: a rollout that is not valid failed, and is in no
    group. M2 is the sum of squared deviations from the mean, rounding that of the return that it may have moved most.
    A group without rollouts here has count 0, min inf, max -inf and rounding 0.
    """
    x, index = returns[valid].double(), groups[valid]
    zeros = x.new_zeros(num_groups)
    count = zeros.index_add(0, index, torch.ones_like(x))
    mean = zeros.index_add(0, index, x) / count.clamp(min=1)
    squares = zeros.index_add(0, index, (x - mean[index]).square())
    low = torch.full_like(zeros, torch.inf).scatter_reduce(0, index, x, "amin")
    high = torch.full_like(zeros, -torch.inf).scatter_reduce(0, index, x, "amax")
    most = zeros.scatter_reduce(0, index, rounding[valid], "amax")
    return torch.stack([count, mean, squares, low, high, most])


def merge_group_statistics(parts: torch.Tensor) -> torch.Tensor:
    """Combine the ranks' statistics of their parts of K groups, `[W, 6, K]`, into those of the groups, `[6, K]`."""
    return torch.cat([merge_moments(parts[:, :3]), parts[:, 3:4].amin(dim=0), parts[:, 4:].amax(dim=0)])


def has_spread(merged: torch.Tensor) -> torch.Tensor:
    """Return for each group `[K]` bool whether its returns differ, so that there is something to learn from it.

    By min and max, and by more than rounding: sums of the same rewards, come at other steps, differ in their last
    digits, and dividing by such a deviation would make advantages of +-1 from nothing.
    """
    low, high, rounding = merged[3:]
    return high - low > rounding


def num_without_spread(merged: torch.Tensor) -> int:
    """Return how many groups have rollouts, but none from which to learn."""
    return int(((merged[0] > 0) & ~has_spread(merged)).sum())


def group_advantages(
    returns: torch.Tensor,
    groups: torch.Tensor,
    valid: torch.Tensor,
    merged: torch.Tensor,
    *,
    divide_by_std: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages `[n]` of this rank's rollouts, and `[n]` bool which of them are used; the others have 0.

    A_i = (r_i - mean(r)) / std(r) over the group of i (GRPO, section 4.1.2), std the population's; without
    `divide_by_std` A_i = r_i - mean(r) (Dr. GRPO, section 3: dividing favours tasks that are nearly always, or nearly
    never, achieved). Failed rollouts are not used, nor are groups without spread. merged: statistics `[6, K]` of all
    ranks.
    """
    count, mean, squares, *_ = merged
    used = valid & has_spread(merged)[groups]
    advantages = returns.double() - mean[groups]
    if divide_by_std:
        std = (squares / count.clamp(min=1)).sqrt()
        advantages = advantages / std[groups]
    return torch.where(used, advantages, 0.0).to(returns.dtype), used


def token_weights(
    own: torch.Tensor, used: torch.Tensor, dtype: torch.dtype, *, mean_over: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights `[T, n]` of tokens in the loss, and what each adds to the count that divides it, `[T, n]`.

    The loss is sum(weights * losses) / sum(counts), both over all ranks. own `[T, n]`, used `[n]` bool. mean_over:
    "tokens": of all tokens, whoever's (DAPO, section 3.3);
    "episodes": of the mean over each rollout's own tokens (GRPO, eq. 3), so tokens of long ones weigh less;
    "constant": over rollouts, of their tokens' sum / T, however long they are (Dr. GRPO, section 3: a mean over their
    own tokens would favour long wrong answers).
    A rollout without tokens of its own counts only where its sum, of 0, is a rollout's: "constant".
    """
    weights = (own & used).to(dtype)
    if mean_over == "tokens":
        return weights, weights
    if mean_over == "episodes":
        weights = weights / weights.sum(dim=0).clamp(min=1)
        return weights, weights
    assert mean_over == "constant", mean_over
    return weights, used.to(dtype).expand(own.shape)


# -- How advantages are estimated: by a value function (GAE), or within groups of rollouts (GRPO).


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
