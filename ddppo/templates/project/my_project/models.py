"""The network: policy and values share one trunk."""

import itertools

from torch import nn

from ddppo.models.actor_critic import ActorCritic
from ddppo.models.distributions import num_action_params


class Network(ActorCritic):
    """One trunk, two heads. config is a NetworkSettings. ddppo/models/actor_critic.py documents the methods."""

    def __init__(self, spec, config):
        super().__init__(spec, config)
        sizes = [spec.obs.shape[0], *config.hidden_sizes]
        layers = []
        for size, next_size in itertools.pairwise(sizes):
            layers += [nn.Linear(size, next_size), nn.Tanh()]
        self.trunk = nn.Sequential(*layers)
        self.policy = nn.Linear(sizes[-1], num_action_params(spec.action))
        self.critic = nn.Linear(sizes[-1], 1)
        nn.init.orthogonal_(self.policy.weight, config.policy_scale)

    def forward(self, obs):
        """Return action parameters [n, P] and values [n] of observations [n, 3]; the learner calls this."""
        features = self.trunk(obs)
        return self.policy(features), self.critic(features).squeeze(-1)

    def action_params(self, obs):
        """Return action parameters only; the actor calls this."""
        return self.policy(self.trunk(obs))

    def value(self, obs):
        """Return values only."""
        return self.critic(self.trunk(obs)).squeeze(-1)
