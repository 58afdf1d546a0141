"""The rules of environments and who steps them."""

from ddppo.config.rules.shapes import layout
from ddppo.config.settings import Config
from ddppo.errors import ConfigError, near
from ddppo.plugins import added, imported
from ddppo.scaling import BatchShape
from ddppo.topologies import find

_BACKENDS = ("auto", "batched", "sync", "pool", "native")  # and those of plugins


def check_backend(config: Config) -> None:
    """Check that env.backend is one, and hand its settings to the rules of the plugin that brings it."""
    env, plugged = config.env, added("backends")
    if env.backend not in (*_BACKENDS, *plugged):
        known = (*_BACKENDS, *plugged)
        raise ConfigError(
            f"env.backend={env.backend}: must be one of {', '.join(known)}{near(env.backend, known)}"
        )
    if env.backend in plugged:
        if (check := plugged[env.backend].check) is not None:
            imported(check)(config)
        return
    for key in ("urls", "token_file"):
        if value := getattr(env, key):
            raise ConfigError(
                f"env.{key}={value} has no effect with env.backend={env.backend}: set env.backend=remote "
                "(env=remote takes whatever is served), or leave it out"
            )


def check_context(config: Config) -> None:
    env = config.env
    if env.context is not None and (
        env.backend not in ("auto", "batched", "sync", "pool") or env.is_ale or env.is_envpool
    ):
        what = f"env.id={env.id}" if env.is_ale or env.is_envpool else f"env.backend={env.backend}"
        raise ConfigError(
            f"env.context={env.context} with {what}, which begins episodes without a reset's options: use "
            "env.backend=sync or pool"
        )


def check_slow_ranks(config: Config) -> None:
    """Check that those which are slowed step environments, in the rank."""
    dist, stepping = config.dist, layout(config).stepping
    for rank, seconds in config.env.slow_ranks.items():
        if not 0 <= rank < dist.world_size:
            raise ConfigError(
                f"env.slow_ranks names rank {rank}, but dist.world_size={dist.world_size} has ranks 0 to "
                f"{dist.world_size - 1}"
            )
        if rank not in stepping:
            raise ConfigError(
                f"env.slow_ranks names rank {rank}, which steps no environments under distributed={dist.topology}: "
                f"name one of {', '.join(map(str, stepping))}"
            )
        if seconds < 0:
            raise ConfigError(f"env.slow_ranks={{{rank}: {seconds}}}: seconds must be at least 0")
    if config.env.slow_ranks and find(dist.topology).env_backend == "pool":
        raise ConfigError(
            f"env.slow_ranks has no effect with distributed={dist.topology}, whose observers step at their own pace: "
            "use a task that takes its time, as env=synthetic env.kwargs.step_time_s=0.01, or leave it out"
        )


def check_workers(config: Config, shape: BatchShape) -> None:
    num_workers = config.env.num_workers
    if num_workers is None:
        return
    topology = find(config.dist.topology)
    if topology.env_backend not in (None, "pool"):
        raise ConfigError(
            f"env.num_workers={num_workers} has no effect with distributed={config.dist.topology}, whose environments "
            f"are stepped by env.backend={topology.env_backend}: leave the number out"
        )
    has_threads = config.env.is_ale or config.env.is_envpool
    if (topology.env_backend or config.env.backend) != "pool" and not has_threads:
        raise ConfigError(
            f"env.num_workers={num_workers} has no effect with env.backend={config.env.backend}: set "
            "env.backend=pool, or leave the number out"
        )
    fewest = min(shape.env_shares, default=shape.local_num_envs)
    if num_workers > fewest:
        raise ConfigError(
            f"env.num_workers={num_workers} exceeds the {fewest} environments of a rank: use at most {fewest}"
        )
