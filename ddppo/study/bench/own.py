"""What a user would bring: a loss term (the workload W5) and a network (W6), written as docs/guide does it.

Neither is faster than a user's would be: nothing here knows the code that runs it.
"""

import math
from typing import Any

import torch
from torch import nn

from ddppo.config.model_settings import MlpSettings
from ddppo.models.actor_critic import ActorCritic, Obs
from ddppo.ppo.losses import Samples
from ddppo.spaces import EnvSpec

_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


def undecided(samples: Samples) -> torch.Tensor:
    """Return KL(uniform || pi) in nats, -log n - mean log pi, for Discrete actions with n choices."""
    log_probs = samples.params.log_softmax(dim=-1)
    return -math.log(log_probs.shape[-1]) - log_probs.mean(dim=-1)


class Plain(ActorCritic):
    """Two stacks of linear layers, one for the policy and one for the values, over one vector of numbers.

    Layers begin as torch.nn.Linear does, but for the last one of the policy. The built-in MLP has as many parameters if
    its hidden sizes are the same.
    """

    def __init__(self, spec: EnvSpec, config: MlpSettings) -> None:
        super().__init__(spec, config)
        inputs: Any = spec.obs
        self.policy = self._stack(inputs.shape[0], self.num_params, config)
        self.critic = self._stack(inputs.shape[0], 1, config)
        last: Any = self.policy[-1]
        with torch.no_grad():
            last.weight.mul_(0.01)  # the first policy prefers no action

    def forward(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        """Return action parameters `[n, P]` and values `[n]`; used in learning."""
        return self.policy(obs), self.critic(obs).squeeze(-1)

    def action_params(self, obs: Obs) -> torch.Tensor:
        """Return action parameters alone; used in acting."""
        return self.policy(obs)

    def value(self, obs: Obs) -> torch.Tensor:
        """Return values alone; used for the states after a rollout."""
        return self.critic(obs).squeeze(-1)

    @staticmethod
    def _stack(inputs: int, outputs: int, config: MlpSettings) -> nn.Sequential:
        """Return linear layers of model.hidden_sizes with activations between them, and a last one with the outputs."""
        layers: list[nn.Module] = []
        for width in config.hidden_sizes:
            layers += [nn.Linear(inputs, width), _ACTIVATIONS[config.activation]()]
            inputs = width
        return nn.Sequential(*layers, nn.Linear(inputs, outputs))
