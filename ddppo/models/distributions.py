"""Action distributions, as functions of a model's output and of given noise.

Sampling takes its noise as an argument. So the action of an environment depends on that environment's random stream
alone, not on the batch in which it is computed, and results do not depend on the number of ranks. Shapes: `...` is any
batch shape, P = num_action_params. heads.py turns the output of a policy's last layer into P numbers.
"""

import math
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F

from ddppo.device import wide_dtype
from ddppo.device_random import stream, uniform
from ddppo.spaces import ActionSpec

MANY_CHOICES = 4096  # more choices than this are sampled in float64
NUM_TRIES = 32  # of Beta's draws; one needs more with a probability below 1e-15
_NUM_NODES = 32  # of the Gauss-Hermite quadrature, for the entropy of TanhGaussian


class ActionDistribution(Protocol):
    """pi(. | obs) for a batch of observations."""

    def sample(self, noise: torch.Tensor) -> torch.Tensor:
        """Return actions `[..., *action.shape]` from noise `[..., num_noise]` (see `num_noise` for its distribution).

        Noise and actions are on the CPU, where most environments are.
        """
        ...

    def mode(self) -> torch.Tensor:
        """Return the most likely actions."""
        ...

    def log_prob(self, actions: torch.Tensor) -> torch.Tensor:
        """Return log pi(actions | obs) `[...]` in nats, summed over components."""
        ...

    def entropy(self) -> torch.Tensor:
        """Return the entropy `[...]` in nats, summed over components."""
        ...


class DeviceDistribution(ActionDistribution, Protocol):
    """A distribution that can also be sampled on a device; ours are, and one of your own may be."""

    def sample_on_device(self, noise: torch.Tensor) -> torch.Tensor:
        """Return actions as `sample` does, from noise on the device of the parameters, without a wait for the device.

        Environments that live on a device (env.backend=device) need it.
        """
        ...


def num_action_params(action: ActionSpec) -> int:
    """Return P: a logit for every choice or bit, or two numbers for every dimension of a box.

    The two are mean and log standard deviation of a Gaussian, or what softplus turns into alpha - 1 and beta - 1.
    """
    if action.kind == "box":
        return 2 * action.sizes[0]
    return action.sizes[0] if action.kind == "multi_binary" else sum(action.sizes)


def num_noise(action: ActionSpec) -> int:
    """Return the random numbers that sampling one action takes: standard normal for a box, else uniform on [0, 1)."""
    return action.sizes[0] if action.kind in ("box", "multi_binary") else len(action.sizes)


def action_distribution(
    action: ActionSpec,
    params: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    is_squashed: bool = False,
    is_beta: bool = False,
) -> ActionDistribution:
    """Return the distribution with parameters `params` `[..., P]`.

    Args:
        mask: `[..., sum(sizes)]` bool, True = allowed choice.
        is_squashed: actions of a box are tanh of a Gaussian, scaled to the bounds.
        is_beta: they are Beta-distributed between the bounds.
    """
    if action.kind in ("discrete", "text"):
        return Categorical(params, mask)
    if action.kind == "multi_discrete":
        return MultiCategorical(params, action.sizes, mask)
    if action.kind == "multi_binary":
        return Bernoulli(params)
    assert action.kind == "box", action
    if is_beta:
        a, b = params.chunk(2, dim=-1)
        return Beta(a, b, action)
    # Means first, then log standard deviations.
    mean, log_std = params.chunk(2, dim=-1)
    return TanhGaussian(mean, log_std, action) if is_squashed else Gaussian(mean, log_std)


class Categorical:
    """Softmax over n choices; forbidden choices have probability 0 and no gradient."""

    def __init__(self, logits: torch.Tensor, mask: torch.Tensor | None = None) -> None:
        if mask is not None:
            # The smallest finite number, because -inf would give NaN in the entropy.
            logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
        self.logits = logits

    @cached_property
    def log_probs(self) -> torch.Tensor:
        return F.log_softmax(self.logits, dim=-1)

    def sample(self, noise: torch.Tensor) -> torch.Tensor:
        """Return the inverse of the cumulative distribution at noise `[..., 1]`. NumPy takes half of torch's time."""
        logits, uniform = self.logits.numpy(force=True), noise.numpy()
        cumulative = np.exp(logits - np.maximum.reduce(logits, axis=-1, keepdims=True))
        # In float32, a sum near 1 takes no weight below 6e-8: the tail of a large vocabulary would never be drawn.
        if cumulative.shape[-1] > MANY_CHOICES:
            cumulative, uniform = cumulative.astype(np.float64), uniform.astype(np.float64)
        np.add.accumulate(cumulative, axis=-1, out=cumulative)
        # The choice is the number of cumulative weights that are <= noise * total. The threshold stays below the total,
        # so that neither rounding nor noise near 1 draws a forbidden choice at the end.
        below_one = 1.0 - np.finfo(uniform.dtype).eps
        threshold = np.minimum(uniform, below_one) * cumulative[..., -1:]
        return torch.from_numpy(np.asarray(np.add.reduce(cumulative <= threshold, axis=-1, dtype=np.int64)))

    def sample_on_device(self, noise: torch.Tensor) -> torch.Tensor:
        weights = (self.logits - self.logits.amax(dim=-1, keepdim=True)).exp_()
        if weights.shape[-1] > MANY_CHOICES:  # as in `sample`
            wide = wide_dtype(weights.device)
            weights, noise = weights.to(wide), noise.to(wide)
        if torch.are_deterministic_algorithms_enabled():  # torch then refuses cumsum of floats on CUDA
            cumulative = weights @ weights.new_ones(weights.shape[-1], weights.shape[-1]).triu_()
        else:
            cumulative = weights.cumsum(dim=-1)
        below_one = 1.0 - torch.finfo(noise.dtype).eps
        return (cumulative <= noise.clamp(max=below_one) * cumulative[..., -1:]).sum(dim=-1)

    def mode(self) -> torch.Tensor:
        return self.logits.argmax(dim=-1)

    def log_prob(self, actions: torch.Tensor) -> torch.Tensor:
        return self.log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> torch.Tensor:
        return -(self.log_probs * self.log_probs.exp()).sum(dim=-1)


class MultiCategorical:
    """Independent categorical distributions, one per component."""

    def __init__(
        self, logits: torch.Tensor, sizes: tuple[int, ...], mask: torch.Tensor | None = None
    ) -> None:
        split_logits = logits.split(sizes, dim=-1)
        split_masks = mask.split(sizes, dim=-1) if mask is not None else [None] * len(sizes)
        self.components = [Categorical(part, m) for part, m in zip(split_logits, split_masks, strict=True)]

    def sample(self, noise: torch.Tensor) -> torch.Tensor:
        return torch.stack([c.sample(noise[..., i : i + 1]) for i, c in enumerate(self.components)], dim=-1)

    def sample_on_device(self, noise: torch.Tensor) -> torch.Tensor:
        parts = [c.sample_on_device(noise[..., i : i + 1]) for i, c in enumerate(self.components)]
        return torch.stack(parts, dim=-1)

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

    def sample_on_device(self, noise: torch.Tensor) -> torch.Tensor:
        return (noise < self.logits.sigmoid()).long()

    def mode(self) -> torch.Tensor:
        return (self.logits > 0).long()

    def log_prob(self, actions: torch.Tensor) -> torch.Tensor:
        # log P(1) = logsigmoid(x) and log P(0) = logsigmoid(-x).
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
        mean, std = self.mean, self.log_std.exp()
        if not mean.is_cpu:
            mean, std = torch.stack(torch.broadcast_tensors(mean, std)).cpu()  # one copy, not two
        return mean + std * noise

    def sample_on_device(self, noise: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(self.mean, self.log_std.exp(), noise)

    def mode(self) -> torch.Tensor:
        return self.mean

    def log_prob(self, actions: torch.Tensor) -> torch.Tensor:
        z = (actions - self.mean) * (-self.log_std).exp()
        return (-0.5 * z * z - self.log_std - 0.5 * math.log(2 * math.pi)).sum(dim=-1)

    def entropy(self) -> torch.Tensor:
        return (self.log_std + 0.5 * (1 + math.log(2 * math.pi))).sum(dim=-1)


class TanhGaussian:
    """Independent m + h tanh(u), u ~ N(mean, exp(log_std)^2), for a box with middle m and half width h.

    log pi(a) = log N(u) - log(h (1 - tanh(u)^2)), u = atanh((a - m) / h): Haarnoja et al. 2018, arXiv:1801.01290,
    appendix C. On a bound, u would be infinite: actions are kept one last bit inside.
    """

    def __init__(self, mean: torch.Tensor, log_std: torch.Tensor, action: ActionSpec) -> None:
        self.normal = Gaussian(mean, log_std)
        self._middles, self._halves = squash_of(action).tolist()

    def sample(self, noise: torch.Tensor) -> torch.Tensor:
        return self._squashed(self.normal.sample(noise))

    def sample_on_device(self, noise: torch.Tensor) -> torch.Tensor:
        return self._squashed(self.normal.sample_on_device(noise))

    def mode(self) -> torch.Tensor:
        """Return m + h tanh(mean), the median: the mode has no closed form."""
        return self._squashed(self.normal.mean)

    def log_prob(self, actions: torch.Tensor) -> torch.Tensor:
        half = _numbers(self._halves, actions)
        x = _inside((actions - _numbers(self._middles, actions)) / half)
        above, below = x.log1p(), (-x).log1p()  # atanh(x) is half their difference, log(1 - x^2) their sum
        return self.normal.log_prob((above - below) / 2) - (above + below + half.log()).sum(dim=-1)

    def entropy(self) -> torch.Tensor:
        """Return H(N) + E log(h (1 - tanh(u)^2)), the expectation by Gauss-Hermite quadrature: no noise is drawn."""
        nodes, weights = gauss_hermite()
        mean, std = self.normal.mean.unsqueeze(-1), self.normal.log_std.exp().unsqueeze(-1)
        u = mean + std * _numbers(nodes, mean)
        slope = 2 * (math.log(2) - u - F.softplus(-2 * u, threshold=40.0))  # log(1 - tanh(u)^2)
        expected = (slope * _numbers(weights, mean)).sum(dim=-1) + _numbers(self._halves, mean).log()
        return self.normal.entropy() + expected.sum(dim=-1)

    def _squashed(self, u: torch.Tensor) -> torch.Tensor:
        return _numbers(self._middles, u) + _numbers(self._halves, u) * _inside(u.tanh())


class Beta:
    """Independent low + width x, x ~ Beta(alpha, beta), alpha = 1 + softplus(a), beta = 1 + softplus(b).

    Chou, Maturana and Scherer 2017, "Improving stochastic policy gradients in continuous control with deep
    reinforcement learning using the Beta distribution". Parameters above 1 give one peak. On a bound, log pi may be
    infinite: x is kept one last bit inside. The arithmetic is in float64 where the device has it: logarithms of gamma
    functions of large parameters nearly cancel.
    """

    def __init__(self, a: torch.Tensor, b: torch.Tensor, action: ActionSpec) -> None:
        self.dtype, wide = a.dtype, wide_dtype(a.device)
        self.p, self.q = _softplus(a.to(wide)), _softplus(b.to(wide))  # alpha - 1 and beta - 1
        self._lows, self._widths = bounds_of(action).tolist()

    @property
    def alpha(self) -> torch.Tensor:
        return 1 + self.p

    @property
    def beta(self) -> torch.Tensor:
        return 1 + self.q

    def sample(self, noise: torch.Tensor) -> torch.Tensor:
        """Return actions from any noise `[..., d]`, whose bits are the seeds of streams of uniform numbers.

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
        widths = _numbers(self._widths, self.p)
        x = self._inside((actions.to(self.p.dtype) - _numbers(self._lows, self.p)) / widths)
        terms = self.p * x.log() + self.q * (-x).log1p() - self._log_beta() - widths.log()
        return terms.sum(dim=-1).to(self.dtype)

    def entropy(self) -> torch.Tensor:
        """Return log B(alpha, beta) - p psi(alpha) - q psi(beta) + (p + q) psi(alpha + beta), and log(width)."""
        own = self.p * self.alpha.digamma() + self.q * self.beta.digamma()
        of_x = self._log_beta() - own + (self.p + self.q) * (self.alpha + self.beta).digamma()
        return (of_x + _numbers(self._widths, self.p).log()).sum(dim=-1).to(self.dtype)

    def _log_beta(self) -> torch.Tensor:
        return self.alpha.lgamma() + self.beta.lgamma() - (self.alpha + self.beta).lgamma()

    def _inside(self, x: torch.Tensor) -> torch.Tensor:
        eps = torch.finfo(self.dtype).eps
        return x.clamp(eps, 1 - eps)

    def _action(self, x: torch.Tensor) -> torch.Tensor:
        return (_numbers(self._lows, x) + _numbers(self._widths, x) * self._inside(x)).to(self.dtype)


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


def _numbers(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    """Return `values` `[n]` as a tensor of the type and device of `like`."""
    # Traced for compilation or export: new_tensor's constants would be lost.
    if type(like) is not torch.Tensor:
        return torch.stack([like.new_full((), x) for x in values])
    if like.is_cpu:
        return like.new_tensor(values)
    return _numbers_there(tuple(values), like.dtype, like.device)


@cache
def _numbers_there(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    # Copied to the device once, for the host waits for such a copy. Learning reads it, so it is no inference tensor.
    with torch.inference_mode(mode=False):
        return torch.tensor(values, dtype=dtype, device=device)


def bounds_of(action: ActionSpec) -> np.ndarray:
    """Return lower bounds and widths `[2, n]` of a box."""
    low, high = np.array(action.low, np.float64), np.array(action.high, np.float64)
    return np.stack([low, high - low])


def squash_of(action: ActionSpec) -> np.ndarray:
    """Return middles and half widths `[2, n]` of a box."""
    low, high = np.array(action.low, np.float64), np.array(action.high, np.float64)
    return np.stack([(low + high) / 2, (high - low) / 2])


def _inside(x: torch.Tensor) -> torch.Tensor:
    limit = 1.0 - torch.finfo(x.dtype).eps
    return x.clamp(-limit, limit)


@cache
def gauss_hermite() -> tuple[list[float], list[float]]:
    """Return nodes and weights: E f(z), z ~ N(0, 1), is the weighted sum of f(nodes)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NUM_NODES)
    return nodes.tolist(), (weights / math.sqrt(2 * math.pi)).tolist()
