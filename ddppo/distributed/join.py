"""How a rank joins its run and leaves it: device, CPU threads, the group of all ranks, the end of the process.

`join` is called first in the life of a rank. It reads the environment variables that the launcher or torchrun sets
(RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), and returns the group and the device.
"""

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import current_process
from typing import NoReturn

import torch
import torch.distributed as dist

from ddppo.algorithms.known import algorithm_name, algorithm_setting
from ddppo.collectives.group import Group
from ddppo.collectives.meeting import Wanted, meet
from ddppo.collectives.peers import OwnPace, leave_word, note_met
from ddppo.config.rank_rules import is_ordered, layout
from ddppo.config.settings import Config
from ddppo.device import (
    BACKENDS,
    accelerators,
    backend_of,
    check_dtype,
    has_ddp,
    has_float64,
    in_words,
    resolve,
    select,
    set_numerics,
)
from ddppo.distributed.network import (
    check_host_name,
    check_interfaces,
    in_one_sentence,
    loopback_interface,
    rendezvous_store,
)
from ddppo.distributed.topologies.known import find
from ddppo.errors import ConfigError, TrainingError, is_of_torch_distributed
from ddppo.native import NotCompiled
from ddppo.native.compiling import SHARED_MEMORY
from ddppo.processes.machine import available_cores
from ddppo.processes.signals import die_with_parent, end_processes_left
from ddppo.terminal import warn

# Multiplications by weights in a minibatch from which a second thread pays. Waking a thread takes tens of us, so
# operations must last milliseconds. At 2e7 (64 units, 2,048 samples) two threads take 1.7 times as long as one on some
# machines, and .6 times as long on others; acting, with far smaller operations, loses as much.
THREADS_PAY_FROM = 1_000_000_000


def computing_ranks(config: Config, first: int, num_ranks: int) -> list[int]:
    """Return those of the ranks first, first + 1, ... that need the run's device: they act or learn.

    With ordered sums all ranks compute on CPUs, and none needs it.
    """
    if is_ordered(config):
        return []
    roles = layout(config)
    ranks = range(first, min(first + num_ranks, config.dist.world_size))
    return [rank for rank in ranks if (role := roles.role(rank)).acts or role.learns]


def device_of_rank(config: Config, rank: int, local_rank: int, local_world_size: int) -> torch.device:
    """Return the device of a rank: the run's if the rank acts or learns, else the CPU. Raises ConfigError.

    Ranks that need an accelerator take those of their machine in order.
    """
    ranks = computing_ranks(config, rank - local_rank, local_world_size)
    if rank not in ranks:
        return torch.device("cpu")
    share = config.dist.share_device
    device = resolve(config.device, place=ranks.index(rank), num_places=len(ranks), share=share)
    check_device(config, device)
    return device


def check_device(config: Config, device: torch.device) -> None:
    """Raise ConfigError for settings that this kind of device does not have."""
    where = in_words(config.device, device)
    check_dtype(config.dtype, config.device, device)
    if algorithm_name(config) == "grpo" and not has_float64(device):
        raise ConfigError(
            f"{algorithm_setting(config)} with {where}: returns of a group are compared in float64, which it lacks: "
            "use device=cpu"
        )
    if config.matmul_precision != "highest" and device.type == "cpu":
        raise ConfigError(
            f"matmul_precision={config.matmul_precision} has no effect with {where}, which multiplies float32 as it "
            "is: leave it out"
        )
    if config.dist.world_size > 1 and config.dist.grad_sync == "ddp" and not has_ddp(device):
        raise ConfigError(
            f"dist.grad_sync=ddp with {where}: torch.distributed has no backend that reaches its memory: use "
            "dist.grad_sync=flat"
        )


def has_own_device(device: torch.device, local_world_size: int) -> bool:
    """Return whether every rank of this machine can have its own accelerator, and torch a backend between them."""
    return backend_of(device) != "gloo" and local_world_size <= accelerators()[1]


def check_collective(config: Config, device: torch.device, local_world_size: int) -> None:
    """Raise ConfigError if ranks of this machine cannot use dist.collective.

    The launcher calls it before it starts the ranks. So the shared-memory library is compiled here, once, and not by
    every rank.
    """
    kind = config.dist.collective
    between_devices = kind in BACKENDS.values()
    if between_devices and (kind != backend_of(device) or not has_own_device(device, local_world_size)):
        type_, count = accelerators()
        has = f"{count} of type {type_}" if count else "none"
        raise ConfigError(
            f"dist.collective={kind} needs a GPU that it reaches for each of the {local_world_size} ranks of this "
            f"machine, which has {has}: use dist.collective=shm or gloo, or fewer ranks"
        )
    if config.dist.world_size == 1:
        return
    is_one_machine = local_world_size == config.dist.world_size
    uses_gloo = kind == "gloo" or config.dist.grad_sync == "ddp" or not is_one_machine
    if kind in ("auto", "shm"):
        try:
            SHARED_MEMORY.load()
        except NotCompiled as e:
            if kind == "shm":
                remedy = "install a compiler, or use" if sys.platform == "linux" else "use"
                raise ConfigError(
                    f"dist.collective=shm needs its compiled part: {e}; {remedy} dist.collective=gloo"
                ) from e
            uses_gloo = True
    if between_devices or (kind == "auto" and has_own_device(device, local_world_size)):
        check_interfaces("NCCL_SOCKET_IFNAME")
    elif uses_gloo:
        check_interfaces("GLOO_SOCKET_IFNAME")


def cores_per_rank(local_world_size: int) -> int:
    """Return the number of CPU cores per rank, at least 1: this machine's over its ranks, or the scheduler's number."""
    # The scheduler may have bound the rank to these cores, or not.
    if allotted := os.environ.get("DDPPO_CORES_PER_RANK"):
        return min(int(allotted), available_cores())
    # mpirun may have bound the rank to some of them.
    cores = int(os.environ.get("DDPPO_HOST_CORES", available_cores()))
    return max(1, min(available_cores(), cores // local_world_size))


def threads_per_rank(config: Config, local_world_size: int, work: int) -> int:
    """Return the number of torch's CPU threads on one rank: dist.threads_per_rank, or by default its cores or 1.

    It is its cores if a minibatch has enough work for them. With ordered sums it is 1, because sums depend on
    the number of threads. torch's own default, all cores of the machine on every rank, makes ranks compete for cores.
    `work` is the number of multiplications by weights in a rank's minibatch.
    """
    enough = work >= THREADS_PAY_FROM and not is_ordered(config)
    return config.dist.threads_per_rank or (cores_per_rank(local_world_size) if enough else 1)


def join(
    config: Config, enter: Callable[[float], dist.Store] = rendezvous_store
) -> tuple[Group, torch.device]:
    """Join the run as the rank that the environment variables name; return the group of all ranks, and the device.

    At W = 1, and on a rank at its own pace, the group contains this rank alone. `enter(timeout_s)` returns the store in
    which the ranks meet.
    """
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    rank, local_rank = (int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK"))
    # 1. Device and threads. The number of threads is set again once the size of the model is known.
    device = device_of_rank(config, rank, local_rank, local_world_size)
    set_numerics(config.matmul_precision, deterministic=config.deterministic)
    torch.set_num_threads(1)
    select(device)
    if config.dist.world_size == 1:
        return Group(), device
    # 2. The network. If the launcher is killed, its ranks must end too.
    die_with_parent()
    if local_world_size == config.dist.world_size:  # one machine needs no network
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback_interface())
        os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback_interface())
    elif local_rank == 0 and device.type == "cpu" and (warning := check_host_name()):
        warn(warning)
    # 3. The store of the launcher, where ranks find one another.
    world_size = int(os.environ["WORLD_SIZE"])
    store = enter(config.dist.timeout_s)
    if find(config.dist.topology).own_pace:
        # Every wait of such a rank has a limit of its own, and it notices the end of the rank that it waits for.
        note_met(store)
        return OwnPace(store, rank, world_size, config.dist.timeout_s), device
    # 4. The group of all ranks.
    wanted = Wanted(
        config.dist.collective,
        device,
        own_device=has_own_device(device, local_world_size),
        timeout_s=config.dist.timeout_s,
        process_group=config.dist.grad_sync == "ddp",
        subgroups=find(config.dist.topology).subgroups,
    )
    try:
        group = meet(store, rank, world_size, wanted)
    except RuntimeError as e:
        if isinstance(e, TrainingError) or not is_of_torch_distributed(e):
            raise
        with suppress(dist.DistError):
            leave_word(store, rank, f"for {config.dist.timeout_s:.1f} s, never heard of")
        raise in_one_sentence(e, rank, config.dist.timeout_s) from e
    note_met(store)
    return group, device


def leave(exit_code: int) -> NoReturn:
    """End a rank's process at once, without destructors.

    After a fault they may wait for a lost peer. After success a thread of Gloo may still free its last tensor, ask for
    the interpreter lock while Python shuts down, and abort the process (seen once in ten runs at W = 4).
    """
    # If a task uses multiprocessing's servers, they listen in a temporary folder that a destructor would remove. Read
    # its name without get_temp_dir(), which would create a folder first.
    if temporary := getattr(current_process(), "_config", {}).get("tempdir"):
        shutil.rmtree(temporary, ignore_errors=True)
    end_processes_left()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
