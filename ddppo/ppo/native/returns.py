"""Advantages, returns and their moments in one call (ddppo/native/src/returns.cpp)."""

import ctypes

import torch

from ddppo.ppo.acting.rollout import Rollout
from ddppo.ppo.native.network import library

_TYPES = (*(ctypes.c_int64,) * 2, *(ctypes.c_void_p,) * 6, *(ctypes.c_double,) * 2, *(ctypes.c_void_p,) * 3)


def returns_and_moments(
    rollout: Rollout, rewards: torch.Tensor, *, gamma: float, gae_lambda: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return advantages and returns `[T, E]` as `returns.gae` estimates them, and moments `[3, 3]` in float64.

    The moments are those of normalization.moments, of the valid advantages, returns and returns - values. CPU only.
    """
    compute = library().returns_float if rewards.dtype == torch.float32 else library().returns_double
    compute.argtypes = _TYPES
    inputs = [
        x.contiguous()
        for x in (
            rewards,
            rollout.values,
            rollout.next_values,
            rollout.terminated,
            rollout.truncated,
            rollout.valid,
        )
    ]
    advantages, returns = torch.empty_like(inputs[0]), torch.empty_like(inputs[0])
    moments = torch.empty(3, 3, dtype=torch.float64)
    compute(
        *rewards.shape, *(x.data_ptr() for x in inputs), gamma, gamma * gae_lambda,
        advantages.data_ptr(), returns.data_ptr(), moments.data_ptr(),
    )  # fmt: skip
    return advantages, returns, moments
