"""The rules of topologies: what has no effect under one, and who needs what."""

from operator import attrgetter

from ddppo.config.rules.shapes import layout
from ddppo.config.settings import Config
from ddppo.errors import ConfigError
from ddppo.scaling import BatchShape
from ddppo.topologies import TOPOLOGIES, find


def check_topology(config: Config) -> None:
    dist, topology = config.dist, find(config.dist.topology)
    backend = topology.env_backend
    if backend is not None and (config.env.backend not in ("auto", backend) or config.env.is_ale):
        what = f"env.id={config.env.id}" if config.env.is_ale else f"env.backend={config.env.backend}"
        raise ConfigError(
            f"{what} with distributed={dist.topology}, whose environments are stepped by env.backend={backend}: "
            "leave one of them out"
        )
    users: dict[str, list[str]] = {}
    for known in TOPOLOGIES.values():
        for key in known.settings:
            users.setdefault(key, []).append(known.name)
    for key in sorted(users.keys() - set(topology.settings)):
        value = attrgetter(key)(config)
        if value != attrgetter(key)(Config()):
            raise ConfigError(
                f"{key}={value} has no effect with distributed={dist.topology}: use distributed="
                f"{' or '.join(users[key])}, or leave it out"
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


def check_observers(config: Config, shape: BatchShape) -> None:
    observers, num_workers, num_envs = config.dist.observers, config.env.num_workers, shape.local_num_envs
    if observers is None:
        return
    if num_workers not in (None, observers):
        raise ConfigError(
            f"dist.observers={observers} and env.num_workers={num_workers} say the same of "
            f"distributed={config.dist.topology} by two numbers: leave one of them out"
        )
    if num_envs % observers:
        divisors = [n for n in range(1, num_envs + 1) if num_envs % n == 0]
        near = sorted(sorted(divisors, key=lambda n: abs(n - observers))[:4])
        raise ConfigError(
            f"dist.observers={observers} does not divide the {num_envs} environments of an agent: use "
            f"{' or '.join(map(str, near))}, or set env.num_envs to a multiple of {observers * shape.world_size}"
        )
