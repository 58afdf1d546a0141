"""The time of a sum over ranks on this machine: `python -m ddppo.collectives [world sizes] [bytes]`.

Prints microseconds per sum of float32 over W ranks that do nothing else, the median of 7 rounds, through shared memory
and through Gloo. Example: `python -m ddppo.collectives 2,4,8 4,36620`.
"""

import importlib
import os
import socket
import sys
import time
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median

import torch
import torch.distributed as dist

from ddppo.collectives.meeting import Wanted, meet
from ddppo.collectives.peers import store_of_this_machine
from ddppo.native.compiling import SHARED_MEMORY

_ROUNDS, _ROUND_S = 7, 0.05


def main() -> None:
    """Print a table: a row for each W and message size, a column for each collective."""
    world_sizes = [int(w) for w in (sys.argv[1] if len(sys.argv) > 1 else "2,4,8").split(",")]
    sizes = [int(n) for n in (sys.argv[2] if len(sys.argv) > 2 else "4,36620,4000000").split(",")]
    kinds = ["shm", "gloo"]
    if why_not := SHARED_MEMORY.why_not():
        kinds = ["gloo"]
        print(f"no shm: {why_not}", file=sys.stderr)
    print(f"{'W':>3} {'bytes':>10}", *(f"{kind + ' us':>10}" for kind in kinds))
    for world_size in world_sizes:
        for num_bytes in sizes:
            times_us = [1e6 * latency(world_size, num_bytes, kind) for kind in kinds]
            print(f"{world_size:>3} {num_bytes:>10,}", *(f"{us:>10.1f}" for us in times_us), flush=True)


def latency(world_size: int, num_bytes: float, collective: str) -> float:
    """Return the seconds of one sum of `num_bytes` of float32, the median of several rounds."""
    # A process finds run_rank by the name of its module. `python -m` calls this module __main__, so import it by name.
    run_rank = importlib.import_module("ddppo.collectives.__main__").run_rank
    context = get_context("forkserver")
    context.set_forkserver_preload(["ddppo.collectives.meeting"])  # else each rank imports torch anew
    receive, send = context.Pipe(duplex=False)
    store = store_of_this_machine("127.0.0.1")
    ranks = [
        context.Process(
            target=run_rank, args=(rank, world_size, int(num_bytes), collective, store.port, send)
        )
        for rank in range(world_size)
    ]
    try:
        for process in ranks:
            process.start()
        send.close()
        seconds = receive.recv()
        # Let all ranks leave the last barrier: if one is killed there, the others print an error.
        for process in ranks:
            process.join(timeout=10)
        return seconds
    finally:
        for process in ranks:
            process.kill()
            process.join()


def run_rank(
    rank: int, world_size: int, num_bytes: int, collective: str, port: int, send: Connection
) -> None:
    """Run one rank; rank 0 sends the result to the parent."""
    torch.set_num_threads(1)
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")  # macOS: lo0
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
    group = meet(store, rank, world_size, Wanted(collective, torch.device("cpu"), False, 60.0))
    gradient = torch.zeros(num_bytes // 4)

    def seconds_per_sum(count: int) -> float:
        group.barrier()
        start = time.perf_counter()
        for _ in range(count):
            group.sum_(gradient)
        group.records.clear()
        return (time.perf_counter() - start) / count

    # 20 sums say how many fill a round. All ranks take rank 0's answer, so that they make the same number of sums.
    estimate = group.broadcast_(torch.tensor([seconds_per_sum(20)], dtype=torch.float64)).item()
    count = max(5, int(_ROUND_S / estimate))
    result = median(seconds_per_sum(count) for _ in range(_ROUNDS))
    if rank == 0:
        send.send(result)
    group.barrier()


if __name__ == "__main__":
    main()
