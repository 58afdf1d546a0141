"""What a trunk is, and the multi-layer perceptron as one."""

import abc
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from ddppo.config import ModelConfig
from ddppo.models.actor_critic import hidden_layers, passed
from ddppo.models.observations import Obs, flat_obs
from ddppo.spaces import EnvSpec


class Trunk(nn.Module, abc.ABC):
    """From observations, n at once as a model is given them, to features `[n, num_features]`.

    Features are in the type of the parameters. A trunk knows no actions, so policy, values and memory stand on any.
    num_features: F. num_products: products of weights that one observation takes. computes_images: whether most of
    them are convolutions, which nothing compiles faster than they are.
    """

    num_features: int
    num_products: int
    computes_images = False

    @abc.abstractmethod
    def forward(self, obs: Obs) -> torch.Tensor: ...

    def plain(self, obs: Obs) -> torch.Tensor:
        """Return what `forward` does by operations that other programs know, in the type of the parameters."""
        return self(obs)

    def unchanged(self) -> AbstractContextManager[None]:
        """Return a context in which no parameter changes, so that what is derived from them is kept."""
        return nullcontext()


class Flat(Trunk):
    """Hidden layers over all that is observed, flattened; pixels count from 0 to 1."""

    def __init__(self, spec: EnvSpec, config: ModelConfig, sizes: list[int]) -> None:
        super().__init__()
        self.spec = spec
        self.layers = hidden_layers(spec.obs_size, sizes, config.activation)
        self.num_features = sizes[-1]
        self.num_products = sum(p.numel() for p in self.layers.parameters() if p.dim() == 2)

    def forward(self, obs: Obs) -> torch.Tensor:
        return passed(self.layers, flat_obs(obs, self.spec, next(self.parameters()).dtype))
