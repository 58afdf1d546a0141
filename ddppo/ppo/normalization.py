"""Running moments over all ranks, and the two normalisers that use them: of observations and of rewards.

Moments are (count, mean, M2) and are merged by count, so they do not depend on how environments are split over ranks.
A normaliser is frozen while a rollout is collected and learned from. Once per iteration it is updated with the moments
of all ranks, so it is equal on all of them. Advantages are normalised in rollout_stats.py.
"""

from collections.abc import Callable
from typing import Any

import torch

from ddppo.device import has_float64
from ddppo.models.actor_critic import Obs
from ddppo.spaces import ArraySpec, each, leaves, zipped

Gather = Callable[[torch.Tensor], torch.Tensor]  # values [...] of this rank -> [W, ...] of all ranks

# Observations in float64 are cast to the model's float32. If their mean is more than so many deviations from 0, casting
# would round away more than 1e-4 of a deviation, so the mean is subtracted before.
_FAR = 1000.0
# A deviation below this share of the mean is only the rounding of float64: the number is constant, and nothing is lost.
_ROUNDING = 1e-12


# -- Moments.


def moments(x: torch.Tensor) -> torch.Tensor:
    """Return (count, mean, M2) of samples `[n, ...]` as float64 `[3, ...]`; M2 is the sum of squared deviations."""
    x = x.double() if has_float64(x.device) else x.cpu().double()
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


# -- Observations.


class ObsNormalizer:
    """(obs - mean) / std by running moments over all ranks, clipped to +-10; the identity before the first update.

    The running form is that of OpenAI baselines' VecNormalize; freezing it for an iteration is ours. Pixels are not
    normalised, because the model scales them.
    """

    def __init__(
        self, spec: ArraySpec | dict[str, ArraySpec], device: torch.device, dtype: torch.dtype
    ) -> None:
        def identity(leaf: ArraySpec) -> tuple[torch.Tensor, torch.Tensor] | None:
            if not leaf.is_float:
                return None
            zero = torch.zeros(leaf.shape, device=device, dtype=dtype)
            return zero, torch.ones_like(zero)

        # For each array of floats two tensors [*shape], mean and 1 / std; None for pixels.
        self.mean_and_scale = each(identity, spec)
        # float64 [*shape]: means far from 0, subtracted from float64 observations before the cast to float32 (`mean` is
        # 0 there). None for an array without such means, as nearly always.
        self.offsets = each(lambda _: None, spec)
        self._spec = spec
        self._floats = [leaf for leaf in leaves(spec) if leaf.is_float]
        # Moments [3, n] of the n floats of an observation, flattened.
        self.state = torch.zeros(3, sum(leaf.size for leaf in self._floats), dtype=torch.float64)

    def __call__(self, obs: Obs, out: Obs | None = None) -> Obs:
        """Return normalised obs `[..., *shape]`, written to `out` if given."""
        if out is None:
            return each(_normalized, obs, self.mean_and_scale, self.offsets)
        return each(_normalized, obs, self.mean_and_scale, self.offsets, out)

    def moments(self, obs: Obs, valid: torch.Tensor) -> torch.Tensor:
        """Return the moments `[3, n]`, on the CPU, of the valid rows of observations `[T, E, *shape]`.

        valid: `[T, E]` bool. Observations may be on the device: then only the moments are copied to the host.
        """
        given = [x for x in leaves(obs) if x.is_floating_point()]
        # A mask of the host would be copied to the device, which then would say how many rows it has.
        is_full = any(x.device != valid.device for x in given) and bool(valid.all())
        floats = [x.flatten(0, 1) if is_full else x[valid] for x in given]
        flat = [x.reshape(len(x), leaf.size) for x, leaf in zip(floats, self._floats, strict=True)]
        # In the model's type first. Only if a mean is far from 0 are the moments computed again, from float64.
        arrays = zip(flat, filter(None, leaves(self.mean_and_scale)), strict=True)
        cast = moments(torch.cat([x.to(mean.dtype) for x, (mean, _) in arrays], 1)).cpu()
        far = _far(cast, rounding=0.0)
        if not far.any():
            return cast
        exact = moments(torch.cat(flat, 1)).cpu()
        return torch.where(far & (exact[2] > exact[0] * (_ROUNDING * exact[1]).square()), exact, cast)

    def moments_of_shards(self, obs: Obs, valid: torch.Tensor, num_shards: int) -> torch.Tensor:
        """Return the moments `[S, 3, n]` of each of S equal shards of the environments (dist.reduction=ordered)."""
        shards = zipped(each(lambda x: x.chunk(num_shards, dim=1), obs))
        parts = zip(shards, valid.chunk(num_shards, dim=1), strict=True)
        return torch.stack([self.moments(x, is_valid) for x, is_valid in parts])

    def update_(self, merged: torch.Tensor) -> None:
        """Add the moments `[3, n]` of new observations over all ranks."""
        self.load(merge_moments(torch.stack([self.state, merged])))

    def load(self, state: torch.Tensor) -> None:
        """Take moments `[3, n]`, and derive mean, scale and offsets from them."""
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
    """Return `[n]` bool: by moments `[3, n]`, whether a mean is so far from 0 that casting to float32 loses precision.

    rounding: a deviation below this share of the mean is taken as 0, that is, the number as constant.
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


# -- Rewards.


class RewardNormalizer:
    """Rewards divided by the running deviation of the discounted return, clipped to +-10.

    As in OpenAI baselines' VecNormalize, the discounted return of an environment is g_t = r_t + gamma * g_{t-1}, and
    begins at 0 with every episode. Rows that are not valid do not discount it.
    """

    def __init__(self, num_envs: int, gamma: float, device: torch.device, num_shards: int = 1) -> None:
        self.state = torch.zeros(3, dtype=torch.float64)
        self._gamma = gamma
        self._num_shards = num_shards  # moments are computed for each shard of the rank's environments
        # g [E] of the episodes under way. It stays on the rank that learns from these environments; on the CPU if the
        # device has no float64.
        place = device if has_float64(device) else torch.device("cpu")
        self.discounted = torch.zeros(num_envs, dtype=torch.float64, device=place)

    def __call__(
        self, rewards: torch.Tensor, ended: torch.Tensor, valid: torch.Tensor, gather: Gather
    ) -> torch.Tensor:
        """Update the moments with this rollout, then return scaled rewards `[T, E]`. One collective."""
        # 1. Discounted returns of every row, on from those before the rollout.
        given, place = rewards, self.discounted.device
        rewards, ended, valid = rewards.to(place), ended.to(place), valid.to(place)
        discounted = torch.empty(rewards.shape, dtype=torch.float64, device=place)
        decay = torch.full_like(discounted, self._gamma).masked_fill_(~valid, 1.0)
        for t in range(len(rewards)):
            discounted[t] = rewards[t] + decay[t] * self.discounted
            self.discounted = discounted[t] * ~ended[t]
        # 2. Their moments over all ranks, merged into the running moments.
        shards = zip(*(x.chunk(self._num_shards, dim=1) for x in (discounted, valid)), strict=True)
        local = torch.stack([moments(x[is_valid]).cpu() for x, is_valid in shards])
        merged = merge_moments(gather(local).reshape(-1, 3))
        self.state = merge_moments(torch.stack([self.state, merged]))
        # 3. Scale, without subtracting a mean: that would change which policy is best.
        scale = (variance(self.state) + 1e-8).rsqrt().item()
        return (given * scale).clamp(-10.0, 10.0)
