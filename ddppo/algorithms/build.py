"""From settings to an algorithm and its networks: one of ours, or a user's class by its import path."""

import torch

from ddppo.algorithms.contract import Algorithm
from ddppo.algorithms.grpo import GRPO
from ddppo.algorithms.known import algorithm_name
from ddppo.algorithms.ppo import PPO
from ddppo.config.settings import Config
from ddppo.config.variants import algorithm_at
from ddppo.errors import ConfigError, in_one_line
from ddppo.models.actor_critic import ActorCritic
from ddppo.models.build import build_model, seeded
from ddppo.spaces import EnvSpec

_HANDS_OVER = ("steps", "episodes", "groups")


def algorithm_class(config: Config) -> type[Algorithm]:
    """Return the class of the algorithm that trains. Raises ConfigError if the settings name none."""
    name = algorithm_name(config)
    if name in ("ppo", "grpo"):
        return GRPO if name == "grpo" else PPO
    subject, found = f"algorithm={name}", algorithm_at(name)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigError(f"{subject}: must be a subclass of ddppo.algorithms.contract.Algorithm")
    if found.learn is Algorithm.learn:
        raise ConfigError(f"{subject}: {found.__name__} does not define learn")
    if found.hands_over not in _HANDS_OVER:
        raise ConfigError(
            f"{subject}: {found.__name__}.hands_over={found.hands_over!r}: must be one of {', '.join(_HANDS_OVER)}"
        )
    return found


def build_networks(config: Config, spec: EnvSpec) -> ActorCritic:
    """Return the networks of a run. Their initial parameters depend on the seed alone. Raises ConfigError."""
    dtype, kind = getattr(torch, config.dtype), algorithm_class(config)

    def build() -> ActorCritic:
        return build_model(spec, config.model, config.seed, dtype)

    if kind.learner_class is not None:  # PPO and GRPO
        return build()
    subject = f"algorithm={algorithm_name(config)}: {kind.__name__}.networks"
    with seeded(config.seed):
        try:
            networks = kind.networks(spec, config.training, config.model, build)
        except ConfigError:
            raise
        except Exception as e:  # a user's class may raise anything
            raise ConfigError(f"{subject} raised {in_one_line(e)}") from e
    if not isinstance(networks, ActorCritic):
        raise ConfigError(
            f"{subject} returned a {type(networks).__name__}: it must return an ActorCritic "
            "(ddppo.models.actor_critic)"
        )
    return networks.to(dtype)


def make_algorithm(config: Config, spec: EnvSpec, model: ActorCritic) -> Algorithm:
    """Return this rank's algorithm. Raises ConfigError."""
    return algorithm_class(config)(spec, config.training, model)
