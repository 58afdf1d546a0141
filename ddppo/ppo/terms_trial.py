"""Loss terms of a user's own, tried on random samples before any process starts."""

from collections.abc import Mapping
from typing import Any

import torch

from ddppo.config import ModelSettings
from ddppo.errors import ConfigError, TrainingError
from ddppo.models import build_model
from ddppo.models.build import model_class
from ddppo.ppo.learning.gradient_check import example
from ddppo.ppo.losses import Samples, Term, samples_of, terms_of
from ddppo.spaces import EnvSpec, each
from ddppo.tracebacks import in_one_line

_ROWS = 8


def check_losses(
    losses: Mapping[str, Any], spec: EnvSpec, config: ModelSettings, dtype: torch.dtype
) -> str | None:
    """Try every term of ppo.losses on samples that are drawn; return a warning of those in which samples mix.

    Of a model with minibatches of its own only the import is tried. Raises ConfigError for a term that cannot be
    imported, raises, returns what is no number per sample, or does not depend on what the model puts out.
    """
    terms = terms_of(losses)
    if not terms or model_class(config).minibatch_class is not None:
        return None
    whole, part = _drawn(spec, config, dtype)
    mixing = [term.name for term in terms if _mixes(term, whole, part)]
    if not mixing:
        return None
    return (
        f"ppo.losses.{', ppo.losses.'.join(mixing)}: a sample's number depends on others of its minibatch, so "
        "that results depend on dist.world_size: compute each from its own sample alone"
    )


def _drawn(spec: EnvSpec, config: ModelSettings, dtype: torch.dtype) -> tuple[Samples, Samples]:
    """Return some samples, and the first half of them by themselves."""
    model = build_model(spec, config, 0, dtype)
    minibatch = example(spec, model, _ROWS, torch.Generator().manual_seed(0))
    params, values = model.at(minibatch["obs"], minibatch["actions"])
    half = _ROWS // 2
    first = {name: each(lambda x: x[:half], field) for name, field in minibatch.items()}
    return (
        samples_of(minibatch, params, values, model.distribution),
        samples_of(first, params[:half], values[:half], model.distribution),
    )


def _mixes(term: Term, whole: Samples, part: Samples) -> bool:
    """Return whether the numbers of a part of the samples change with the others. Raises ConfigError as above."""
    said = f"ppo.losses.{term.name}.term"
    try:
        of_whole, of_part = term(whole), term(part)
    except TrainingError as e:
        raise ConfigError(str(e)) from e
    except Exception as e:  # a user's function may raise anything
        raise ConfigError(f"{said}: raised {in_one_line(e)}") from e
    if not of_whole.requires_grad:
        raise ConfigError(
            f"{said}: returned numbers without a gradient: they must depend on samples.policy, samples.params or "
            "samples.values, or nothing is learned from them; what is only to be seen is a metric (log.metrics)"
        )
    close = 1e-4 if of_whole.dtype == torch.float32 else 1e-9
    return not torch.allclose(of_whole[: len(of_part)], of_part, rtol=close, atol=close, equal_nan=True)
