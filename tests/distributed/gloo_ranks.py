"""Real ranks for tests: processes of this machine that speak Gloo over loopback."""

import os
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ddppo.collectives.peers import Watch
from ddppo.collectives.torch_distributed import ProcessGroup
from ddppo.distributed.launch import loopback_interface

TIMEOUT_S = 300.0


def run_ranks(
    function: Callable[[ProcessGroup], Any], world_sizes: Sequence[int], folder: Path
) -> dict[int, list[Any]]:
    """Call `function(group)` in every rank of a process group of each size; return what each of them returned.

    Groups follow one another in the same processes, for a process takes longer to start than most tests to run.
    A rank that raises ends the others, and its exception is raised here with its traceback.
    """
    torch.multiprocessing.spawn(_ranks, (function, world_sizes, folder), nprocs=max(world_sizes))
    return {
        size: [torch.load(folder / f"{rank}_of_{size}.pt", weights_only=True) for rank in range(size)]
        for size in world_sizes
    }


def _ranks(
    rank: int, function: Callable[[ProcessGroup], Any], world_sizes: Sequence[int], folder: Path
) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")  # as in the tests' own process
    os.environ["GLOO_SOCKET_IFNAME"] = loopback_interface()
    for world_size in world_sizes:
        if rank >= world_size:
            continue
        os.environ["LOCAL_WORLD_SIZE"] = str(world_size)
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(str(folder / f"store_{world_size}"), world_size),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=TIMEOUT_S),
        )
        watch = Watch(rank, world_size, dist.HashStore(), TIMEOUT_S)
        group = ProcessGroup(watch, torch.device("cpu"), clocks_shared=True)
        torch.save(function(group), folder / f"{rank}_of_{world_size}.pt")
        group.barrier()
        group.close()
