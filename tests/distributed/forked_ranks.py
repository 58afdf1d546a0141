"""Real ranks for tests, in a moment: forks of the test's process that meet through a store of its own."""

import os
import signal
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import get_context
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ddppo.collectives.group import Group
from ddppo.collectives.meeting import Wanted, meet
from ddppo.distributed.network import loopback_interface
from ddppo.native.compiling import SHARED_MEMORY
from tests.support import NEVER_S, PATIENCE_S, wait_until


def need_shared_memory() -> None:
    """Skip a test whose ranks meet in shared memory where its part in C cannot be had."""
    if why_not := SHARED_MEMORY.why_not():
        pytest.skip(f"dist.collective=shm does not work here: {why_not}")


@contextmanager
def forked_ranks(
    world_size: int,
    function: Callable[[Group], Any],
    *,
    collective: str = "shm",
    timeout_s: float = NEVER_S,
    machines: Mapping[int, str] | None = None,
    process_group: bool = False,
    subgroups: bool = False,
):
    """Yield processes that call `function(group)`, and a function that waits for what each of them returned.

    What a rank raises is what it returned. `machines` names the machine that a rank takes itself to be on.
    """
    if collective == "shm":
        need_shared_memory()
    context = get_context("fork")
    port = context.Value("i", 0)
    ends = [context.Pipe(duplex=False) for _ in range(world_size)]

    def keep_store() -> None:  # in a process of its own, for threads of the test's would disturb its forks
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port.value = store.port
        signal.pause()

    def live(rank: int) -> None:
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = loopback_interface()
        if machines:
            os.environ["DDPPO_MACHINE"] = machines[rank]
        try:
            wait_until(lambda: port.value > 0, "store")
            store = dist.TCPStore(
                "127.0.0.1", port.value, is_master=False, timeout=timedelta(seconds=PATIENCE_S)
            )
            wanted = Wanted(collective, torch.device("cpu"), False, timeout_s, process_group, subgroups)
            result = function(meet(store, rank, world_size, wanted))
        except BaseException as e:
            traceback.print_exc()
            result = e
        ends[rank][1].send(result)
        os._exit(0)

    keeper = context.Process(target=keep_store)
    processes = [context.Process(target=live, args=(rank,)) for rank in range(world_size)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, where threads of torch's exist
        for process in (keeper, *processes):
            process.start()

    def results(*ranks: int) -> list[Any]:
        asked = ranks or range(world_size)
        wait_until(lambda: all(ends[rank][0].poll() for rank in asked), f"result of {asked}")
        return [ends[rank][0].recv() for rank in asked]

    try:
        yield processes, results
    finally:
        for process in (*processes, keeper):
            process.kill()
            process.join()
