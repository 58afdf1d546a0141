"""The rules of what stands between observations and features: convolutions, residual blocks, encoders by key."""

from ddppo.config.settings import Config
from ddppo.errors import ConfigError

ENCODERS = ("cnn", "resnet", "resnet18", "resnet50", "mlp")


def check_encoders(config: Config) -> None:
    """Raise ConfigError for settings of images and encoders that cannot be."""
    model = config.model
    if any(len(layer) != 3 or min(layer) < 1 for layer in model.conv_layers):
        raise ConfigError(
            f"model.conv_layers={model.conv_layers}: every layer is [filters, kernel, stride], each at least 1"
        )
    if model.name == "cnn" and not model.conv_layers:
        raise ConfigError(
            "model.name=cnn needs model.conv_layers: model=cnn brings those of the Nature paper"
        )
    for name, example in (("resnet_channels", "[16,32,32]"), ("vector_sizes", "[64]")):
        sizes = getattr(model, name)
        if not sizes or min(sizes) < 1:
            raise ConfigError(
                f"model.{name}={sizes}: needs one or more sizes, each at least 1, e.g. {example}"
            )
    for key, kind in model.encoders.items():
        if kind not in ENCODERS:
            raise ConfigError(
                f"model.encoders={{{key}: {kind}}}: an encoder is one of {', '.join(ENCODERS)}: use one of these, or a "
                "model of your own"
            )
    if model.precision == "bfloat16" and config.dtype != "float32":
        raise ConfigError(f"model.precision=bfloat16 with dtype={config.dtype}: use dtype=float32")
