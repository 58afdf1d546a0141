"""The machine that is to hold a run's ranks: how many, on which cores and GPUs."""

import os

from ddppo import config as configuration
from ddppo.config import Config
from ddppo.distributed.gradient_sync import FLAT_BELOW
from ddppo.distributed.launch import check_collective, resolve_device
from ddppo.errors import ConfigError
from ddppo.native.compiling import SHARED_MEMORY
from ddppo.processes.machine import available_cores


def local_world_size(config: Config) -> int:
    """Return how many ranks this machine is to hold: torchrun's share of them, or all."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", config.dist.world_size))


def overlaps_from(config: Config, local_world_size: int | None) -> int | None:
    """Return the number of parameters from which gradients are reduced while others are computed; None for never."""
    if config.dist.world_size == 1 or config.dist.grad_sync == "flat":
        return None
    if config.dist.grad_sync == "ddp":
        return 0
    runs_on_cpu = local_world_size is not None and resolve_device(config.device).type == "cpu"
    speaks_gloo = config.dist.collective == "gloo" or SHARED_MEMORY.why_not() is not None
    return FLAT_BELOW if runs_on_cpu and speaks_gloo else None


def check_machine(config: Config, local_world_size: int) -> str | None:
    import torch

    device = resolve_device(config.device if config.dist.reduction == "fast" else "cpu")
    check_collective(config, device, local_world_size)
    has, noun = available_cores(), "cores"
    if device.type == "cuda":
        has, noun = torch.cuda.device_count(), "GPUs"
        roles = configuration.layout(config).roles
        num_players = sum(len(role.ranks) for role in roles if role.acts or role.learns)
        local_world_size = min(local_world_size, num_players)  # who only steps needs no GPU
    if local_world_size == 1 or local_world_size <= has:
        return None
    named = (
        "dist.world_size" if local_world_size == config.dist.world_size else "nproc-per-node"
    )  # torchrun's
    shared = f"{named}={local_world_size} exceeds this machine's {has} {noun}"
    if config.dist.oversubscribe == "refuse":
        raise ConfigError(
            f"{shared}, and dist.oversubscribe=refuse: use at most {has} ranks, or dist.oversubscribe=warn"
        )
    return f"{shared}: ranks take turns, so results stay the same and times are not those of {local_world_size} {noun}"
