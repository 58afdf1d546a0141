"""The rules of what becomes of a run in which something goes wrong."""

from ddppo.config.settings import Config
from ddppo.errors import ConfigError
from ddppo.topologies import Layout


def check_nonfinite(config: Config, roles: Layout) -> None:
    """Check what happens where a number is not finite. Raises ConfigError."""
    mode, defaults = config.on_nonfinite, Config()
    users = {"on_nonfinite_max": ("skip_batch", "restore"), "on_nonfinite_factor": ("restore",)}
    for name, modes in users.items():
        value = getattr(config, name)
        if mode not in modes and value != getattr(defaults, name):
            raise ConfigError(
                f"{name}={value} has no effect with on_nonfinite={mode}: use on_nonfinite={' or '.join(modes)}, or "
                "leave it out"
            )
    if mode != "restore":
        return
    if len(roles.learning) < config.dist.world_size:
        raise ConfigError(
            f"on_nonfinite=restore with distributed={config.dist.topology}, where some ranks do not learn and would "
            "not go back: use on_nonfinite=skip_batch, or distributed=ddp"
        )
    if not (config.checkpoint.every_steps or config.checkpoint.every_minutes):
        raise ConfigError(
            "on_nonfinite=restore with checkpoint.every_steps=0, which saves at the end only: set "
            "checkpoint.every_steps, or use on_nonfinite=skip_batch"
        )


def check_min_workers(config: Config) -> None:
    """Check with how few ranks a run may go on. Raises ConfigError."""
    dist = config.dist
    if dist.min_workers is None:
        return
    said = f"dist.min_workers={dist.min_workers}"
    if dist.on_lost == "stop":
        raise ConfigError(
            f"{said} has no effect with dist.on_lost=stop, with which nobody goes on: set dist.on_lost=restart, or "
            "leave it out"
        )
    if dist.min_workers > dist.world_size:
        raise ConfigError(f"{said} exceeds dist.world_size={dist.world_size}: use at most that")
    if config.scaling.rule == "weak":
        raise ConfigError(
            f"{said} with scaling=weak, whose batch is smaller on fewer ranks: another run would go on: use "
            "scaling=strong, or leave it out"
        )
