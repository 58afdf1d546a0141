"""Group, the contract of all collectives: sum, gather, broadcast and barrier over ranks.

`Group` itself is the group of one rank, W = 1: every operation returns at once. The groups of several ranks derive from
it: `shared_memory.SharedMemoryGroup` on one machine, `torch_distributed.ProcessGroup` and `torch_distributed.Hierarchy`
anywhere; `meeting.meet` chooses one. They share `peers.Peers`, which finds lost ranks.

Below the contract: `Board`, on which ranks post numbers without a collective; `OrderedSum`, a sum with bits that do not
depend on W; and `gather_bytes`, for messages of unequal length.
"""

import mmap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    import torch.distributed as dist


class CollectiveTiming(NamedTuple):
    """When one collective ran on this rank, and what it sent. Times in seconds of this machine's monotonic clock."""

    start: float
    end: float
    is_barrier: bool = False
    hidden: float = 0.0  # communication that ran while this rank computed (dist.grad_sync=ddp)
    num_bytes: int | None = (
        None  # sent by this rank; None if the collective sends nothing, or is not to be counted
    )


class Wait(NamedTuple):
    """Waiting outside collectives. Times as in CollectiveTiming."""

    role: str  # the role of the ranks or processes that this rank waited for
    start: float
    end: float


class SumCall(NamedTuple):
    """A sum over ranks that C++ can call without Python, in the middle of an epoch.

    C++ calls `int begin(context, what, type, address, address, num_bytes)`, in place. 0 means that the sum is done. Any
    other result goes to `wait`, which returns when the sum is done, or raises CollectiveError.
    """

    begin: int  # address of the C function
    context: int  # its first three arguments
    what: int
    type: int
    wait: Callable[[int], None]


class Group:
    """A group of ranks. This class is the group of one rank, in which nothing travels.

    All ranks of a group call its collectives in the same order. A collective of a larger group blocks until every rank
    of the group has called it; it raises CollectiveError after dist.timeout_s, or once a rank is known to be lost.
    """

    name: str = "none"  # of the collective: none, shm, gloo, nccl, shm+gloo, or sockets
    rank: int = 0  # place of this rank in the group; rank 0 is the root
    world_size: int = 1  # number of ranks in the group
    members: tuple[int, ...] = (0,)  # for each place, the rank in the run
    clocks_shared: bool = True  # whether the timestamps of all ranks come from one clock
    process_group: Any = None  # torch.distributed's group of these ranks, if it is not the default one
    sums_in_pairs: bool = True  # whether `sum_` adds ranks by the tree of `sum_in_pairs`

    def __init__(self) -> None:
        # What `ddppo.records.timing` reads and clears after every iteration.
        self.records: list[CollectiveTiming] = []
        self.waits: list[Wait] = []
        self.sends: list[int] = []  # bytes of each message outside collectives

    # -- Making groups, before the first iteration.

    def subgroup(self, ranks: Sequence[int]) -> "Group | None":
        """Return the group of some of the run's ranks, in ascending order, the first its root. None on other ranks.

        All ranks of the run call it in the same order. Raises TrainingError if these ranks cannot form a group.
        """
        assert tuple(ranks) == self.members, f"ranks {ranks} of a run of one"
        return self

    def board(self) -> "Board":
        """Return a new board for all ranks. All ranks call it in the same order."""
        return Board()

    # -- The collectives. In the group of one rank every one is the identity.

    def sum_(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Replace `tensor` by its sum over ranks and return it."""
        return tensor

    def sum_call(self, dtype: "torch.dtype") -> SumCall | None:
        """Return a sum that C++ calls by itself; None if only `sum_` can add up these ranks' numbers.

        The caller in Python records the sums afterwards.
        """
        return None

    def gather(self, values: "torch.Tensor") -> "torch.Tensor":
        """Return every rank's `values` (on the CPU, of the same shape on all ranks) as `[W, ...]`, on every rank."""
        return values.unsqueeze(0)

    def gather_at_root(self, values: "torch.Tensor") -> "torch.Tensor | None":
        """Return every rank's `values` as `gather` does, but on rank 0 alone; other ranks send, and return None."""
        return values.unsqueeze(0)

    def broadcast_(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Replace `tensor` by rank 0's and return it."""
        return tensor

    def barrier(self) -> None:
        """Block until all ranks have called it. The body is empty because this group has one rank: W = 1."""

    # -- Bookkeeping.

    def begin(self, iteration: int) -> None:
        """Note the iteration that begins, for the error message of a rank that loses its peers."""

    def record(self, record: CollectiveTiming) -> None:
        """Note a collective that has ended."""
        self.records.append(record)

    @contextmanager
    def wait_for(self, role: str) -> Iterator[None]:
        """Record the time of the enclosed block as waiting for a role, outside collectives."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.waits.append(Wait(role, start, time.perf_counter()))

    def lost(self, what: str, waited_s: float) -> str:
        """Return the error message of a rank at which the collective `what` failed after `waited_s` seconds."""
        raise AssertionError("a group of one rank loses no peers")

    def close(self) -> None:
        """Leave the group."""


# -- A board: ranks post numbers on it without waiting for one another, and read it in their own memory.
#
# distributed=ddp_preempt reads it after every step of the environments, so reading must cost no more than a look at a
# few integers. Each rank posts ascending numbers: the numbers of its finished rollouts.

_CELL_BYTES = 8
# The store prints an error when a wait times out, and a rollout may take hours.
_FOREVER = timedelta(days=365)
_KEPT = 64  # most recent numbers that keep their keys in the store


class Board:
    """The board of a single rank, and the contract of the others."""

    def __init__(self, cells: np.ndarray | None = None, place: int = 0) -> None:
        self.cells = np.zeros(1, np.int64) if cells is None else cells  # `[n]`: posted numbers
        self._place = place  # the cell of this rank

    def begin(self, number: int, num_ranks: int) -> int:
        """Begin to watch whether `num_ranks` ranks have posted `number`, which is higher than all before.

        Returns how many cells hold at least `number` once they have. All ranks give the same arguments.
        """
        return num_ranks

    def post(self, number: int) -> None:
        """Tell all ranks that this rank has finished `number`."""
        self.cells[self._place] = number


class MemoryBoard(Board):
    """The board of ranks on one machine: one cell per rank, `[W]`, in a file that all ranks map."""

    def __init__(self, file: int, world_size: int, place: int) -> None:
        memory = mmap.mmap(file, board_bytes(world_size))  # the array keeps it alive
        super().__init__(np.frombuffer(memory, np.int64, world_size), place)


class StoreBoard(Board):
    """The board of ranks on several machines. It has one cell: the last number that enough ranks have posted.

    Posts are counted in the launcher's store. A thread of each rank waits there for the last post that is needed, and
    writes the cell, so that the step loop reads local memory here too.
    """

    def __init__(self, store: "dist.Store") -> None:
        super().__init__()
        self._store = store
        # A second connection: the thread's blocking wait would hold up every other use of the first one.
        self._listening = store.clone()  # type: ignore[attr-defined]
        self._number = self._num_ranks = 0
        self._has_begun = threading.Event()
        threading.Thread(target=self._listen, name="ddppo board", daemon=True).start()

    def begin(self, number: int, num_ranks: int) -> int:
        self._number, self._num_ranks = number, num_ranks
        self._has_begun.set()
        return 1

    def post(self, number: int) -> None:
        # The store's counter returns this rank's place in the order of posts.
        if self._store.add(_count_key(number), 1) != self._num_ranks:
            return
        # This post is the last one needed: wake the threads, then delete old keys, which nobody reads any more.
        self._store.set(_done_key(number), "")
        for key in (_count_key(number - _KEPT), _done_key(number - _KEPT)):
            self._store.delete_key(key)

    def _listen(self) -> None:
        """Write each number that enough ranks have posted into the cell, as long as the process lives."""
        import torch.distributed as dist

        with suppress(dist.DistError):  # the store is gone; ranks notice that in their next collective
            while True:
                self._has_begun.wait()
                self._has_begun.clear()
                while self.cells[0] < (number := self._number):
                    self._listening.wait([_done_key(number)], _FOREVER)
                    self.cells[0] = number


def board_bytes(world_size: int) -> int:
    return world_size * _CELL_BYTES


def _count_key(number: int) -> str:
    return f"ddppo/board/{number}"


def _done_key(number: int) -> str:
    return f"ddppo/board/{number}/enough"


# -- Sums with bits that do not depend on W (dist.reduction=ordered).
#
# The summands are V shards, for any W; each rank holds V / W consecutive ones. The order of additions follows from
# V alone, and an addition of two numbers has one result, so every W gives the same bits.


def sum_in_pairs(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of rows `[n, ...]` by a binary tree: 0 + 1, 2 + 3, ..., then these sums in pairs, and so on."""
    while len(rows) > 1:
        pairs = _pairs(rows)
        rows = pairs if len(rows) % 2 == 0 else torch.cat([pairs, rows[-1:]])
    return rows[0]


class OrderedSum:
    """Adds vectors `[n]` of V shards by the tree of `sum_in_pairs`.

    A rank adds the pairs that lie within its own shards. If V / W is a power of two, one vector of each rank is left,
    and the ranks' sum is the collective of dist.reduction=fast wherever that adds in pairs. Otherwise ranks gather what
    is left, and each finishes the tree.
    """

    def __init__(self, group: Group, num_shards: int, like: torch.Tensor) -> None:
        self.rows = like.new_zeros(num_shards, *like.shape)  # `[V / W, n]`: the vectors of this rank's shards
        # Whether this rank's shards are a whole part of the tree.
        self.is_one_per_rank = group.world_size == 1 or num_shards & (num_shards - 1) == 0
        self._group = group
        self._next = 0

    def sum_(self, vector: torch.Tensor) -> torch.Tensor:
        """Store the vector of this rank's next shard. For its last shard, replace `vector` by the sum of all shards."""
        self.rows[self._next].copy_(vector)
        self._next += 1
        if self._next == len(self.rows):
            self._next = 0
            if self.is_one_per_rank:
                vector.copy_(sum_in_pairs(self.rows))
            self.sum_ranks_(vector)
        return vector

    def sum_ranks_(self, vector: torch.Tensor) -> None:
        """Replace `vector` by the sum of all ranks' shards. It holds this rank's sum, if that is one vector."""
        if self.is_one_per_rank and self._group.sums_in_pairs:
            self._group.sum_(vector)
            return
        rows = vector.unsqueeze(0) if self.is_one_per_rank else self.rows
        # Add here as long as this rank's rows form whole pairs of the tree; with an odd number the last row's partner
        # is on the next rank.
        while len(rows) % 2 == 0:
            rows = _pairs(rows)
        vector.copy_(sum_in_pairs(self._group.gather(rows).flatten(0, 1)))


def _pairs(rows: torch.Tensor) -> torch.Tensor:
    last = len(rows) // 2 * 2
    return rows[0:last:2] + rows[1:last:2]


# -- Messages of unequal length.


def gather_bytes(
    group: Group, own: bytes, *, flag: bool = False, at_root: bool = False
) -> tuple[list[bytes], bool]:
    """Return the bytes of all ranks, and whether any rank has set `flag`. With `at_root`, other ranks than 0 return [].

    It is one gather of lengths and flags, and a second one of the padded bytes if any rank has some.
    """
    rows = group.gather(torch.tensor([len(own), flag])).tolist()
    sizes = [size for size, _ in rows]
    any_flag = any(is_set for _, is_set in rows)
    if not any(sizes):
        return [b""] * len(sizes), any_flag
    padded = torch.zeros(max(sizes), dtype=torch.uint8)
    padded.numpy()[: len(own)] = memoryview(own)
    gathered = group.gather_at_root(padded) if at_root else group.gather(padded)
    if gathered is None:
        return [], any_flag
    return [row[:size].tobytes() for row, size in zip(gathered.numpy(), sizes, strict=True)], any_flag
