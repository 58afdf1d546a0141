"""Loss terms of a user's own beside PPO's: what they are given, how they are found, and how they are tried.

def still(samples):                           # ppo.losses={still: {term: my_pkg.losses:still, coef: 0.01}}
    return samples.policy.mode().square().sum(dim=-1)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ddppo.errors import ConfigError, TrainingError
from ddppo.models import ActionDistribution, Obs
from ddppo.plugins import imported
from ddppo.ppo.learning.minibatches import Minibatch
from ddppo.spaces import each
from ddppo.tracebacks import in_one_line

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
