"""The residual network of IMPALA over pixels (Espeholt et al. 2018, arXiv:1802.01561, figure 3, the large one)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from ddppo.config import ModelConfig
from ddppo.models.encoders.images import Image, OfImages, Weights

_UNITS = 2  # residual ones of a block


class Residual(OfImages):
    """Blocks of a convolution, a maximum over 3 x 3 by stride 2, and two residual units; then hidden layers.

    A unit is x + conv(f(conv(f(x)))), f the activation (theirs is relu), all
    convolutions 3 x 3. model.resnet_channels are the filters of each
    block, which halves height and width, rounded up. Convolutions begin as torch's do, uniform by their inputs, as in
    CleanRL's ppo_procgen; hidden layers orthogonal.
    """

    def __init__(self, image: Image, config: ModelConfig, sizes: list[int]) -> None:
        super().__init__(image, config)
        channels, height, width = image.channels, image.height, image.width
        self.num_blocks = len(config.resnet_channels)
        self.beside: Callable[[torch.Tensor], torch.Tensor]  # the activation, leaving what it is given
        self.beside = F.relu if config.activation == "relu" else self.activation
        for filters in config.resnet_channels:
            self.add_convolution(nn.Conv2d(channels, filters, 3, padding=1), height, width)
            channels = filters
            height, width = (height + 1) // 2, (width + 1) // 2
            for _ in range(2 * _UNITS):
                self.add_convolution(nn.Conv2d(channels, channels, 3, padding=1), height, width)
        self.add_hidden(channels * height * width, sizes)

    def convolved(self, x: torch.Tensor, weights: Weights, *, is_plain: bool = False) -> torch.Tensor:
        layers = iter(weights)
        for _ in range(self.num_blocks):
            x = F.max_pool2d(F.conv2d(x, *next(layers), padding=1), 3, stride=2, padding=1)
            for _ in range(_UNITS):
                inner = self.activation(F.conv2d(self.beside(x), *next(layers), padding=1))
                x = x + F.conv2d(inner, *next(layers), padding=1)
        return self.activation(x)
