"""Group-relative advantages and what tokens weigh (GRPO). A group is several rollouts of one task from one seed.

K groups over all ranks, numbered the same on each; a rank holds n rollouts, of T tokens at most, of any of the groups.
A token is what the policy chooses at once: in tasks without text, an action. The caller gathers what is summed here and
divides by counts over all ranks, as for PPO's losses.
Sources: GRPO, Shao et al. 2024, arXiv:2402.03300; Dr. GRPO, Liu et al. 2025, arXiv:2503.20783; DAPO, Yu et al. 2025,
arXiv:2503.14476.
"""

import torch

from ddppo.ppo.normalization import merge_moments

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
