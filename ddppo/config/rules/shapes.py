"""The sizes of an iteration, and who does what in it."""

from contextlib import suppress
from dataclasses import replace

from ddppo.config.rules.dist.ordered import num_shards
from ddppo.config.settings import Config
from ddppo.errors import ConfigError
from ddppo.scaling import BatchShape, check_division, strong, weak
from ddppo.topologies import Layout, Sizes, find

_NEAR = 16  # other world sizes that a message may name


def batch_shape(config: Config) -> BatchShape:
    """Return the sizes of one iteration under the scaling rule. Raises ConfigError where there are none."""
    roles = layout(config)
    world_size, num_stepping, shares = config.dist.world_size, len(roles.stepping), roles.env_shares
    if shares and config.scaling.rule == "weak":
        raise ConfigError(
            f"scaling=weak with distributed={config.dist.topology}: scaling=weak gives every rank env.num_envs "
            "environments: leave dist.env_shares out, or use scaling=strong"
        )
    sizes = {
        "num_envs": config.env.num_envs,
        "rollout_steps": config.ppo.rollout_steps,
        "world_size": num_stepping,
        "num_minibatches": config.ppo.num_minibatches,
        "num_epochs": config.ppo.num_epochs,
    }
    if shares:
        shape = strong(**sizes | {"world_size": 1})
    elif config.scaling.rule == "weak":
        shape = weak(**sizes, learning_rate_rule=config.scaling.learning_rate_rule)
    else:
        if num_stepping != world_size:
            _check_shares(config, num_stepping)
        shape = strong(**sizes)
    shape = replace(
        shape,
        world_size=world_size,
        num_stepping=num_stepping,
        env_shares=shares,
        num_shards=num_shards(config),
    )
    return replace(shape, batch_envs=(config.ppo.rollouts_per_update or 0) * shape.local_num_envs)


def _check_shares(config: Config, num_stepping: int) -> None:
    """Check that those who step environments, some of all ranks, share them equally; the remedy counts all ranks."""
    world_size, num_envs = config.dist.world_size, config.env.num_envs
    if num_stepping > num_envs or num_envs % num_stepping == 0:
        said = f"{num_stepping}, the ranks that step environments of dist.world_size={world_size},"
        check_division(num_envs, config.ppo.rollout_steps, num_stepping, said)
        return
    possible = []
    for other in range(max(1, world_size - _NEAR), world_size + _NEAR):
        with suppress(ConfigError):
            dist = replace(config.dist, world_size=other)
            if num_envs % len(layout(replace(config, dist=dist)).stepping) == 0:
                possible.append(other)
    nearest = sorted(sorted(possible, key=lambda other: abs(other - world_size))[:4])
    ranks = f"use dist.world_size={' or '.join(map(str, nearest))}, or set" if nearest else "set"
    raise ConfigError(
        f"distributed={config.dist.topology} with dist.world_size={world_size}: {num_stepping} ranks step "
        f"environments, which does not divide env.num_envs={num_envs}: {ranks} env.num_envs to a multiple of "
        f"{num_stepping}"
    )


def layout(config: Config) -> Layout:
    """Return who does what; bytes are not known before the task is. Raises ConfigError for a W that cannot be."""
    dist, ppo = config.dist, config.ppo
    sizes = Sizes(
        config.env.num_envs,
        ppo.rollout_steps,
        ppo.num_epochs * ppo.num_minibatches,
        *(0, 0, 0, 0, 0),
        num_learners=getattr(dist, "num_learners", None),
        env_shares=tuple(getattr(dist, "env_shares", ())),
    )
    return find(dist.topology).of(dist.world_size, sizes)
