"""The rules of a policy's last layer where actions are a box."""

from ddppo.config.settings import Config
from ddppo.errors import ConfigError

LOG_STD_RANGE = (-20.0, 2.0)  # of one that depends on the observation


def check_heads(config: Config) -> None:
    """Raise ConfigError where model.log_std_init is outside of what model.log_std=state may become."""
    model, (low, high) = config.model, LOG_STD_RANGE
    if model.log_std == "state" and not low <= model.log_std_init <= high:
        raise ConfigError(
            f"model.log_std_init={model.log_std_init} with model.log_std=state, which is cut to [{low:g}, {high:g}]: "
            "use a number inside, or model.log_std=parameter"
        )
