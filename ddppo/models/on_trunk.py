"""Actor-critics of a trunk and two heads."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch

from ddppo.config import ModelConfig
from ddppo.models.actor_critic import ActorCritic, linear
from ddppo.models.encoders import make_trunk
from ddppo.models.heads import begin_log_std_, policy_outputs, policy_params
from ddppo.models.observations import Obs
from ddppo.spaces import EnvSpec, each, leaves


class OnTrunk(ActorCritic):
    """A trunk for policy and value together, or one for each, and a linear head for either.

    Heads begin as MLP's do. The logarithm of the standard deviation of Gaussian actions does not depend on the
    observation.
    """

    def __init__(self, spec: EnvSpec, config: ModelConfig) -> None:
        super().__init__(spec, config)
        self.is_box = spec.action.kind == "box"
        self.values_are_beside = config.shared_trunk
        self.policy_trunk = self.value_trunk = make_trunk(spec, config)
        if not config.shared_trunk:
            self.value_trunk = make_trunk(spec, config)
        # Convolutions take the time, and are compiled already: .5 to 1.2 times as fast (experiments/pixels).
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
        """Return trunk(obs), whose rows are behind any number of dimensions."""
        leaf, x = leaves(self.spec.obs)[0], leaves(obs)[0]
        batch = x.shape[: x.dim() - len(leaf.shape)]
        if len(batch) == 1:
            return trunk(obs)
        rows = each(lambda leaf, x: x.reshape(-1, *leaf.shape), self.spec.obs, obs)
        return trunk(rows).unflatten(0, batch)

    def _policy(self, features: torch.Tensor) -> torch.Tensor:
        out = self.policy_head(features)
        return policy_params(out, self.log_std, is_box=self.is_box)

    def _value(self, features: torch.Tensor) -> torch.Tensor:
        return self.value_head(features).squeeze(-1)
