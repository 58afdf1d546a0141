"""What a model with memory is: a step for acting, and many of them for learning."""

import abc

import torch

from ddppo.models.actor_critic import ActorCritic
from ddppo.models.observations import Obs
from ddppo.spaces import leaves


class Recurrent(ActorCritic):
    """An actor-critic that remembers state_size numbers of each environment, all 0 where an episode starts.

    A subclass sets `state_size` before its first call and defines `step` and `unroll`, of which the second is the first
    for row after row. What is said of a single observation is a step from zeros, as at the start of an episode.
    """

    stays_eager = "a loop over the steps of a rollout is not compiled"

    @abc.abstractmethod
    def step(self, obs: Obs, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]: ...

    @abc.abstractmethod
    def unroll(
        self, obs: Obs, state: torch.Tensor, starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

    def forward(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        like = next(self.parameters())
        params, values, _ = self.step(obs, like.new_zeros(len(leaves(obs)[0]), self.state_size))
        return params, values

    def action_params(self, obs: Obs) -> torch.Tensor:
        return self(obs)[0]

    def value(self, obs: Obs) -> torch.Tensor:
        return self(obs)[1]
