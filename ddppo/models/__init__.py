"""Actor-critics and action distributions."""

from ddppo.models.actor_critic import MLP, MODELS, ActorCritic, build_model
from ddppo.models.check import check_model
from ddppo.models.distributions import ActionDistribution, action_distribution, num_action_params, num_noise

__all__ = [
    "MLP",
    "MODELS",
    "ActionDistribution",
    "ActorCritic",
    "action_distribution",
    "build_model",
    "check_model",
    "num_action_params",
    "num_noise",
]
