"""How ranks find one another: who is on which machine, by what they will speak, and the group that follows.

Ranks tell each other through the store of their launcher, so all decide the same.
"""

import hashlib
import json
import os
import socket
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ddppo.collectives.compiled import NotCompiled
from ddppo.collectives.contract import Group
from ddppo.collectives.hierarchy import Hierarchy
from ddppo.collectives.peers import Watch, shared_by_all
from ddppo.collectives.shared_memory import (
    Process,
    Segment,
    SharedMemoryGroup,
    create_segment,
    open_segment,
    this_process,
)
from ddppo.collectives.torch_distributed import ProcessGroup
from ddppo.cores import allowed_cores, at_most, cpu_quota
from ddppo.errors import TrainingError


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a run asks of its collectives. `own_gpu`: whether every rank of this machine has a GPU of its own.

    process_group: whether something needs one of torch.distributed over all ranks, whatever else there is.
    """

    collective: str
    device: torch.device
    own_gpu: bool
    timeout_s: float
    process_group: bool = False


def machine_number() -> int:
    """Return a number of 48 bits that two processes share if they run on one machine, whatever their node's name.

    DDPPO_MACHINE names the machine instead, to try on one what several would do.
    """
    try:
        identity = os.environ.get("DDPPO_MACHINE") or Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        identity = socket.gethostname()
    return int(hashlib.blake2b(identity.encode(), digest_size=6).hexdigest(), 16)


def meet(store: dist.Store, rank: int, world_size: int, wanted: Wanted) -> Group:
    """Return the group of all ranks; each of them calls this. Raises DistError where one does not come in time."""
    store.set_timeout(timedelta(seconds=wanted.timeout_s))
    watch = Watch(rank, world_size, store, wanted.timeout_s)
    words = _say(store, "hello", rank, world_size, _hello(wanted))
    hosts = {word["machine"] for word in words}
    kind = wanted.collective
    if kind == "auto" and all(word["own_gpu"] for word in words):
        kind = "nccl"
    if kind in ("auto", "shm"):
        found = _share_memory(store, watch, words, wanted)
        if isinstance(found, Group):
            return found
        if kind == "shm":
            raise TrainingError(f"dist.collective=shm cannot be: {found}; use dist.collective=gloo")
        if rank == 0:
            print(
                f"warning: dist.collective=auto takes gloo, which is slower: {found}",
                file=sys.stderr,
                flush=True,
            )
    _init_process_group("nccl" if kind == "nccl" else "gloo", store, rank, world_size, wanted.timeout_s)
    return ProcessGroup(watch, wanted.device, clocks_shared=len(hosts) == 1)


def _hello(wanted: Wanted) -> dict[str, Any]:
    process = this_process()
    try:
        namespace = os.readlink(
            "/proc/self/ns/pid"
        )  # containers of one machine do not see each other's processes
    except OSError:
        namespace = ""
    return {
        "machine": machine_number(),
        "memory": f"{machine_number()} {namespace}",
        "process": [process.pid, process.started],
        "cores": allowed_cores(),
        "quota": min(cpu_quota(), sys.maxsize),  # JSON has no infinity
        "own_gpu": wanted.own_gpu,
    }


def _share_memory(
    store: dist.Store, watch: Watch, words: list[dict[str, Any]], wanted: Wanted
) -> Group | str:
    """Return the group through shared memory inside each machine, or why there is none."""
    rank, world_size = watch.rank, watch.world_size
    memories: dict[str, list[int]] = {}
    for each, word in enumerate(words):
        memories.setdefault(word["memory"], []).append(each)
    here = memories[words[rank]["memory"]]
    leads, file = rank == here[0], None
    offer: dict[str, Any] = {}
    if leads:
        try:
            file = create_segment(len(here))
            offer = {"pid": os.getpid(), "file": file, "inode": os.fstat(file).st_ino}
        except (OSError, NotCompiled) as e:
            offer = {"error": _reason(e)}
    offer = _say(store, "segment", rank, world_size, offer)[here[0]]
    segment, error = _mapped(offer, len(here))
    errors = [word["error"] for word in _say(store, "mapped", rank, world_size, {"error": error})]
    if file is not None:
        os.close(file)  # all have mapped it
    if any(errors):
        return next(f"{error} (rank {each})" for each, error in enumerate(errors) if error)
    assert segment is not None
    members = [Process(*words[each]["process"]) for each in here]
    allowed = {core for each in here for core in words[each]["cores"]}
    cores = at_most(len(allowed), max(words[each]["quota"] for each in here))
    local = SharedMemoryGroup(
        watch,
        segment,
        members,
        place=here.index(rank),
        ranks_per_core=len(here) / cores,
        device=wanted.device,
    )
    if wanted.process_group:
        _init_process_group("gloo", dist.PrefixStore("all", store), rank, world_size, wanted.timeout_s)
    if len(memories) == 1:
        return local
    return _over_machines(store, watch, local, list(memories.values()), wanted)


def _mapped(offer: dict[str, Any], num_ranks: int) -> tuple[Segment | None, str]:
    if "error" in offer:
        return None, offer["error"]
    try:
        file = open_segment(offer["pid"], offer["file"])
        try:
            if os.fstat(file).st_ino != offer["inode"]:
                return None, f"process {offer['pid']} is another one here"
            return Segment(file, num_ranks), ""
        finally:
            os.close(file)
    except (OSError, NotCompiled) as e:
        return None, _reason(e)


def _over_machines(
    store: dist.Store, watch: Watch, local: Group, machines: list[list[int]], wanted: Wanted
) -> Group:
    """Return the group over machines, for which leaders alone make a process group, or one within that of all."""
    leaders = [ranks[0] for ranks in machines]
    across, members = None, None
    if wanted.process_group:
        members = dist.new_group(leaders, timeout=timedelta(seconds=wanted.timeout_s))
    if watch.rank in leaders:
        if members is None:
            place, inner = leaders.index(watch.rank), dist.PrefixStore("leaders", store)
            _init_process_group("gloo", inner, place, len(leaders), wanted.timeout_s)
        across = ProcessGroup(watch, wanted.device, clocks_shared=False, members=members)
    return Hierarchy(watch, local, across, machines)


def _init_process_group(
    backend: str, store: dist.Store, rank: int, world_size: int, timeout_s: float
) -> None:
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout_s)
    )


def _say(
    store: dist.Store, topic: str, rank: int, world_size: int, word: dict[str, Any]
) -> list[dict[str, Any]]:
    """Tell all ranks a word and return those of all of them. Raises DistError where one does not come in time."""
    keys = [f"ddppo/{topic}/{each}" for each in range(world_size)]
    store.set(keys[rank], json.dumps(word))
    is_file = isinstance(shared_by_all(store), dist.FileStore)  # which can answer one question at a time
    values = map(store.get, keys) if is_file else store.multi_get(keys)
    return [json.loads(value) for value in values]


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
