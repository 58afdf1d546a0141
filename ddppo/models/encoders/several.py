"""Several arrays at once: an encoder of each, their features side by side, and hidden layers over them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import nn

from ddppo.config import ModelConfig
from ddppo.errors import ConfigError
from ddppo.models.actor_critic import hidden_layers
from ddppo.models.encoders.convolutions import Convolutions, layers_for
from ddppo.models.encoders.deep import Deep
from ddppo.models.encoders.images import image_of
from ddppo.models.encoders.residual import Residual
from ddppo.models.encoders.trunk import Flat, Trunk
from ddppo.models.observations import Obs
from ddppo.spaces import ArraySpec, EnvSpec

_DEPTHS = {"resnet18": 18, "resnet50": 50}
_LEAST_IMAGE = 4  # pixels of height and width from which an array of three dimensions is taken for an image


class Several(Trunk):
    """An encoder per array: convolutions for images, one that suits their size, layers for all else.

    What is Discrete comes one-hot, so that the first of these layers holds a vector for each index, an embedding.
    model.encoders names other encoders by key.
    """

    def __init__(self, spec: EnvSpec, config: ModelConfig) -> None:
        super().__init__()
        leaves = spec.obs if isinstance(spec.obs, dict) else {"obs": spec.obs}
        for key in config.encoders:
            if key not in leaves:
                raise ConfigError(
                    f"model.encoders={{{key}: {config.encoders[key]}}}: the task observes {', '.join(leaves)}: use one "
                    "of these keys"
                )
        self.keys = list(leaves)
        kinds = {key: config.encoders.get(key) or _kind(leaf, config) for key, leaf in leaves.items()}
        self.encoders = nn.ModuleList(_encoder(kinds[key], key, spec, config) for key in leaves)
        self.computes_images = any(encoder.computes_images for encoder in self._encoders())
        width = sum(encoder.num_features for encoder in self._encoders())
        sizes = list(config.hidden_sizes)
        self.layers = hidden_layers(width, sizes, config.activation)
        self.num_features = sizes[-1] if sizes else width
        self.num_products = sum(encoder.num_products for encoder in self._encoders())
        self.num_products += sum(p.numel() for p in self.layers.parameters() if p.dim() == 2)

    def forward(self, obs: Obs) -> torch.Tensor:
        return self.layers(torch.cat([encoder(x) for encoder, x in self._pairs(obs)], dim=-1))

    def plain(self, obs: Obs) -> torch.Tensor:
        return self.layers(torch.cat([encoder.plain(x) for encoder, x in self._pairs(obs)], dim=-1))

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        with ExitStack() as stack:
            for encoder in self._encoders():
                stack.enter_context(encoder.unchanged())
            yield

    def _encoders(self) -> Iterator[Trunk]:
        for encoder in self.encoders:
            assert isinstance(encoder, Trunk)
            yield encoder

    def _pairs(self, obs: Obs) -> Iterator[tuple[Trunk, torch.Tensor]]:
        arrays = [obs[key] for key in self.keys] if isinstance(obs, dict) else [obs]
        return zip(self._encoders(), arrays, strict=True)


def _kind(leaf: ArraySpec, config: ModelConfig) -> str:
    """Return which encoder suits an array by its shape."""
    is_image = len(leaf.shape) == 3 and sorted(leaf.shape)[1] >= _LEAST_IMAGE
    return config.image_encoder if is_image else "mlp"


def _encoder(kind: str, key: str, spec: EnvSpec, config: ModelConfig) -> Trunk:
    """Return the encoder of the array `key`. Raises ConfigError where that is no image and ought to be."""
    leaf = spec.obs[key] if isinstance(spec.obs, dict) else spec.obs
    if kind == "mlp":
        return Flat(replace(spec, obs=leaf), config, list(config.vector_sizes))
    if len(leaf.shape) != 3:
        raise ConfigError(
            f"model.encoders={{{key}: {kind}}}: takes images, of 3 dimensions, and {key} is {list(leaf.shape)}: use mlp"
        )
    image, sizes = image_of(leaf, config, key), [config.image_features]
    if kind == "resnet":
        return Residual(image, config, sizes)
    if kind in _DEPTHS:
        return Deep(image, config, sizes, _DEPTHS[kind])
    return Convolutions(image, config, list(config.conv_layers) or layers_for(image), sizes)
