"""model.memory: a recurrent core on a trunk, and two heads on the core."""

from contextlib import AbstractContextManager

import torch

from ddppo.config import ModelConfig
from ddppo.models.actor_critic import linear
from ddppo.models.encoders import make_trunk
from ddppo.models.heads import begin_log_std_, policy_outputs, policy_params
from ddppo.models.memory.base import Recurrent
from ddppo.models.memory.cores import CORES
from ddppo.models.observations import Obs
from ddppo.spaces import EnvSpec, each


class RecurrentActorCritic(Recurrent):
    """A trunk, a recurrent core and heads for policy and value, which share all below them.

    Initialised as MLP is, and the core as `Core` says.
    """

    stays_eager = "only the recurrence of a model with memory is compiled"

    def __init__(self, spec: EnvSpec, config: ModelConfig) -> None:
        super().__init__(spec, config)
        self.is_box = spec.action.kind == "box"
        self.trunk = make_trunk(spec, config)
        self.core = CORES[config.memory](self.trunk.num_features, config.memory_size, config.memory_layers)
        self.state_size = self.core.state_size
        self.policy_head = linear(config.memory_size, policy_outputs(spec.action, config), gain=0.01)
        self.value_head = linear(config.memory_size, 1, gain=1.0)
        self.log_std = begin_log_std_(self.policy_head, spec.action, config)

    def step(self, obs: Obs, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden, state = self.core(self.trunk(obs).unsqueeze(0), state)
        return *self._heads(hidden[0]), state

    def portable_step(self, obs: Obs, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, state = self.core(self.trunk.plain(obs).unsqueeze(0), state)
        return self._heads(hidden[0])[0], state

    def unroll(
        self, obs: Obs, state: torch.Tensor, starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # [T, m, ...] -> [T * m, ...] -> [T, m, F]: the trunk knows no time
        features = self.trunk(each(lambda x: x.flatten(0, 1), obs)).unflatten(0, starts.shape)
        hidden, _ = self.core(features, state, starts)
        return self._heads(hidden)

    def unchanged(self) -> AbstractContextManager[None]:
        return self.trunk.unchanged()

    def num_products(self) -> int:
        heads = self.policy_head.weight.numel() + self.value_head.weight.numel()
        return self.trunk.num_products + self.core.num_products + heads

    def _heads(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        params = policy_params(self.policy_head(hidden), self.log_std, is_box=self.is_box)
        return params, self.value_head(hidden).squeeze(-1)
