"""Rollouts and parameters as one flat message each: a collective per tensor would cost as many waits."""

from dataclasses import MISSING, fields, replace
from typing import Any

import torch

from ddppo.collectives.group import Group
from ddppo.distributed.gradient_sync import FlatParameters
from ddppo.models.actor_critic import Obs, raw_dtype, tensor_dtype
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.ppo.rollout import Rollout
from ddppo.spaces import ArraySpec, EnvSpec, each, leaves

_ALIGN = 16  # bytes, so that every array can be viewed in its type


class RolloutMessage:
    """How a rollout of T steps and E environments lies in a vector of bytes."""

    def __init__(
        self,
        spec: EnvSpec,
        rollout_steps: int,
        num_envs: int,
        dtype: torch.dtype,
        *,
        with_raw_obs: bool,
        state_size: tuple[int, int] = (0, 0),
    ) -> None:
        self._spec = spec
        self._with_raw_obs = with_raw_obs
        self._sizes: list[tuple[int, ...]] = []
        self._types: list[torch.dtype] = []
        self._starts: list[int] = []
        self.num_bytes = 0
        empty = _empty(spec, rollout_steps, num_envs, dtype, with_raw_obs=with_raw_obs)
        sequences, numbers = state_size  # C and S of Rollout.state
        self._has_state = numbers > 0
        if self._has_state:
            empty = replace(empty, state=torch.zeros(sequences, num_envs, numbers, dtype=dtype))
        for x in self._arrays(empty):
            self._sizes.append(tuple(x.shape))
            self._types.append(x.dtype)
            self._starts.append(self.num_bytes)
            self.num_bytes += -(-x.numel() * x.element_size() // _ALIGN) * _ALIGN
        self._bytes = torch.zeros(self.num_bytes, dtype=torch.uint8)

    def pack(self, rollout: Rollout | None) -> torch.Tensor:
        """Return the rollout as bytes `[num_bytes]`, valid until the next call; zeros for none."""
        if rollout is not None:
            for x, out in zip(self._arrays(rollout), self._views(self._bytes.unsqueeze(0)), strict=True):
                out[0].copy_(x)
        return self._bytes

    def unpack(self, parts: torch.Tensor, device: torch.device) -> Rollout:
        """Return the rollouts of several ranks `[ranks, num_bytes]` side by side, environments in the ranks' order."""
        # [ranks, T, E, ...] -> [T, ranks, E, ...] -> [T, ranks * E, ...]
        arrays = iter([x.transpose(0, 1).flatten(1, 2).to(device) for x in self._views(parts)])

        def observed() -> Obs:
            return each(lambda _: next(arrays), self._spec.obs)

        found: dict[str, Obs | None] = {"obs": observed()}
        for name in _PLAIN:
            found[name] = next(arrays)
        found["action_mask"] = next(arrays) if self._spec.mask_size is not None else None
        found["raw_obs"] = observed() if self._with_raw_obs else found["obs"]
        found["state"] = next(arrays) if self._has_state else None
        return Rollout(**found)  # type: ignore[arg-type]

    def _arrays(self, rollout: Rollout) -> list[torch.Tensor]:
        arrays = [*leaves(rollout.obs), *(getattr(rollout, name) for name in _PLAIN)]
        if rollout.action_mask is not None:
            arrays.append(rollout.action_mask)
        arrays += leaves(rollout.raw_obs) if self._with_raw_obs else []
        return arrays if rollout.state is None else [*arrays, rollout.state]

    def _views(self, parts: torch.Tensor) -> list[torch.Tensor]:
        """Return every array as `[ranks, *shape]`, a view where the bytes lie."""
        views = []
        for size, dtype, start in zip(self._sizes, self._types, self._starts, strict=True):
            num_bytes = torch.Size(size).numel() * dtype.itemsize
            views.append(parts[:, start : start + num_bytes].view(dtype).unflatten(1, size))
        return views


# What every rollout of steps has; what only some have stands at None, unless it is named above.
_PLAIN = [
    f.name
    for f in fields(Rollout)
    if f.default is MISSING and f.name not in ("obs", "action_mask", "raw_obs")
]


def _empty(spec: EnvSpec, steps: int, envs: int, dtype: torch.dtype, *, with_raw_obs: bool) -> Rollout:
    """Return a rollout of the shapes and types that a collector's has."""

    def zeros(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.zeros(steps, envs, *shape, dtype=kind)

    def observed(leaf: ArraySpec) -> torch.Tensor:
        return zeros(*leaf.shape, kind=tensor_dtype(leaf, dtype))

    def raw(leaf: ArraySpec) -> torch.Tensor:
        return zeros(*leaf.shape, kind=raw_dtype(leaf, dtype, is_normalized=with_raw_obs))

    obs = each(observed, spec.obs)
    others: dict[str, Any] = {name: zeros() for name in ("logprobs", "values", "next_values", "rewards")}
    flags = ("terminated", "truncated", "valid", "episode_start")
    others |= {name: zeros(kind=torch.bool) for name in flags}
    return Rollout(
        obs=obs,
        actions=zeros(*spec.action.shape, kind=dtype if spec.action.kind == "box" else torch.int64),
        **others,
        action_mask=None if spec.mask_size is None else zeros(spec.mask_size, kind=torch.bool),
        raw_obs=each(raw, spec.obs) if with_raw_obs else obs,
    )


class ParameterMessage:
    """All that a rank acts with: parameters and the moments of observations, from rank 0 to all."""

    def __init__(self, parameters: FlatParameters, normalizer: ObsNormalizer | None) -> None:
        self._parameters = parameters
        self._normalizer = normalizer

    def broadcast(self, group: Group) -> None:
        group.broadcast_(self._parameters.vector.data)
        if self._normalizer is not None:
            self._normalizer.load(group.broadcast_(self._normalizer.state.clone()))
