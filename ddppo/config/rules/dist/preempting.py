"""The rules of distributed=ddp_preempt."""

import math

from ddppo.config.settings import Config, DistConfig
from ddppo.errors import ConfigError


def awaited_ranks(dist: DistConfig) -> int:
    """Return how many ranks must have ended their rollouts before others may end theirs early."""
    return max(1, math.ceil(dist.sync_frac * dist.world_size - 1e-9))  # .6 of 5 are 3


def check_preempting(config: Config) -> None:
    """Raise ConfigError for dist.sync_frac where nobody asks for it, and where a rollout must have all of its steps."""
    dist = config.dist
    if dist.min_frac == 1:
        raise ConfigError(
            "dist.min_frac=1 asks for all steps of every rollout, so that none could end early: use less than 1, or "
            "distributed=ddp"
        )
    if dist.preempt_rule == "throughput" and dist.sync_frac != DistConfig().sync_frac:
        raise ConfigError(
            f"dist.sync_frac={dist.sync_frac} has no effect with dist.preempt_rule=throughput, which chooses for how "
            "many ranks to wait: use dist.preempt_rule=fraction, or leave it out"
        )


def warning_of(config: Config) -> str | None:
    """Return what to say of a run under ddp_preempt where no rank can end early."""
    dist = config.dist
    if (
        dist.topology != "ddp_preempt"
        or dist.preempt_rule != "fraction"
        or dist.rollout_time_cap_s is not None
    ):
        return None
    if awaited_ranks(dist) < dist.world_size:
        return None
    return (
        f"dist.sync_frac={dist.sync_frac:g} of dist.world_size={dist.world_size} ranks are all of them, so no rollout "
        f"ends early: use at most {(dist.world_size - 1) / dist.world_size:.3g}, or more ranks"
        if dist.world_size > 1
        else "distributed=ddp_preempt with dist.world_size=1: no other rank waits, so no rollout ends early"
    )
