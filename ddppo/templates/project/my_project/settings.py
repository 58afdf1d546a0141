"""The settings of model=my_project, `model.<name>` on the command line. Imports no torch, so that --help is quick."""

from dataclasses import dataclass

from ddppo.config.fields import setting
from ddppo.config.model_settings import ModelSettings
from ddppo.errors import ConfigError


@dataclass(slots=True)
class NetworkSettings(ModelSettings):
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
