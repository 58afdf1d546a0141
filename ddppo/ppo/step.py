"""The step on one minibatch: loss, gradient, its sum over ranks, clipping, Adam; eager here, else native/ or compiled/.

The arithmetic of the loss stands here once for both, in functions of tensors alone.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch

from ddppo.config.algorithm_settings import AlgorithmSettings
from ddppo.models.distributions import ActionDistribution
from ddppo.ppo import losses
from ddppo.ppo.losses import own_losses, samples_of, terms_of
from ddppo.ppo.minibatches import At, Minibatch, OfRollout, outputs

STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "ratio_outliers")
OF_REFERENCE = "kl_reference"  # comes after them where there is a reference
OF_OWN = "loss/"  # and the name of one of ppo.losses, which come last
BETAS = (0.9, 0.999)  # Adam's
CLIP = 0  # where `constants` has the range of the ratio
NORM_EPS = 1e-6  # below which a gradient is not scaled up (torch.nn.utils.clip_grad_norm_)


class NotFinite(Exception):
    """The gradient over all ranks is not finite, which all ranks see; `loss` is this rank's.

    Or `what` else is named, after the optimizer has moved. terms: of ppo.losses, whether each is why on this rank.
    """

    def __init__(
        self, loss: float, what: str | None = None, terms: Mapping[str, bool] = MappingProxyType({})
    ) -> None:
        super().__init__(loss)
        self.loss = loss
        self.terms = terms
        self.what = what or "the gradient, though no loss,"
        self.moves_nothing = what is None


def statistics(config: AlgorithmSettings) -> tuple[str, ...]:
    """Return the metrics that the sums of a learner are of, in their order."""
    of_ppo = (*STATISTICS, OF_REFERENCE) if config.kl_coef else STATISTICS
    return (*(f"train/{name}" for name in of_ppo), *(OF_OWN + name for name in config.losses))


class Coefficients(NamedTuple):
    """Those of the loss: numbers, or where it is compiled, tensors of no dimension in their place."""

    clip: float
    value: float
    entropy: float
    clip_value: float | None
    kl: float = 0.0

    @classmethod
    def of(cls, config: AlgorithmSettings) -> "Coefficients":
        return cls(
            config.clip_coef, config.value_coef, config.entropy_coef, config.clip_value_coef, config.kl_coef
        )


class Step(Protocol):
    """What the learner calls for every epoch, between `begin` and `end` of an iteration.

    sums: this rank's sums of `statistics` since `begin`, `[S, n]` in float64, by its S shards; S is
    1 where all of a rank's environments are one. A minibatch has S parts then, in turn, between so many more bounds.
    """

    sums: torch.Tensor

    def begin(self, learning_rate: float, clip_coef: float) -> None:
        """Start an iteration with this step size and range of the ratio: sums are zero."""
        ...

    def epoch(self, batch: OfRollout, order: torch.Tensor, bounds: list[int], counts: list[float]) -> None:
        """Move the parameters by the gradient of every minibatch: what is in `order`, cut at `bounds`.

        That is samples, sequences or environments. counts are what minibatches count over all ranks; one of 0, such as
        only pseudo-steps on all, is passed over. From the first gradient on that is not finite, parameters and moments
        stay as they were.
        """
        ...

    def end(self) -> float:
        """Return the sum of the gradients' norms before clipping. Raises NotFinite."""
        ...


def constants(config: AlgorithmSettings, device: torch.device) -> torch.Tensor:
    """Return what a step in machine code reads of the configuration, `[6]` in float64."""
    values = [
        config.clip_coef,
        config.value_coef,
        config.entropy_coef,
        config.clip_value_coef or math.inf,
        config.max_grad_norm,
        config.adam_eps,
    ]
    return torch.tensor(values, dtype=torch.float64, device=device)


def adam_state(optimizer: torch.optim.Adam, parameters: torch.nn.Parameter) -> list[torch.Tensor]:
    """Return the number of steps and the two moments, zeros at first, as Adam itself begins."""
    state = optimizer.state[parameters]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameters.device)
        state["exp_avg"] = torch.zeros_like(parameters.data)
        state["exp_avg_sq"] = torch.zeros_like(parameters.data)
    return [state["step"], state["exp_avg"], state["exp_avg_sq"]]


@contextmanager
def scaled_step(parameters: torch.nn.Parameter, scale: torch.Tensor | None) -> Iterator[None]:
    """Multiply what Adam adds to the parameters in this context by `scale`, as its step size does."""
    if scale is None:
        yield
        return
    before = parameters.detach().clone()
    yield
    parameters.data.copy_(before.lerp_(parameters.data, scale))


def losses_and_statistics(
    params: torch.Tensor,
    values: torch.Tensor,
    minibatch: Minibatch,
    distribution: Callable[[torch.Tensor, torch.Tensor | None], ActionDistribution],
    coefficients: Coefficients,
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Return the loss per sample `[n]` of a model's outputs, the log ratio, and policy loss, value loss and entropy.

    Where the minibatch has log-probabilities of a reference, the divergence from it is a fourth part: k3 of
    KL(pi || pi_ref) on what pi sampled (GRPO, arXiv:2402.03300, eq. 4).
    """
    policy = distribution(params, minibatch.get("mask"))
    logprobs = policy.log_prob(minibatch["actions"])
    log_ratio = logprobs - minibatch["logprobs"]
    entropy = policy.entropy()
    policy_loss = losses.clipped_surrogate_loss(
        log_ratio, minibatch["advantages"], clip_coef=coefficients.clip
    )
    if "returns" in minibatch:
        value_loss = losses.value_loss(
            values, minibatch["values"], minibatch["returns"], clip_value_coef=coefficients.clip_value
        )
    else:
        value_loss = 0.0 * values  # no value is learned, but DistributedDataParallel waits for every gradient
    per_sample = policy_loss + coefficients.value * value_loss - coefficients.entropy * entropy
    parts = [policy_loss, value_loss, entropy]
    if "ref_logprobs" in minibatch:
        parts.append(losses.approx_kl(minibatch["ref_logprobs"] - logprobs))
        per_sample = per_sample + coefficients.kl * parts[-1]
    return per_sample, log_ratio, parts


def statistics_of_ratio(log_ratio: torch.Tensor, clip: float) -> list[torch.Tensor]:
    """Return approx_kl, clip_fraction and ratio_outliers per sample `[n]`."""
    dtype = log_ratio.dtype
    return [
        losses.approx_kl(log_ratio),
        losses.is_clipped(log_ratio, clip_coef=clip).to(dtype),
        losses.is_outlier(log_ratio).to(dtype),
    ]


def poison(loss: torch.Tensor) -> torch.Tensor:
    """Return 1, or NaN where the loss is not finite: times the loss, no rank's gradient sum is finite then."""
    return torch.where(loss.detach().isfinite(), 1.0, math.nan)


class ByMinibatch:
    """An epoch gathered into its order, and taken a minibatch at a time."""

    sums: torch.Tensor

    def epoch(self, batch: OfRollout, order: torch.Tensor, bounds: list[int], counts: list[float]) -> None:
        parts = iter(batch.minibatches(order, bounds))
        for count in counts:
            shards = list(itertools.islice(parts, len(self.sums)))
            if count > 0:
                self.take(shards, count)

    def take(self, shards: Sequence[Minibatch], count: float) -> None:
        """Move the parameters by the gradient of a minibatch in shards, which counts `count` over all ranks."""
        raise NotImplementedError


class EagerStep(ByMinibatch):
    """Every operation by itself, as torch comes to it.

    backward_: leaves the gradient of a loss over all ranks; of several shards, of which it is called for each, with the
    last.
    """

    def __init__(
        self,
        config: AlgorithmSettings,
        distribution: Callable[[torch.Tensor, torch.Tensor | None], ActionDistribution],
        parameters: torch.nn.Parameter,
        optimizer: torch.optim.Adam,
        *,
        at: At,
        backward_: Callable[[torch.Tensor], None],
        scale: torch.Tensor | None,
        num_shards: int = 1,
    ) -> None:
        self.distribution = distribution
        self.parameters = parameters
        self.optimizer = optimizer
        self.at = at
        self.backward_ = backward_
        self.scale = scale
        self.terms = terms_of(config.losses)
        self.sums = torch.zeros(
            num_shards, len(statistics(config)), dtype=torch.float64, device=parameters.device
        )
        self._coefficients = Coefficients.of(config)
        self._max_norm = config.max_grad_norm
        self._norms = torch.zeros((), dtype=torch.float64, device=parameters.device)
        self._loss = torch.zeros((), dtype=torch.float64, device=parameters.device)

    def begin(self, learning_rate: float, clip_coef: float) -> None:
        self.sums.zero_()
        self._norms.zero_()
        self.optimizer.param_groups[0]["lr"] = learning_rate
        self._coefficients = self._coefficients._replace(clip=clip_coef)

    def take(self, shards: Sequence[Minibatch], count: float) -> None:
        losses = [
            self._backward(minibatch, count, sums) for minibatch, sums in zip(shards, self.sums, strict=True)
        ]
        gradient = self.parameters.grad
        assert gradient is not None
        with torch.no_grad():
            loss = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
            self._loss.copy_(torch.where(self._norms.isfinite(), loss, self._loss))
            norm = gradient.norm()
            self._norms += norm.double()
            gradient.mul_((self._max_norm / (norm + NORM_EPS)).clamp(max=1.0))
            # As GradScaler tells it: where it is 1 nothing moves. Nobody looks before `end`, so that no GPU waits.
            self.optimizer.found_inf = 1.0 - self._norms.isfinite().float()  # type: ignore[attr-defined]
            with scaled_step(self.parameters, self.scale):
                self.optimizer.step()

    def _backward(self, minibatch: Minibatch, count: float, sums: torch.Tensor) -> torch.Tensor:
        """Add a shard of a minibatch to its sums and to the gradient; return its part of the loss, float64."""
        params, values = outputs(self.at, minibatch)
        weights = minibatch["weights"]
        per_sample, log_ratio, parts = losses_and_statistics(
            params, values, minibatch, self.distribution, self._coefficients
        )
        if self.terms:
            own, found = own_losses(self.terms, samples_of(minibatch, params, values, self.distribution))
            per_sample, parts = per_sample + own, [*parts, *found]
        loss = torch.dot(weights, per_sample) / count
        self.backward_(loss * poison(loss))
        with torch.no_grad():
            of_ratio = statistics_of_ratio(log_ratio, self._coefficients.clip)
            sums += torch.stack([*parts[:3], *of_ratio, *parts[3:]]) @ weights
        return loss.detach().double()

    def end(self) -> float:
        norms = self._norms.item()
        if not math.isfinite(norms):
            raise NotFinite(self._loss.item(), terms=self._terms_to_blame())
        return norms

    def _terms_to_blame(self) -> dict[str, bool]:
        """Return which of the user's terms were not finite though the rest of the loss was."""
        is_finite = self.sums.isfinite().all(dim=0).tolist()
        num_ours = len(is_finite) - len(self.terms)
        of_terms = zip(self.terms, is_finite[num_ours:], strict=True)
        return {term.name: not finite and all(is_finite[:num_ours]) for term, finite in of_terms}
