"""The policy that ppo.kl_coef holds a run's policy to."""

from collections.abc import Callable

import torch

from ddppo.models import ActionDistribution
from ddppo.ppo.learning.minibatches import OfRollout
from ddppo.ppo.learning.step import At, outputs

_ROWS = 8192  # of one forward; they bound memory, not results


class Reference:
    """A copy of the parameters that a run began with. at, distribution: the model's, whose parameters these are."""

    def __init__(
        self,
        parameters: torch.nn.Parameter,
        distribution: Callable[[torch.Tensor, torch.Tensor | None], ActionDistribution],
        at: At,
    ) -> None:
        self.vector = parameters.detach().clone()
        self._parameters = parameters
        self._distribution = distribution
        self._at = at

    @torch.no_grad()
    def logprobs(self, batch: OfRollout) -> torch.Tensor:
        """Return log pi_ref of what was done, in the shape of the batch's other fields; 0 for what weighs nothing."""
        weights = batch.fields["weights"]
        found = torch.zeros_like(weights)
        is_used = weights > 0 if weights.ndim == 1 else (weights > 0).any(dim=1)
        used = is_used.nonzero().squeeze(1)
        rows = max(1, _ROWS // weights[0].numel())
        now = self._parameters.detach().clone()
        self._parameters.data.copy_(self.vector)
        try:
            for part in used.split(rows):
                (minibatch,) = batch.minibatches(part, [0, len(part)])
                params, _ = outputs(self._at, minibatch)
                policy = self._distribution(params, minibatch.get("mask"))
                logprobs = policy.log_prob(minibatch["actions"])
                if "places" in minibatch:
                    found[minibatch["places"]] = logprobs
                else:
                    found[part] = logprobs
        finally:
            self._parameters.data.copy_(now)
        return found
