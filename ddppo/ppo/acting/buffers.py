"""Buffers of observations."""

import torch

from ddppo.models import Obs, tensor_dtype
from ddppo.spaces import ArraySpec, EnvSpec, each, leaves


def obs_buffers(
    spec: EnvSpec, batch: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> tuple[Obs, torch.Tensor | None]:
    """Return buffers of observations `[*batch, *shape]`, and what they are views of where all are floats."""
    parts = leaves(spec.obs)
    if not all(leaf.is_float for leaf in parts):

        def zeros(leaf: ArraySpec) -> torch.Tensor:
            return torch.zeros(*batch, *leaf.shape, dtype=tensor_dtype(leaf, dtype), device=device)

        return each(zeros, spec.obs), None
    flat = torch.zeros(*batch, spec.obs_size, dtype=dtype, device=device)
    columns = iter(flat.split([leaf.size for leaf in parts], dim=-1))
    return each(lambda leaf: next(columns).view(*batch, *leaf.shape), spec.obs), flat
