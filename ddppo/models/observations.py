"""Observations as tensors: what a model is given, and one vector of it for models that want no more."""

import torch

from ddppo.spaces import ArraySpec, EnvSpec, each, leaves

Obs = torch.Tensor | dict[str, torch.Tensor]  # `[..., *shape]`, as spec.obs is one array or several by name


def tensor_dtype(leaf: ArraySpec, dtype: torch.dtype) -> torch.dtype:
    """Return the type that a model which computes in `dtype` is given an array in: pixels stay uint8."""
    return dtype if leaf.is_float else torch.uint8


def raw_dtype(leaf: ArraySpec, dtype: torch.dtype, *, is_normalized: bool) -> torch.dtype:
    """Return the type that an array is kept in as the task gave it: float64 until its mean is subtracted."""
    return torch.float64 if is_normalized and leaf.dtype == "float64" else tensor_dtype(leaf, dtype)


def flat_obs(obs: Obs, spec: EnvSpec, dtype: torch.dtype) -> torch.Tensor:
    """Return `[..., obs_size]`: all arrays flattened, in the order of the spec; pixels are scaled to [0, 1]."""
    parts = []
    for leaf, x in zip(leaves(spec.obs), leaves(obs), strict=True):
        flat = x.flatten(-len(leaf.shape)) if leaf.shape else x.unsqueeze(-1)
        parts.append(flat if leaf.is_float else flat.to(dtype) / 255)
    return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]


def random_obs(
    spec: EnvSpec, num_rows: int, dtype: torch.dtype, generator: torch.Generator | None = None
) -> Obs:
    """Return `[num_rows, *shape]`, uniform on [0, 1), pixels from 0 to 255."""

    def random(leaf: ArraySpec) -> torch.Tensor:
        x = torch.rand(num_rows, *leaf.shape, dtype=torch.float64, generator=generator)
        return x.to(dtype) if leaf.is_float else (256 * x).to(torch.uint8)

    return each(random, spec.obs)
