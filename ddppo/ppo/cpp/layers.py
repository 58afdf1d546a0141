"""The layers of a network that C++ computes (ddppo/native/src/mlp.hpp): those of ddppo's MLP, or of a user's own."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ddppo.models.actor_critic import MLP, ActorCritic
from ddppo.models.distributions import gauss_hermite

# In the order of the enum Activation in activations.hpp.
_ACTIVATIONS = ("tanh", "relu", "elu", "leaky_relu", "silu", "gelu", "identity")
# In the order of the enum ActionKind in losses.hpp. box: Gaussian actions; beta: a box with a Beta distribution.
KINDS = ("discrete", "multi_discrete", "multi_binary", "box", "beta")


class NotInCpp(Exception):
    """C++ does not have a part of the network. The message says which, as a part of a sentence."""


@dataclass(frozen=True)
class HiddenLayer:
    """A linear layer, perhaps layer normalisation, and an activation; modules by their names in the model."""

    linear: str
    norm: str | None = None
    activation: str = "identity"


@dataclass(frozen=True)
class NetworkLayers:
    """The layers of a network: those that policy and values share, their own, and their heads."""

    shared: tuple[HiddenLayer, ...]
    policy: tuple[HiddenLayer, ...]
    value: tuple[HiddenLayer, ...]
    policy_head: str
    value_head: str
    log_std: str | None  # a parameter beside the network
    limits_log_std: bool  # the second half of the policy's outputs is clamped to LOG_STD_RANGE

    def modules(self) -> Iterator[str]:
        """The names of the linear layers and norms, in the order in which Network of mlp.hpp reads their places."""
        for layer in (*self.shared, *self.policy, *self.value):
            yield from (layer.linear,) if layer.norm is None else (layer.linear, layer.norm)
        yield from (self.policy_head, self.value_head)

    def description(self, model: ActorCritic) -> list[int]:
        """Return the network's shape and the places of its parameters, as `network_create` in learn.cpp reads them."""
        offsets, offset = {}, 0  # of each parameter in the flat vector
        for name, p in model.named_parameters():
            offsets[name] = offset
            offset += p.numel()
        places = [offsets.get(f"{name}.{part}", -1) for name in self.modules() for part in ("weight", "bias")]
        if self.log_std is not None:
            places.append(offsets[self.log_std])
        trunks: list[int] = []
        for trunk in (self.shared, self.policy, self.value):
            trunks.append(len(trunk))
            for layer in trunk:
                width: Any = model.get_submodule(layer.linear).out_features
                trunks += [width, _ACTIVATIONS.index(layer.activation), layer.norm is not None]
        action = model.spec.action
        # A list is preceded by its length.
        return [
            next(model.parameters()).dtype == torch.float64,
            KINDS.index("beta" if model.is_beta else action.kind),
            self.limits_log_std,
            model.spec.obs_size,
            *trunks,
            *(len(action.sizes), *action.sizes),
            *(len(places), *places),
            offset,
            len(gauss_hermite()[0]) if model.is_squashed else 0,
        ]


def layers_of(model: ActorCritic) -> NetworkLayers:
    """Return the layers of a model. Raises NotInCpp."""
    if type(model) is MLP:
        return _of_mlp(model)
    from ddppo.ppo.cpp.own_layers import layers_of_own  # for networks of a user's own alone

    return layers_of_own(model)


def _of_mlp(model: MLP) -> NetworkLayers:
    def trunk(name: str) -> tuple[HiddenLayer, ...]:
        of_kind = {
            kind: [
                f"{name}.{child}" for child, m in getattr(model, name).named_children() if isinstance(m, kind)
            ]
            for kind in (nn.Linear, nn.LayerNorm)
        }
        pairs = itertools.zip_longest(of_kind[nn.Linear], of_kind[nn.LayerNorm])
        return tuple(HiddenLayer(linear, norm, model.activation) for linear, norm in pairs)

    policy = trunk("policy_trunk")
    return NetworkLayers(
        shared=policy if model.shared_trunk else (),
        policy=() if model.shared_trunk else policy,
        value=() if model.shared_trunk else trunk("value_trunk"),
        policy_head="policy_head",
        value_head="value_head",
        log_std=None if model.log_std is None else "log_std",
        limits_log_std=model.is_gaussian and model.log_std is None,
    )
