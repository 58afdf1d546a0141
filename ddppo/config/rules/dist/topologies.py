"""The rules of topologies with other settings; those among the keys of one are its settings' (ddppo.topologies.settings)."""

from ddppo.config.rules.shapes import layout
from ddppo.config.settings import Config
from ddppo.errors import ConfigError
from ddppo.topologies import find


def check_topology(config: Config) -> None:
    dist, topology = config.dist, find(config.dist.topology)
    backend = topology.env_backend
    if backend is not None and (config.env.backend not in ("auto", backend) or config.env.is_ale):
        what = f"env.id={config.env.id}" if config.env.is_ale else f"env.backend={config.env.backend}"
        raise ConfigError(
            f"{what} with distributed={dist.topology}, whose environments are stepped by env.backend={backend}: "
            "leave one of them out"
        )
    if config.ppo.rollouts_per_update is not None and not topology.own_pace:
        raise ConfigError(
            f"ppo.rollouts_per_update={config.ppo.rollouts_per_update} has no effect with distributed={dist.topology}, "
            "whose ranks learn from all rollouts: use distributed=async_actors, or leave it out"
        )
    roles = layout(config)
    only_step = [role for role in roles.roles if role.ranks and not (role.acts or role.learns)]
    if dist.collective == "nccl" and only_step:
        raise ConfigError(
            f"dist.collective=nccl with distributed={dist.topology}, whose ranks of the role {only_step[0].name} only "
            "step environments and have no GPU: use dist.collective=shm or gloo"
        )
    if dist.grad_sync == "ddp" and dist.world_size > 1 and len(roles.learning) == 1:
        raise ConfigError(
            f"dist.grad_sync=ddp has no effect with distributed={dist.topology}, where one rank learns and no "
            "gradients travel: leave it out"
        )


def check_own_pace(config: Config) -> None:
    """Check what makes no sense where ranks go at their own pace."""
    dist = config.dist
    if not find(dist.topology).own_pace:
        return
    if dist.collective != "auto":
        raise ConfigError(
            f"dist.collective={dist.collective} has no effect with distributed={dist.topology}, whose ranks meet in "
            "no collective: leave it out"
        )
