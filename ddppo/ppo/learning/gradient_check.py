"""Whether a step other than the eager one computes autograd's gradient here, tried on random samples before a run."""

from typing import Protocol

import torch

from ddppo.config import AlgorithmSettings
from ddppo.models import ActorCritic, random_obs
from ddppo.ppo.learning.minibatches import Minibatch
from ddppo.ppo.learning.step import Coefficients, losses_and_statistics, poison
from ddppo.spaces import EnvSpec, each

_TRIED_ROWS = 11
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}


class HasGradient(Protocol):
    """A step that can be tried."""

    def gradient(self, minibatch: Minibatch) -> torch.Tensor:
        """Leave this rank's gradient of the mean loss over a minibatch in the parameters', and return it."""
        ...


def agrees(step: HasGradient, spec: EnvSpec, model: ActorCritic, config: AlgorithmSettings) -> bool:
    """Return whether the gradient of `step` is autograd's, up to rounding."""
    return worst_error(step, spec, model, config) <= _TOLERANCE[next(model.parameters()).dtype]


def worst_error(
    step: HasGradient,
    spec: EnvSpec,
    model: ActorCritic,
    config: AlgorithmSettings,
    num_rows: int = _TRIED_ROWS,
) -> float:
    """Return how far a gradient of `step` is from autograd's, relative to the longest component; nothing moves."""
    minibatch = example(spec, model, num_rows, torch.Generator().manual_seed(0))
    gradient = step.gradient(minibatch)
    parameters = [p for p in model.parameters() if p.requires_grad]
    params, values = model.at(minibatch["obs"], minibatch["actions"])
    per_sample, *_ = losses_and_statistics(
        params, values, minibatch, model.distribution, Coefficients.of(config)
    )
    loss = per_sample.mean()
    found = torch.autograd.grad(loss * poison(loss), parameters, materialize_grads=True)
    expected = iter(found)
    whole = [next(expected) if p.requires_grad else torch.zeros_like(p) for p in model.parameters()]
    flat = torch.cat([g.reshape(-1) for g in whole])
    return ((gradient - flat).abs().max() / flat.abs().max()).item()


def example(spec: EnvSpec, model: ActorCritic, num_rows: int, generator: torch.Generator) -> Minibatch:
    """Return a minibatch of random numbers, of the types and in the order that the learner's have."""
    p = next(model.parameters())

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(num_rows, *shape, dtype=p.dtype, generator=generator)

    mask = None if spec.mask_size is None else torch.ones(num_rows, spec.mask_size, dtype=torch.bool)
    obs = each(lambda x: x.to(p.device), random_obs(spec, num_rows, p.dtype, generator))
    with torch.no_grad():
        actions = model.distribution(model.action_params(obs).cpu(), mask).sample(random(model.num_noise))
        params, values = (x.cpu() for x in model.at(obs, actions.to(p.device)))
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
