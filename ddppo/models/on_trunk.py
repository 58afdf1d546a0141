"""Actor-critics of a trunk and two heads: model=cnn, resnet and dict.

`OnTrunk` at the end is the model. `make_trunk` chooses its trunk; `Several` is the trunk for observations of several
arrays (model=dict).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ddppo.config.model_settings import CnnSettings, DictSettings, LayerSettings, ResnetSettings
from ddppo.errors import ConfigError
from ddppo.models.actor_critic import ActorCritic, Flat, Obs, Trunk, hidden_layers, linear
from ddppo.models.cnn import Convolutions, image_of, layers_for, only_image
from ddppo.models.distributions import begin_log_std_, policy_outputs, policy_params
from ddppo.models.resnet import Deep, Residual
from ddppo.spaces import ArraySpec, EnvSpec, each, leaves

# -- model=dict: an encoder for each array, their features side by side, and hidden layers over them.


_DEPTHS = {"resnet18": 18, "resnet50": 50}
_LEAST_IMAGE = 4  # an array of three dimensions is an image if its height and width have so many pixels


class Several(Trunk):
    """A trunk of several encoders: convolutions that suit the size of an image, linear layers for any other array.

    A Discrete observation is one-hot, so the first linear layer is an embedding of its values. model.encoders chooses
    other encoders by key.
    """

    def __init__(self, spec: EnvSpec, config: DictSettings) -> None:
        super().__init__()
        leaves = spec.obs if isinstance(spec.obs, dict) else {"obs": spec.obs}
        for key in config.encoders:
            if key not in leaves:
                raise ConfigError(
                    f"model.encoders={{{key}: {config.encoders[key]}}}: the task observes {', '.join(leaves)}: use one "
                    "of these keys"
                )
        # One encoder per array, in the order of the spec; hidden layers over all features.
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


def _kind(leaf: ArraySpec, config: DictSettings) -> str:
    """Return the kind of encoder that suits the shape of an array."""
    is_image = len(leaf.shape) == 3 and sorted(leaf.shape)[1] >= _LEAST_IMAGE
    return config.image_encoder if is_image else "mlp"


def _encoder(kind: str, key: str, spec: EnvSpec, config: DictSettings) -> Trunk:
    """Make the encoder of the array `key`. Raises ConfigError if the encoder needs an image and the array is none."""
    # The spec of this array alone.
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


# -- From settings to a trunk.


def _flat(spec: EnvSpec, config: LayerSettings) -> Trunk:
    return Flat(spec, config, list(config.hidden_sizes))


def _convolutions(spec: EnvSpec, config: CnnSettings) -> Trunk:
    return Convolutions(only_image(spec, config), config, list(config.conv_layers), list(config.hidden_sizes))


def _residual(spec: EnvSpec, config: ResnetSettings) -> Trunk:
    return Residual(only_image(spec, config), config, list(config.hidden_sizes))


TRUNKS: dict[str, Callable[[EnvSpec, Any], Trunk]] = {
    "mlp": _flat, "cnn": _convolutions, "resnet": _residual, "dict": Several,
}  # fmt: skip


def make_trunk(spec: EnvSpec, config: LayerSettings) -> Trunk:
    """Make the trunk for config.name, one of TRUNKS. Raises ConfigError if it does not fit the observations."""
    return TRUNKS[config.name](spec, config)


class OnTrunk(ActorCritic):
    """A trunk that policy and value share, or one for each (model.shared_trunk), and two linear heads.

    Heads are initialised as those of MLP.
    """

    def __init__(self, spec: EnvSpec, config: LayerSettings) -> None:
        super().__init__(spec, config)
        self.values_are_beside = config.shared_trunk
        self.policy_trunk = self.value_trunk = make_trunk(spec, config)
        if not config.shared_trunk:
            self.value_trunk = make_trunk(spec, config)
        # Most time goes to convolutions, which are compiled code already: compiling the rest made the learner 0.5 to
        # 1.2 times as fast (experiments/pixels).
        self.compiles_by_itself = not self.policy_trunk.computes_images
        width = self.policy_trunk.num_features
        self.policy_head = linear(width, policy_outputs(spec.action, config), gain=0.01)
        self.value_head = linear(width, 1, gain=1.0)
        self.log_std = begin_log_std_(self.policy_head, spec.action, config)

    def forward(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        features = self._features(self.policy_trunk, obs)
        is_shared = self.value_trunk is self.policy_trunk
        of_values = features if is_shared else self._features(self.value_trunk, obs)
        return self._policy(features), self._value(of_values)

    def action_params(self, obs: Obs) -> torch.Tensor:
        return self._policy(self._features(self.policy_trunk, obs))

    def portable_params(self, obs: Obs) -> torch.Tensor:
        return self._policy(self.policy_trunk.plain(obs))

    def value(self, obs: Obs) -> torch.Tensor:
        return self._value(self._features(self.value_trunk, obs))

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        with ExitStack() as stack:
            for trunk in dict.fromkeys((self.policy_trunk, self.value_trunk)):
                stack.enter_context(trunk.unchanged())
            yield

    def num_products(self) -> int:
        shared = self.policy_trunk.num_products
        return shared if self.value_trunk is self.policy_trunk else shared + self.value_trunk.num_products

    def _features(self, trunk: Callable[[Obs], torch.Tensor], obs: Obs) -> torch.Tensor:
        """Return trunk(obs) for any number of batch dimensions: the trunk takes one."""
        leaf, x = leaves(self.spec.obs)[0], leaves(obs)[0]
        # [..., *shape] -> [n, *shape] -> features -> [..., F].
        batch = x.shape[: x.dim() - len(leaf.shape)]
        if len(batch) == 1:
            return trunk(obs)
        rows = each(lambda leaf, x: x.reshape(-1, *leaf.shape), self.spec.obs, obs)
        return trunk(rows).unflatten(0, batch)

    def _policy(self, features: torch.Tensor) -> torch.Tensor:
        out = self.policy_head(features)
        return policy_params(out, self.log_std, is_gaussian=self.is_gaussian)

    def _value(self, features: torch.Tensor) -> torch.Tensor:
        return self.value_head(features).squeeze(-1)
