"""Action distributions, as functions of a model's output and of given noise.

Sampling takes its noise as an argument. So the action of an environment depends on that environment's random stream
alone, not on the batch in which it is computed, and results do not depend on the number of ranks. Shapes: `...` is any
batch shape, P = num_action_params. The last section turns the output of a policy's last layer into P numbers.
"""

import math
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ddppo.config.model_settings import LOG_STD_RANGE, LayerSettings, ModelSettings
from ddppo.device import wide_dtype
from ddppo.errors import ConfigError
from ddppo.spaces import ActionSpec

MANY_CHOICES = 4096  # more choices than this are sampled in float64
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
        from ddppo.models.beta import Beta  # few runs need it

        wide = params.to(wide_dtype(params.device))
        a, b = wide.chunk(2, dim=-1)
        low, width = (numbers_like(numbers, wide) for numbers in bounds_of(action).tolist())
        return Beta(a, b, low, width, params.dtype)
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
        half = numbers_like(self._halves, actions)
        x = _inside((actions - numbers_like(self._middles, actions)) / half)
        above, below = x.log1p(), (-x).log1p()  # atanh(x) is half their difference, log(1 - x^2) their sum
        return self.normal.log_prob((above - below) / 2) - (above + below + half.log()).sum(dim=-1)

    def entropy(self) -> torch.Tensor:
        """Return H(N) + E log(h (1 - tanh(u)^2)), the expectation by Gauss-Hermite quadrature: no noise is drawn."""
        nodes, weights = gauss_hermite()
        mean, std = self.normal.mean.unsqueeze(-1), self.normal.log_std.exp().unsqueeze(-1)
        u = mean + std * numbers_like(nodes, mean)
        slope = 2 * (math.log(2) - u - F.softplus(-2 * u, threshold=40.0))  # log(1 - tanh(u)^2)
        expected = (slope * numbers_like(weights, mean)).sum(dim=-1) + numbers_like(self._halves, mean).log()
        return self.normal.entropy() + expected.sum(dim=-1)

    def _squashed(self, u: torch.Tensor) -> torch.Tensor:
        return numbers_like(self._middles, u) + numbers_like(self._halves, u) * _inside(u.tanh())


def numbers_like(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
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


# -- From the output of a policy's last layer to action parameters.
#
# For a box, model.distribution chooses between Gaussian and Beta distributions. Of a Gaussian, model.log_std decides
# whether the log standard deviation is a parameter or an output of the layer, and model.squash whether tanh maps
# actions into the bounds.


def check_heads(action: ActionSpec, config: ModelSettings, *, brings_own_policy: bool = False) -> None:
    """Raise ConfigError if a setting of the distribution has no effect on these actions or this model."""
    if not isinstance(config, LayerSettings):  # other settings have no such keys
        return
    asked = {
        "distribution": (config.distribution, "gaussian"),
        "squash": (config.squash, "none"),
        "log_std": (config.log_std, "parameter"),
    }
    # A setting without effect is an error.
    for name, (value, default) in asked.items():
        if value != default and action.kind != "box":
            raise ConfigError(
                f"model.{name}={value} has no effect on actions that are {action.kind}, which have no standard "
                f"deviation: leave it out, or act in a Box"
            )
    bounded_by = [
        f"model.{name}={value}" for name, (value, default) in list(asked.items())[:2] if value != default
    ]
    if not bounded_by:
        return
    if brings_own_policy:
        raise ConfigError(
            f"{bounded_by[0]} has no effect with model.name={config.name}, which brings a distribution of its own: "
            "leave it out"
        )
    if not action.low:
        raise ConfigError(
            f"{bounded_by[0]} needs actions with a finite low < high in every dimension, and this task's Box lacks "
            "them: leave it out, or give the task bounds by gymnasium.wrappers.RescaleAction or a Box of its own"
        )


def policy_outputs(action: ActionSpec, config: LayerSettings) -> int:
    """Return the number of outputs of the policy's last layer: all P, or only the means of a Gaussian."""
    num_params = num_action_params(action)
    puts_out_all = action.kind != "box" or config.distribution == "beta" or config.log_std == "state"
    return num_params if puts_out_all else num_params // 2


def begin_log_std_(policy_head: nn.Linear, action: ActionSpec, config: LayerSettings) -> nn.Parameter | None:
    """Initialise the log standard deviation with model.log_std_init.

    Returns the parameter `[d]` that holds it. If the policy's head outputs it, sets the head's biases and returns None;
    likewise None if actions are no box, or not Gaussian.
    """
    if action.kind != "box" or config.distribution != "gaussian":
        return None
    if config.log_std == "parameter":
        return nn.Parameter(torch.full((action.sizes[0],), config.log_std_init))
    nn.init.constant_(policy_head.bias[action.sizes[0] :], config.log_std_init)
    return None


def policy_params(out: torch.Tensor, log_std: nn.Parameter | None, *, is_gaussian: bool) -> torch.Tensor:
    """Return action parameters `[..., P]` from the output of the policy's last layer.

    A log standard deviation that depends on the observation is clamped to LOG_STD_RANGE (Haarnoja et al. 2018,
    arXiv:1801.01290, and their code).
    """
    if not is_gaussian:
        return out
    if log_std is not None:
        return torch.cat([out, log_std.expand_as(out)], dim=-1)
    # model.log_std=state: the second half of the outputs.
    mean, of_state = out.chunk(2, dim=-1)
    return torch.cat([mean, of_state.clamp(*LOG_STD_RANGE)], dim=-1)
