"""PPO's losses and diagnostics per sample. The caller sums them and divides by a count over all ranks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ddppo.errors import ConfigError, TrainingError
from ddppo.models.actor_critic import Obs
from ddppo.models.distributions import ActionDistribution
from ddppo.plugins import imported
from ddppo.ppo.minibatches import At, Minibatch, OfRollout, outputs
from ddppo.spaces import each
from ddppo.tracebacks import in_one_line


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


# -- The policy that ppo.kl_coef holds a run's policy to.


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


# -- Loss terms of a user's own beside PPO's: what they are given, how they are found, and how they are tried.
#
# def still(samples):                           # ppo.losses={still: {term: my_pkg.losses:still, coef: 0.01}}
#     return samples.policy.mode().square().sum(dim=-1)


Distribution = Callable[[torch.Tensor, torch.Tensor | None], ActionDistribution]


@dataclass(frozen=True, slots=True)
class Samples:
    """What a term is given: n samples of a minibatch, and what the model makes of them.

    params `[n, P]`, values `[n]` and policy, the distribution that params describe of what the mask allows, depend on
    the parameters; all else is as the rollout left it. obs: as the model is given them, None where a minibatch is of
    whole sequences. actions `[n, *action.shape]`. mask `[n, mask_size]` bool, None without masks. old_logprobs,
    old_values `[n]`: of the policy that acted. advantages `[n]`, normalised; returns `[n]`. Of grpo old_values and
    returns are None.
    """

    obs: Obs | None
    actions: torch.Tensor
    mask: torch.Tensor | None
    params: torch.Tensor
    policy: ActionDistribution
    values: torch.Tensor
    old_logprobs: torch.Tensor
    old_values: torch.Tensor | None
    advantages: torch.Tensor
    returns: torch.Tensor | None


class Term(NamedTuple):
    """One of ppo.losses: per sample `[n]` of Samples, times coef, beside PPO's own loss per sample."""

    name: str
    function: Callable[[Samples], torch.Tensor]
    coef: float

    def __call__(self, samples: Samples) -> torch.Tensor:
        """Return the term `[n]` without its coefficient. Raises TrainingError where that is not what it returns."""
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


def samples_of(
    minibatch: Minibatch, params: torch.Tensor, values: torch.Tensor, distribution: Distribution
) -> Samples:
    mask, obs = minibatch.get("mask"), minibatch.get("obs")
    if "unrolled" in minibatch:
        obs = each(lambda x: x.flatten(0, 1), minibatch["unrolled"][0])
    return Samples(
        obs=obs,
        actions=minibatch["actions"],
        mask=mask,
        params=params,
        policy=distribution(params, mask),
        values=values,
        old_logprobs=minibatch["logprobs"],
        old_values=minibatch.get("values"),
        advantages=minibatch["advantages"],
        returns=minibatch.get("returns"),
    )


def own_losses(terms: tuple[Term, ...], samples: Samples) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the sum of the terms, each times its coefficient, and the terms, `[n]` each.

    Of no sample, which is a rank's share of some minibatches, no term is asked.
    """
    found = [term(samples) if len(samples.values) else torch.zeros_like(samples.values) for term in terms]
    return torch.stack([term.coef * x for term, x in zip(terms, found, strict=True)]).sum(dim=0), found
