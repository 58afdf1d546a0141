"""From settings to a trunk, by the name of the model."""

from collections.abc import Callable

from ddppo.config import ModelConfig
from ddppo.models.encoders.convolutions import Convolutions
from ddppo.models.encoders.images import only_image
from ddppo.models.encoders.residual import Residual
from ddppo.models.encoders.several import Several
from ddppo.models.encoders.trunk import Flat, Trunk
from ddppo.spaces import EnvSpec


def _flat(spec: EnvSpec, config: ModelConfig) -> Trunk:
    return Flat(spec, config, list(config.hidden_sizes))


def _convolutions(spec: EnvSpec, config: ModelConfig) -> Trunk:
    return Convolutions(only_image(spec, config), config, list(config.conv_layers), list(config.hidden_sizes))


def _residual(spec: EnvSpec, config: ModelConfig) -> Trunk:
    return Residual(only_image(spec, config), config, list(config.hidden_sizes))


TRUNKS: dict[str, Callable[[EnvSpec, ModelConfig], Trunk]] = {
    "mlp": _flat, "cnn": _convolutions, "resnet": _residual, "dict": Several,
}  # fmt: skip


def make_trunk(spec: EnvSpec, config: ModelConfig) -> Trunk:
    """Return the trunk of the model that `config` names, one of TRUNKS. Raises ConfigError where it does not fit."""
    return TRUNKS[config.name](spec, config)
