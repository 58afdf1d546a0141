"""The rules of trackers, which show a run besides TensorBoard."""

from ddppo.config.fields import near
from ddppo.config.settings import Config
from ddppo.errors import ConfigError

TRACKERS = ("wandb", "mlflow")  # each an extra of the same name


def check_tracking(config: Config) -> None:
    """Raise ConfigError for a tracker that is none, or is named twice."""
    names = config.log.trackers
    said = f"log.trackers=[{','.join(map(str, names))}]"
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(
                f"{said}: {name} is none of {', '.join(TRACKERS)}{near(str(name), TRACKERS)}; TensorBoard is "
                "log.tensorboard"
            )
    if len(set(names)) < len(names):
        raise ConfigError(f"{said} names one twice: leave out the second")
