"""Moments over all ranks by count, and the normalisers built on them.

A normaliser is frozen while a rollout is collected and learned from, and updated once per iteration with the
moments of what all ranks saw. So it is the same on every rank and does not depend on how environments were split.
"""

from collections.abc import Callable

import torch

Gather = Callable[[torch.Tensor], torch.Tensor]


def moments(x: torch.Tensor) -> torch.Tensor:
    """Return (count, mean, M2) of the samples `[n, ...]` as float64 `[3, ...]`; M2 is the sum of squared deviations."""
    x = x.double()
    count = torch.full_like(x.sum(dim=0), float(len(x)))
    mean = x.sum(dim=0) / max(len(x), 1)
    return torch.stack([count, mean, (x - mean).square().sum(dim=0)])


def merge_moments(parts: torch.Tensor) -> torch.Tensor:
    """Return the moments `[3, ...]` of the union of samples whose moments are `[W, 3, ...]`.

    Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance", eq. 1.4-1.5, for W parts at once.
    """
    if len(parts) == 1:
        return parts[0]
    counts, means, m2s = parts.unbind(dim=1)
    count = counts.sum(dim=0)
    mean = (counts * means).sum(dim=0) / count.clamp(min=1)
    m2 = m2s.sum(dim=0) + (counts * (means - mean).square()).sum(dim=0)
    return torch.stack([count, mean, m2])


def variance(merged: torch.Tensor) -> torch.Tensor:
    """Return the population variance of moments `[3, ...]`."""
    return merged[2] / merged[0].clamp(min=1)


class ObsNormalizer:
    """(obs - mean) / std by running moments over all ranks, clipped to +-10; the identity before the first update.

    The running form is OpenAI baselines' VecNormalize; the frozen-per-iteration update is ours.
    """

    def __init__(self, obs_size: int, device: torch.device, dtype: torch.dtype) -> None:
        self.state = torch.zeros(3, obs_size, dtype=torch.float64)
        self._mean = torch.zeros(obs_size, device=device, dtype=dtype)
        self._scale = torch.ones(obs_size, device=device, dtype=dtype)

    def __call__(self, obs: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return normalised obs `[..., obs_size]`, written to `out` if given."""
        normalized = torch.sub(obs, self._mean, out=out)
        return normalized.mul_(self._scale).clamp_(-10.0, 10.0)

    def update_(self, merged: torch.Tensor) -> None:
        """Add the moments `[3, obs_size]` of new observations over all ranks."""
        self.load(merge_moments(torch.stack([self.state, merged])))

    def load(self, state: torch.Tensor) -> None:
        self.state = state
        if state[0, 0] > 0:
            self._mean.copy_(state[1])
            self._scale.copy_((variance(state) + 1e-8).rsqrt())


class RewardNormalizer:
    """Rewards divided by the running deviation of the discounted return, clipped to +-10.

    The discounted return of an environment is g_t = r_t + gamma * g_{t-1}, started anew with every episode
    (OpenAI baselines' VecNormalize). State of each environment stays with the rank that steps it.
    """

    def __init__(self, num_envs: int, gamma: float, device: torch.device) -> None:
        self.state = torch.zeros(3, dtype=torch.float64)
        self._gamma = gamma
        self._discounted = torch.zeros(num_envs, dtype=torch.float64, device=device)

    def __call__(
        self, rewards: torch.Tensor, ended: torch.Tensor, valid: torch.Tensor, gather: Gather
    ) -> torch.Tensor:
        """Return scaled rewards `[T, E]`; updates the moments over all ranks first (one collective)."""
        discounted = torch.empty(rewards.shape, dtype=torch.float64, device=rewards.device)
        for t in range(len(rewards)):
            discounted[t] = rewards[t] + self._gamma * self._discounted
            self._discounted = discounted[t] * ~ended[t]
        merged = merge_moments(gather(moments(discounted[valid]).cpu()))
        self.state = merge_moments(torch.stack([self.state, merged]))
        scale = (variance(self.state) + 1e-8).rsqrt().item()
        return (rewards * scale).clamp(-10.0, 10.0)
