"""A loss term, metrics and a network of a user's own; imported by name."""

import torch
from torch import nn

from ddppo.models.actor_critic import ActorCritic


def still(samples):
    """Square of the mean before it is squashed, summed over dimensions."""
    return samples.policy.normal.mean.square().sum(dim=-1)


def push(samples):
    """Square of the mean of a plain normal distribution, summed over dimensions."""
    return samples.policy.mean.square().sum(dim=-1)


def pushes(seen):
    valid = seen.rollout.valid
    return {"push": (seen.rollout.actions[valid].abs().sum(), valid.sum()), "transitions": valid.sum()}


class Longest:
    """Of the first environment, so that other ranks have none to tell of."""

    def __init__(self):
        self.longest = 0

    def __call__(self, seen):
        lengths = [episode.length for episode in seen.episodes if episode.env_index == 0]
        self.longest = max([self.longest, *lengths])
        return {"longest/of_first": (self.longest, 1 if self.longest else 0)}


class Joined(ActorCritic):
    """An encoder for each half of an observation, joined; then a residual block that policy and values share."""

    def __init__(self, spec, config):
        super().__init__(spec, config)
        (width, *_) = config.hidden_sizes
        self.half = spec.obs_size // 2
        self.first = nn.Sequential(nn.Linear(self.half, width), nn.Tanh())
        self.second = nn.Sequential(nn.Linear(spec.obs_size - self.half, width), nn.SiLU())
        self.inputs = nn.Linear(2 * width, width)
        self.block = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Tanh())
        self.policy, self.critic = nn.Linear(width, self.num_params), nn.Linear(width, 1)

    def features(self, obs):
        halves = [self.first(obs[:, : self.half]), self.second(obs[:, self.half :])]
        x = torch.relu(self.inputs(torch.cat(halves, dim=-1)))
        return x + self.block(x)

    def forward(self, obs):
        features = self.features(obs)
        return self.policy(features), self.critic(features).squeeze(-1)

    def action_params(self, obs):
        return self.policy(self.features(obs))

    def value(self, obs):
        return self.critic(self.features(obs)).squeeze(-1)
