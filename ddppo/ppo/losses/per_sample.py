"""PPO's losses and diagnostics per sample. The caller sums them and divides by a count over all ranks."""

import torch


def clipped_surrogate_loss(
    log_ratio: torch.Tensor, advantages: torch.Tensor, *, clip_coef: float
) -> torch.Tensor:
    """Return -min(r A, clip(r, 1 - eps, 1 + eps) A) per sample `[B]`, r = exp(log_ratio).

    Schulman et al. 2017, arXiv:1707.06347, eq. 7.
    """
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def value_loss(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, *, clip_value_coef: float | None
) -> torch.Tensor:
    """Return (V - R)^2 / 2 per sample `[B]`, or the larger of it and its value with V kept near old_values.

    The clipped form is that of OpenAI baselines, ppo2/model.py:
    max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2) / 2.
    """
    squared = (values - returns).square()
    if clip_value_coef is not None:
        clipped = old_values + (values - old_values).clamp(-clip_value_coef, clip_value_coef)
        squared = torch.maximum(squared, (clipped - returns).square())
    return 0.5 * squared


def approx_kl(log_ratio: torch.Tensor) -> torch.Tensor:
    """Return the k3 estimate (r - 1) - log r of KL(old || new) per sample `[B]`, in nats, never negative.

    Schulman 2020, http://joschu.net/blog/kl-approx.html.
    """
    return log_ratio.expm1() - log_ratio


def is_clipped(log_ratio: torch.Tensor, *, clip_coef: float) -> torch.Tensor:
    """Return per sample `[B]` bool whether |r - 1| > eps."""
    return log_ratio.expm1().abs() > clip_coef


def is_outlier(log_ratio: torch.Tensor) -> torch.Tensor:
    """Return per sample `[B]` bool whether the ratio r is outside [1/2, 2]."""
    return log_ratio.abs() > 0.6931471805599453
