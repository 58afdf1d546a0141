"""What a rank needs of its machine: a device, threads, its peers, an end."""

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import current_process
from typing import NoReturn

import torch
import torch.distributed as dist

from ddppo.collectives.group import Group
from ddppo.collectives.meeting import Wanted, meet
from ddppo.collectives.peers import OwnPace, leave_word, note_met
from ddppo.config.rank_rules import layout
from ddppo.config.settings import Config
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

# Products of weights in a minibatch from which a second thread pays: operations must last milliseconds, for waking
# a thread takes tens of us. At 2e7 (64 units, 2,048 samples) two threads need 1.7 times one's time on some machines and
# .6 times on others; acting, in far smaller operations, loses as much.
_THREADS_PAY_FROM = 1_000_000_000


def resolve_device(device: str, local_rank: int = 0) -> torch.device:
    """Return the device of a rank. Raises ConfigError where CUDA is asked for and absent."""
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            "device=cuda, but torch sees no CUDA device here: use device=cpu, or device=auto to take what there is"
        )
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def device_of_rank(config: Config, rank: int, local_rank: int) -> torch.device:
    """Return the device of a rank: config.device's if it acts or learns; one that only steps needs nothing but a CPU.

    dist.reduction=ordered computes on CPUs.

    Raises ConfigError where CUDA is asked for, needed and absent.
    """
    role = layout(config).role(rank)
    needs_any = (role.acts or role.learns) and config.dist.reduction == "fast"
    return resolve_device(config.device if needs_any else "cpu", local_rank)


def has_own_gpu(device: torch.device, local_world_size: int) -> bool:
    """Return whether every rank of this machine has a GPU of its own."""
    return device.type == "cuda" and local_world_size <= torch.cuda.device_count()


def check_collective(config: Config, device: torch.device, local_world_size: int) -> None:
    """Raise ConfigError where ranks of this machine cannot use what dist.collective asks for.

    What they load is compiled on the way, if it was not before: once, and not by every rank.
    """
    kind = config.dist.collective
    if kind == "nccl" and not has_own_gpu(device, local_world_size):
        raise ConfigError(
            f"dist.collective=nccl needs a GPU for each of the {local_world_size} ranks of this machine, which has "
            f"{torch.cuda.device_count()}: use dist.collective=shm or gloo, or fewer ranks"
        )
    if config.dist.world_size == 1:
        return
    is_one_machine = local_world_size == config.dist.world_size
    speaks_gloo = kind == "gloo" or config.dist.grad_sync == "ddp" or not is_one_machine
    if kind in ("auto", "shm"):
        try:
            SHARED_MEMORY.load()
        except NotCompiled as e:
            if kind == "shm":
                remedy = "install a compiler, or use" if sys.platform == "linux" else "use"
                raise ConfigError(
                    f"dist.collective=shm needs its compiled part: {e}; {remedy} dist.collective=gloo"
                ) from e
            speaks_gloo = True
    if kind == "nccl" or (kind == "auto" and has_own_gpu(device, local_world_size)):
        check_interfaces("NCCL_SOCKET_IFNAME")
    elif speaks_gloo:
        check_interfaces("GLOO_SOCKET_IFNAME")


def cores_per_rank(local_world_size: int) -> int:
    """Return the cores that a rank has to itself, at least 1: a share of this machine's, or what a scheduler gave."""
    if allotted := os.environ.get("DDPPO_CORES_PER_RANK"):  # whether or not it also bound the rank to them
        return min(int(allotted), available_cores())
    return max(1, available_cores() // local_world_size)


def threads_per_rank(config: Config, local_world_size: int, work: int) -> int:
    """Return the CPU threads of one rank, unless set: its cores where a minibatch is work enough for them, else 1.

    1 where results are to be the same bits at any W, for sums depend on the number of threads.

    `work` is how many products of weights a rank's minibatch takes. torch's default of all cores on every rank makes
    ranks fight for them.
    """
    enough = work >= _THREADS_PAY_FROM and config.dist.reduction == "fast"
    return config.dist.threads_per_rank or (cores_per_rank(local_world_size) if enough else 1)


def join(
    config: Config, enter: Callable[[float], dist.Store] = rendezvous_store
) -> tuple[Group, torch.device]:
    """Make this process the rank that its environment says it is. At W = 1, or own pace, it is a group of its own.

    `enter` returns the store in which the ranks meet, within as many seconds as it is given.
    """
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    rank, local_rank = (int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK"))
    device = device_of_rank(config, rank, local_rank)
    torch.set_num_threads(1)  # until the size of the model is known
    if config.dist.world_size == 1:
        return Group(), device
    die_with_parent()
    if local_world_size == config.dist.world_size:  # one machine needs no network
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback_interface())
        os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback_interface())
    elif local_rank == 0 and device.type == "cpu" and (warning := check_host_name()):
        warn(warning)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    world_size = int(os.environ["WORLD_SIZE"])
    store = enter(config.dist.timeout_s)
    if find(config.dist.topology).own_pace:
        note_met(store)  # whom it waits for it waits for with a limit, and notices the end of
        return OwnPace(store, rank, world_size, config.dist.timeout_s), device
    wanted = Wanted(
        config.dist.collective,
        device,
        own_gpu=has_own_gpu(device, local_world_size),
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

    After a fault they may wait for a peer that is gone. After success a thread of Gloo may still free its last tensor,
    ask for the interpreter lock while Python shuts down, and abort the process (seen once in ten runs at W = 4).
    """
    # Where multiprocessing's servers listen, if a task has any: a destructor would remove it. get_temp_dir() would make
    # it first, for a killed process to leave behind.
    if temporary := getattr(current_process(), "_config", {}).get("tempdir"):
        shutil.rmtree(temporary, ignore_errors=True)
    end_processes_left()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
