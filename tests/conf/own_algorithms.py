"""Algorithms of a user's own, as far as their settings go."""

from dataclasses import dataclass, field

from ddppo.config.algorithm_settings import AlgorithmSettings
from ddppo.config.fields import setting
from ddppo.errors import ConfigError


@dataclass
class ReinforceSettings(AlgorithmSettings):
    gamma: float = setting(0.99, "discount per step", low=0, high=1)
    learning_rate: float = setting(1e-3, "step size of Adam", above=0)
    baseline: str = setting("value", "what returns are compared with", choices=("value", "mean"))
    gains: dict[str, float] = field(default_factory=dict)

    def check(self):
        if self.gamma == 0.5:
            raise ConfigError(f"algorithm.gamma={self.gamma}: must not be a half")


class Reinforce:
    settings_class = ReinforceSettings


@dataclass
class GroupsSettings(AlgorithmSettings):
    group_size: int = setting(4, "rollouts of a group, which share a seed", low=1)


class Groups:
    settings_class = GroupsSettings


class Wrong:
    settings_class = dict


class Without:
    pass


@dataclass
class OddSettings(AlgorithmSettings):
    sizes: set = field(default_factory=set)


class Odd:
    settings_class = OddSettings
