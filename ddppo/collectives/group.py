"""What every group of ranks can do, and the group of one rank, for which each operation is the identity."""

import mmap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:  # what is compiled and imports no torch is in this package too
    import torch


class CollectiveTiming(NamedTuple):
    """One collective on this rank: seconds on this machine's monotonic clock.

    `hidden` is communication that ran while this rank computed (overlapped gradient sync), in seconds. num_bytes: that
    this rank handed over; None where nothing is handed over by anybody, as in a barrier, or nobody counts.
    """

    start: float
    end: float
    is_barrier: bool = False
    hidden: float = 0.0
    num_bytes: int | None = None


class Wait(NamedTuple):
    """Waiting outside collectives, for ranks or processes of `role`; times as in CollectiveTiming."""

    role: str
    start: float
    end: float


class SumCall(NamedTuple):
    """How C sums numbers over ranks in place: int begin(context, what, type, address, address, num_bytes), 0 if done.

    What else it returns `wait` takes, which returns when the sum is done, or raises CollectiveError.
    """

    begin: int
    context: int
    what: int
    type: int
    wait: Callable[[int], None]


class Group:
    """One rank, no communication.

    rank and world_size are this rank's place in the group and its size. members: the ranks of the run at its places.
    process_group: that of torch.distributed over its ranks, where it is another than the default one.
    """

    name: str = "none"  # of the collective
    rank: int = 0
    world_size: int = 1
    members: tuple[int, ...] = (0,)
    clocks_shared: bool = True
    process_group: Any = None

    def __init__(self) -> None:
        self.records: list[CollectiveTiming] = []
        self.waits: list[Wait] = []
        self.sends: list[int] = []  # bytes of each message outside collectives

    def subgroup(self, ranks: Sequence[int]) -> "Group | None":
        """Return the group of some of the run's ranks, ascending, the first its root; None for a rank outside.

        Every rank calls it, in the same order as all others. Raises TrainingError where they cannot meet so.
        """
        assert tuple(ranks) == self.members, f"ranks {ranks} of a run of one"
        return self

    def board(self) -> "Board":
        """Return a new board of all ranks, each of which calls it, in the same order as all others."""
        return Board()

    def sum_(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Replace `tensor` by its sum over ranks and return it."""
        return tensor

    def sum_call(self, dtype: "torch.dtype") -> SumCall | None:
        """Return how C sums without Python, and Python records it after; None where only `sum_` can."""
        return None

    def gather(self, values: "torch.Tensor") -> "torch.Tensor":
        """Return every rank's `values` (CPU, same shape on all ranks) as `[W, ...]`, on every rank."""
        return values.unsqueeze(0)

    def gather_at_root(self, values: "torch.Tensor") -> "torch.Tensor | None":
        """Return every rank's `values` as `gather` does, on rank 0; None on the others, which receive nothing."""
        return values.unsqueeze(0)

    def broadcast_(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Replace `tensor` by rank 0's and return it."""
        return tensor

    def barrier(self) -> None:
        """Wait until all ranks are here."""

    def begin(self, iteration: int) -> None:
        """Say which iteration begins, for the message of a rank that waits in vain."""

    def record(self, record: CollectiveTiming) -> None:
        """Note a collective that has ended."""
        self.records.append(record)

    @contextmanager
    def wait_for(self, role: str) -> Iterator[None]:
        """Note the enclosed time as waiting for a role, outside collectives."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.waits.append(Wait(role, start, time.perf_counter()))

    def lost(self, what: str, waited_s: float) -> str:
        """Return the message of a rank that waited in vain in the collective `what`."""
        raise AssertionError("one rank waits for nobody")

    def close(self) -> None:
        """Leave the group."""


# -- A board: what ranks post without waiting for one another, and each reads in its own memory.
#
# A step of an environment reads it, so it costs a look at some integers. Numbers only rise.


if TYPE_CHECKING:
    import torch.distributed as dist

_CELL_BYTES = 8
_FOREVER = timedelta(days=365)  # a wait that times out complains on stderr, and a rollout may take hours
_KEPT = 64  # numbers whose keys stay in the store


class Board:
    """That of one rank. cells `[n]`, int64, are what is known of posts: see `awaited`."""

    def __init__(self, cells: np.ndarray | None = None, place: int = 0) -> None:
        self.cells = np.zeros(1, np.int64) if cells is None else cells
        self._place = place

    def begin(self, number: int, num_ranks: int) -> int:
        """Ask of `number`, above all before, whether num_ranks have posted it; every rank asks the same.

        Returns how many cells are at least `number` once they have.
        """
        return num_ranks

    def post(self, number: int) -> None:
        """Tell all ranks that this one is done with `number`."""
        self.cells[self._place] = number


class MemoryBoard(Board):
    """That of ranks of one machine: a cell of each, `[W]`, in a file that all map."""

    def __init__(self, file: int, world_size: int, place: int) -> None:
        memory = mmap.mmap(file, board_bytes(world_size))  # which the array keeps
        super().__init__(np.frombuffer(memory, np.int64, world_size), place)


class StoreBoard(Board):
    """That of ranks of several machines: they count in a store, and a thread of each rank waits for the last of them.

    cells `[1]`: the last number that enough ranks have posted.
    """

    def __init__(self, store: "dist.Store") -> None:
        super().__init__()
        self._store = store
        self._listening = store.clone()  # type: ignore[attr-defined]  # a rank that waits keeps a connection to itself
        self._number = self._num_ranks = 0
        self._has_begun = threading.Event()
        threading.Thread(target=self._listen, name="ddppo board", daemon=True).start()

    def begin(self, number: int, num_ranks: int) -> int:
        self._number, self._num_ranks = number, num_ranks
        self._has_begun.set()
        return 1

    def post(self, number: int) -> None:
        if self._store.add(_count_of(number), 1) != self._num_ranks:
            return
        self._store.set(_word_of(number), "")
        for key in (_count_of(number - _KEPT), _word_of(number - _KEPT)):
            self._store.delete_key(key)

    def _listen(self) -> None:
        """Note each number that enough have posted, as long as the process lives."""
        import torch.distributed as dist

        with suppress(dist.DistError):  # the store is gone: ranks that wait for others notice
            while True:
                self._has_begun.wait()
                self._has_begun.clear()
                while self.cells[0] < (number := self._number):
                    self._listening.wait([_word_of(number)], _FOREVER)
                    self.cells[0] = number


def board_bytes(world_size: int) -> int:
    return world_size * _CELL_BYTES


def _count_of(number: int) -> str:
    return f"ddppo/board/{number}"


def _word_of(number: int) -> str:
    return f"ddppo/board/{number}/enough"


# -- Sums whose order of additions follows from the number of shards alone, whichever ranks hold them.


def sum_in_pairs(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of rows `[n, ...]`: 0 + 1, 2 + 3, ..., then these in pairs, until one is left.

    An addition of two numbers has one result, however many are added at once; so the bits follow from n.
    """
    while len(rows) > 1:
        pairs = _pairs(rows)
        rows = pairs if len(rows) % 2 == 0 else torch.cat([pairs, rows[-1:]])
    return rows[0]


class OrderedSum:
    """Adds up vectors `[n]` of V shards in pairs (`sum_in_pairs`), V / W of them on each rank, consecutive ones.

    A rank adds what pairs are its own before it gathers the rest: where V / W is a power of two, as many vectors travel
    as there are ranks. rows `[V / W, n]`: this rank's.
    """

    def __init__(self, group: Group, num_shards: int, like: torch.Tensor) -> None:
        self.rows = like.new_zeros(num_shards, *like.shape)
        self._group = group
        self._next = 0

    def sum_(self, vector: torch.Tensor) -> torch.Tensor:
        """Take the vector of this rank's next shard; of its last one, replace it by the sum over all shards."""
        self.rows[self._next].copy_(vector)
        self._next += 1
        if self._next == len(self.rows):
            self._next = 0
            self.finish_(vector)
        return vector

    def finish_(self, out: torch.Tensor) -> None:
        """Leave the sum of all ranks' rows in `out`."""
        rows = self.rows
        while len(rows) % 2 == 0:
            rows = _pairs(rows)
        out.copy_(sum_in_pairs(self._group.gather(rows).flatten(0, 1)))


def _pairs(rows: torch.Tensor) -> torch.Tensor:
    last = len(rows) // 2 * 2
    return rows[0:last:2] + rows[1:last:2]


def gather_bytes(
    group: Group, mine: bytes, *, asks: bool = False, at_root: bool = False
) -> tuple[list[bytes], bool]:
    """Return the bytes of all ranks, [] but on rank 0 if `at_root`, and whether any of them asks.

    A gather of sizes, then one of as much as the longest, where there is any.
    """
    heads = group.gather(torch.tensor([len(mine), asks])).tolist()
    sizes = [size for size, _ in heads]
    any_asks = any(asked for _, asked in heads)
    if not any(sizes):
        return [b""] * len(sizes), any_asks
    padded = torch.zeros(max(sizes), dtype=torch.uint8)
    padded.numpy()[: len(mine)] = memoryview(mine)
    rows = group.gather_at_root(padded) if at_root else group.gather(padded)
    if rows is None:
        return [], any_asks
    return [row[:size].tobytes() for row, size in zip(rows.numpy(), sizes, strict=True)], any_asks
