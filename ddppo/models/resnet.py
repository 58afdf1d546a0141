"""Residual networks over images: the large network of IMPALA, and the visual encoder of DD-PPO.

IMPALA: Espeholt et al. 2018, arXiv:1802.01561, figure 3. DD-PPO: Wijmans et al. 2020, arXiv:1911.00357, section 5.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from ddppo.config.model_settings import DictSettings, ImageSettings, ResnetSettings
from ddppo.errors import ConfigError
from ddppo.models.actor_critic import Obs, Trunk, linear
from ddppo.models.cnn import Image, OfImages, Weights

_UNITS = 2  # residual units of a block


class Residual(OfImages):
    """The network of IMPALA: blocks of a convolution, a 3 x 3 max-pooling with stride 2 and two residual units.

    A residual unit is x + conv(f(conv(f(x)))), f the activation (relu in the paper). All convolutions are 3 x 3. A
    block halves height and width, rounded up; model.resnet_channels are the filters of each block. Hidden layers
    follow. Convolutions have torch's default initialisation, as in CleanRL's ppo_procgen; hidden layers are orthogonal.
    """

    def __init__(self, image: Image, config: ResnetSettings | DictSettings, sizes: list[int]) -> None:
        super().__init__(image, config)
        channels, height, width = image.channels, image.height, image.width
        self.num_blocks = len(config.resnet_channels)
        # The activation out of place: the shortcut of a unit still needs x.
        self.beside: Callable[[torch.Tensor], torch.Tensor]
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


# -- The visual encoder of DD-PPO (section 5 of the paper, and their code in habitat-baselines).
#
# A residual network (He et al. 2016, arXiv:1512.03385) with half the filters and group normalisation (Wu & He 2018,
# arXiv:1803.08494). Batch statistics would depend on how the batch is split over ranks. So would the running moments of
# pixels in their code, which are left out here.


_FILTERS = 32  # of the first layers: half of He's
_GROUPS = 16
_COMPRESSED = 2048  # numbers before the hidden layers, approximately
_LEAST = 32  # smallest height and width in pixels
_STAGES = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}  # depth -> units of each stage; those of 50 have bottlenecks


class Deep(Trunk):
    """The encoder of DD-PPO: 2 x 2 average pooling, 18 or 50 layers, a convolution to 2048 numbers, hidden layers."""

    computes_images = True

    def __init__(self, image: Image, config: ImageSettings, sizes: list[int], depth: int) -> None:
        super().__init__()
        if min(image.height, image.width) < _LEAST:
            raise ConfigError(
                f"model.image_encoder=resnet{depth} halves images 6 times, and these are {image.height} x "
                f"{image.width}: use images of at least {_LEAST} x {_LEAST}, or model.image_encoder=resnet"
            )
        self.image = image
        self.scale = 1 / config.pixel_max if image.is_pixels else 1.0
        self.is_rounded = config.precision == "bfloat16"
        # `size` is the height and width of the features, layer by layer: it decides the size of the hidden layers.
        size = (image.height // 2, image.width // 2)
        is_bottleneck = depth == 50
        # The stem: a 7 x 7 convolution with stride 2 and max-pooling, as in He et al.
        stem = _Normalised(image.channels, _FILTERS, 7, 2, size)
        size = _halved(stem.size)
        layers: list[nn.Module] = [stem, nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        channels, parts = _FILTERS, [stem]
        # Four stages of residual units; each but the first halves height and width and doubles the filters.
        for stage, num_units in enumerate(_STAGES[depth]):
            for k in range(num_units):
                stride = 2 if stage > 0 and k == 0 else 1
                unit = _Unit(channels, _FILTERS * 2**stage, stride, size, is_bottleneck=is_bottleneck)
                layers.append(unit)
                parts += unit.parts()
                channels, size = unit.channels, unit.size
        # A last convolution reduces the features to about 2048 numbers, for any size of the image.
        compressed = _Normalised(
            channels, max(1, round(_COMPRESSED / (size[0] * size[1]))), 3, 1, size, groups=1
        )
        self.convolutions = nn.Sequential(*layers, compressed, nn.ReLU(inplace=True))
        self.num_products = sum(part.num_products for part in [*parts, compressed])
        inputs = compressed.channels * size[0] * size[1]
        hidden: list[nn.Module] = []
        for outputs in sizes:
            hidden += [linear(inputs, outputs, gain=2**0.5), nn.ReLU(inplace=True)]
            self.num_products += inputs * outputs
            inputs = outputs
        self.hidden = nn.Sequential(*hidden)
        self.num_features = inputs

    def forward(self, obs: Obs) -> torch.Tensor:
        assert isinstance(obs, torch.Tensor), "one array"
        dtype = next(self.parameters()).dtype
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.is_rounded):
            return self._features(obs, dtype).to(dtype)

    def plain(self, obs: Obs) -> torch.Tensor:
        assert isinstance(obs, torch.Tensor), "one array"
        return self._features(obs, next(self.parameters()).dtype)

    def _features(self, obs: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        images = obs.movedim(-1, -3) if self.image.is_hwc else obs
        x = F.avg_pool2d(images.to(dtype) * self.scale, 2)
        return self.hidden(self.convolutions(x).flatten(1))


class _Normalised(nn.Module):
    """A convolution followed by group normalisation; `self.size` is the height and width of its results."""

    def __init__(
        self,
        channels: int,
        filters: int,
        kernel: int,
        stride: int,
        size: tuple[int, int],
        groups: int = _GROUPS,
    ) -> None:
        super().__init__()
        self.channels = filters
        self.size = _halved(size) if stride == 2 else size
        self.convolution = nn.Conv2d(channels, filters, kernel, stride, kernel // 2, bias=False)
        nn.init.kaiming_normal_(self.convolution.weight, mode="fan_out", nonlinearity="relu")
        self.normalisation = nn.GroupNorm(groups, filters)
        self.num_products = self.convolution.weight.numel() * self.size[0] * self.size[1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.normalisation(self.convolution(x))


class _Unit(nn.Module):
    """relu(shortcut(x) + layers(x)): two 3 x 3 layers, or a bottleneck of 1 x 1, 3 x 3 and 1 x 1 layers."""

    def __init__(
        self, channels: int, filters: int, stride: int, size: tuple[int, int], *, is_bottleneck: bool
    ) -> None:
        super().__init__()
        self.channels = 4 * filters if is_bottleneck else filters
        if is_bottleneck:
            first = _Normalised(channels, filters, 1, 1, size)
            second = _Normalised(filters, filters, 3, stride, size)
            self.layers = nn.ModuleList(
                [first, second, _Normalised(filters, self.channels, 1, 1, second.size)]
            )
        else:
            first = _Normalised(channels, filters, 3, stride, size)
            self.layers = nn.ModuleList([first, _Normalised(filters, filters, 3, 1, first.size)])
        self.size = _halved(size) if stride == 2 else size
        # The shortcut is the identity if shapes agree, else a 1 x 1 convolution.
        is_same = stride == 1 and channels == self.channels
        self.shortcut = None if is_same else _Normalised(channels, self.channels, 1, stride, size)

    def parts(self) -> list[_Normalised]:
        return [module for module in self.modules() if isinstance(module, _Normalised)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        beside = x if self.shortcut is None else self.shortcut(x)
        for k, layer in enumerate(self.layers):
            x = layer(x if k == 0 else F.relu_(x))
        return F.relu_(x + beside)


def _halved(size: tuple[int, int]) -> tuple[int, int]:
    return (size[0] + 1) // 2, (size[1] + 1) // 2
