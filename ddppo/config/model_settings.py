"""The settings of each model, and the table of models. Imports no torch: the networks are in ddppo/models.

A user's own model brings a class `Settings`, derived from one of these.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ddppo.config.fields import setting
from ddppo.errors import ConfigError
from ddppo.scaling import BatchShape

if TYPE_CHECKING:
    from ddppo.config.settings import Config

LOG_STD_RANGE = (-20.0, 2.0)  # of model.log_std=state
ENCODERS = ("cnn", "resnet", "resnet18", "resnet50", "mlp")
_LARGEST_LAYER = 2**24
_NAME = "mlp, cnn, resnet, dict, a name that a plugin brings, or an import path such as my_pkg.models:MyModel"


@dataclass(slots=True)
class ModelSettings:
    """The settings of all models: the name, which decides about the other settings (variants.py)."""

    name: str = setting("mlp", _NAME)


@dataclass(slots=True)
class LayerSettings(ModelSettings):
    """Hidden layers, heads on them, and recurrent layers between."""

    # Layers between observation and heads.
    hidden_sizes: list[int] = setting(meaning="units of each hidden layer", factory=lambda: [64, 64])
    activation: str = setting(
        "tanh", "nonlinearity between layers", choices=("tanh", "relu", "elu", "silu", "gelu", "leaky_relu")
    )
    shared_trunk: bool = setting(False, "policy and value function share the hidden layers")
    # The distribution of continuous actions.
    distribution: str = setting(
        "gaussian",
        "continuous actions: gaussian, or beta (between the bounds of the Box; both of its parameters are above 1 and "
        "outputs of the policy)",
        choices=("gaussian", "beta"),
    )
    log_std_init: float = setting(0.0, "initial log standard deviation of Gaussian actions")
    log_std: str = setting(
        "parameter",
        "log standard deviation of Gaussian actions: parameter (one number per action dimension), state "
        "(an output of the policy for each observation, cut to [-20, 2])",
        choices=("parameter", "state"),
    )
    squash: str = setting(
        "none",
        "Gaussian actions: none (the environment cuts them to the bounds of its Box), tanh (squashed into"
        " the bounds, with corrected log probabilities)",
        choices=("none", "tanh"),
    )
    # Recurrent layers.
    memory: str = setting(
        "none",
        "recurrent layers behind the others, so that the policy remembers its "
        "episode: none, lstm or gru (model=lstm and model=gru are mlp with these)",
        choices=("none", "lstm", "gru"),
    )
    memory_size: int = setting(128, "memory: units of each recurrent layer", low=1, high=65_536)
    memory_layers: int = setting(1, "memory: number of recurrent layers", low=1, high=64)

    def check(self) -> None:
        sizes = self.hidden_sizes
        if any(size < 1 for size in sizes):
            raise ConfigError(f"model.hidden_sizes={sizes}: every layer needs at least 1 unit")
        if max(sizes, default=0) > _LARGEST_LAYER:
            raise ConfigError(f"model.hidden_sizes={sizes}: a layer may have at most {_LARGEST_LAYER} units")
        if self.distribution == "beta":
            for name, usual in (("squash", "none"), ("log_std", "parameter"), ("log_std_init", 0.0)):
                if (value := getattr(self, name)) != usual:
                    raise ConfigError(
                        f"model.{name}={value} has no effect with model.distribution=beta: it is of Gaussian actions: "
                        "leave one of the two out"
                    )
        low, high = LOG_STD_RANGE
        if self.log_std == "state" and not low <= self.log_std_init <= high:
            raise ConfigError(
                f"model.log_std_init={self.log_std_init} with model.log_std=state, which is cut to [{low:g}, {high:g}]:"
                " use a number inside, or model.log_std=parameter"
            )
        # A recurrent layer serves policy and values alike. Without one, its sizes have no effect.
        if self.memory != "none":
            if not self.shared_trunk:
                raise ConfigError(
                    f"model.memory={self.memory} with model.shared_trunk=false: policy and value function share the "
                    "recurrent layers and all below them: use model=lstm or model=gru, or model.shared_trunk=true"
                )
            return
        for name, default in (("memory_size", 128), ("memory_layers", 1)):
            if (value := getattr(self, name)) != default:
                raise ConfigError(
                    f"model.{name}={value} has no effect with model.memory=none: use model.memory=lstm or gru, or "
                    "leave it out"
                )


@dataclass(slots=True)
class MlpSettings(LayerSettings):
    layer_norm: bool = setting(
        False, "layer normalisation in each hidden layer, between its weights and its activation"
    )
    orthogonal: bool | None = setting(
        None,
        "true begins with orthogonal weights and biases of 0; false with torch's own, both uniform "
        "in +-1 / sqrt(inputs); null is false with dqn and sac, and true with any other algorithm",
    )

    def check(self) -> None:
        _check_hidden(self)
        if self.layer_norm and min(self.hidden_sizes) < 2:
            raise ConfigError(
                f"model.layer_norm=true with model.hidden_sizes={self.hidden_sizes}: a layer of 1 unit, normalised, is "
                "0 for every observation: use at least 2 units, or model.layer_norm=false"
            )


@dataclass(slots=True)
class ImageSettings(LayerSettings):
    """Encoders of images in front of the hidden layers."""

    image_layout: str = setting(
        "auto",
        "order of image dimensions: chw (channels, height, width, or a stack of frames), hwc (channels "
        "last), auto (by the shape, printed at the start; refused if the shape is ambiguous, as 3 x 3 x 3)",
        choices=("chw", "hwc", "auto"),
    )
    pixel_max: float = setting(
        255.0,
        "images of uint8: the value that becomes 1, e.g. 10 if pixels are category numbers",
        above=0,
    )
    precision: str = setting(
        "float32",
        "images: float32 is dtype; bfloat16 multiplies in 8 bits, 2 to 3 times as fast on CPUs with AMX "
        "or AVX512-BF16, and results agree over W to about 2 digits only",
        choices=("float32", "bfloat16"),
    )

    def check_run(self, config: "Config", shape: BatchShape) -> None:
        if self.precision == "bfloat16" and config.dtype != "float32":
            raise ConfigError(f"model.precision=bfloat16 with dtype={config.dtype}: use dtype=float32")


@dataclass(slots=True)
class CnnSettings(ImageSettings):
    name: str = setting("cnn", _NAME)
    conv_layers: list[list[int]] = setting(
        meaning="[filters, kernel, stride] of each convolution in front of the hidden layers; [] in dict: chosen by "
        "image size",
        factory=list,
    )

    def check(self) -> None:
        _check_hidden(self)
        _check_convolutions(self.conv_layers)
        if not self.conv_layers:
            raise ConfigError(
                "model.name=cnn needs model.conv_layers: model=cnn has the layers of the Nature paper"
            )


@dataclass(slots=True)
class ResnetSettings(ImageSettings):
    name: str = setting("resnet", _NAME)
    resnet_channels: list[int] = setting(
        meaning="resnets: filters of each block, which halves height and width", factory=lambda: [16, 32, 32]
    )

    def check(self) -> None:
        _check_hidden(self)
        _check_sizes("resnet_channels", self.resnet_channels, "[16,32,32]")


@dataclass(slots=True)
class DictSettings(ImageSettings):
    name: str = setting("dict", _NAME)
    # Which encoder each array of the observation gets.
    image_encoder: str = setting(
        "cnn",
        "encoder of images: cnn, resnet (IMPALA's), resnet18 or resnet50 (DD-PPO's: half the "
        "filters, group normalisation)",
        choices=("cnn", "resnet", "resnet18", "resnet50"),
    )
    encoders: dict[str, str] = setting(
        meaning="encoders other than those chosen by shape, by key of the observation: mlp or a "
        "model.image_encoder, as {camera: resnet}",
        factory=dict,
    )
    # The sizes of each encoder.
    vector_sizes: list[int] = setting(
        meaning="units of each layer behind an array that is no image", factory=lambda: [64]
    )
    image_features: int = setting(256, "units behind each image", low=1)
    conv_layers: list[list[int]] = setting(
        meaning="[filters, kernel, stride] of each convolution in front of the hidden layers; [] in dict: chosen by "
        "image size",
        factory=list,
    )
    resnet_channels: list[int] = setting(
        meaning="resnets: filters of each block, which halves height and width", factory=lambda: [16, 32, 32]
    )

    def check(self) -> None:
        _check_convolutions(self.conv_layers)
        _check_sizes("resnet_channels", self.resnet_channels, "[16,32,32]")
        _check_sizes("vector_sizes", self.vector_sizes, "[64]")
        for key, kind in self.encoders.items():
            if kind not in ENCODERS:
                raise ConfigError(
                    f"model.encoders={{{key}: {kind}}}: an encoder is one of {', '.join(ENCODERS)}: use one of these, "
                    "or a model of your own"
                )


class ModelSpec(NamedTuple):
    """A model of ddppo's own, by two classes: the one of its settings is here, and its network imports torch."""

    settings: type[ModelSettings]
    model: str  # import path of the ActorCritic


# model.name -> its classes. Plugins add others, and a user's own model is an import path.
MODELS = {
    "mlp": ModelSpec(MlpSettings, "ddppo.models.actor_critic:MLP"),
    "cnn": ModelSpec(CnnSettings, "ddppo.models.on_trunk:OnTrunk"),
    "resnet": ModelSpec(ResnetSettings, "ddppo.models.on_trunk:OnTrunk"),
    "dict": ModelSpec(DictSettings, "ddppo.models.on_trunk:OnTrunk"),
}


def _check_hidden(settings: LayerSettings) -> None:
    if not settings.hidden_sizes:
        raise ConfigError("model.hidden_sizes=[]: needs at least one layer, e.g. model.hidden_sizes=[64,64]")


def _check_convolutions(layers: list[list[int]]) -> None:
    if any(len(layer) != 3 or min(layer) < 1 for layer in layers):
        raise ConfigError(
            f"model.conv_layers={layers}: every layer is [filters, kernel, stride], each at least 1"
        )


def _check_sizes(name: str, sizes: list[int], example: str) -> None:
    if not sizes or min(sizes) < 1:
        raise ConfigError(f"model.{name}={sizes}: needs one or more sizes, each at least 1, e.g. {example}")
