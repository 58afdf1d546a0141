"""How ranks meet: each describes itself in the launcher's store, and from all descriptions follows the group.

`meet` is called once by every rank. All ranks read the same descriptions, so all choose the same collective without
further messages. dist.collective=auto takes, in this order: the accelerators' own backend (NCCL, XCCL) if every rank
has one to itself; shared memory within machines, with Gloo between one leader per machine; Gloo between all ranks.
"""

import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ddppo.collectives.group import Board, Group, MemoryBoard, StoreBoard, board_bytes
from ddppo.collectives.peers import Peers, Watch, in_words, shared_by_all
from ddppo.collectives.shared_memory import (
    Process,
    Segment,
    SharedMemoryGroup,
    create_segment,
    open_segment,
    this_process,
)
from ddppo.collectives.torch_distributed import Hierarchy, ProcessGroup
from ddppo.device import BACKENDS, backend_of, bound
from ddppo.errors import TrainingError
from ddppo.native import NotCompiled
from ddppo.processes.machine import allowed_cores, at_most, cpu_quota, unnamed_file
from ddppo.processes.signals import interrupts_kill

_SLICE_S = 0.5  # longest single wait inside torch, where Python's signal handlers do not run


@dataclass(frozen=True, slots=True)
class Wanted:
    """The collectives that a run asks for."""

    collective: str  # dist.collective: auto, shm, gloo or nccl
    device: torch.device
    own_device: (
        bool  # whether every rank of this machine has an accelerator to itself, with a backend of its own
    )
    timeout_s: float
    process_group: bool = False  # also make a process group of torch.distributed, for dist.grad_sync=ddp
    subgroups: bool = False  # the topology will call Group.subgroup


def machine_number() -> int:
    """Return a 48-bit number that is equal for processes of one machine; host names are not, in containers.

    DDPPO_MACHINE replaces it, to simulate several machines on one.
    """
    try:
        identity = os.environ.get("DDPPO_MACHINE") or Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        identity = socket.gethostname()
    return int(hashlib.blake2b(identity.encode(), digest_size=6).hexdigest(), 16)


def meet(store: dist.Store, rank: int, world_size: int, wanted: Wanted) -> Group:
    """Return the group of all ranks. Every rank calls it. Raises DistError if a rank does not come in time."""
    store.set_timeout(timedelta(seconds=wanted.timeout_s))
    # 1. Every rank writes its description to the store and reads all others.
    descriptions = _exchange(store, "hello", rank, world_size, _description(wanted))
    # 2. From these all ranks choose the same collective.
    meeting = _Meeting(store, descriptions, wanted)
    group = meeting.group_of_all(Watch(rank, world_size, store, wanted.timeout_s))
    # 3. The group of all ranks makes further groups and boards in the same way.
    group.meet, group.make_board = meeting.subgroup, meeting.board
    return group


class _Meeting:
    """Makes groups and boards from the descriptions of all ranks."""

    def __init__(self, store: dist.Store, descriptions: list[dict[str, Any]], wanted: Wanted) -> None:
        self._store = store
        self._descriptions = descriptions  # one of each rank, see `_description`
        self._wanted = wanted
        self._timeout = timedelta(seconds=wanted.timeout_s)
        self._has_memory = False  # whether ranks of one machine share memory
        self._has_process_group = False  # whether torch.distributed has a process group over all ranks

    def group_of_all(self, watch: Watch) -> Peers:
        """Return the group of all ranks, by dist.collective."""
        kind, wanted = self._wanted.collective, self._wanted
        if kind == "auto" and all(each["own_device"] for each in self._descriptions):
            kind = backend_of(wanted.device)
        # Shared memory, alone or below Gloo.
        if kind in ("auto", "shm"):
            local = self._shared_memory_group(self._store, watch)
            if isinstance(local, Peers):
                self._has_memory = True
                return self._over_machines(watch, local)
            if kind == "shm":
                raise TrainingError(
                    f"dist.collective=shm does not work here: {local}; use dist.collective=gloo"
                )
            if watch.rank == 0:
                remedy = "" if sys.platform == "linux" else "; dist.collective=gloo avoids this warning"
                print(
                    "warning: dist.collective=auto uses gloo, which needs .5 ms and more for a sum; shared memory, "
                    f"which needs .01 ms, does not work here: {local}{remedy}",
                    file=sys.stderr,
                    flush=True,
                )
        # Otherwise torch.distributed between all ranks.
        backend = kind if kind in BACKENDS.values() else "gloo"
        self._init_process_group(backend, self._store, watch.rank, watch.world_size)
        self._has_process_group = True
        return ProcessGroup(watch, wanted.device, clocks_shared=self._is_one_machine(watch.members))

    def subgroup(self, of_all: Watch, ranks: tuple[int, ...], number: int) -> Group | None:
        """Return the group of some ranks, with the collective of the group of all; None on other ranks.

        number: counts the subgroups, for keys of the store. Ranks outside call it too, because torch makes a process
        group only if all ranks take part.
        """
        # First the calls to torch, which all ranks make: a process group of the ranks, or of their leaders.
        leaders = [ranks[places[0]] for places in self._by_memory(ranks)]
        process_group, across = None, None
        if not self._has_memory or self._wanted.process_group:
            process_group = dist.new_group(list(ranks), timeout=self._timeout)
        if self._has_memory and len(leaders) > 1:
            if not self._has_process_group:
                raise TrainingError(
                    f"{in_words(ranks)} are on {len(leaders)} machines: a topology that makes subgroups declares it "
                    "by subgroups=True"
                )
            across = dist.new_group(leaders, timeout=self._timeout)
        if of_all.rank not in ranks:
            return None
        # Then the group itself, on its own ranks.
        watch = of_all.among(ranks)
        if not self._has_memory:
            one = self._is_one_machine(ranks)
            group: Peers | str = ProcessGroup(
                watch, self._wanted.device, clocks_shared=one, members=process_group
            )
        else:
            store = dist.PrefixStore(f"subgroup{number}", self._store)
            group = self._shared_memory_group(store, watch)
        if isinstance(group, str):
            raise TrainingError(f"{in_words(ranks)} cannot share memory: {group}; use dist.collective=gloo")
        if len(leaders) > 1 and self._has_memory:
            group = self._hierarchy(watch, group, across)
        group.process_group = process_group
        return group

    def board(self, watch: Watch, number: int) -> Board:
        """Return the `number`-th board of all ranks: in shared memory on one machine, otherwise in the store."""
        store, size = dist.PrefixStore(f"board{number}", self._store), watch.world_size
        if len(self._by_memory(watch.members)) > 1:
            return StoreBoard(store)
        # Rank 0 creates an unnamed file, all ranks map it, and if one rank cannot, all use the store.
        board, file = None, None
        with suppress(OSError):
            if watch.rank == 0:
                file = unnamed_file(board_bytes(size))
        offer = _exchange(store, "offer", watch.rank, size, {"pid": os.getpid(), "file": file})[0]
        with suppress(OSError):
            if offer["file"] is not None:
                own = open_segment(**offer)
                board = MemoryBoard(own, size, watch.rank)
                os.close(own)
        results = _exchange(store, "mapped", watch.rank, size, {"is_mapped": board is not None})
        if file is not None:
            os.close(file)  # all ranks have mapped it
        if board is not None and all(each["is_mapped"] for each in results):
            return board
        return StoreBoard(store)

    def _is_one_machine(self, ranks: Sequence[int]) -> bool:
        return len({self._descriptions[rank]["machine"] for rank in ranks}) == 1

    def _by_memory(self, ranks: Sequence[int]) -> list[list[int]]:
        """Return a list for each memory, that is, each machine and container: the places in `ranks` that share it."""
        found: dict[str, list[int]] = {}
        for place, rank in enumerate(ranks):
            found.setdefault(self._descriptions[rank]["memory"], []).append(place)
        return list(found.values())

    def _shared_memory_group(self, store: dist.Store, watch: Watch) -> Peers | str:
        """Return the shared-memory group of the watch's members on this machine, or the reason that there is none."""
        members, descriptions = watch.members, self._descriptions
        place = members.index(watch.rank)
        here = next(places for places in self._by_memory(members) if place in places)
        # The first rank of the machine creates the segment, and the others open it through /proc/<pid>/fd.
        file = None
        offer: dict[str, Any] = {}
        if place == here[0]:
            try:
                file = create_segment(len(here))
                offer = {"pid": os.getpid(), "file": file, "inode": os.fstat(file).st_ino}
            except (OSError, NotCompiled) as e:
                offer = {"error": _reason(e)}
        offer = _exchange(store, "segment", place, len(members), offer)[here[0]]
        segment, error = _mapped(offer, len(here))
        results = _exchange(store, "mapped", place, len(members), {"error": error})
        errors = [each["error"] for each in results]
        if file is not None:
            os.close(file)  # all ranks have mapped it
        # Shared memory is used by all ranks or by none.
        if any(errors):
            return next(f"{error} (rank {members[at]})" for at, error in enumerate(errors) if error)
        assert segment is not None
        return SharedMemoryGroup(
            watch,
            segment,
            [Process(*descriptions[members[at]]["process"]) for at in here],
            place=here.index(place),
            ranks_per_core=self._ranks_per_core(descriptions[watch.rank]["memory"]),
            device=self._wanted.device,
        )

    def _ranks_per_core(self, memory: str) -> float:
        here = [each for each in self._descriptions if each["memory"] == memory]
        allowed = {core for each in here for core in each["cores"]}
        return len(here) / at_most(len(allowed), max(each["quota"] for each in here))

    def _over_machines(self, watch: Watch, local: Peers) -> Peers:
        """Return the group of all ranks over all machines; `local`, the group of this machine, if there is only one.

        The leaders, one per machine, need a process group for it. They make it alone, unless the run needs a process
        group over all ranks anyway: then torch lets only all ranks together make another one.
        """
        machines, wanted = self._by_memory(watch.members), self._wanted
        leaders, across = [ranks[0] for ranks in machines], None
        if wanted.process_group or (wanted.subgroups and len(machines) > 1):
            store = dist.PrefixStore("all", self._store)
            self._init_process_group("gloo", store, watch.rank, watch.world_size)
            self._has_process_group = True
        if len(machines) == 1:
            return local
        if self._has_process_group:
            across = dist.new_group(leaders, timeout=self._timeout)
        elif watch.rank in leaders:
            store = dist.PrefixStore("leaders", self._store)
            self._init_process_group("gloo", store, leaders.index(watch.rank), len(leaders))
        return self._hierarchy(watch, local, across)

    def _hierarchy(self, watch: Watch, local: Peers, leaders: dist.ProcessGroup | None) -> Peers:
        machines, across = self._by_memory(watch.members), None
        if watch.members.index(watch.rank) in [places[0] for places in machines]:
            across = ProcessGroup(watch, self._wanted.device, clocks_shared=False, members=leaders)
        return Hierarchy(watch, local, across, machines)

    def _init_process_group(self, backend: str, store: dist.Store, rank: int, world_size: int) -> None:
        with interrupts_kill():
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=world_size, timeout=self._timeout,
                **bound(self._wanted.device, backend),
            )  # fmt: skip


def _description(wanted: Wanted) -> dict[str, Any]:
    """Return the description of this rank that all others read."""
    process = this_process()
    try:
        # Containers of one machine do not see each other's processes, and so cannot share memory through /proc.
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return {
        "machine": machine_number(),
        "memory": f"{machine_number()} {namespace}",
        "process": [process.pid, process.started],
        "cores": allowed_cores(),
        "quota": min(cpu_quota(), sys.maxsize),  # CPUs; JSON has no infinity
        "own_device": wanted.own_device,
    }


def _mapped(offer: dict[str, Any], num_ranks: int) -> tuple[Segment | None, str]:
    """Return the segment that a rank offers, mapped, and ""; or None and the reason."""
    if "error" in offer:
        return None, offer["error"]
    try:
        file = open_segment(offer["pid"], offer["file"])
        try:
            if os.fstat(file).st_ino != offer["inode"]:
                return None, f"process {offer['pid']} is a different one here"
            return Segment(file, num_ranks), ""
        finally:
            os.close(file)
    except (OSError, NotCompiled) as e:
        return None, _reason(e)


def _exchange(
    store: dist.Store, topic: str, rank: int, world_size: int, word: dict[str, Any]
) -> list[dict[str, Any]]:
    """Write this rank's word to the store and return the words of all ranks; a gather before there are collectives.

    Raises DistError if a rank's word does not come in time.
    """
    keys = [f"ddppo/{topic}/{each}" for each in range(world_size)]
    store.set(keys[rank], json.dumps(word))
    is_file = isinstance(shared_by_all(store), dist.FileStore)  # it answers one key at a time
    if not is_file:
        _await(store, keys)
    values = map(store.get, keys) if is_file else store.multi_get(keys)
    return [json.loads(value) for value in values]


def _await(store: dist.Store, keys: list[str]) -> None:
    """Block until the keys of all ranks are there. Raises DistStoreError after the store's timeout."""
    end = time.monotonic() + store.timeout.total_seconds()  # type: ignore[attr-defined]  # torch's stub lacks it
    while (left_s := end - time.monotonic()) > 0:
        with suppress(dist.DistStoreError):
            store.wait(keys, timedelta(seconds=min(max(left_s, 0.001), _SLICE_S)))  # 0 would mean no limit
            return
    missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
    if missing:
        raise dist.DistStoreError(f"no word from {in_words(missing)}")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
