"""Action distributions as functions of a model's output and of given noise.

Sampling takes its noise as an argument, so the action of an environment depends on that environment's random
stream alone, not on the batch it is computed in. Shapes: `...` is any batch shape, P = num_action_params.
"""

import math
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F

from ddppo.spaces import ActionSpec


class ActionDistribution(Protocol):
    """pi(. | obs) for a batch of observations."""

    def sample(self, noise: torch.Tensor) -> torch.Tensor:
        """Return actions `[..., *action.shape]` from noise `[..., num_noise]` (see `num_noise` for its law).

        Noise and actions are on the CPU, where environments are; NumPy draws choices in half of torch's time.
        """
        ...

    def mode(self) -> torch.Tensor:
        """Return the most likely actions."""
        ...

    def log_prob(self, actions: torch.Tensor) -> torch.Tensor:
        """Return log pi(actions | obs) `[...]` in nats, components summed."""
        ...

    def entropy(self) -> torch.Tensor:
        """Return the entropy `[...]` in nats, components summed."""
        ...


def num_action_params(action: ActionSpec) -> int:
    """Return P: logits of every choice or bit, or mean and log standard deviation of every dimension."""
    if action.kind == "box":
        return 2 * action.sizes[0]
    return action.sizes[0] if action.kind == "multi_binary" else sum(action.sizes)


def num_noise(action: ActionSpec) -> int:
    """Return how many random numbers one action takes: uniform on [0, 1), standard normal for kind box."""
    return action.sizes[0] if action.kind in ("box", "multi_binary") else len(action.sizes)


def action_distribution(
    action: ActionSpec, params: torch.Tensor, mask: torch.Tensor | None = None
) -> ActionDistribution:
    """Return the distribution that `params` `[..., P]` describe; `mask` `[..., sum(sizes)]` bool allows choices."""
    if action.kind in ("discrete", "text"):
        return Categorical(params, mask)
    if action.kind == "multi_discrete":
        return MultiCategorical(params, action.sizes, mask)
    if action.kind == "multi_binary":
        return Bernoulli(params)
    assert action.kind == "box", action
    mean, log_std = params.chunk(2, dim=-1)
    return Gaussian(mean, log_std)


class Categorical:
    """Softmax over n choices; forbidden ones have probability 0 and no gradient."""

    def __init__(self, logits: torch.Tensor, mask: torch.Tensor | None = None) -> None:
        if mask is not None:
            logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
        self.logits = logits

    @cached_property
    def log_probs(self) -> torch.Tensor:
        return F.log_softmax(self.logits, dim=-1)

    def sample(self, noise: torch.Tensor) -> torch.Tensor:
        """Inverse of the cumulative distribution at noise `[..., 1]`."""
        logits, uniform = self.logits.numpy(force=True), noise.numpy()
        cumulative = np.exp(logits - np.maximum.reduce(logits, axis=-1, keepdims=True))
        np.add.accumulate(cumulative, axis=-1, out=cumulative)
        # Scaled by the last entry, and kept below it: neither rounding nor noise near 1 draws a forbidden choice.
        below_one = 1.0 - np.finfo(uniform.dtype).eps
        threshold = np.minimum(uniform, below_one) * cumulative[..., -1:]
        return torch.from_numpy(np.asarray(np.add.reduce(cumulative <= threshold, axis=-1, dtype=np.int64)))

    def mode(self) -> torch.Tensor:
        return self.logits.argmax(dim=-1)

    def log_prob(self, actions: torch.Tensor) -> torch.Tensor:
        return self.log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> torch.Tensor:
        return -(self.log_probs * self.log_probs.exp()).sum(dim=-1)


class MultiCategorical:
    """Independent categoricals, one per component."""

    def __init__(
        self, logits: torch.Tensor, sizes: tuple[int, ...], mask: torch.Tensor | None = None
    ) -> None:
        split_logits = logits.split(sizes, dim=-1)
        split_masks = mask.split(sizes, dim=-1) if mask is not None else [None] * len(sizes)
        self.components = [Categorical(part, m) for part, m in zip(split_logits, split_masks, strict=True)]

    def sample(self, noise: torch.Tensor) -> torch.Tensor:
        return torch.stack([c.sample(noise[..., i : i + 1]) for i, c in enumerate(self.components)], dim=-1)

    def mode(self) -> torch.Tensor:
        return torch.stack([c.mode() for c in self.components], dim=-1)

    def log_prob(self, actions: torch.Tensor) -> torch.Tensor:
        parts = [c.log_prob(actions[..., i]) for i, c in enumerate(self.components)]
        return torch.stack(parts).sum(dim=0)

    def entropy(self) -> torch.Tensor:
        return torch.stack([c.entropy() for c in self.components]).sum(dim=0)


class Bernoulli:
    """Independent bits with P(1) = sigmoid(logit)."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits

    def sample(self, noise: torch.Tensor) -> torch.Tensor:
        return (noise < self.logits.sigmoid().cpu()).long()

    def mode(self) -> torch.Tensor:
        return (self.logits > 0).long()

    def log_prob(self, actions: torch.Tensor) -> torch.Tensor:
        signed = torch.where(actions > 0, self.logits, -self.logits)
        return F.logsigmoid(signed).sum(dim=-1)

    def entropy(self) -> torch.Tensor:
        # H = softplus(x) - x sigmoid(x)
        return (F.softplus(self.logits) - self.logits * self.logits.sigmoid()).sum(dim=-1)


class Gaussian:
    """Independent normals N(mean, exp(log_std)^2)."""

    def __init__(self, mean: torch.Tensor, log_std: torch.Tensor) -> None:
        self.mean = mean
        self.log_std = log_std

    def sample(self, noise: torch.Tensor) -> torch.Tensor:
        return self.mean.cpu() + self.log_std.exp().cpu() * noise

    def mode(self) -> torch.Tensor:
        return self.mean

    def log_prob(self, actions: torch.Tensor) -> torch.Tensor:
        z = (actions - self.mean) * (-self.log_std).exp()
        return (-0.5 * z * z - self.log_std - 0.5 * math.log(2 * math.pi)).sum(dim=-1)

    def entropy(self) -> torch.Tensor:
        return (self.log_std + 0.5 * (1 + math.log(2 * math.pi))).sum(dim=-1)
