"""Trials on random samples before a run.

`agrees` compares the gradient of the C++ or compiled step with autograd's (loop/compute.py calls it). `check_losses`
tries the loss terms of a user's own (ppo.losses; the launcher calls it before any rank starts).
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from ddppo.config.algorithm_settings import SurrogateSettings
from ddppo.config.model_settings import ModelSettings
from ddppo.errors import ConfigError, TrainingError, in_one_line
from ddppo.models.actor_critic import ActorCritic, random_obs
from ddppo.models.build import build_model, model_class
from ddppo.ppo.losses import (
    Coefficients,
    Samples,
    Term,
    loss_per_sample,
    nan_unless_finite,
    own_losses,
    terms_of,
)
from ddppo.ppo.minibatches import Minibatch
from ddppo.spaces import EnvSpec, each

_TRIED_ROWS = 11
# Largest difference of a component, relative to the largest component.
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}


class HasGradient(Protocol):
    """A step that can be tried: `CppStep` or `CompiledStep`."""

    def gradient(self, minibatch: Minibatch) -> torch.Tensor:
        """Compute this rank's gradient of the mean loss over a minibatch into `parameters.grad`, and return it."""
        ...


def agrees(step: HasGradient, spec: EnvSpec, model: ActorCritic, config: SurrogateSettings) -> bool:
    """Return whether the gradient of `step` equals autograd's, up to rounding."""
    return worst_error(step, spec, model, config) <= _TOLERANCE[next(model.parameters()).dtype]


def worst_error(
    step: HasGradient,
    spec: EnvSpec,
    model: ActorCritic,
    config: SurrogateSettings,
    num_rows: int = _TRIED_ROWS,
) -> float:
    """Return the largest difference between the gradients of `step` and of autograd, relative to the largest component.

    The parameters do not change.
    """
    minibatch = example(spec, model, num_rows, torch.Generator().manual_seed(0))
    gradient = step.gradient(minibatch)
    # The same loss by autograd.
    parameters = [p for p in model.parameters() if p.requires_grad]
    params, values = model.evaluate_actions(minibatch["obs"], minibatch["actions"])
    per_sample, _ = loss_per_sample(params, values, minibatch, model.distribution, Coefficients.of(config))
    if config.losses:
        samples = Samples(minibatch, params, values, model.distribution)
        per_sample = per_sample + own_losses(terms_of(config.losses), samples)[0]
    loss = per_sample.mean()
    expected = iter(torch.autograd.grad(loss * nan_unless_finite(loss), parameters, materialize_grads=True))
    # Frozen parameters have gradient 0 in the flat vector.
    whole = [next(expected) if p.requires_grad else torch.zeros_like(p) for p in model.parameters()]
    flat = torch.cat([g.reshape(-1) for g in whole])
    return ((gradient - flat).abs().max() / flat.abs().max()).item()


def example(spec: EnvSpec, model: ActorCritic, num_rows: int, generator: torch.Generator) -> Minibatch:
    """Return a minibatch of random numbers, with the fields of the learner's in their types and order."""
    p = next(model.parameters())
    # Random numbers are drawn on the CPU, so that the minibatch is the same on every device.

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(num_rows, *shape, dtype=p.dtype, generator=generator)

    mask = None if spec.mask_size is None else torch.ones(num_rows, spec.mask_size, dtype=torch.bool)
    obs = each(lambda x: x.to(p.device), random_obs(spec, num_rows, p.dtype, generator))
    with torch.no_grad():
        actions = model.distribution(model.action_params(obs).cpu(), mask).sample(random(model.num_noise))
        params, values = (x.cpu() for x in model.evaluate_actions(obs, actions.to(p.device)))
        logprobs = model.distribution(params, mask).log_prob(actions)
    minibatch = {
        "obs": obs,
        "actions": actions,
        "logprobs": logprobs + 0.4 * (random() - 0.5),  # ratios on both sides of the clip
        "values": values,
        "advantages": random() - 0.5,
        "returns": values + random(),
        "weights": torch.ones(num_rows, dtype=p.dtype),
    }
    if mask is not None:
        minibatch["mask"] = mask
    return {name: each(lambda x: x.to(p.device), field) for name, field in minibatch.items()}


# -- Loss terms of a user's own, tried on random samples before any process starts.


_ROWS = 8


def check_losses(
    losses: Mapping[str, Any], spec: EnvSpec, config: ModelSettings, dtype: torch.dtype
) -> str | None:
    """Try every term of ppo.losses on random samples; return a warning about terms in which samples depend on others.

    For a model with minibatches of its own, only the import is tried. Raises ConfigError for a term that cannot be
    imported, raises, does not return one number per sample, or does not depend on the model's outputs.
    """
    terms = terms_of(losses)
    if not terms or model_class(config).minibatch_class is not None:
        return None
    samples, first_half = _random_samples(spec, config, dtype)
    mixing = [term.name for term in terms if _mixes(term, samples, first_half)]
    if not mixing:
        return None
    return (
        f"ppo.losses.{', ppo.losses.'.join(mixing)}: a sample's number depends on other samples of its minibatch, so "
        "results depend on dist.world_size: compute each number from its own sample alone"
    )


def _random_samples(spec: EnvSpec, config: ModelSettings, dtype: torch.dtype) -> tuple[Samples, Samples]:
    """Return random samples, and a minibatch of their first half only."""
    model = build_model(spec, config, 0, dtype)
    minibatch = example(spec, model, _ROWS, torch.Generator().manual_seed(0))
    outputs = model.evaluate_actions(minibatch["obs"], minibatch["actions"])
    params, values = (x.detach().requires_grad_() for x in outputs)  # as C++ hands them over
    half = _ROWS // 2
    first = {name: each(lambda x: x[:half], field) for name, field in minibatch.items()}
    return (
        Samples(minibatch, params, values, model.distribution),
        Samples(first, params[:half], values[:half], model.distribution),
    )


def _mixes(term: Term, samples: Samples, first_half: Samples) -> bool:
    """Return whether the term of the first half differs if the other half is there. Raises ConfigError as above."""
    subject = f"ppo.losses.{term.name}.term"
    try:
        among_all, alone = term(samples), term(first_half)
    except TrainingError as e:
        raise ConfigError(str(e)) from e
    except Exception as e:  # a user's function may raise anything
        raise ConfigError(f"{subject}: raised {in_one_line(e)}") from e
    if not among_all.requires_grad:
        raise ConfigError(
            f"{subject}: returned numbers without a gradient: they must depend on samples.policy, samples.params or "
            "samples.values, or nothing is learned from them; use log.metrics for a number that is only reported"
        )
    close = 1e-4 if among_all.dtype == torch.float32 else 1e-9
    return not torch.allclose(among_all[: len(alone)], alone, rtol=close, atol=close, equal_nan=True)
