"""Advantage estimation."""

import torch


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
