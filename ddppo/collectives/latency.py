"""How long a collective takes on this machine: `python -m ddppo.collectives [world sizes] [bytes]`.

Microseconds per sum over W ranks, median of rounds, for shared memory and for Gloo in one run; e.g. `2,4,8 4,36620`.
"""

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
from ddppo.native.compiling import SHARED_MEMORY

_ROUNDS, _ROUND_S = 7, 0.05


def latency(world_size: int, num_bytes: float, collective: str) -> float:
    """Return the seconds of one sum of `num_bytes` of float32 over ranks that do nothing else: a median of rounds."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["ddppo.collectives.latency"])  # ranks need not import torch again
    receive, send = context.Pipe(duplex=False)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [
        context.Process(target=_rank, args=(rank, world_size, int(num_bytes), collective, store.port, send))
        for rank in range(world_size)
    ]
    try:
        for process in ranks:
            process.start()
        send.close()
        found = receive.recv()
        for process in ranks:  # to the end: a rank that is killed in the last barrier has the others complain
            process.join(timeout=10)
        return found
    finally:
        for process in ranks:
            process.kill()
            process.join()


def _rank(rank: int, world_size: int, num_bytes: int, collective: str, port: int, send: Connection) -> None:
    torch.set_num_threads(1)
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")  # macOS: lo0
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
    group = meet(store, rank, world_size, Wanted(collective, torch.device("cpu"), False, 60.0))
    gradient = torch.zeros(num_bytes // 4)

    def sums(count: int) -> float:
        group.barrier()
        start = time.perf_counter()
        for _ in range(count):
            group.sum_(gradient)
        group.records.clear()
        return (time.perf_counter() - start) / count

    each = group.broadcast_(torch.tensor([sums(20)], dtype=torch.float64)).item()
    count = max(5, int(_ROUND_S / each))
    result = median(sums(count) for _ in range(_ROUNDS))
    if rank == 0:
        send.send(result)
    group.barrier()


def main() -> None:
    """Print a table."""
    world_sizes = [int(w) for w in (sys.argv[1] if len(sys.argv) > 1 else "2,4,8").split(",")]
    sizes = [int(n) for n in (sys.argv[2] if len(sys.argv) > 2 else "4,36620,4000000").split(",")]
    kinds = ["shm", "gloo"]
    if why_not := SHARED_MEMORY.why_not():
        kinds = ["gloo"]
        print(f"no shm: {why_not}", file=sys.stderr)
    print(f"{'W':>3} {'bytes':>10}", *(f"{kind + ' us':>10}" for kind in kinds))
    for world_size in world_sizes:
        for num_bytes in sizes:
            took = [1e6 * latency(world_size, num_bytes, kind) for kind in kinds]
            print(f"{world_size:>3} {num_bytes:>10,}", *(f"{each:>10.1f}" for each in took), flush=True)
