"""Actor-critics and action distributions."""

from ddppo.models.actor_critic import MLP, ActorCritic, At, Obs, flat_obs, random_obs, raw_dtype, tensor_dtype
from ddppo.models.build import MODELS, build_model, part_of
from ddppo.models.cnn import images_in
from ddppo.models.distributions import ActionDistribution, action_distribution, num_action_params, num_noise
from ddppo.models.recurrent import Recurrent
from ddppo.models.trial import check_model

__all__ = [
    "MLP",
    "MODELS",
    "ActionDistribution",
    "ActorCritic",
    "At",
    "Obs",
    "Recurrent",
    "action_distribution",
    "build_model",
    "check_model",
    "flat_obs",
    "images_in",
    "num_action_params",
    "num_noise",
    "part_of",
    "random_obs",
    "raw_dtype",
    "tensor_dtype",
]
