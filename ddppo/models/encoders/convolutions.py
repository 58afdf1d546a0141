"""Convolutions over pixels (Mnih et al. 2015, "Human-level control through deep reinforcement learning")."""

import torch
import torch.nn.functional as F
from torch import nn

from ddppo.config import ModelConfig
from ddppo.errors import ConfigError
from ddppo.models.encoders.images import Image, OfImages, Weights

_FOLD = 4  # pixels, a word of memory


class Convolutions(OfImages):
    """conv_layers, each [filters, kernel, stride], then hidden layers; orthogonal weights of gain sqrt(2)."""

    def __init__(
        self, image: Image, config: ModelConfig, conv_layers: list[list[int]], sizes: list[int]
    ) -> None:
        super().__init__(image, config)
        _, kernel, stride = conv_layers[0]
        # A kernel of 8 x 8 and stride 4 on 4 channels is one of 2 x 2 and stride 1 on the 64 of images folded by 4.
        is_foldable = stride == _FOLD and not any(
            size % _FOLD for size in (image.height, image.width, kernel)
        )
        self.folds = image.is_pixels and not image.is_hwc and is_foldable
        self.strides = [stride for _, _, stride in conv_layers]
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
    """Return convolutions that suit an image of any size but a few pixels: [filters, kernel, stride] each.

    From 36 pixels on those of Mnih et al. 2015; up to 12 those that Minigrid's documentation gives for its 7 x 7
    (minigrid.farama.org, "Training Minigrid Environments"); between, strides of 2 that leave 1 x 1 to 7 x 7.
    """
    size = min(image.height, image.width)
    if size >= 36:
        return [[32, 8, 4], [64, 4, 2], [64, 3, 1]]
    if size > 12:
        return [[32, 3, 2], [64, 3, 2], [64, 2, 1]]
    return [[16, 2, 1], [32, 2, 1], [64, 2, 1]]


def _unshuffled(pixels: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return F.pixel_unshuffle(pixels, 4) as `dtype`, channels last in memory; four pixels are moved as one word."""
    n, channels, height, width = pixels.shape
    words = pixels.contiguous().view(torch.int32).view(n, channels, height // _FOLD, _FOLD, width // _FOLD)
    moved = words.permute(0, 2, 4, 1, 3)
    moved = moved.clone(memory_format=torch.contiguous_format).view(torch.uint8)  # also of no image at all
    # Converted while the order of memory is that of the dimensions: 6 times as fast.
    folded = (n, height // _FOLD, width // _FOLD, channels * _FOLD**2)
    return moved.to(dtype).view(folded).permute(0, 3, 1, 2)
