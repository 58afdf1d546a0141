"""A model's parameters and gradients as two flat vectors."""

import hashlib

import torch
from torch import nn

from ddppo.config import AlgorithmSettings
from ddppo.models import part_of


class FlatParameters:
    """Views every parameter and gradient of a model into two contiguous vectors `[num_parameters]`.

    One vector makes the gradient one collective, the clipping one norm, the optimizer one kernel and the comparison
    of replicas one hash. `vector` is a Parameter whose `.grad` is `gradient`, so any torch optimizer takes it.
    """

    def __init__(self, model: nn.Module) -> None:
        parameters = list(model.parameters())
        kinds = {(p.dtype, p.device) for p in parameters}
        assert len(kinds) == 1, f"parameters of several types or devices: {kinds}"
        with torch.no_grad():
            flat = torch.cat([p.detach().reshape(-1) for p in parameters])
            self.vector = nn.Parameter(flat)
            self.gradient = torch.zeros_like(flat)
            self.vector.grad = self.gradient
            offset = 0
            for p in parameters:
                end = offset + p.numel()
                p.data = self.vector.data[offset:end].view_as(p)
                p.grad = self.gradient[offset:end].view_as(p)
                offset = end

    def digest(self) -> str:
        """Return a hash of the parameters' bytes: equal if and only if they are equal to the bit."""
        data = self.vector.detach().cpu().numpy().tobytes()
        return hashlib.blake2b(data, digest_size=16).hexdigest()


def step_scale(model: nn.Module, config: AlgorithmSettings) -> torch.Tensor | None:
    """Return how many times config.learning_rate the step size of each parameter is, `[num_parameters]`; None: once."""
    if not config.learning_rates:
        return None
    scales = []
    for name, p in model.named_parameters():
        part = part_of(name, config.learning_rates)
        rate = config.learning_rate if part is None else config.learning_rates[part]
        scales.append(torch.full_like(p.detach(), rate / config.learning_rate).reshape(-1))
    return torch.cat(scales)
