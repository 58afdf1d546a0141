"""The loss of PPO and its statistics, per sample: formulas, their sum, and terms of the user's own (ppo.losses).

    loss = policy_loss + value_coef * value_loss - entropy_coef * entropy [+ kl_coef * kl_reference] [+ own terms]

policy_loss is PPO's clipped surrogate, or what `Learner.surrogate` of an algorithm makes of the formulas here (GRPO's).

Tensors in, tensors out: the learner sums over samples and divides by a count over all ranks. The eager step and
torch.compile's step (compiled.py) both call `loss_per_sample`. The step in C++ repeats it with gradients derived by
hand (native/src/losses.hpp); gradient_check.py compares the two before a run.

A term of your own needs no change here: docs/guide/loss.md. A new built-in term changes

    here                          Coefficients, loss_per_sample, LossTerms.statistics, STATISTICS
    config/algorithm_settings.py  its coefficient
    records/metrics.py            a row of the table
    learner.py, compiled.py       `constants`, and the two functions of compiled.py that read it by position
    native/src/losses.hpp         the loss, its gradient, kNumStatistics; or, in cpp/network.py, a row of `why_not_cpp`
                                  that refuses C++ for any coefficient, 0 included: its sums have as many columns as
                                  STATISTICS
"""

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import torch

from ddppo.config.algorithm_settings import SurrogateSettings
from ddppo.errors import ConfigError, TrainingError, in_one_line
from ddppo.models.actor_critic import Obs
from ddppo.models.distributions import ActionDistribution
from ddppo.plugins import imported
from ddppo.ppo.minibatches import Minibatch
from ddppo.spaces import each

Distribution = Callable[[torch.Tensor, torch.Tensor | None], ActionDistribution]  # of parameters and mask

# Statistics that every learner sums over samples, in this order. `more_statistics` of the settings follow, then with
# ppo.kl_coef that of the reference, then one for each of ppo.losses.
STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "ratio_outliers")
_KL_REFERENCE = "kl_reference"


def statistic_names(config: SurrogateSettings) -> tuple[str, ...]:
    """Return the metrics that a learner sums, in their order."""
    of_ppo = (*STATISTICS, *config.more_statistics, *((_KL_REFERENCE,) if config.kl_coef else ()))
    return (*(f"train/{name}" for name in of_ppo), *(f"loss/{name}" for name in config.losses))


# -- Formulas.


def clipped_surrogate_loss(
    log_ratio: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_coef: float,
    clip_coef_high: float | None = None,
) -> torch.Tensor:
    """Return -min(r A, clip(r, 1 - eps, 1 + eps_high) A) per sample `[B]`, r = exp(log_ratio), eps_high = eps if None.

    Schulman et al. 2017, arXiv:1707.06347, eq. 7; with an eps_high of its own DAPO, Yu et al. 2025, arXiv:2503.14476,
    eq. 10: a larger one lets improbable tokens become probable.
    """
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_coef, 1 + (clip_coef if clip_coef_high is None else clip_coef_high))
    return -torch.minimum(ratio * advantages, clipped * advantages)


def cispo_loss(
    log_ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor, *, clip_coef_high: float
) -> torch.Tensor:
    """Return -sg(min(r, 1 + eps_high)) A log pi(a) per sample `[B]`; sg stops the gradient, r = exp(log_ratio).

    Clips the weight of a sample and not its gradient, so no token is left out. MiniMax-M1 2025, arXiv:2506.13585, eq. 4
    and 5, without a lower bound, as there.
    """
    weight = log_ratio.detach().exp().clamp(max=1 + clip_coef_high)
    return -weight * advantages * logprobs


def sequence_log_ratio(log_ratio: torch.Tensor, rollouts: torch.Tensor, num_rollouts: int) -> torch.Tensor:
    """Return for each sample `[B]` log s of its rollout: log s_i = mean over its samples t of log r_it.

    So s_i = (pi(y_i) / pi_old(y_i))^(1 / |y_i|). GSPO, Zheng et al. 2025, arXiv:2507.18071, eq. 7.
    rollouts `[B]` int64: numbers below num_rollouts; all samples of a rollout are in the batch.
    """
    zeros = log_ratio.new_zeros(num_rollouts)
    sums = zeros.index_add(0, rollouts, log_ratio)
    counts = zeros.index_add(0, rollouts, torch.ones_like(log_ratio))
    return (sums / counts.clamp(min=1))[rollouts]


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


def is_clipped(
    log_ratio: torch.Tensor, *, clip_coef: float, clip_coef_high: float | None = None
) -> torch.Tensor:
    """Return per sample `[B]` bool whether r < 1 - eps or r > 1 + eps_high, eps_high = eps if None."""
    change = log_ratio.expm1()
    if clip_coef_high is None:
        return change.abs() > clip_coef
    return (change < -clip_coef) | (change > clip_coef_high)


def is_outlier(log_ratio: torch.Tensor) -> torch.Tensor:
    """Return per sample `[B]` bool whether the ratio r is outside [1/2, 2]."""
    return log_ratio.abs() > 0.6931471805599453


# -- The loss of a minibatch.


class Coefficients(NamedTuple):
    """The coefficients of the loss: numbers, or scalar tensors if the loss is compiled."""

    clip: float  # eps, the range of the probability ratio
    value: float
    entropy: float
    clip_value: float | None
    kl: float = 0.0  # of the divergence from the reference policy
    clip_high: float | None = None  # eps_high, the range above 1; None: eps

    @classmethod
    def of(cls, config: SurrogateSettings) -> "Coefficients":
        return cls(
            config.clip_coef,
            config.value_coef,
            config.entropy_coef,
            config.clip_value_coef,
            config.kl_coef,
            config.clip_coef_high,
        )


class PolicyLoss(NamedTuple):
    """The loss of the policy, `[n]` each."""

    loss: torch.Tensor
    is_clipped: torch.Tensor  # bool
    more: tuple[torch.Tensor, ...] = ()  # `more_statistics` of the settings


# Of log pi(a) and log pi(a) - log pi_old(a) `[n]`, a minibatch and the coefficients.
Surrogate = Callable[[torch.Tensor, torch.Tensor, Minibatch, Coefficients], PolicyLoss]


def ppo_surrogate(
    logprobs: torch.Tensor, log_ratio: torch.Tensor, minibatch: Minibatch, coefficients: Coefficients
) -> PolicyLoss:
    """Return PPO's clipped surrogate."""
    clip = coefficients.clip
    loss = clipped_surrogate_loss(log_ratio, minibatch["advantages"], clip_coef=clip)
    return PolicyLoss(loss, is_clipped(log_ratio, clip_coef=clip))


class LossTerms(NamedTuple):
    """Per sample, `[n]` each."""

    policy: PolicyLoss
    value_loss: torch.Tensor
    entropy: torch.Tensor
    log_ratio: torch.Tensor  # log pi(a) - log pi_old(a)
    kl_reference: torch.Tensor | None  # None without a reference policy

    def statistics(self) -> list[torch.Tensor]:
        """Return `STATISTICS`, `more_statistics`, and with a reference the divergence from it, `[n]` each."""
        dtype = self.log_ratio.dtype
        found = [
            self.policy.loss,
            self.value_loss,
            self.entropy,
            approx_kl(self.log_ratio),
            self.policy.is_clipped.to(dtype),
            is_outlier(self.log_ratio).to(dtype),
            *self.policy.more,
        ]
        return found if self.kl_reference is None else [*found, self.kl_reference]


def loss_per_sample(
    params: torch.Tensor,
    values: torch.Tensor,
    minibatch: Minibatch,
    distribution: Distribution,
    coefficients: Coefficients,
    surrogate: Surrogate = ppo_surrogate,
) -> tuple[torch.Tensor, LossTerms]:
    """Return the loss `[n]` of a model's outputs (action parameters `[n, P]`, values `[n]`), and its terms.

    With "ref_logprobs" in the minibatch, the loss has the divergence from a reference policy: the k3 estimate of
    KL(pi || pi_ref) on actions sampled from pi (GRPO, arXiv:2402.03300, eq. 4).
    """
    policy = distribution(params, minibatch.get("mask"))
    logprobs = policy.log_prob(minibatch["actions"])
    log_ratio = logprobs - minibatch["logprobs"]
    # At coefficient 0 it is a metric only: without a graph, which of a large vocabulary is the largest part of a step.
    with torch.set_grad_enabled(torch.is_grad_enabled() and not _is_zero(coefficients.entropy)):
        entropy = policy.entropy()
    of_policy = surrogate(logprobs, log_ratio, minibatch, coefficients)
    if "returns" in minibatch:
        of_value = value_loss(
            values, minibatch["values"], minibatch["returns"], clip_value_coef=coefficients.clip_value
        )
    else:
        of_value = 0.0 * values  # no value is learned, but DistributedDataParallel waits for every gradient
    loss = of_policy.loss + coefficients.value * of_value - coefficients.entropy * entropy
    kl_reference = None
    if "ref_logprobs" in minibatch:
        kl_reference = approx_kl(minibatch["ref_logprobs"] - logprobs)
        loss = loss + coefficients.kl * kl_reference
    return loss, LossTerms(of_policy, of_value, entropy, log_ratio, kl_reference)


def _is_zero(coefficient: float | torch.Tensor) -> bool:
    return not isinstance(coefficient, torch.Tensor) and coefficient == 0


def nan_unless_finite(loss: torch.Tensor) -> torch.Tensor:
    """Return 1, or NaN if the loss is not finite.

    Times the loss, it makes the gradient of one rank NaN, so the sum over ranks is NaN on every rank: all ranks see
    the fault at the same minibatch without a collective of its own.
    """
    return torch.where(loss.detach().isfinite(), 1.0, math.nan)


# -- Terms of the user's own beside PPO's loss:
#
# def still(samples):                           # ppo.losses={still: {term: my_pkg.losses:still, coef: 0.01}}
#     return samples.policy.mode().square().sum(dim=-1)


class Samples:
    """The n samples of a minibatch, as a term of the user's own gets them.

    `params`, `values` and `policy` depend on the parameters; everything else is as the rollout left it. What no term
    reads is not made.
    """

    def __init__(
        self,
        minibatch: Mapping[str, Any],  # a `Minibatch`, or one that selects a field when it is read
        params: torch.Tensor,
        values: torch.Tensor,
        distribution: Distribution,
    ) -> None:
        self._minibatch, self._distribution = minibatch, distribution
        self.params = params  # [n, P] parameters of the action distribution
        self.values = values  # [n]

    @cached_property
    def policy(self) -> ActionDistribution:
        """The distribution of actions, restricted to what the mask allows."""
        return self._distribution(self.params, self.mask)

    @cached_property
    def obs(self) -> Obs | None:
        """Observations as the model gets them; None if a minibatch holds whole sequences of tokens."""
        if "unrolled" in self._minibatch:
            return each(lambda x: x.flatten(0, 1), self._minibatch["unrolled"][0])
        return self._minibatch.get("obs")

    @cached_property
    def actions(self) -> torch.Tensor:
        """Actions `[n, *action.shape]`."""
        return self._minibatch["actions"]

    @cached_property
    def mask(self) -> torch.Tensor | None:
        """Allowed choices `[n, mask_size]` bool; None without action masks."""
        return self._minibatch.get("mask")

    @cached_property
    def old_logprobs(self) -> torch.Tensor:
        """Log-probabilities `[n]` of the policy that acted."""
        return self._minibatch["logprobs"]

    @cached_property
    def old_values(self) -> torch.Tensor | None:
        """Values `[n]` of the policy that acted; None for grpo."""
        return self._minibatch.get("values")

    @cached_property
    def advantages(self) -> torch.Tensor:
        """Advantages `[n]`, normalised."""
        return self._minibatch["advantages"]

    @cached_property
    def returns(self) -> torch.Tensor | None:
        """What values learn `[n]`; None for grpo."""
        return self._minibatch.get("returns")


class Term(NamedTuple):
    """One of ppo.losses, added to PPO's loss."""

    name: str
    function: Callable[[Samples], torch.Tensor]  # returns a loss per sample [n]
    coef: float

    def __call__(self, samples: Samples) -> torch.Tensor:
        """Return the term `[n]`, without its coefficient. Raises TrainingError for another type or shape."""
        found, values = self.function(samples), samples.values
        if not isinstance(found, torch.Tensor):
            raise TrainingError(
                f"ppo.losses.{self.name} returned a {type(found).__name__}: it must be a tensor {list(values.shape)}, "
                "a number for each sample"
            )
        if found.shape != values.shape:
            raise TrainingError(
                f"ppo.losses.{self.name} returned a tensor {list(found.shape)} for {len(values)} samples: it must be "
                f"{list(values.shape)}, not reduced: sums over ranks count samples"
            )
        return found.to(values.dtype)


def terms_of(losses: Mapping[str, Any]) -> tuple[Term, ...]:
    """Return the terms that ppo.losses names, in their order. Raises ConfigError for one that cannot be imported."""
    found = []
    for name, of_term in losses.items():
        path = of_term["term"]
        try:
            function = imported(path)
        except (Exception, SystemExit) as e:  # a user's module may raise anything
            raise ConfigError(f"ppo.losses.{name}.term={path}: cannot be imported: {in_one_line(e)}") from e
        if not callable(function):
            raise ConfigError(
                f"ppo.losses.{name}.term={path}: is of type {type(function).__name__}: it must be a function"
            )
        found.append(Term(name, function, float(of_term["coef"])))
    return tuple(found)


def own_losses(terms: tuple[Term, ...], samples: Samples) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the sum of the terms, each times its coefficient, and the terms, `[n]` each.

    A rank may have no sample of a minibatch; the user's function is not called for none.
    """
    found = [term(samples) if len(samples.values) else torch.zeros_like(samples.values) for term in terms]
    return torch.stack([term.coef * x for term, x in zip(terms, found, strict=True)]).sum(dim=0), found
