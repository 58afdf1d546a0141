"""Beta distributions of actions between the bounds of a box (model.distribution=beta), and how they are drawn.

ddppo/native/src/beta.hpp computes the same. Shapes are those of distributions.py.
"""

import math

import torch

from ddppo.device_random import stream, uniform

NUM_TRIES = 32  # of a draw; one needs more with a probability below 1e-15


class Beta:
    """Independent low + width x, x ~ Beta(alpha, beta), alpha = 1 + softplus(a), beta = 1 + softplus(b).

    Chou, Maturana and Scherer 2017, "Improving stochastic policy gradients in continuous control with deep
    reinforcement learning using the Beta distribution". Parameters above 1 give one peak. On a bound, log pi may be
    infinite: x is kept one last bit inside. The arithmetic is in float64 where the device has it: logarithms of gamma
    functions of large parameters nearly cancel.
    """

    def __init__(
        self, a: torch.Tensor, b: torch.Tensor, low: torch.Tensor, width: torch.Tensor, dtype: torch.dtype
    ) -> None:
        """a, b `[..., d]` and low, width `[d]` have the type of the arithmetic; actions and results have `dtype`."""
        self.p, self.q = _softplus(a), _softplus(b)  # alpha - 1 and beta - 1
        self.low, self.width, self.dtype = low, width, dtype

    @property
    def alpha(self) -> torch.Tensor:
        return 1 + self.p

    @property
    def beta(self) -> torch.Tensor:
        return 1 + self.q

    def sample(self, noise: torch.Tensor) -> torch.Tensor:
        """Return actions from noise `[..., d]`: the bits of each number seed a stream of uniform numbers.

        A draw is the first of NUM_TRIES tries that the algorithm BB accepts (Cheng 1978, "Generating beta variates with
        nonintegral shape parameters", doi:10.1145/359460.359482).
        """
        return self._action(_beta_draws(self.p.cpu(), self.q.cpu(), noise))

    def sample_on_device(self, noise: torch.Tensor) -> torch.Tensor:
        return self._action(_beta_draws(self.p, self.q, noise))

    def mode(self) -> torch.Tensor:
        tiny = torch.finfo(self.p.dtype).tiny  # both may be 0
        return self._action((self.p + tiny) / (self.p + self.q + 2 * tiny))

    def log_prob(self, actions: torch.Tensor) -> torch.Tensor:
        x = self._inside((actions.to(self.p.dtype) - self.low) / self.width)
        terms = self.p * x.log() + self.q * (-x).log1p() - self._log_beta() - self.width.log()
        return terms.sum(dim=-1).to(self.dtype)

    def entropy(self) -> torch.Tensor:
        """Return log B(alpha, beta) - p psi(alpha) - q psi(beta) + (p + q) psi(alpha + beta), and log(width)."""
        own = self.p * self.alpha.digamma() + self.q * self.beta.digamma()
        of_x = self._log_beta() - own + (self.p + self.q) * (self.alpha + self.beta).digamma()
        return (of_x + self.width.log()).sum(dim=-1).to(self.dtype)

    def _log_beta(self) -> torch.Tensor:
        return self.alpha.lgamma() + self.beta.lgamma() - (self.alpha + self.beta).lgamma()

    def _inside(self, x: torch.Tensor) -> torch.Tensor:
        eps = torch.finfo(self.dtype).eps
        return x.clamp(eps, 1 - eps)

    def _action(self, x: torch.Tensor) -> torch.Tensor:
        low, width = self.low.to(x.device), self.width.to(x.device)
        return (low + width * self._inside(x)).to(self.dtype)


def _softplus(x: torch.Tensor) -> torch.Tensor:
    """Return log(1 + exp(x)); its gradient at 0 is 1/2. ONNX Runtime has no Softplus for float64."""
    size = x.abs()
    return (x + size) / 2 + (-size).exp().log1p()


def _beta_draws(p: torch.Tensor, q: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Return x ~ Beta(1 + p, 1 + q) `[...]` by Cheng's algorithm BB, all tries at once; see Beta.sample.

    Written with p and q, which may be far below 1. The tries are the last dimension.
    """
    tiny = torch.finfo(p.dtype).tiny
    small, large = torch.minimum(p, q).unsqueeze(-1), torch.maximum(p, q).unsqueeze(-1)
    total, a, b = small + large + 2, small + 1, large + 1
    slope = ((small + large + tiny) / (small + large + 2 * small * large + tiny)).sqrt()
    # Two uniform numbers for each try.
    keys = (noise.to(torch.float32).contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF)[
        ..., None, None
    ]
    places = torch.arange(2 * NUM_TRIES, device=p.device).view(NUM_TRIES, 2)
    drawn = uniform(stream(keys, places), p.dtype)
    u, other = drawn.clamp(2.0**-54, 1 - torch.finfo(p.dtype).eps / 2).unbind(-1)
    v = slope * (u.log() - (-u).log1p())
    w = a * v.exp()
    margin = (a + 1 / slope) * v - math.log(4) + total * (total / (b + w)).log()
    accepted = margin >= 2 * u.log() + other.log()
    accepted[..., -1] = True
    odds = (w / b).gather(-1, accepted.to(torch.int8).argmax(dim=-1, keepdim=True)).squeeze(-1)
    return torch.where(q < p, 1 / (1 + odds), odds / (1 + odds))
