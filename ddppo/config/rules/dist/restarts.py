"""The rules of what is started again."""

from ddppo.config.rules.dist.faults import check_min_workers
from ddppo.config.settings import Config, DistSettings
from ddppo.errors import ConfigError
from ddppo.topologies import find


def check_lost(config: Config) -> None:
    dist, env = config.dist, config.env
    check_min_workers(config)
    if dist.on_lost == "stop":
        if dist.max_restarts != (default := DistSettings().max_restarts):
            raise ConfigError(
                f"dist.max_restarts={dist.max_restarts} has no effect with dist.on_lost=stop: set "
                f"dist.on_lost=restart, or leave it at {default}"
            )
        return
    if (find(dist.topology).env_backend or env.backend) in ("batched", "sync", "native"):
        check_restarts(config)


def check_restarts(config: Config) -> None:
    """Raise ConfigError where nothing could be started again, for environments are stepped in the rank."""
    dist, env = config.dist, config.env
    if dist.on_lost == "restart" and dist.world_size == 1 and dist.min_workers is None:
        raise ConfigError(
            f"dist.on_lost=restart has no effect with dist.world_size=1 and env.backend={env.backend}: the only rank "
            "is the process that you start, which cannot start itself again; use env.backend=pool or remote, or more "
            "ranks, or leave it out"
        )
