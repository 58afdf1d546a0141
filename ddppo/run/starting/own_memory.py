"""What a model of one's own needs if it remembers: only building it tells."""

import torch

from ddppo.config import Config
from ddppo.config.rules.remembering import check_remembering
from ddppo.errors import ConfigError
from ddppo.models import MODELS, build_model
from ddppo.scaling import BatchShape
from ddppo.spaces import EnvSpec


def check_own_memory(config: Config, spec: EnvSpec, shape: BatchShape) -> None:
    """Check what a model of one's own needs if it remembers, and what has no effect if it does not."""
    if config.model.name in MODELS:
        return
    model = build_model(spec, config.model, config.seed, getattr(torch, config.dtype))
    said = f"model.name={config.model.name}"
    if model.state_size:
        check_remembering(config, shape, f"{said}, which remembers")
    elif config.ppo.sequence_length is not None:
        raise ConfigError(
            f"ppo.sequence_length={config.ppo.sequence_length} has no effect with {said}, which remembers nothing: "
            "leave it out"
        )
