"""The settings of model=my_project and algorithm=my_project. Imports no torch, so that --help is quick."""

from dataclasses import dataclass

from ddppo.config.algorithm_settings import AlgorithmSettings
from ddppo.config.fields import setting
from ddppo.config.model_settings import ModelSettings
from ddppo.errors import ConfigError


@dataclass(slots=True)
class NetworkSettings(ModelSettings):
    """`model.<name>` on the command line."""

    name: str = setting("my_project", "this network's")
    hidden_sizes: list[int] = setting(meaning="units of each hidden layer", factory=lambda: [64, 64])
    policy_scale: float = setting(
        0.01, "size of the policy's first weights; near 0, all actions begin equally likely", low=0
    )

    def check(self) -> None:
        """Raise ConfigError for mistakes that the bounds above do not catch."""
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise ConfigError(
                f"model.hidden_sizes={self.hidden_sizes}: name one layer or more, each of 1 unit or more"
            )


@dataclass(slots=True)
class A2CSettings(AlgorithmSettings):
    """`algorithm.<name>` on the command line."""

    name: str = setting("my_project", "this algorithm's")
    rollout_steps: int = setting(10, "steps T per environment and iteration", low=1)
    learning_rate: float = setting(5e-3, "step size of Adam at the start; it falls linearly to 0", above=0)
    gamma: float = setting(0.95, "discount per step", low=0, high=1)
    gae_lambda: float = setting(0.95, "lambda of GAE", low=0, high=1)
    entropy_coef: float = setting(0.0, "weight of the entropy bonus", low=0)
