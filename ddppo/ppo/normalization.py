"""Moments over all ranks by count, and the normalisers built on them.

A normaliser is frozen while a rollout is collected and learned from, and updated once per iteration with the
moments of what all ranks saw. So it is the same on every rank and does not depend on how environments were split.
"""

from collections.abc import Callable
from typing import Any

import torch

from ddppo.models.actor_critic import Obs
from ddppo.spaces import ArraySpec, each, leaves, zipped

Gather = Callable[[torch.Tensor], torch.Tensor]

# A mean so many deviations from 0 is subtracted in float64, before observations are cast to float32: rounded first,
# they would lose more than 1e-4 of a deviation. Nearer to 0 they are cast first. A constant, whose deviation is the
# rounding of float64, has nothing to lose.
_FAR, _ROUNDING = 1000.0, 1e-12


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

    Pixels pass as they are: the model scales them. The running form is OpenAI baselines' VecNormalize; the
    frozen-per-iteration update is ours. state: moments `[3, n]` of the n floats of an observation, flattened.
    mean_and_scale: two tensors `[*shape]` for every array, None for pixels. offsets: what is subtracted of float64
    observations before they are cast to the model's float32, float64 `[*shape]`; None where that is nothing, as nearly
    always: the mean where it is far from 0, and `mean` is then 0.
    """

    def __init__(
        self, spec: ArraySpec | dict[str, ArraySpec], device: torch.device, dtype: torch.dtype
    ) -> None:
        def identity(leaf: ArraySpec) -> tuple[torch.Tensor, torch.Tensor] | None:
            if not leaf.is_float:
                return None
            zero = torch.zeros(leaf.shape, device=device, dtype=dtype)
            return zero, torch.ones_like(zero)

        self.mean_and_scale = each(identity, spec)
        self.offsets = each(lambda _: None, spec)
        self._spec = spec
        self._floats = [leaf for leaf in leaves(spec) if leaf.is_float]
        self.state = torch.zeros(3, sum(leaf.size for leaf in self._floats), dtype=torch.float64)

    def __call__(self, obs: Obs, out: Obs | None = None) -> Obs:
        """Return normalised obs `[..., *shape]`, written to `out` if given."""
        if out is None:
            return each(_normalized, obs, self.mean_and_scale, self.offsets)
        return each(_normalized, obs, self.mean_and_scale, self.offsets, out)

    def moments(self, obs: Obs, valid: torch.Tensor) -> torch.Tensor:
        """Return the moments `[3, n]` of observations `[T, E, *shape]` where `valid` `[T, E]`."""
        floats = [x[valid] for x in leaves(obs) if x.is_floating_point()]
        flat = [x.reshape(len(x), leaf.size) for x, leaf in zip(floats, self._floats, strict=True)]
        given = zip(flat, filter(None, leaves(self.mean_and_scale)), strict=True)
        found = moments(torch.cat([x.to(mean.dtype) for x, (mean, _) in given], 1))
        far = _far(found, rounding=0.0)
        if not far.any():
            return found
        exact = moments(torch.cat([x.double() for x in flat], 1))
        return torch.where(far & (exact[2] > exact[0] * (_ROUNDING * exact[1]).square()), exact, found)

    def moments_of_shards(self, obs: Obs, valid: torch.Tensor, num_shards: int) -> torch.Tensor:
        """Return the moments `[S, 3, n]` of S equal shards of the environments, as `moments` does of all."""
        shards = zipped(each(lambda x: x.chunk(num_shards, dim=1), obs))
        parts = zip(shards, valid.chunk(num_shards, dim=1), strict=True)
        return torch.stack([self.moments(x, is_valid) for x, is_valid in parts])

    def update_(self, merged: torch.Tensor) -> None:
        """Add the moments `[3, n]` of new observations over all ranks."""
        self.load(merge_moments(torch.stack([self.state, merged])))

    def load(self, state: torch.Tensor) -> None:
        self.state = state
        parts = iter(state.split([leaf.size for leaf in self._floats], dim=1))

        def offset_of(leaf: ArraySpec, mean_and_scale: tuple[torch.Tensor, torch.Tensor] | None) -> Any:
            if mean_and_scale is None:
                return None
            (mean, scale), part = mean_and_scale, next(parts)
            is_cast = leaf.dtype == "float64" and mean.dtype != torch.float64
            offset = part[1].where(_far(part, rounding=_ROUNDING) & is_cast, 0.0)
            mean.copy_((part[1] - offset).reshape(mean.shape))
            if state[0, 0] > 0:
                scale.copy_((variance(part) + 1e-8).rsqrt().reshape(mean.shape))
            else:
                scale.fill_(1.0)
            return offset.reshape(mean.shape).to(mean.device) if offset.any() else None

        self.offsets = each(offset_of, self._spec, self.mean_and_scale)


def _far(state: torch.Tensor, *, rounding: float) -> torch.Tensor:
    """Return whether means are so many deviations from 0 that casting first loses some, by moments `[3, n]`.

    rounding: the share of a mean up to which a deviation is none.
    """
    mean, deviation = state[1].abs(), variance(state).sqrt()
    return (mean > _FAR * deviation) & (deviation >= rounding * mean) & (mean > 0)


def _normalized(
    x: torch.Tensor,
    mean_and_scale: tuple[torch.Tensor, torch.Tensor] | None,
    offset: torch.Tensor | None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    if mean_and_scale is None:
        return x if out is None else out.copy_(x)
    mean, scale = mean_and_scale
    if x.dtype == torch.float64 != mean.dtype:
        x = x if offset is None else x - offset
        x = x.to(mean.dtype) if out is None else out.copy_(x)
    return torch.sub(x, mean, out=out).mul_(scale).clamp_(-10.0, 10.0)


class RewardNormalizer:
    """Rewards divided by the running deviation of the discounted return, clipped to +-10.

    The discounted return of an environment is g_t = r_t + gamma * g_{t-1}, started anew with every episode
    (OpenAI baselines' VecNormalize); rows that are not valid discount nothing. discounted: g `[E]` of each environment,
    which stays with the rank that learns from it. num_shards: of a rank's environments, whose moments are taken by
    themselves.
    """

    def __init__(self, num_envs: int, gamma: float, device: torch.device, num_shards: int = 1) -> None:
        self.state = torch.zeros(3, dtype=torch.float64)
        self._gamma = gamma
        self._num_shards = num_shards
        self.discounted = torch.zeros(num_envs, dtype=torch.float64, device=device)

    def __call__(
        self, rewards: torch.Tensor, ended: torch.Tensor, valid: torch.Tensor, gather: Gather
    ) -> torch.Tensor:
        """Return scaled rewards `[T, E]`; updates the moments over all ranks first (one collective)."""
        discounted = torch.empty(rewards.shape, dtype=torch.float64, device=rewards.device)
        decay = torch.full_like(discounted, self._gamma).masked_fill_(~valid, 1.0)
        for t in range(len(rewards)):
            discounted[t] = rewards[t] + decay[t] * self.discounted
            self.discounted = discounted[t] * ~ended[t]
        shards = zip(*(x.chunk(self._num_shards, dim=1) for x in (discounted, valid)), strict=True)
        own = torch.stack([moments(x[is_valid]).cpu() for x, is_valid in shards])
        merged = merge_moments(gather(own).reshape(-1, 3))
        self.state = merge_moments(torch.stack([self.state, merged]))
        scale = (variance(self.state) + 1e-8).rsqrt().item()
        return (rewards * scale).clamp(-10.0, 10.0)
