"""Real ranks for tests: processes of this machine that speak Gloo over loopback.

`python -m tests.distributed.gloo_ranks <rank> <module> <function> <folder> <world size> ...` is one of them.
"""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ddppo.collectives.peers import Watch
from ddppo.collectives.torch_distributed import ProcessGroup
from ddppo.distributed.join import loopback_interface
from tests.support import CHECKOUT, PATIENCE_S, warm_server

TIMEOUT_S = PATIENCE_S


def run_ranks(
    function: Callable[[ProcessGroup], Any], world_sizes: Sequence[int], folder: Path
) -> dict[int, list[Any]]:
    """Call `function(group)` in every rank of a process group of each size; return what each of them returned.

    `function` is one of a module beside this. Groups follow one another in the same processes. A rank that raises ends
    the others, and what it said is raised here.
    """
    sizes = [str(size) for size in world_sizes]
    ranks = []
    with (folder / "said").open("wb") as said:
        for rank in range(max(world_sizes)):
            arguments = [str(rank), function.__module__, function.__name__, str(folder), *sizes]
            ranks.append(
                warm_server().start(
                    "tests.distributed.gloo_ranks", arguments, os.environ, title=f"rank {rank} of a test",
                    cwd=str(CHECKOUT), stdio=[0, said.fileno(), said.fileno()],
                )
            )  # fmt: skip
    try:
        codes: list[int | None] = [None]
        while None in codes and not any(codes):
            ranks[codes.index(None)].wait(0.1)
            codes = [rank.poll() for rank in ranks]
        assert not any(codes), (folder / "said").read_text()
    finally:
        for rank in ranks:
            rank.kill()
    return {
        size: [torch.load(folder / f"{rank}_of_{size}.pt", weights_only=True) for rank in range(size)]
        for size in world_sizes
    }


def be_rank(
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


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))  # as pytest does
    of_test = getattr(import_module(sys.argv[2]), sys.argv[3])
    be_rank(int(sys.argv[1]), of_test, [int(size) for size in sys.argv[5:]], Path(sys.argv[4]))
