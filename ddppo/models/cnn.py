"""Convolutions over pixels (Mnih et al. 2015, "Human-level control through deep reinforcement learning")."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

from ddppo.config import ModelConfig
from ddppo.errors import ConfigError
from ddppo.models.actor_critic import ACTIVATIONS, ActorCritic, linear
from ddppo.models.observations import Obs
from ddppo.spaces import ArraySpec, EnvSpec

_FOLD = 4  # pixels, a word of memory
_ROWS_AT_ONCE = 128  # of convolutions: what 256 write is mapped and unmapped every time, a fifth of all time

Weights = list[tuple[torch.Tensor, torch.Tensor]]  # and biases, as they are multiplied with


class CNN(ActorCritic):
    """Convolutions, hidden layers and two heads, with one trunk for policy and value or one for each.

    Initialised as MLP is. Pixels of uint8 count from 0 to 1. model.precision=bfloat16 rounds pixels, features and
    weights to 8 bits where they are multiplied; parameters, heads and their outputs keep their type.
    """

    stays_eager = "convolutions take the time, and they are compiled already"

    def __init__(self, spec: EnvSpec, config: ModelConfig) -> None:
        super().__init__(spec, config)
        self.is_box = spec.action.kind == "box"
        self.values_are_beside = config.shared_trunk
        self.is_hwc = config.image_layout == "hwc"
        image, is_pixels = _image(spec, config)
        outputs = self.num_params
        self.policy_trunk = self.value_trunk = Trunk(image, config, is_pixels=is_pixels)
        if not config.shared_trunk:
            self.value_trunk = Trunk(image, config, is_pixels=is_pixels)
        self.policy_head = linear(
            config.hidden_sizes[-1], outputs // 2 if self.is_box else outputs, gain=0.01
        )
        self.value_head = linear(config.hidden_sizes[-1], 1, gain=1.0)
        if self.is_box:
            self.log_std = nn.Parameter(torch.full((outputs // 2,), config.log_std_init))

    def forward(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self._features(self.policy_trunk, obs)
        is_shared = self.value_trunk is self.policy_trunk
        value_hidden = hidden if is_shared else self._features(self.value_trunk, obs)
        return self._policy(hidden), self._value(value_hidden)

    def action_params(self, obs: Obs) -> torch.Tensor:
        return self._policy(self._features(self.policy_trunk, obs))

    def portable_params(self, obs: Obs) -> torch.Tensor:
        assert isinstance(obs, torch.Tensor), "spec.obs is one array"
        return self._policy(self.policy_trunk.plain(obs.movedim(-1, -3) if self.is_hwc else obs))

    def value(self, obs: Obs) -> torch.Tensor:
        return self._value(self._features(self.value_trunk, obs))

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        trunks = (self.policy_trunk, self.value_trunk)
        try:
            with torch.no_grad():
                for trunk in trunks:
                    trunk.kept = trunk.weights()
            yield
        finally:
            for trunk in trunks:
                trunk.kept = None

    def num_products(self) -> int:
        shared = self.policy_trunk.num_products
        return shared if self.value_trunk is self.policy_trunk else shared + self.value_trunk.num_products

    def _features(self, trunk: "Trunk", obs: Obs) -> torch.Tensor:
        assert isinstance(obs, torch.Tensor), "spec.obs is one array"
        rows = obs.flatten(0, -4)
        hidden = trunk(rows.movedim(-1, -3) if self.is_hwc else rows)
        return hidden.to(self.value_head.weight.dtype).unflatten(0, obs.shape[:-3])

    def _policy(self, hidden: torch.Tensor) -> torch.Tensor:
        out = self.policy_head(hidden)
        return torch.cat([out, self.log_std.expand_as(out)], dim=-1) if self.is_box else out

    def _value(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.value_head(hidden).squeeze(-1)


class Trunk(nn.Module):
    """From images `[n, channels, height, width]`, pixels or floats, to features `[n, hidden_sizes[-1]]`."""

    def __init__(self, image: tuple[int, int, int], config: ModelConfig, *, is_pixels: bool) -> None:
        super().__init__()
        self.scale = 1 / 255 if is_pixels else 1.0
        is_relu = config.activation == "relu"  # whose gradient needs the result alone, so in place
        self.activation = nn.ReLU(inplace=True) if is_relu else ACTIVATIONS[config.activation]()
        self.is_rounded = config.precision == "bfloat16"
        self.kept: Weights | None = None
        _, kernel, stride = config.conv_layers[0]
        # A kernel of 8 x 8 and stride 4 on 4 channels is one of 2 x 2 and stride 1 on the 64 of images folded by 4.
        is_foldable = stride == _FOLD and not any(size % _FOLD for size in (*image[1:], kernel))
        self.folds = is_pixels and config.image_layout == "chw" and is_foldable
        self.strides = [stride for _, _, stride in config.conv_layers]
        if self.folds:
            self.strides[0] = 1
        channels, height, width = image
        layers: list[nn.Module] = []
        self.num_products = 0
        for filters, kernel, stride in config.conv_layers:
            if kernel > min(height, width):
                raise ConfigError(
                    f"model.conv_layers={config.conv_layers}: a kernel of {kernel} x {kernel} does not fit into "
                    f"{height} x {width}, which is left of images of {image[1]} x {image[2]} and {image[0]} channels "
                    f"(model.image_layout={config.image_layout}): use smaller kernels or strides, such as "
                    "model.conv_layers=[[16,3,1]]"
                )
            convolution = nn.Conv2d(channels, filters, kernel, stride)
            nn.init.orthogonal_(convolution.weight, 2**0.5)
            nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]  # it has one
            layers.append(convolution)
            channels = filters
            height, width = ((size - kernel) // stride + 1 for size in (height, width))
            self.num_products += convolution.weight.numel() * height * width
        inputs = channels * height * width
        for outputs in config.hidden_sizes:
            layers.append(linear(inputs, outputs, gain=2**0.5))
            self.num_products += inputs * outputs
            inputs = outputs
        self.layers = nn.ModuleList(layers)

    def weights(self) -> Weights:
        """Return what images and features are multiplied with: of the wanted type, and the first times `scale`."""
        found: Weights = []
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, (nn.Conv2d, nn.Linear))
            assert layer.bias is not None
            weight, bias = layer.weight * self.scale if i == 0 else layer.weight, layer.bias
            if self.folds and i == 0:
                weight = F.pixel_unshuffle(weight, _FOLD)
            if self.is_rounded:
                weight, bias = weight.bfloat16(), bias.bfloat16()
            found.append((_channels_last(weight) if weight.dim() == 4 else weight, bias))
        return found

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        weights = self.kept or self.weights()
        x = torch.cat([self._convolved(rows, weights) for rows in images.split(_ROWS_AT_ONCE)])
        for weight, bias in weights[len(self.strides) :]:
            x = self.activation(F.linear(x, weight, bias))
        return x

    def plain(self, images: torch.Tensor) -> torch.Tensor:
        """Return the features of `forward` in the type of the parameters: all rows at once, nothing folded."""
        x = images.to(next(self.parameters()).dtype) * self.scale
        for i, layer in enumerate(self.layers):
            x = self.activation(layer(x.flatten(1) if i == len(self.strides) else x))
        return x

    def _convolved(self, images: torch.Tensor, weights: Weights) -> torch.Tensor:
        # Convolutions take half the time where channels are last; pixels are moved while they are a byte each.
        dtype = weights[0][0].dtype
        x = _unshuffled(images, dtype) if self.folds else _channels_last(images).to(dtype)
        for (weight, bias), stride in zip(weights, self.strides, strict=False):
            x = self.activation(F.conv2d(x, weight, bias, stride))
        return x.flatten(1)


def _image(spec: EnvSpec, config: ModelConfig) -> tuple[tuple[int, int, int], bool]:
    """Return channels, height and width of what the task observes, and whether it is pixels of uint8."""
    obs = spec.obs
    if not (isinstance(obs, ArraySpec) and len(obs.shape) == 3):
        shape = list(obs.shape) if isinstance(obs, ArraySpec) else f"a dict of {', '.join(obs)}"
        raise ConfigError(
            f"model.name=cnn takes images, a Box of 3 dimensions, but the task observes {shape}: use model=mlp, or a "
            "model of your own"
        )
    height, width, channels = obs.shape if config.image_layout == "hwc" else (*obs.shape[1:], obs.shape[0])
    return (channels, height, width), not obs.is_float


def _channels_last(images: torch.Tensor) -> torch.Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def _unshuffled(pixels: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return F.pixel_unshuffle(pixels, 4) as `dtype`, channels last in memory; four pixels are moved as one word."""
    n, channels, height, width = pixels.shape
    words = pixels.contiguous().view(torch.int32).view(n, channels, height // _FOLD, _FOLD, width // _FOLD)
    moved = words.permute(0, 2, 4, 1, 3)
    moved = moved.clone(memory_format=torch.contiguous_format).view(torch.uint8)  # also of no image at all
    # Converted while the order of memory is that of the dimensions: 6 times as fast.
    folded = (n, height // _FOLD, width // _FOLD, channels * _FOLD**2)
    return moved.to(dtype).view(folded).permute(0, 3, 1, 2)
