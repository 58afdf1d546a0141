"""The algorithms of ddppo by name, as data that configurations are checked with: imports no torch.

PPO and GRPO have the section `ppo`, and ppo.algorithm names one of the two. Every other algorithm has the section
`algorithm`; it is in `ALGORITHMS`, is brought by a plugin, or has an import path.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ddppo.config.settings import Config

PPO = "ppo"  # the algorithm.name of PPO and GRPO


class KnownAlgorithm(NamedTuple):
    """An algorithm of ddppo's own. Its settings are in a module without torch: --help and --cfg read them."""

    meaning: str  # a phrase for messages and tables: "Q-learning with a network and a replay buffer"
    algorithm: str  # import path of its class, a subclass of ddppo.algorithms.contract.Algorithm
    settings: (
        str  # import path of its dataclass, derived from ddppo.config.algorithm_settings.AlgorithmSettings
    )


ALGORITHMS: dict[str, KnownAlgorithm] = {
    "reinforce": KnownAlgorithm(
        "policy gradient from whole episodes, with a baseline",
        "ddppo.algorithms.reinforce:Reinforce",
        "ddppo.config.algorithm_settings:ReinforceSettings",
    ),
    "dqn": KnownAlgorithm(
        "double Q-learning with a replay buffer and a target network, for n choices",
        "ddppo.algorithms.dqn:Dqn",
        "ddppo.config.replay_settings:DqnSettings",
    ),
    "sac": KnownAlgorithm(
        "soft actor-critic with a replay buffer and two critics, for bounded numbers",
        "ddppo.algorithms.sac:Sac",
        "ddppo.config.replay_settings:SacSettings",
    ),
}


def algorithm_name(config: "Config") -> str:
    """Return which algorithm trains: ppo, grpo, another name, or the import path of a user's own."""
    return config.ppo.algorithm if config.algorithm.name == PPO else config.algorithm.name


def algorithm_setting(config: "Config") -> str:
    """Return the setting that chooses the algorithm, for messages: ppo.algorithm=grpo, or algorithm=dqn."""
    name = config.algorithm.name
    return f"ppo.algorithm={config.ppo.algorithm}" if name == PPO else f"algorithm={name}"


def training_section(stored: Mapping[str, Any]) -> str:
    """Return the section of a run's config.yaml with the settings of its algorithm: ppo or algorithm."""
    algorithm = stored.get("algorithm")
    return "algorithm" if isinstance(algorithm, Mapping) and algorithm.get("name", PPO) != PPO else "ppo"
