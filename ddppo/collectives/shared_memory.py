"""Collectives between ranks of one machine, through memory that all of them map. shared_memory.c does the work.

Linux only: ranks wait on futexes, and find each other's memory and processes in /proc. The segment is a file without a
name, so nothing is left of it however the ranks end.
"""

import ctypes
import mmap
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from ddppo.collectives.group import CollectiveTiming, SumCall
from ddppo.collectives.peers import Peers, Watch
from ddppo.device import synchronize
from ddppo.errors import CollectiveError
from ddppo.native.compiling import SHARED_MEMORY
from ddppo.processes.machine import unnamed_file

# Bytes that a rank sends at once; longer tensors take several turns. The segment is 2 W slots: 4.2 MB at W = 8.
_SLOT_BYTES = 256 * 1024
_SUM, _GATHER, _BROADCAST, _BARRIER = range(4)
_ADDABLE = {torch.float32: 0, torch.float64: 1, torch.int32: 2, torch.int64: 3}
_BYTES = 4
_WAITING, _MISMATCH, _LOST = 1, 2, 3
# A waiting rank spins for at most this time, about as long as waking up takes, and then sleeps. If there are more ranks
# than cores it sleeps at once: the awaited rank may need this very core.
_MOST_SPIN_NS = 50_000
# A sleeping rank wakes up after this time to see whether the other ranks' processes live; more with many ranks, because
# every rank looks at every other.
_NAP_NS = 100_000_000
_POINTER = (ctypes.c_void_p,)
_CPU = torch.device("cpu")


class _Context(ctypes.Structure):
    """struct context of shared_memory.c."""

    _fields_ = (
        ("segment", ctypes.c_void_p),
        *(
            (name, ctypes.c_uint64)
            for name in ("rank", "world_size", "slot_bytes", "most_spin_ns", "nap_ns", "spin_ns")
        ),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        *((name, ctypes.c_uint64) for name in ("what", "type", "num_bytes", "offset", "has_arrived")),
        ("operation", ctypes.c_uint64),
    )


class Process(NamedTuple):
    """A process of this machine."""

    pid: int
    started: str  # start time, which distinguishes it from a later process with the same pid


def this_process() -> Process:
    """Return this process; `started` is "" without /proc, where ranks share no memory anyway."""
    try:
        return Process(os.getpid(), _state_and_start(os.getpid())[1])
    except OSError:
        return Process(os.getpid(), "")


def is_alive(process: Process) -> bool:
    """Return whether a process still runs. A zombie, which its parent has not waited for, does not."""
    try:
        state, started = _state_and_start(process.pid)
    except OSError:
        return False
    return state not in "ZX" and started == process.started


def _state_and_start(pid: int) -> tuple[str, str]:
    """Return state and start time, fields 3 and 22 of /proc/<pid>/stat. Raises OSError."""
    # Field 2 is the name in parentheses, which may contain anything, so split behind the last parenthesis.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]


class Segment:
    """Memory that the ranks of a machine share. One of them creates the file, and all map it."""

    def __init__(self, file: int, world_size: int) -> None:
        self.memory = mmap.mmap(file, _segment_bytes(world_size))
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))


def create_segment(world_size: int) -> int:
    """Return an open file of the segment's size. Raises NotCompiled, and OSError if memory does not suffice."""
    return unnamed_file(_segment_bytes(world_size))


def open_segment(pid: int, file: int) -> int:
    """Open the file that another process of this machine created. Raises OSError."""
    return os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)


def _segment_bytes(world_size: int) -> int:
    count = SHARED_MEMORY.load().segment_bytes
    count.argtypes, count.restype = [ctypes.c_uint64] * 2, ctypes.c_uint64
    return count(world_size, _SLOT_BYTES)


class SharedMemoryGroup(Peers):
    """A rank among those that map one segment: all ranks of a run, the ranks of one machine, or a subgroup."""

    name = "shm"
    sums_in_pairs = True

    def __init__(
        self,
        watch: Watch,
        segment: Segment,
        members: Sequence[Process],  # the processes of these ranks
        *,
        place: int,  # of this rank among them
        ranks_per_core: float,
        device: torch.device = _CPU,
    ) -> None:
        super().__init__(watch)
        self._size = len(members)
        self._others = [member for at, member in enumerate(members) if at != place]
        self._device = device
        self._segment = segment
        self._context = _Context(
            segment=segment.address,
            rank=place,
            world_size=self._size,
            slot_bytes=_SLOT_BYTES,
            most_spin_ns=_MOST_SPIN_NS if ranks_per_core <= 1 else 0,
            nap_ns=min(900_000_000, _NAP_NS * max(1, self._size // 8)),
        )
        self._at = ctypes.addressof(self._context)
        self._begin, self._resume = SHARED_MEMORY.load().begin, SHARED_MEMORY.load().resume
        self._begin.argtypes = (*_POINTER, *[ctypes.c_uint64] * 2, *_POINTER, *_POINTER, ctypes.c_uint64)
        self._resume.argtypes = _POINTER
        watch.at_loss.append(self._give_up)  # a rank that lost its peers ends the waits of those that live

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        start = self._start()
        local = tensor if tensor.is_cpu and tensor.is_contiguous() else tensor.cpu().contiguous()
        address = local.data_ptr()
        status = self._begin(self._at, _SUM, _ADDABLE[local.dtype], address, address, local.nbytes)
        if status:
            self._wait(status, "sum", start)
        if local is not tensor:
            tensor.copy_(local)
        self.record(CollectiveTiming(start, time.perf_counter(), num_bytes=local.nbytes))
        return tensor

    def sum_call(self, dtype: torch.dtype) -> SumCall:
        begin = ctypes.cast(self._begin, ctypes.c_void_p).value
        assert begin is not None

        def wait(status: int) -> None:
            self._wait(status, "sum", time.perf_counter())

        return SumCall(begin, self._at, _SUM, _ADDABLE[dtype], wait)

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        gathered = self._gather(values, receives=True, all_receive=True)
        assert gathered is not None
        return gathered

    def gather_at_root(self, values: torch.Tensor) -> torch.Tensor | None:
        return self._gather(values, receives=self._context.rank == 0)

    def _gather(
        self, values: torch.Tensor, *, receives: bool, all_receive: bool = False
    ) -> torch.Tensor | None:
        start = self._start()
        local = values.contiguous()
        gathered = torch.empty((self._size, *local.shape), dtype=local.dtype) if receives else None
        out = None if gathered is None else gathered.data_ptr()
        status = self._begin(self._at, _GATHER, _BYTES, local.data_ptr(), out, local.nbytes)
        if status:
            self._wait(status, "gather", start)
        # The root of gather_at_root sends nothing.
        keeps = receives and not all_receive
        self.record(CollectiveTiming(start, time.perf_counter(), num_bytes=0 if keeps else local.nbytes))
        return gathered

    def broadcast_(self, tensor: torch.Tensor) -> torch.Tensor:
        start = self._start()
        local = tensor if tensor.is_cpu and tensor.is_contiguous() else tensor.cpu().contiguous()
        address = local.data_ptr()
        status = self._begin(self._at, _BROADCAST, _BYTES, address, address, local.nbytes)
        if status:
            self._wait(status, "broadcast", start)
        if local is not tensor:
            tensor.copy_(local)
        num_bytes = 0 if self._context.rank else local.nbytes
        self.record(CollectiveTiming(start, time.perf_counter(), num_bytes=num_bytes))
        return tensor

    def barrier(self) -> None:
        start = self._start()
        status = self._begin(self._at, _BARRIER, _BYTES, None, None, 0)
        if status:
            self._wait(status, "barrier", start)
        self.record(CollectiveTiming(start, time.perf_counter(), is_barrier=True))

    def _start(self) -> float:
        synchronize(self._device)  # else time of queued kernels would count as communication
        return time.perf_counter()

    def _give_up(self) -> None:
        SHARED_MEMORY.load().give_up(ctypes.c_void_p(self._at))

    def _wait(self, status: int, what: str, start: float) -> None:
        """Continue a collective that has slept, and look between sleeps whether the other ranks live."""
        while status == _WAITING:
            # A rank may end in good order after its last collective. So look at the processes first, then at the
            # collective: if it is still incomplete, the ended rank has not taken part, and is lost.
            somebody_left = not all(map(is_alive, self._others))
            waited_s = time.perf_counter() - start
            status = self._resume(self._at)
            if status == _WAITING and (somebody_left or waited_s > self.watch.timeout_s):
                status = _LOST
        if status == _LOST:
            raise CollectiveError(self.lost(what, time.perf_counter() - start))
        assert status != _MISMATCH, f"ranks called different collectives; rank {self.rank} called a {what}"
