"""Images: their layout, the base class of trunks over images, and the convolutions of model=cnn.

`Image` describes one array of pixels. `OfImages` does for every trunk of convolutions what makes it fast on a CPU: it
scales weights instead of pixels, keeps channels last in memory, and takes few rows at once. `Convolutions` is the
network of Mnih et al. 2015; the residual networks are in resnet.py.
"""

import abc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from ddppo.config.model_settings import ImageSettings
from ddppo.errors import ConfigError
from ddppo.models.actor_critic import ACTIVATIONS, Obs, Trunk, linear
from ddppo.spaces import ArraySpec, EnvSpec

_MOST_COLOURS = 4  # red, green, blue and alpha
# Images that convolutions take at once: the results of 256 are so large that the allocator maps and unmaps them every
# time, which takes a fifth of the time.
_ROWS_AT_ONCE = 128

Weights = list[tuple[torch.Tensor, torch.Tensor]]  # (weight, bias) of each layer, as they enter the products


@dataclass(frozen=True, slots=True)
class Image:
    """The layout of an array that holds an image."""

    channels: int
    height: int
    width: int
    is_hwc: bool  # channels come last
    is_pixels: bool  # uint8
    key: str = ""  # of the array in the observation, "" if the task observes nothing else

    def __str__(self) -> str:
        of, place = f"{self.key}: " if self.key else "", "last" if self.is_hwc else "first"
        channels = "1 channel" if self.channels == 1 else f"{self.channels} channels"
        return f"{of}{self.height} x {self.width} pixels of {channels}, channels {place}"


def images_in(model: nn.Module) -> str:
    """Return the images that a model takes, in words; "" for none."""
    found = (str(module.image) for module in model.modules() if isinstance(module, OfImages))
    return "; ".join(dict.fromkeys(found))


def image_of(leaf: ArraySpec, config: ImageSettings, key: str = "") -> Image:
    """Return the layout of an array of three dimensions, by model.image_layout or by its shape.

    Raises ConfigError if the shape is ambiguous.
    """
    first, middle, last = leaf.shape
    layout = _layout(first, middle, last) if config.image_layout == "auto" else config.image_layout
    if layout is None:
        remedy = f", or model.encoders={{{key}: mlp}} if it is no image" if key else ""
        raise ConfigError(
            f"model.image_layout=auto: {f'{key}, ' if key else ''}images of {list(leaf.shape)}, may have channels "
            f"first or last: set model.image_layout=chw or model.image_layout=hwc{remedy}"
        )
    if layout == "hwc":
        return Image(last, first, middle, True, not leaf.is_float, key)
    return Image(first, middle, last, False, not leaf.is_float, key)


def _layout(first: int, middle: int, last: int) -> str | None:
    """Return chw or hwc, or None if the shape is ambiguous.

    Two adjacent equal sizes are height and width. Else the smaller end is the number of channels if it is at most a
    third of the other sizes, or at most 4 and they are larger. Equal ends, as in [4, 84, 4], are ambiguous.
    """
    # In order: ambiguous ends, adjacent equal sizes, and the smaller end as channels.
    if first == last:
        return None
    if middle in (first, last):
        return "chw" if middle == last else "hwc"
    channels, aside = min(first, last), min(middle, max(first, last))
    if 3 * channels > aside and not channels <= _MOST_COLOURS < aside:
        return None
    return "chw" if channels == first else "hwc"


def only_image(spec: EnvSpec, config: ImageSettings) -> Image:
    """Return the one image that a task observes. Raises ConfigError if it observes anything else."""
    obs = spec.obs
    if isinstance(obs, dict):
        observed = f"a dict of {', '.join(obs)}: use model=dict"
    elif len(obs.shape) == 3:
        return image_of(obs, config)
    else:
        observed = f"{list(obs.shape)}: use model=mlp"
    raise ConfigError(
        f"model.name={config.name} takes images, a Box of 3 dimensions, but the task observes {observed}, or a model "
        "of your own"
    )


class OfImages(Trunk):
    """Convolutions, then hidden layers, each followed by the activation.

    Pixels of uint8 are scaled to [0, 1] (model.pixel_max becomes 1). The scale is multiplied into the first layer's
    weights, because scaling all pixels takes longer. model.precision=bfloat16 rounds pixels, features and weights to
    8 significant bits in products; parameters and the returned features keep their type.
    """

    computes_images = True

    def __init__(self, image: Image, config: ImageSettings) -> None:
        super().__init__()
        self.image = image
        self.scale = 1 / config.pixel_max if image.is_pixels else 1.0
        is_relu = config.activation == "relu"  # its gradient follows from its result, so it can work in place
        self.activation = nn.ReLU(inplace=True) if is_relu else ACTIVATIONS[config.activation]()
        self.is_rounded = config.precision == "bfloat16"
        self.kept: Weights | None = None  # weights() while parameters do not change
        self.layers = nn.ModuleList()  # convolutions in the order of their use, then hidden layers
        self.num_convolutions = 0
        self.num_products = 0

    def add_convolution(self, layer: nn.Conv2d, height: int, width: int) -> None:
        """Append a layer with results of this height and width."""
        self.layers.append(layer)
        self.num_convolutions += 1
        self.num_products += layer.weight.numel() * height * width

    def add_hidden(self, inputs: int, sizes: list[int]) -> None:
        for outputs in sizes:
            self.layers.append(linear(inputs, outputs, gain=2**0.5))
            self.num_products += inputs * outputs
            inputs = outputs
        self.num_features = inputs

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        try:
            with torch.no_grad():
                self.kept = self.weights()
            yield
        finally:
            self.kept = None

    def weights(self) -> Weights:
        """Return weights and biases in the type of the products, those of the first layer times `scale`."""
        found: Weights = []
        for i, (weight, bias) in enumerate(self._pairs()):
            if i == 0:
                weight = self.first_weight(weight * self.scale)
            if self.is_rounded:
                weight, bias = weight.bfloat16(), bias.bfloat16()
            found.append((channels_last(weight) if weight.dim() == 4 else weight, bias))
        return found

    def _pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for layer in self.layers:
            assert isinstance(layer, (nn.Conv2d, nn.Linear))
            assert layer.bias is not None
            yield layer.weight, layer.bias

    def first_weight(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the first convolution's weights in the layout of `prepared` images."""
        return weight

    def forward(self, obs: Obs) -> torch.Tensor:
        weights = self.kept or self.weights()
        images = self._first(obs)
        # While traced, the number of rows is a symbol, and all rows pass at once.
        is_traced = isinstance(images.shape[0], torch.SymInt)
        rows = (images,) if is_traced else images.split(_ROWS_AT_ONCE)
        x = torch.cat([self.convolved(self.prepared(part, weights), weights).flatten(1) for part in rows])
        for weight, bias in weights[self.num_convolutions :]:
            x = self.activation(F.linear(x, weight, bias))
        return x.to(next(self.parameters()).dtype)

    def plain(self, obs: Obs) -> torch.Tensor:
        """Return the features by portable operations: all rows at once, nothing folded."""
        weights = list(self._pairs())
        x = self.convolved(
            self._first(obs).to(weights[0][0].dtype) * self.scale, weights, is_plain=True
        ).flatten(1)
        for weight, bias in weights[self.num_convolutions :]:
            x = self.activation(F.linear(x, weight, bias))
        return x

    def prepared(self, images: torch.Tensor, weights: Weights) -> torch.Tensor:
        """Return images `[n, channels, height, width]` in the type of the weights."""
        # Convolutions take half the time where channels are last; pixels are moved while they are a byte each.
        return channels_last(images).to(weights[0][0].dtype)

    @abc.abstractmethod
    def convolved(self, x: torch.Tensor, weights: Weights, *, is_plain: bool = False) -> torch.Tensor:
        """Return the results of the convolutions `[n, ...]` over prepared images; is_plain: over images as they are."""

    def _first(self, obs: Obs) -> torch.Tensor:
        """Return images with channels first."""
        assert isinstance(obs, torch.Tensor), "one array"
        return obs.movedim(-1, -3) if self.image.is_hwc else obs


def channels_last(images: torch.Tensor) -> torch.Tensor:
    return images.contiguous(memory_format=torch.channels_last)


# -- Convolutions over pixels (Mnih et al. 2015, "Human-level control through deep reinforcement learning").


_FOLD = 4  # pixels of a byte each, together a word of memory


class Convolutions(OfImages):
    """conv_layers, each [filters, kernel, stride], then hidden layers; orthogonal weights with gain sqrt(2)."""

    def __init__(
        self, image: Image, config: ImageSettings, conv_layers: list[list[int]], sizes: list[int]
    ) -> None:
        super().__init__(image, config)
        _, kernel, stride = conv_layers[0]
        # Folding: an 8 x 8 kernel with stride 4 on 4 channels is a 2 x 2 kernel with stride 1 on 64 channels, if every
        # 4 x 4 block of pixels becomes 16 channels (pixel_unshuffle). The folded convolution is faster on a CPU.
        is_foldable = stride == _FOLD and not any(
            size % _FOLD for size in (image.height, image.width, kernel)
        )
        self.folds = image.is_pixels and not image.is_hwc and is_foldable
        self.strides = [stride for _, _, stride in conv_layers]
        # Follow height and width through the layers, to find the number of features.
        channels, height, width = image.channels, image.height, image.width
        for filters, kernel, stride in conv_layers:
            if kernel > min(height, width):
                raise ConfigError(
                    f"model.conv_layers={conv_layers}: a kernel of {kernel} x {kernel} does not fit into {height} x "
                    f"{width}, which is left of images of {image.height} x {image.width} and {image.channels} channels "
                    f"(model.image_layout={config.image_layout}): use smaller kernels or strides, such as "
                    "model.conv_layers=[[16,3,1]]"
                )
            convolution = nn.Conv2d(channels, filters, kernel, stride)
            nn.init.orthogonal_(convolution.weight, 2**0.5)
            nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]  # it has one
            channels = filters
            height, width = ((size - kernel) // stride + 1 for size in (height, width))
            self.add_convolution(convolution, height, width)
        self.add_hidden(channels * height * width, sizes)

    def first_weight(self, weight: torch.Tensor) -> torch.Tensor:
        return F.pixel_unshuffle(weight, _FOLD) if self.folds else weight

    def prepared(self, images: torch.Tensor, weights: Weights) -> torch.Tensor:
        if self.folds:
            return _unshuffled(images, weights[0][0].dtype)
        return super().prepared(images, weights)

    def convolved(self, x: torch.Tensor, weights: Weights, *, is_plain: bool = False) -> torch.Tensor:
        for i, ((weight, bias), stride) in enumerate(zip(weights, self.strides, strict=False)):
            is_folded = self.folds and i == 0 and not is_plain
            x = self.activation(F.conv2d(x, weight, bias, 1 if is_folded else stride))
        return x


def layers_for(image: Image) -> list[list[int]]:
    """Return convolutions [filters, kernel, stride] that suit the size of an image.

    From 36 pixels on, those of Mnih et al. 2015. Up to 12 pixels, those that Minigrid's documentation gives for 7 x 7
    (minigrid.farama.org, "Training Minigrid Environments"). Between, strides of 2 that leave 1 x 1 to 7 x 7.
    """
    size = min(image.height, image.width)
    if size >= 36:
        return [[32, 8, 4], [64, 4, 2], [64, 3, 1]]
    if size > 12:
        return [[32, 3, 2], [64, 3, 2], [64, 2, 1]]
    return [[16, 2, 1], [32, 2, 1], [64, 2, 1]]


def _unshuffled(pixels: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return F.pixel_unshuffle(pixels, 4) as `dtype`, channels last in memory; moves four pixels as one word."""
    n, channels, height, width = pixels.shape
    # [n, c, h, w] bytes -> [n, c, h/4, 4, w/4] words -> [n, h/4, w/4, c, 4] words -> [n, h/4, w/4, 16 c] bytes.
    words = pixels.contiguous().view(torch.int32).view(n, channels, height // _FOLD, _FOLD, width // _FOLD)
    moved = words.permute(0, 2, 4, 1, 3)
    moved = moved.clone(memory_format=torch.contiguous_format).view(torch.uint8)  # clone: works for n = 0 too
    # Convert while memory order and dimension order agree: 6 times as fast.
    folded = (n, height // _FOLD, width // _FOLD, channels * _FOLD**2)
    return moved.to(dtype).view(folded).permute(0, 3, 1, 2)
